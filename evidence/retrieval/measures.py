"""Measures of a ranking against relevance judgements, and a paired test of two systems."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence, Set
from dataclasses import dataclass

import numpy as np

from hermes.sums import float_sum

__all__ = ["MEASURES", "PairedTest", "mrr", "ndcg", "paired_test", "recall"]


def recall(ranking: Sequence[int], relevant: Set[int], k: int) -> float:
    """Return the share of the relevant documents among the first k; of k if there are more than k, so that 1 is
    possible."""
    if not relevant:
        return 0.0
    return len(relevant & set(ranking[:k])) / min(k, len(relevant))


def mrr(ranking: Sequence[int], relevant: Set[int], k: int) -> float:
    """Return one over the rank of the first relevant document, or 0 if none is among the first k."""
    return next((1.0 / rank for rank, document in enumerate(ranking[:k], 1) if document in relevant), 0.0)


def ndcg(ranking: Sequence[int], relevant: Set[int], k: int) -> float:
    """Discounted cumulative gain of the first k (gain 1, discount log2(rank + 1)) over the best possible."""
    gain = float_sum(1.0 / math.log2(rank + 1) for rank, document in enumerate(ranking[:k], 1) if document in relevant)
    best = float_sum(1.0 / math.log2(rank + 1) for rank in range(1, min(k, len(relevant)) + 1))
    return gain / best if best else 0.0


MEASURES: Mapping[str, Callable[[Sequence[int], Set[int]], float]] = {
    "recall@10": lambda ranking, relevant: recall(ranking, relevant, 10),
    "recall@100": lambda ranking, relevant: recall(ranking, relevant, 100),
    "MRR@10": lambda ranking, relevant: mrr(ranking, relevant, 10),
    "nDCG@10": lambda ranking, relevant: ndcg(ranking, relevant, 10),
}


@dataclass(frozen=True)
class PairedTest:
    """Result of a paired test.

    Attributes:
        difference: Mean of a - b over queries.
        low, high: Its 95% interval.
        p: Two-sided p-value of no difference.
    """

    difference: float
    low: float
    high: float
    p: float


def paired_test(a: Sequence[float], b: Sequence[float]) -> PairedTest:
    """Paired t test of two systems over the same queries."""
    from scipy import stats

    difference = np.asarray(a, dtype=float) - np.asarray(b, dtype=float)
    if len(difference) < 2:
        raise ValueError(f"at least two queries: {len(difference)}")
    mean, error = float(difference.mean()), float(difference.std(ddof=1) / math.sqrt(len(difference)))
    if error == 0:
        return PairedTest(mean, mean, mean, 1.0 if mean == 0 else 0.0)
    reach = float(stats.t.ppf(0.975, len(difference) - 1)) * error
    p = 2 * float(stats.t.sf(abs(mean / error), len(difference) - 1))
    return PairedTest(mean, mean - reach, mean + reach, p)
