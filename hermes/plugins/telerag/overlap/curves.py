"""Overlap curves: mean overlap by prefetched clusters, from queries drawn from the model.

All draws come from a seed, and the numbers drawn do not depend on strength and bias: overlap is a smooth function of
both, and equal inputs give equal results.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from hermes.arrays import IntArray, log
from hermes.plugins.telerag.overlap.families import Family, Floats

__all__ = ["QUERIES", "Curve", "overlap_curve", "overlap_within", "rankings", "shared", "standardised"]

QUERIES = 96    # queries drawn: the standard error of a mean overlap is about half a point


@dataclass(frozen=True)
class Curve:
    """Mean overlap, shape (budgets, nprobes), 0..1: share of the probed clusters that were prefetched; and its standard
    error over the queries, of the same shape."""

    budgets: tuple[int, ...]
    nprobes: tuple[int, ...]
    overlap: Floats
    error: Floats


def standardised(sizes: IntArray) -> Floats:
    """Return the logarithms of the sizes with mean 0 and standard deviation 1; empty clusters count as the smallest."""
    logs = log(np.maximum(sizes, max(1, int(sizes[sizes > 0].min()))))
    spread = logs.std()
    return (logs - logs.mean()) / spread if spread > 0 else logs - logs.mean()   # type: ignore[no-any-return]


def rankings(
    family: Family, strength: float, bias: float, sizes: IntArray, *, queries: int = QUERIES, seed: int = 0,
) -> tuple[IntArray, IntArray]:
    """Return the clusters from near to far, for queries and their rewrites: two arrays of shape (queries, clusters)."""
    rng = np.random.default_rng([seed, len(sizes)])
    index = family.place(len(sizes), rng)
    added = bias * standardised(sizes)
    state = family.draw(queries, len(sizes), rng)
    rewritten = family.rewrite(state, strength, rng)
    return tuple(   # type: ignore[return-value]
        np.argsort(-family.scores(each, added, index), axis=1, kind="stable") for each in (state, rewritten)
    )


def shared(before: IntArray, after: IntArray, budgets: Sequence[int], nprobes: Sequence[int]) -> Curve:
    """Return the overlap of two rankings of the same clusters, measured or drawn, of shape (queries, clusters) each."""
    rank = np.empty_like(before)
    np.put_along_axis(rank, before, np.broadcast_to(np.arange(before.shape[1]), before.shape), axis=1)
    found = np.take_along_axis(rank, after, axis=1)   # the query's rank of the rewrite's i-th cluster
    each = np.array([[(found[:, :p] < k).mean(axis=1) for p in nprobes] for k in budgets])   # budget, nprobe, query
    error = each.std(axis=2, ddof=min(1, len(before) - 1)) / np.sqrt(len(before))
    return Curve(tuple(budgets), tuple(nprobes), each.mean(axis=2), error)


def overlap_curve(
    family: Family, strength: float, bias: float, sizes: IntArray, budgets: Sequence[int], nprobes: Sequence[int], *,
    queries: int = QUERIES, seed: int = 0,
) -> Curve:
    """Return the mean overlap for numbers of prefetched clusters and nprobes."""
    return shared(*rankings(family, strength, bias, sizes, queries=queries, seed=seed), budgets, nprobes)


def overlap_within(
    family: Family, strength: float, bias: float, sizes: IntArray, budget_bytes: int, nprobe: int, *,
    queries: int = QUERIES, seed: int = 0,
) -> tuple[float, float, float]:
    """Return means for a byte budget: (share of the clusters, share of their bytes, clusters prefetched)."""
    before, after = rankings(family, strength, bias, sizes, queries=queries, seed=seed)
    held = np.cumsum(sizes[before], axis=1) <= budget_bytes
    inside = np.zeros(before.shape, dtype=bool)
    np.put_along_axis(inside, before, held, axis=1)
    probed = after[:, :nprobe]
    hit, size = np.take_along_axis(inside, probed, axis=1), sizes[probed]
    return float(hit.mean()), float((hit * size).sum() / size.sum()), float(held.sum(axis=1).mean())
