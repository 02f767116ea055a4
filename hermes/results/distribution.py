"""Exact statistics of a pooled sample whose values have integer weights.

Pooled inter-token latencies need it: 10^6 requests of 200 tokens have 2*10^8 gaps, but no more distinct values than
there were steps. A value of weight w counts as w equal values. The quantiles are those of the expanded sample with
linear interpolation (numpy's default method), computed without expanding it.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import numpy.typing as npt

from hermes.arrays import FloatArray, IntArray

__all__ = ["QUANTILES", "Distribution", "WeightedSample"]


QUANTILES = (50, 90, 95, 99)


class Distribution:
    """A sorted sample.

    Args:
        values: Integers (nanoseconds) or floats, shape (n,); NaNs are left out.
        weights: Integer weight of each value, shape (n,), at least 1; None for 1 each.
        divisor: Divisor of every statistic (1e9 for values in nanoseconds and statistics in seconds).
    """

    def __init__(
        self, values: npt.NDArray[Any], weights: npt.NDArray[np.integer] | None = None, *, divisor: float = 1.0
    ) -> None:
        if values.dtype.kind == "f":
            keep = ~np.isnan(values)
            if not keep.all():
                values, weights = values[keep], None if weights is None else weights[keep]
        self._upto: IntArray | None = None  # cumulative weights
        if weights is None:
            self._values = np.sort(values)
            self.count, self._total = len(values), float(values.sum())
        else:
            self.count, self._total = int(weights.sum()), float(np.dot(values, weights))  # exact for integers
            order = np.argsort(values)
            self._values = values[order]
            del values   # a long run has millions
            weights = weights[order]
            del order
            self._upto = np.cumsum(weights, dtype=np.int64)
        self._divisor = divisor

    def _at(self, rank: IntArray) -> FloatArray:
        """Return the values at 0-based ranks of the expanded sample."""
        index = rank if self._upto is None else np.searchsorted(self._upto, rank, side="right")
        return self._values[index].astype(np.float64)

    def percentiles(self, percents: Sequence[float]) -> FloatArray:
        """Return percentiles (0 to 100), shape (len(percents),), nondecreasing in the percent; NaN for no sample."""
        if self.count == 0:
            return np.full(len(percents), np.nan)
        position = np.asarray(percents, dtype=np.float64) * (self.count - 1) / 100
        low = np.floor(position).astype(np.int64)
        below, above = self._at(low), self._at(np.minimum(low + 1, self.count - 1))
        return np.minimum(below + (above - below) * (position - low), above) / self._divisor

    @property
    def mean(self) -> float:
        """Arithmetic mean, never outside [min, max] through rounding; NaN for an empty sample."""
        if self.count == 0:
            return float("nan")
        return min(max(self._total / self.count, float(self._values[0])), float(self._values[-1])) / self._divisor

    def share_up_to(self, limit: float) -> float:
        """Return the share of the sample up to `limit` (in units of the statistics); NaN for an empty sample."""
        if self.count == 0:
            return float("nan")
        index = int(np.searchsorted(self._values / self._divisor, limit, side="right"))
        if self._upto is None:
            return index / self.count
        return (int(self._upto[index - 1]) if index else 0) / self.count

    def cdf(self, points: int = 500) -> tuple[FloatArray, FloatArray]:
        """Return at most `points` quantiles for plotting: (values, cumulative shares), both shape (<= points,)."""
        share = np.linspace(0.0, 1.0, min(points, max(self.count, 2)))
        return self.percentiles((share * 100).tolist()), share

    def stats(self) -> dict[str, Any]:
        """Return `{count, mean, p50, p90, p95, p99, min, max}`, None for an empty sample."""
        out: dict[str, Any] = {"count": self.count}
        names = ["mean", *(f"p{q}" for q in QUANTILES), "min", "max"]
        if self.count == 0:
            return out | dict.fromkeys(names)
        low, high = self._values[0] / self._divisor, self._values[-1] / self._divisor
        return out | dict(zip(names, map(float, (self.mean, *self.percentiles(QUANTILES), low, high)), strict=True))


class WeightedSample:
    """A sample of integers with weights, collected in parts, in which equal values of a part are kept once.

    A part is sorted in place with its weights in the low bits, which takes a third of the memory of sorting both by an
    index. The statistics are those of all values and weights.
    """

    def __init__(self, *, divisor: float) -> None:
        self._divisor = divisor
        self._values: list[IntArray] = []
        self._weights: list[IntArray] = []

    def add(self, values: IntArray, weights: IntArray | None = None) -> None:
        """Add integers, shape (n,), with weights of at least 1 (None: 1 each)."""
        if not len(values):
            return
        weights = np.ones(len(values), dtype=np.int64) if weights is None else weights
        bits = int(weights.max()).bit_length()
        if bits + int(np.abs(values).max()).bit_length() > 62:   # too large to pack
            self._values.append(values)
            self._weights.append(weights)
            return
        packed = (values << bits) | weights
        packed.sort()
        upto = np.cumsum(packed & ((1 << bits) - 1))
        packed >>= bits
        last = np.append(np.flatnonzero(packed[1:] != packed[:-1]), len(packed) - 1)
        self._values.append(packed[last])
        self._weights.append(np.diff(upto[last], prepend=0))

    def distribution(self) -> Distribution:
        """Return the distribution of all parts. Empties the sample."""
        def joined(parts: list[IntArray]) -> IntArray:
            out = np.concatenate([np.empty(0, dtype=np.int64), *parts])
            parts.clear()
            return out

        return Distribution(joined(self._values), joined(self._weights), divisor=self._divisor)
