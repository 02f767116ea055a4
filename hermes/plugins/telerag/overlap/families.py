"""Families of perturbation: how a rewrite changes a query's ranking of the clusters.

A family defines the *state* of a query (its ranking follows from it), draws states, and perturbs them by a strength.
Larger scores are nearer; `bias` is added to the scores of large clusters, since queries fall near these more often.
States are arrays with a query per row, so that many are drawn at once.

    gaussian   scores are normal; a rewrite keeps a correlation of 1 - strength with them. An inner product with many
               independent dimensions gives this: the query turns by an angle.
    noise      scores are Gumbel's (the nearest clusters stand far out: Plackett-Luce); a rewrite adds normal noise of
               that standard deviation. Rankings change by a factor of the rank, at every rank.
    redraw     a rewrite draws a share of the scores anew: kept clusters stay near, the others may be anywhere.
    moved      clusters are points in a few dimensions; so is a query, and a rewrite moves it. The next clusters in
               distance come in, so that a larger budget catches most of them.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from hermes.arrays import FloatArray, exp
from hermes.config import Registry
from hermes.errors import InputError

__all__ = ["FAMILIES", "Family", "Gaussian", "Moved", "Noise", "Redraw", "make_family"]

Floats = FloatArray

_STRATIFIED = 32    # fewest queries for strata

FAMILIES: Registry[Any] = Registry("overlap_families", "a family of perturbations")


class Family:
    """Base of the families. Made without arguments other than those of `shape`, which are structure, not strength.

    Args:
        spread: Log-normal sigma of the strength from query to query (mean as given); 0: all equal.
    """

    strongest = 1.0
    """Largest meaningful strength."""
    shape: tuple[str, ...] = ("spread",)
    reach: int | None = None
    """Clusters that a ranking names; None: all of them."""

    def __init__(self, spread: float = 0.0) -> None:
        if not 0 <= spread <= 5:
            raise InputError("between 0 and 5", spread, field="spread")
        self.spread = spread

    def place(self, clusters: int, rng: np.random.Generator) -> Any:
        """Return the random parts of the index itself; most families have none."""
        return None

    def draw(self, queries: int, clusters: int, rng: np.random.Generator) -> Floats:
        """Return the states of new queries, one per row."""
        raise NotImplementedError

    def rewrite(self, state: Floats, strength: float, rng: np.random.Generator) -> Floats:
        """Return the states of their rewrites. The numbers drawn do not depend on `strength`."""
        raise NotImplementedError

    def first(self, number: int, clusters: int, rng: np.random.Generator) -> Floats:
        """Return the state of the simulation's query `number`, shape (1, ...)."""
        return self.draw(1, clusters, rng)

    def rewrites(self, state: Floats, strength: float, count: int, rng: np.random.Generator) -> list[Floats]:
        """Return the states of `count` rewrites of one query."""
        return [self.rewrite(state, strength, rng) for _ in range(count)]

    def scores(self, state: Floats, bias: Floats, index: Any) -> Floats:
        """Shape (queries, clusters); the nearest cluster has the largest score."""
        return state + bias

    def strengths(self, strength: float, queries: int, rng: np.random.Generator) -> Floats:
        """Return the strength of each query, shape (queries, 1)."""
        normal = _normals(queries, rng)[:, None]
        each = strength * exp(self.spread * normal - self.spread**2 / 2)
        return np.minimum(each, self.strongest)


def _normals(count: int, rng: np.random.Generator) -> Floats:
    """Return normal numbers. Many of them are drawn one from each of `count` equally likely strata, in random order, so
    that means over queries vary little with the seed."""
    if count < _STRATIFIED:
        return rng.standard_normal(count)
    from scipy.special import ndtri

    strata: Floats = ndtri((rng.permutation(count) + rng.random(count)) / count)
    return strata


@FAMILIES.register("gaussian")
class Gaussian(Family):
    """Normal scores; a rewrite keeps a correlation."""

    def draw(self, queries: int, clusters: int, rng: np.random.Generator) -> Floats:
        return rng.standard_normal((queries, clusters))

    def rewrite(self, state: Floats, strength: float, rng: np.random.Generator) -> Floats:
        kept = 1 - self.strengths(strength, len(state), rng)
        return kept * state + np.sqrt(1 - kept**2) * rng.standard_normal(state.shape)


@FAMILIES.register("noise")
class Noise(Family):
    """Gumbel scores and normal noise."""

    strongest = 30.0

    def draw(self, queries: int, clusters: int, rng: np.random.Generator) -> Floats:
        return rng.gumbel(size=(queries, clusters))

    def rewrite(self, state: Floats, strength: float, rng: np.random.Generator) -> Floats:
        return state + self.strengths(strength, len(state), rng) * rng.standard_normal(state.shape)


@FAMILIES.register("redraw")
class Redraw(Family):
    """A share of the scores is drawn anew."""

    def draw(self, queries: int, clusters: int, rng: np.random.Generator) -> Floats:
        return rng.standard_normal((queries, clusters))

    def rewrite(self, state: Floats, strength: float, rng: np.random.Generator) -> Floats:
        anew = rng.random(state.shape) < self.strengths(strength, len(state), rng)
        return np.where(anew, rng.standard_normal(state.shape), state)


@FAMILIES.register("moved")
class Moved(Family):
    """Points in a few dimensions; a rewrite turns the query by an angle of `strength` quarter turns."""

    shape = ("spread", "dimensions")

    def __init__(self, spread: float = 0.0, dimensions: int = 8) -> None:
        super().__init__(spread)
        if not 1 <= dimensions <= 1024:
            raise InputError("between 1 and 1024", dimensions, field="dimensions")
        self.dimensions = int(dimensions)

    def place(self, clusters: int, rng: np.random.Generator) -> Floats:
        return rng.standard_normal((clusters, self.dimensions))

    def draw(self, queries: int, clusters: int, rng: np.random.Generator) -> Floats:
        return rng.standard_normal((queries, self.dimensions))

    def rewrite(self, state: Floats, strength: float, rng: np.random.Generator) -> Floats:
        angle = self.strengths(strength, len(state), rng) * np.pi / 2
        return np.cos(angle) * state + np.sin(angle) * rng.standard_normal(state.shape)

    def scores(self, state: Floats, bias: Floats, index: Any) -> Floats:
        squared = (index**2).sum(1) - 2 * state @ index.T    # the query's own square shifts all scores equally
        scores: Floats = bias - squared / np.sqrt(2 * self.dimensions)   # variance of order one, as in other families
        return scores


def make_family(name: str, **shape: float) -> Family:
    """Return a family by name. Raises `InputError` for an unknown one, or an unknown shape."""
    cls = FAMILIES.get(name)
    for key in shape:
        if key not in cls.shape:
            raise InputError(f"one of {', '.join(cls.shape)}", key, field=f"{name}")
    made: Family = cls(**shape)
    return made
