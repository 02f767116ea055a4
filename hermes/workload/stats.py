"""Statistics of requests: counts, burstiness, quantiles, rank correlation."""

from __future__ import annotations

from typing import Any

import numpy as np

from hermes.arrays import FloatArray, IntArray

__all__ = ["describe_arrivals", "describe_counts", "spearman"]

_QUANTILES = {"min": 0.0, "p1": 0.01, "p10": 0.1, "p50": 0.5, "p90": 0.9, "p99": 0.99, "max": 1.0}


def spearman(x: IntArray | FloatArray, y: IntArray | FloatArray) -> float | None:
    """Return Spearman's rank correlation, ties at their mean rank; None if undefined."""
    if len(x) < 2 or np.ptp(x) == 0 or np.ptp(y) == 0:
        return None
    return float(np.corrcoef(_mean_ranks(x), _mean_ranks(y))[0, 1])


def _mean_ranks(x: IntArray | FloatArray) -> FloatArray:
    _, group, sizes = np.unique(x, return_inverse=True, return_counts=True)
    ranks: FloatArray = np.cumsum(sizes) - (sizes - 1) / 2.0
    return ranks[group]


def describe_counts(tokens: IntArray) -> dict[str, Any]:
    """Return mean, standard deviation, total and quantiles (linear interpolation) of token counts."""
    if not len(tokens):
        return {"total": 0}
    quantiles = np.quantile(tokens, list(_QUANTILES.values()))
    return {
        "mean": float(tokens.mean()), "std": float(tokens.std()), "total": int(tokens.sum()),
        **{name: float(value) for name, value in zip(_QUANTILES, quantiles, strict=True)},
    }


def describe_arrivals(arrival_s: FloatArray) -> dict[str, Any]:
    """Return duration, rate (gaps per second) and coefficient of variation of the gaps; None if undefined."""
    gaps = np.diff(arrival_s)
    span = float(gaps.sum())
    return {
        "first_s": float(arrival_s[0]) if len(arrival_s) else None,
        "duration_s": span,
        "rate_per_s": len(gaps) / span if span > 0 else None,
        "interarrival_cv": float(gaps.std() / gaps.mean()) if span > 0 else None,
    }
