"""Exact statistics of a pooled sample whose values come with integer weights.

Pooled inter-token latencies are the reason: 10^6 requests of 200 tokens have 2*10^8 gaps, but no more distinct values
than there were steps. A value with weight w counts as w equal values; the quantiles are those of the expanded sample
with linear interpolation (numpy's default method), computed without expanding it.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import numpy.typing as npt

__all__ = ["QUANTILES", "Distribution"]

FloatArray = npt.NDArray[np.float64]

QUANTILES = (50, 90, 95, 99)


class Distribution:
    """A sorted sample.

    values: integers (nanoseconds) or floats, shape (n,); NaNs are left out
    weights: how often each value counts, integers, shape (n,), each at least 1; None for once each
    divisor: every statistic is divided by it (1e9 for values in nanoseconds, answers in seconds)
    """

    def __init__(
        self, values: npt.NDArray[Any], weights: npt.NDArray[np.integer] | None = None, *, divisor: float = 1.0
    ) -> None:
        if values.dtype.kind == "f":
            keep = ~np.isnan(values)
            if not keep.all():
                values, weights = values[keep], None if weights is None else weights[keep]
        self._upto: npt.NDArray[np.int64] | None = None  # cumulative weights
        if weights is None:
            self._values = np.sort(values)
            self.count, self._total = len(values), float(values.sum())
        else:
            self.count, self._total = int(weights.sum()), float(np.dot(values, weights))  # exact for integers
            order = np.argsort(values)
            self._values, self._upto = values[order], np.cumsum(weights[order], dtype=np.int64)
        self._divisor = divisor

    def _at(self, rank: npt.NDArray[np.int64]) -> FloatArray:
        """The values at 0-based ranks of the expanded sample."""
        index = rank if self._upto is None else np.searchsorted(self._upto, rank, side="right")
        return self._values[index].astype(np.float64)

    def percentiles(self, percents: Sequence[float]) -> FloatArray:
        """Percentiles (0 to 100), shape (len(percents),); NaN for an empty sample. Nondecreasing in the percent."""
        if self.count == 0:
            return np.full(len(percents), np.nan)
        position = np.asarray(percents, dtype=np.float64) * (self.count - 1) / 100
        low = np.floor(position).astype(np.int64)
        below, above = self._at(low), self._at(np.minimum(low + 1, self.count - 1))
        return np.minimum(below + (above - below) * (position - low), above) / self._divisor

    @property
    def mean(self) -> float:
        """Arithmetic mean, NaN for an empty sample. Never outside [min, max], whatever the rounding."""
        if self.count == 0:
            return float("nan")
        return min(max(self._total / self.count, float(self._values[0])), float(self._values[-1])) / self._divisor

    def share_up_to(self, limit: float) -> float:
        """The share of the sample that is at most `limit` (in answer units); NaN for an empty sample."""
        if self.count == 0:
            return float("nan")
        index = int(np.searchsorted(self._values / self._divisor, limit, side="right"))
        if self._upto is None:
            return index / self.count
        return (int(self._upto[index - 1]) if index else 0) / self.count

    def cdf(self, points: int = 500) -> tuple[FloatArray, FloatArray]:
        """At most `points` quantiles for plotting: (values, cumulative shares), both shape (<= points,)."""
        share = np.linspace(0.0, 1.0, min(points, max(self.count, 2)))
        return self.percentiles((share * 100).tolist()), share

    def stats(self) -> dict[str, Any]:
        """`{count, mean, p50, p90, p95, p99, min, max}`, None where the sample is empty."""
        out: dict[str, Any] = {"count": self.count}
        names = ["mean", *(f"p{q}" for q in QUANTILES), "min", "max"]
        if self.count == 0:
            return out | dict.fromkeys(names)
        low, high = self._values[0] / self._divisor, self._values[-1] / self._divisor
        return out | dict(zip(names, map(float, (self.mean, *self.percentiles(QUANTILES), low, high)), strict=True))
