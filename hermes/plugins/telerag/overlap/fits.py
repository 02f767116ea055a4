"""Fits of the overlap model: bias to large clusters, strength of rewrites, and its spread.

The fits only separate clusters on either side of a rank, which is several times faster than sorting them all.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np

from hermes.arrays import IntArray
from hermes.errors import InputError
from hermes.plugins.telerag.overlap.curves import QUERIES, standardised
from hermes.plugins.telerag.overlap.families import Family, Floats, make_family

__all__ = ["WIDEST", "fit_bias", "fit_strength", "fit_strength_and_spread"]

WIDEST = 3.0    # log-normal sigma of the strengths: a factor of 20 on either side
_STEPS = 16     # steps of a bisection
_SPREAD_STEPS = 8


def _nearest(scores: Floats, count: int) -> IntArray:
    """Return the `count` clusters of the largest scores, unordered."""
    if count >= scores.shape[1]:
        return np.broadcast_to(np.arange(scores.shape[1]), scores.shape)
    return np.argpartition(-scores, count - 1, axis=1)[:, :count]


class _Drawn:
    """Queries drawn once; `overlap` draws the same rewrites for any strength."""

    def __init__(self, family: Family, bias: float, sizes: IntArray, queries: int, seed: int) -> None:
        rng = np.random.default_rng([seed, len(sizes)])    # in the order of `rankings`
        self.family, self.index = family, family.place(len(sizes), rng)
        self.added = bias * standardised(sizes)
        self.state = family.draw(queries, len(sizes), rng)
        self.rng_state = rng.bit_generator.state
        self.rng = rng
        self.scores = family.scores(self.state, self.added, self.index)
        self._rewritten: tuple[float, Floats] | None = None

    def held(self, budget: int) -> np.ndarray[Any, Any]:
        """Return which clusters are prefetched, a row per query."""
        inside = np.zeros(self.scores.shape, dtype=bool)
        np.put_along_axis(inside, _nearest(self.scores, budget), True, axis=1)
        return inside

    def overlap(self, strength: float, held: np.ndarray[Any, Any], nprobe: int) -> float:
        """Return the mean share of the probed clusters that are prefetched."""
        if self._rewritten is None or self._rewritten[0] != strength:
            self.rng.bit_generator.state = self.rng_state
            rewritten = self.family.rewrite(self.state, strength, self.rng)
            self._rewritten = strength, self.family.scores(rewritten, self.added, self.index)
        return float(np.take_along_axis(held, _nearest(self._rewritten[1], nprobe), axis=1).mean())


def _bisect(value: Callable[[float], float], target: float, low: float, high: float, what: str,
            sign: int = 1) -> float:
    """Return where a falling function reaches `target`. Raises `InputError` if it does not; `sign` is its figures'."""
    if not value(high) <= target <= value(low):
        least, most = sorted((sign * value(high), sign * value(low)))
        raise InputError(f"{what} between {least:.4g} and {most:.4g}", round(sign * target, 6))
    for _ in range(_STEPS):
        middle = (low + high) / 2
        low, high = (middle, high) if value(middle) > target else (low, middle)
    return (low + high) / 2


def fit_strength(
    family: Family, target: float, bias: float, sizes: IntArray, budget: int, nprobe: int, *, queries: int = QUERIES,
    seed: int = 0,
) -> float:
    """Return the strength at which `budget` prefetched clusters hold the share `target` of `nprobe` probed ones."""
    return _strength(_Drawn(family, bias, sizes, queries, seed), target, budget, nprobe)


def _strength(drawn: _Drawn, target: float, budget: int, nprobe: int) -> float:
    held = drawn.held(budget)
    return _bisect(lambda s: drawn.overlap(s, held, nprobe), target, 0.0, drawn.family.strongest, "an overlap")


def fit_strength_and_spread(
    name: str, shape: dict[str, float], cells: tuple[tuple[int, float], tuple[int, float]], nprobe: int, bias: float,
    sizes: IntArray, *, queries: int = QUERIES, seed: int = 0,
) -> tuple[float, float]:
    """Return (strength, spread) of rewrites, from two overlaps at one nprobe.

    Args:
        cells: (prefetched clusters, overlap) twice, the smaller number first.

    With the first overlap given, the second falls as the strengths spread: a few rewrites leave the neighbourhood for
    good. Spread is 0 if even equal strengths fall short of the second, and at most `WIDEST`. Raises `InputError` if no
    strength gives the first.
    """
    (budget, target), (wider, second) = cells

    def at(spread: float) -> tuple[float, float]:
        drawn = _Drawn(make_family(name, **{**shape, "spread": spread}), bias, sizes, queries, seed)
        strength = _strength(drawn, target, budget, nprobe)
        return strength, drawn.overlap(strength, drawn.held(wider), nprobe)

    def too_equal(spread: float) -> bool:
        try:
            return at(spread)[1] > second
        except InputError:      # so unequal that most rewrites reach the largest strength
            return False

    strength, equal = at(0.0)
    if equal <= second:
        return strength, 0.0
    low, high = 0.0, WIDEST
    for _ in range(_SPREAD_STEPS):
        middle = (low + high) / 2
        low, high = (middle, high) if too_equal(middle) else (low, middle)
    return at(low)[0], low


def fit_bias(
    family: Family, sizes: IntArray, probed_bytes: float, nprobe: int, *, queries: int = QUERIES, seed: int = 0,
) -> float:
    """Return the bias at which the `nprobe` probed clusters have this many bytes each on average."""
    rng = np.random.default_rng([seed, len(sizes)])
    index = family.place(len(sizes), rng)
    state, unit = family.draw(queries, len(sizes), rng), standardised(sizes)

    def at(bias: float) -> float:
        return -float(sizes[_nearest(family.scores(state, bias * unit, index), nprobe)].mean())

    return _bisect(at, -probed_bytes, -5.0, 5.0, "bytes of a probed cluster", sign=-1)
