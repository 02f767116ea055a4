"""Overlap as a function of what was prefetched, by drawing queries from the model; fits of its two numbers.

All draws come from a seed, and the numbers drawn do not depend on strength and bias: overlap is a smooth function of
both, and equal inputs give equal results.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np

from hermes.errors import InputError
from hermes.overlap.families import Family, Floats
from hermes.overlap.sizes import Ints

__all__ = ["Curve", "fit_bias", "fit_strength", "overlap_curve", "overlap_within", "rankings", "shared", "standardised"]

QUERIES = 96    # drawn for a mean overlap: its standard error is about half a point
_STEPS = 16     # of a bisection


@dataclass(frozen=True)
class Curve:
    """Mean overlap, shape (budgets, nprobes), 0..1: share of the probed clusters that were prefetched."""

    budgets: tuple[int, ...]
    nprobes: tuple[int, ...]
    overlap: Floats


def standardised(sizes: Ints) -> Floats:
    """Logarithms of the sizes with mean 0 and standard deviation 1; empty clusters count as the smallest."""
    logs = np.log(np.maximum(sizes, max(1, int(sizes[sizes > 0].min()))))
    spread = logs.std()
    return (logs - logs.mean()) / spread if spread > 0 else logs - logs.mean()   # type: ignore[no-any-return]


def rankings(
    family: Family, strength: float, bias: float, sizes: Ints, *, queries: int = QUERIES, seed: int = 0,
) -> tuple[Ints, Ints]:
    """Clusters from near to far, for queries and for their rewrites: two arrays of shape (queries, clusters)."""
    rng = np.random.default_rng([seed, len(sizes)])
    index = family.place(len(sizes), rng)
    added = bias * standardised(sizes)
    state = family.draw(queries, len(sizes), rng)
    rewritten = family.rewrite(state, strength, rng)
    return tuple(   # type: ignore[return-value]
        np.argsort(-family.scores(each, added, index), axis=1, kind="stable") for each in (state, rewritten)
    )


def shared(before: Ints, after: Ints, budgets: Sequence[int], nprobes: Sequence[int]) -> Curve:
    """Overlap of two rankings of the same clusters, of shape (queries, clusters) each: measured ones or drawn ones."""
    rank = np.empty_like(before)
    np.put_along_axis(rank, before, np.broadcast_to(np.arange(before.shape[1]), before.shape), axis=1)
    found = np.take_along_axis(rank, after, axis=1)   # rank for the query of what its rewrite ranks i-th
    overlap = np.array([[(found[:, :p] < k).mean() for p in nprobes] for k in budgets])
    return Curve(tuple(budgets), tuple(nprobes), overlap)


def overlap_curve(
    family: Family, strength: float, bias: float, sizes: Ints, budgets: Sequence[int], nprobes: Sequence[int], *,
    queries: int = QUERIES, seed: int = 0,
) -> Curve:
    """Mean overlap for numbers of prefetched clusters and nprobes."""
    return shared(*rankings(family, strength, bias, sizes, queries=queries, seed=seed), budgets, nprobes)


def overlap_within(
    family: Family, strength: float, bias: float, sizes: Ints, budget_bytes: int, nprobe: int, *,
    queries: int = QUERIES, seed: int = 0,
) -> tuple[float, float, float]:
    """What a byte budget catches: (share of the clusters, share of their bytes, clusters prefetched), means."""
    before, after = rankings(family, strength, bias, sizes, queries=queries, seed=seed)
    held = np.cumsum(sizes[before], axis=1) <= budget_bytes
    inside = np.zeros(before.shape, dtype=bool)
    np.put_along_axis(inside, before, held, axis=1)
    probed = after[:, :nprobe]
    hit, size = np.take_along_axis(inside, probed, axis=1), sizes[probed]
    return float(hit.mean()), float((hit * size).sum() / size.sum()), float(held.sum(axis=1).mean())


def _bisect(value: Callable[[float], float], target: float, low: float, high: float, what: str) -> float:
    """Where a falling function reaches `target`. `InputError` where it does not."""
    if not value(high) <= target <= value(low):
        raise InputError(f"{what} between {value(high):.4g} and {value(low):.4g}", round(target, 6))
    for _ in range(_STEPS):
        middle = (low + high) / 2
        low, high = (middle, high) if value(middle) > target else (low, middle)
    return (low + high) / 2


def fit_strength(
    family: Family, target: float, bias: float, sizes: Ints, budget: int, nprobe: int, *, queries: int = QUERIES,
    seed: int = 0,
) -> float:
    """The strength at which `budget` prefetched clusters hold the share `target` of `nprobe` probed ones."""
    def at(strength: float) -> float:
        drawn = rankings(family, strength, bias, sizes, queries=queries, seed=seed)
        return float(shared(*drawn, [budget], [nprobe]).overlap[0, 0])

    return _bisect(at, target, 0.0, family.strongest, "an overlap")


def fit_bias(
    family: Family, sizes: Ints, probed_bytes: float, nprobe: int, *, queries: int = QUERIES, seed: int = 0,
) -> float:
    """The bias at which the `nprobe` probed clusters have so many bytes each on average."""
    def at(bias: float) -> float:
        before, _ = rankings(family, 0.0, bias, sizes, queries=queries, seed=seed)
        return -float(sizes[before[:, :nprobe]].mean())

    return _bisect(at, -probed_bytes, -5.0, 5.0, "minus bytes of a probed cluster")
