"""Settling: decide whether a run is long enough for a verdict on the system, not only on the run.

A run has settled if all of this holds:

- it has a steady state (`hermes.results.figures.steady`), or the user's own window; a run in which clients or the rate
  change is judged as a whole, and has settled;
- requests arrive for at least 5 x the p99 of E2E after the warm-up;
- the rate offered, without the requests that are turned away, lies within the 95% interval of the rate served;
- the KV blocks in use are stationary: the means of the two halves of the window differ by less than a fifth, or by less
  than chance explains (three standard errors, from batch means).

A run that has not settled may hide an overload: with long answers a system fills for minutes before anything waits.
Little's law says how far: answers in flight = rate x E2E, and their KV = rate x the time integral of each one's
context. So a search never counts such a run as meeting its SLO. It may count it as missing its SLO where requests of
the second half of the arrivals already miss it, since the system only gets fuller (`late_misses`).
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np

from hermes.arrays import BoolArray, FloatArray, IntArray
from hermes.core.noise import T_OF_20
from hermes.core.record import STATUS_COMPLETED, STATUS_REJECTED, Offered, RunRecord
from hermes.results.figures.headline import served_interval
from hermes.results.figures.steady import Window
from hermes.results.metrics import RequestMetrics
from hermes.results.slo import METRICS, SloConfig, SloGroup
from hermes.units import NS_PER_S

__all__ = ["LATENCIES", "Share", "settling_summary", "share_beyond"]


LATENCIES = 5.0        # p99s of E2E for which requests arrive after the warm-up
KV_CHANGE = 0.2        # between the halves of the window, of their mean
STANDARD_ERRORS = 3.0
BATCHES = 20
ROOM = 1.15            # of a longer run, over what this one's latencies ask for


@dataclass(frozen=True)
class Share:
    """Share of requests beyond a limit, with its 95% interval by batch means; allowed: the share that may be."""

    share: float
    low: float
    high: float
    allowed: float


def settling_summary(record: RunRecord, metrics: RequestMetrics, groups: list[SloGroup], window: Window
                     ) -> dict[str, object]:
    """Return `settling` of the summary.

    settled: Whether the run is long enough for a verdict; None if nothing was completed. why: What it lacks.
    arrivals_s, needed_s: For how long requests arrive, and for how long they should (None if length is not at fault).
    more: What makes more arrivals, where length is at fault and it is not `workload.requests`.
    late_misses: Whether requests of the window (not settled: of the second half of the arrivals) miss a limit of the
    SLO for certain. close: The same, or not, within the interval. beyond: By limit the share of requests beyond it.
    """
    arrived = record.arrival_ns >= 0
    completed = record.status == STATUS_COMPLETED
    if not completed.any():
        return {"settled": None, "why": "no request was completed", "arrivals_s": None, "needed_s": None,
                "late_misses": None, "close": None, "beyond": {}}
    window = window.steady or window
    first, last = int(record.arrival_ns[arrived].min()), int(record.arrival_ns[arrived].max())
    p99 = float(np.percentile(metrics.e2e_ns[completed], 99))
    why, needed = _lacks(record, metrics, window, first, last, p99)
    start, end = (window.start_ns, window.end_ns) if why is None else ((first + last) // 2, last)
    shares = dict(_beyond(record, metrics, groups, start, end))
    return {
        "settled": why is None, "why": why, "arrivals_s": (last - first) / NS_PER_S,
        "needed_s": None if needed is None else needed / NS_PER_S,
        **({} if needed is None or record.offered.more == Offered.more else {"more": record.offered.more}),
        "late_misses": any(one.low > one.allowed for one in shares.values()),
        "close": any(one.low <= one.allowed < one.high for one in shares.values()),
        "beyond": {name: {"share": one.share, "low": one.low, "high": one.high, "allowed": one.allowed}
                   for name, one in shares.items()},
    }


def _lacks(record: RunRecord, metrics: RequestMetrics, window: Window, first: int, last: int, p99: float
           ) -> tuple[str | None, float | None]:
    """Return what keeps a run from a verdict, and for how many ns requests should arrive; None for each if nothing."""
    if window.stable is False and not window.changes:
        return "the queue grows", None
    if last <= first:
        return "all requests arrive at once", None
    span = last - first
    if window.changes and not (window.chance and span < LATENCIES * p99):
        return None, None
    if window.kind == "whole":
        return window.why, max(ROOM * (LATENCIES + 2.0) * p99, 2.0 * span)
    after = min(window.end_ns, last) - window.start_ns
    if after < LATENCIES * p99:
        from hermes.results.layout import format_s  # few runs need the sentence

        why = f"requests arrive for {format_s(after / NS_PER_S)} after the warm-up, less than 5 x E2E p99"
        return why, ROOM * (window.start_ns - first + LATENCIES * p99)
    low, high = served_interval(record, window)
    mine = (record.arrival_ns > window.start_ns) & (record.arrival_ns <= window.end_ns)
    stayed = int((mine & (record.status != STATUS_REJECTED)).sum()) * NS_PER_S / (window.end_ns - window.start_ns)
    if low is None or high is None or not low <= stayed <= high:
        return "the rate served is not the rate offered", 2.0 * span
    change = _kv_change(record, window, float(metrics.e2e_ns[record.status == STATUS_COMPLETED].mean()))
    if change is not None:
        return f"the KV blocks in use change by {change:+.0%}", 2.0 * span
    return None, None


def _kv_change(record: RunRecord, window: Window, stay_ns: float) -> float | None:
    """Return the change of blocks in use from the first to the second half of the window; None if stationary.

    stay_ns: Mean E2E. What is in use is correlated over about that time, so shorter batches count for less.
    """
    runs = record.runs
    mine = (runs["end_ns"] > window.start_ns) & (runs["start_ns"] < window.end_ns)
    mine &= runs["end_ns"] > runs["start_ns"]
    edges = np.linspace(window.start_ns, window.end_ns, BATCHES + 1)
    held = np.diff(_integral(runs["start_ns"][mine], runs["end_ns"][mine], runs["kv_block_ns"][mine], edges))
    early, late = held[:BATCHES // 2], held[BATCHES // 2:]
    mean = float(held.mean())
    if mean <= 0:
        return None
    difference = float(late.mean() - early.mean())
    dependent = max(1.0, 2.0 * stay_ns / float(edges[1] - edges[0]))
    error = math.sqrt(dependent * (early.var(ddof=1) + late.var(ddof=1)) / (BATCHES // 2))
    stationary = abs(difference) <= max(KV_CHANGE * mean, STANDARD_ERRORS * error)
    return None if stationary else difference / max(float(early.mean()), 1e-9 * mean)


def _integral(start: IntArray, end: IntArray, amount: IntArray, edges: FloatArray) -> FloatArray:
    """Return what was held up to each edge, of amounts that are each spread evenly from start to end."""
    n = len(start)   # a few columns at a time: a long run has millions of runs of steps
    steps = np.empty(2 * n)
    np.divide(amount, end - start, out=steps[:n])
    np.negative(steps[:n], out=steps[n:])
    times = np.concatenate([start, end], dtype=np.float64)
    del start, end, amount
    order = np.argsort(times, kind="stable")
    times = times[order]
    steps = steps[order]
    del order
    times -= edges[0]
    at = edges - edges[0]
    count = np.searchsorted(times, at, side="right")

    def upto(sums: FloatArray) -> FloatArray:
        return np.where(count > 0, sums[count - 1], 0.0) if n else np.zeros(len(at))

    level = upto(np.cumsum(steps))
    steps *= times
    return np.asarray(level * at - upto(np.cumsum(steps, out=steps)), dtype=np.float64)


def _limits(slo: SloConfig) -> Iterator[tuple[str, float, float]]:
    """Yield (metric, percentile, limit in seconds)."""
    for metric in METRICS:
        limit: float | None = getattr(slo, metric)
        if limit is not None:
            yield metric, slo.percentile, limit
    for metric in ("ttft", "tpot"):
        for name, limit in slo.slowdowns(metric).items():
            yield metric, float(name.removeprefix("p")), limit


def _beyond(record: RunRecord, metrics: RequestMetrics, groups: list[SloGroup], start: int, end: int
            ) -> Iterator[tuple[str, Share]]:
    """Yield the share of requests beyond each limit, of those that arrive in (start, end]; rejected ones are beyond."""
    inside = (record.arrival_ns > start) & (record.arrival_ns <= end)
    rejected = record.status == STATUS_REJECTED
    done = record.status == STATUS_COMPLETED
    values: dict[str, FloatArray] = {
        "ttft": np.where(metrics.ttft_ns >= 0, metrics.ttft_ns / NS_PER_S, np.nan), "tpot": metrics.tpot_s,
        "e2e": np.where(metrics.e2e_ns >= 0, metrics.e2e_ns / NS_PER_S, np.nan)}
    for group in groups:
        for metric, percentile, limit in _limits(group.slo):
            known = inside & group.rows & ((done & ~np.isnan(values[metric])) | rejected)
            if known.any():
                over = rejected | ~(values[metric] <= limit)
                name = f"{metric}_p{percentile:g}" + (f" of {group.name}" if group.name else "")
                yield name, share_beyond(over[known], record.arrival_ns[known], start, end, 1.0 - percentile / 100)


def share_beyond(over: BoolArray, arrival: IntArray, start: int, end: int, allowed: float) -> Share:
    """Return the share of requests beyond a limit; its error from batches of equal time, whose queues hardly depend on
    each other."""
    batch = np.minimum((arrival - start) * BATCHES // max(end - start, 1), BATCHES - 1)
    count = np.bincount(batch, minlength=BATCHES).astype(np.float64)
    beyond = np.bincount(batch, weights=over, minlength=BATCHES)
    share = float(beyond.sum() / count.sum())
    # of a ratio of means: residuals of the batches about the common share
    spread = float((beyond - share * count).std(ddof=1)) * math.sqrt(BATCHES) / float(count.sum())
    half = max(T_OF_20 * spread, 1.0 / float(count.sum()))   # one request, where none is beyond or all are
    return Share(share, max(share - half, 0.0), min(share + half, 1.0), allowed)
