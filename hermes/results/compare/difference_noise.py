"""Noise of a difference between two runs: how far another seed could move it, from the two runs alone.

Requests of a run are not independent: neighbours share a queue and a batch. The requests, in order of arrival, are cut
into blocks that are longer than this dependence: at least 3 mean E2E (of conversations: their mean length), and 2
correlation times (the integrated autocorrelation of the statistic, over 100 slots). The blocks are then nearly
independent, and their spread gives the 95% interval (batch means; Student's t).

A percentile enters by the share of requests beyond it. The spread of that share over the blocks, times the distance
between the values at both ends of its interval, is the spread of the percentile. If both runs serve the same requests,
they are cut alike and their blocks are subtracted: what the requests have in common cancels.

Fewer than five blocks, fewer than 100 requests, or a percentile that a single block decides: one seed says too little,
and the noise is unknown. So it is where a run has not settled (`hermes.results.figures.settling`), as its queue may
depend on the run's length; the caller checks that.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np

from hermes.arrays import FloatArray, IntArray
from hermes.core.noise import t_quantile
from hermes.results.figures.steady import MIN_REQUESTS

__all__ = ["noise_s"]


SLOTS = 100                 # of the autocorrelation
MOST, FEWEST = 20, 5        # blocks
STAYS, CORRELATIONS = 3, 2  # mean stays, and correlation times, of a block
NEAREST = 0.25              # of the share beyond a percentile: the values above it are too few to go by
ONE_BLOCK = 2.0             # half-width of a share, over the share, from which on one block decides


@dataclass(frozen=True)
class _Estimate:
    """A mean, or the share of requests beyond a percentile, and what each request adds to it.

    Attributes:
        values: Known values in seconds.
        beyond: Share of the requests beyond the percentile; None for a mean.
        parts: What each request adds to the deviation from the mean or the share, shape (requests,).
    """

    values: FloatArray
    beyond: float | None
    parts: FloatArray

    def slope(self, half: float) -> float:
        """Return the change of the statistic by that of the share, in the interval of +/- `half` around it."""
        if self.beyond is None:
            return 1.0
        low = min(self.beyond + half, 1.0)
        high = max(self.beyond - half, NEAREST * self.beyond)
        from_s, to_s = np.percentile(self.values, [100 * (1 - low), 100 * (1 - high)])
        return float(to_s - from_s) / max(low - high, 1e-12)


def noise_s(
    ours: FloatArray, theirs: FloatArray, arrivals: tuple[FloatArray, FloatArray], stat: str, *, same: bool,
    stays_s: tuple[float, float] = (0.0, 0.0),
) -> float | None:
    """Return the half-width of the 95% interval of a difference in seconds; None if it is unknown.

    Args:
        ours, theirs: Latency of each request, NaN for none, shape (requests,).
        arrivals: Arrival of each request of both, in seconds.
        stat: "mean", or a percentile: "p99".
        same: Whether both have the same requests, by number.
        stays_s: Mean E2E of both in seconds; mean length of the conversations, if requests belong to such.
    """
    if min(int((~np.isnan(side)).sum()) for side in (ours, theirs)) < MIN_REQUESTS:
        return None
    percent = None if stat == "mean" else float(stat.removeprefix("p"))
    sides = [_estimate(ours, percent), _estimate(theirs, percent)]
    orders = [np.argsort(times, kind="stable") for times in arrivals]
    blocks = [_blocks(side, order, times, stay)
              for side, order, times, stay in zip(sides, orders, arrivals, stays_s, strict=True)]
    if same and len(ours) == len(theirs):
        orders[1], blocks = orders[0], [min(blocks)] * 2
    if min(blocks) < FEWEST:
        return None
    sums = [_sums(side.parts[order], count) for side, order, count in zip(sides, orders, blocks, strict=True)]
    halves = [_half_width(parts) for parts in sums]
    if any(side.beyond is not None and half > ONE_BLOCK * side.beyond
           for side, half in zip(sides, halves, strict=True)):
        return None
    slopes = [side.slope(half) for side, half in zip(sides, halves, strict=True)]
    if orders[1] is not orders[0]:
        return math.hypot(*(slope * half for slope, half in zip(slopes, halves, strict=True)))
    half = _half_width(slopes[0] * sums[0] - slopes[1] * sums[1])
    if percent is None:
        return half
    return math.hypot(half, _between_requests(ours - theirs, ours, sides, halves, slopes, blocks[0]))


def _estimate(values: FloatArray, percent: float | None) -> _Estimate:
    known = ~np.isnan(values)
    count = int(known.sum())
    if percent is None:
        parts = np.where(known, values - values[known].mean(), 0.0) / count
        return _Estimate(values[known], None, parts)
    over = known & (values > np.percentile(values[known], percent))
    parts = np.where(known, over - over.sum() / count, 0.0) / count
    return _Estimate(values[known], 1 - percent / 100, parts)


def _sums(values: FloatArray, count: int) -> FloatArray:
    """Return the sums of `count` parts of nearly equal length."""
    return np.asarray(np.bincount(np.arange(len(values)) * count // len(values), weights=values, minlength=count))


def _half_width(parts: FloatArray) -> float:
    """Return the half-width of the interval of a sum of independent parts of mean zero."""
    count = len(parts)
    return t_quantile(count) * math.sqrt(count / (count - 1) * float((parts**2).sum()))


def _blocks(side: _Estimate, order: IntArray, arrival: FloatArray, stay_s: float) -> int:
    """Return into how many blocks the requests can be cut."""
    requests, span = len(order), float(np.nanmax(arrival) - np.nanmin(arrival))
    if span <= 0:
        return 1   # they arrive at once, and wait for each other
    stays = STAYS * stay_s / span
    dependent = CORRELATIONS * _correlation(_sums(side.parts[order], SLOTS)) / SLOTS
    return int(min(MOST, 1 / max(stays, dependent, 1 / requests)))


def _correlation(slots: FloatArray) -> float:
    """Return the integrated autocorrelation time in slots, at least 1: the sum of the autocorrelations on both sides,
    up to the first pair that is not positive (Geyer's initial positive sequence)."""
    values = slots - slots.mean()
    power = float((values**2).sum())
    if power <= 0:
        return 1.0
    found = np.correlate(values, values, mode="full")[len(values) - 1:] / power
    pairs = found[0:-1:2] + found[1::2]
    end = int(np.argmax(pairs <= 0)) if (pairs <= 0).any() else len(pairs)
    return max(2.0 * float(pairs[:end].sum()) - 1.0, 1.0)


def _between_requests(gaps: FloatArray, ours: FloatArray, sides: list[_Estimate], halves: list[float],
                      slopes: list[float], blocks: int) -> float:
    """Return the noise of a percentile's difference from the few requests next to it, which the shares do not show: the
    spread of their own differences, at most the distance to the next request."""
    rank = np.argsort(np.argsort(ours)).astype(np.float64)   # NaN last
    count = len(sides[0].values)
    beyond = sides[0].beyond or 0.0
    away = np.where(np.isnan(gaps), np.inf, np.abs(rank - (1 - beyond) * count))
    near = gaps[np.argsort(away, kind="stable")[:max(round(max(halves) * count), FEWEST)]]
    near = near[~np.isnan(near)]
    spread = float(near.std(ddof=1)) if len(near) > 1 else 0.0
    return t_quantile(blocks) * min(spread, max(slopes) / count)
