"""Steady state of a run: find the part between warm-up and drain.

**Start.** MSER-5 (White, 1997): the time from the first arrival to the end is cut into 500 slices, with the mean number
of requests in the system in each; five slices are a batch. The warm-up ends where the standard error of the mean of the
later batches is least. If that is not in the first half, the run never settled. "In the system" counts requests, or
whole conversations from their first turn to the last answer, including the user's think time.

**End.** The last arrival; in a closed loop, the time at which a user first finds no request left. With several
workloads, the first of these times, and the start is not before the last of their first arrivals. Conversations end
when their number begins to fall: the same rule, from the end backwards, and not after the last one begins.

**Not looked for.** Clients come and go, or the rate of arrivals changes: by a profile, in bursts, because workloads
begin or end at different times, or, of a trace, because its twentieths differ by more than 10% and more than chance,
and follow a trend or differ by half. Such a run is run for what changes, and all its figures are of the whole of it. So
they are where requests were lost (rejected, failed, given up) outside the steady state.

**None.** Everything arrives at once, the queue grows (by the number in the system, or because in the part found more
than a tenth of the arrivals, and more than chance explains, are neither served nor turned away), the run does not
settle, or it is too short: fewer than 100 requests complete in the steady state, or it is shorter than the mean
request, or the mean conversation, takes.

**Growing or filling.** A system whose requests stay long fills for as long as the longest of them before it serves what
is offered. A number that grows while the longest one per cent could still be in it counts as a growing queue only if
requests that wait are at least half of the growth.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from hermes.arrays import BoolArray, FloatArray, IntArray
from hermes.core.record import APART, BURSTS, STATUS_COMPLETED, STATUS_REJECTED, RunRecord
from hermes.results.figures.stability import Stability, stability
from hermes.results.figures.usage import window_ns
from hermes.results.measure import MeasureConfig
from hermes.results.metrics import RequestMetrics
from hermes.units import s_to_ns

__all__ = ["Window", "find_window", "mean_stay", "mser"]


BATCHES, PER_BATCH = 100, 5
MIN_REQUESTS = 100
TREND = "the rate of arrivals changes"
SPAN = 0.5         # of the time of all arrivals, in which those of every workload must come
SLICES = 20        # of the arrivals of a trace
FLOW = 0.1         # share of a steady state's arrivals that may still be in the system at its end
MIN_DRIFT = 0.02   # share of arrivals that is not served; a system at its limit shows less by chance


@dataclass(frozen=True)
class Window:
    """Window of the headline figures.

    Attributes:
        kind: "steady"; "measured" for the user's own `measure`; or "whole", because of `why`.
        stable: False if the queue grows; None if the run is too short to tell.
        changes: Whether clients or the rate of arrivals change, so that the verdict is about the whole run.
        chance: Whether these changes come by chance, so that a longer run has more of them.
        steady: The steady state of a run that lost requests outside it.
    """

    kind: str
    start_ns: int
    end_ns: int
    why: str | None = None
    stable: bool | None = None
    changes: bool = False
    chance: bool = False
    steady: Window | None = None


def find_window(record: RunRecord, metrics: RequestMetrics, chosen: MeasureConfig | None) -> Window:
    """Return the user's window, or else the steady state, or else the whole run."""
    whole = window_ns(record)
    arrival = record.arrival_ns[record.arrival_ns >= 0]
    if not len(arrival):
        return Window("whole", *whole, why="no request arrived")
    changes = _changes(record, whole[0])
    stable = _keeps_up(record, metrics, changes=bool(changes))
    if chosen is not None:
        until = record.end_ns if chosen.until is None else s_to_ns(chosen.until)
        start = s_to_ns(chosen.start)
        return Window("measured", start, max(start, min(until, record.end_ns)), stable=stable)
    if arrival.max() == arrival.min():
        return Window("whole", *whole, why="all requests arrive at once")
    if changes:   # a window without the changes would leave out what they do
        return Window("whole", *whole, why=changes, stable=stable, changes=True, chance=changes in (BURSTS, TREND))
    if stable is False:
        return Window("whole", *whole, why="the queue grows", stable=False)
    found = _steady(record, metrics, whole, stable)
    lost = int(((record.status == STATUS_REJECTED) & (record.arrival_ns >= 0)
                & ~((record.arrival_ns > found.start_ns) & (record.arrival_ns <= found.end_ns))).sum())
    if found.kind == "steady" and lost:
        why = f"{lost:,} lost outside the steady state"
        return Window("whole", *whole, why=why, stable=stable, steady=found)
    return found


def _changes(record: RunRecord, first_ns: int) -> str:
    """Return what changes from the first arrival on, in words; "" if nothing does."""
    if (record.membership[:, 2] > first_ns).any():
        return "clients come and go"
    if record.offered.changes:
        return record.offered.changes
    begins = record.arrival_ns[(record.arrival_ns >= 0) & _begins(record)]
    firsts, lasts = _spans(record)
    if min(lasts) - max(firsts) < SPAN * (int(begins.max()) - int(begins.min())):
        return APART
    return TREND if record.offered.changes is None and _has_trend(begins) else ""


def _has_trend(times: IntArray) -> bool:
    """Return whether the rate of some arrivals changes: their numbers in twentieths of the time differ by more than
    10%, and by more than Poisson arrivals do (a variance of twice the mean), and neighbours are alike (the squares of
    their differences sum to less than those of the deviations: 1 in 100 by chance) or they differ by half."""
    counts = np.histogram(times, SLICES)[0].astype(np.float64)
    mean, variance = float(counts.mean()), float(counts.var(ddof=1))
    if variance <= max(2.0 * mean, 0.01 * mean**2):
        return False
    alike = float((np.diff(counts)**2).sum()) < variance * (SLICES - 1)
    return alike or variance > 0.25 * mean**2


def _steady(record: RunRecord, metrics: RequestMetrics, whole: tuple[int, int], stable: bool | None) -> Window:
    """Return the steady state, or why there is none."""
    found = _settled(record)
    if found is None:
        return Window("whole", *whole, why="too short to settle", stable=stable)
    start, end = found
    done = (record.finish_ns > start) & (record.finish_ns <= end)
    completed = record.status == STATUS_COMPLETED
    if int(done.sum()) < MIN_REQUESTS:
        return Window("whole", *whole, why=f"too short: {int(done.sum())} requests", stable=stable)
    if end - start < metrics.e2e_ns[completed].mean():
        return Window("whole", *whole, why="too short: a request takes longer", stable=stable)
    stay, conversations = mean_stay(record)
    if conversations and end - start < stay:
        return Window("whole", *whole, why="too short: a conversation takes longer", stable=stable)
    stayed = (record.arrival_ns > start) & (record.arrival_ns <= end) & (record.status != STATUS_REJECTED)
    came = int(stayed.sum())
    if came - int(done.sum()) > max(FLOW * came, 3.0 * np.sqrt(came)):
        if _fills(record, metrics, start, end):
            return Window("whole", *whole, why="too short to settle", stable=None)
        return Window("whole", *whole, why="the queue grows", stable=False)
    return Window("steady", start, end, stable=stable)


def mean_stay(record: RunRecord) -> tuple[float, bool]:
    """Return how long a request, or a whole conversation, stays in the system (mean in ns; 0 if none ends), and whether
    there are conversations."""
    came, left, conversations = _stays(record)
    done = np.isfinite(left)
    return (float((left - came)[done].mean()) if done.any() else 0.0), conversations


def _keeps_up(record: RunRecord, metrics: RequestMetrics, *, changes: bool) -> bool | None:
    """Return False if the requests in the system grow, as judged by `stability`, by more than chance; where clients or
    the rate change, if those that wait make half of the growth."""
    completed = record.status == STATUS_COMPLETED
    served = metrics.e2e_ns[completed] - metrics.queue_ns[completed]
    seen: Stability = stability(record, float(served.mean()) if completed.any() else 0.0)
    if seen.stable is not False:
        return seen.stable
    arrived = record.arrival_ns[record.arrival_ns >= 0]
    if seen.in_system_late - seen.in_system_early <= MIN_DRIFT * len(arrived) / 2:
        return True
    first, last = int(arrived.min()), int(arrived.max())
    early = first + (last - first) // 4
    if changes:
        return _served_grow(record, metrics, early, last)
    return None if _fills(record, metrics, early, last) else False


def _fills(record: RunRecord, metrics: RequestMetrics, start: int, end: int) -> bool:
    """Whether growth from `start` to `end` is a system that fills: the longest one per cent of the requests stay longer
    than a third of that time, without waiting, and waiting requests make less than half of the growth."""
    completed = record.status == STATUS_COMPLETED
    if not completed.any():
        return False
    served = metrics.e2e_ns[completed] - metrics.queue_ns[completed]
    longer = (end - start) / 3 < float(np.percentile(served, 99))
    return longer and _served_grow(record, metrics, start, end)


def _served_grow(record: RunRecord, metrics: RequestMetrics, start: int, end: int) -> bool:
    """Whether waiting requests make less than half of the growth from the first to the last third of a time."""
    completed, width = record.status == STATUS_COMPLETED, (end - start) / 3

    def held(low: float, waiting: bool) -> float:
        """Return the time integral, over `width` from `low` on, of requests that wait, or of all."""
        begin = record.arrival_ns[completed]
        stay = metrics.queue_ns[completed] if waiting else metrics.e2e_ns[completed]
        return float(np.clip(np.minimum(begin + stay, low + width) - np.maximum(begin, low), 0, None).sum())

    growth, waiting = (held(end - width, which) - held(start, which) for which in (False, True))
    return waiting < 0.5 * growth


def _settled(record: RunRecord) -> tuple[int, int] | None:
    """Return start and end of the steady state; None if there is none."""
    low, high = _arrivals_span(record)
    if high <= low:
        return None
    begin, end, several = _stays(record)
    slices = PER_BATCH * BATCHES
    edges = np.linspace(low, high, slices + 1)
    held = _held(begin, end, edges).reshape(BATCHES, PER_BATCH).sum(axis=1)
    first, last = mser(held, both_ends=several)
    if first >= BATCHES // 2 or last < BATCHES // 2:
        return None
    return int(edges[first * PER_BATCH]), int(edges[last * PER_BATCH])


def _arrivals_span(record: RunRecord) -> tuple[int, int]:
    """Return the time in which all workloads have arrivals: from the latest first to the earliest last one. Of a
    conversation only the beginning counts: later turns arrive while the system drains."""
    firsts, lasts = _spans(record)
    if record.out_of_requests_ns >= 0:
        lasts.append(record.out_of_requests_ns)
    return max(firsts), min(min(lasts), record.end_ns)


def _spans(record: RunRecord) -> tuple[list[int], list[int]]:
    """Return the first and the last arrivals of the workloads."""
    arrived = (record.arrival_ns >= 0) & _begins(record)
    codes = record.labels["workload"][0] if "workload" in record.labels else np.zeros(len(arrived), dtype=np.int64)
    firsts, lasts = [], []
    for code in np.unique(codes[arrived]):
        mine = record.arrival_ns[arrived & (codes == code)]
        firsts.append(int(mine.min()))
        lasts.append(int(mine.max()))
    return firsts, lasts


def _begins(record: RunRecord) -> BoolArray:
    """Return which requests are not later turns of a conversation, shape (requests,)."""
    session = record.session
    rows = np.flatnonzero((session >= 0) & (record.arrival_ns >= 0))
    out = np.ones(len(session), dtype=bool)
    rows = rows[np.lexsort((record.arrival_ns[rows], session[rows]))]
    out[rows[1:][session[rows[1:]] == session[rows[:-1]]]] = False
    return out


def _stays(record: RunRecord) -> tuple[FloatArray, FloatArray, bool]:
    """Return when requests, or whole conversations, come and go, and whether there are conversations."""
    rows = np.flatnonzero((record.arrival_ns >= 0) & (record.status != STATUS_REJECTED))
    begin = record.arrival_ns[rows].astype(np.float64)
    end = np.where(record.status[rows] == STATUS_COMPLETED, record.finish_ns[rows], np.inf)
    session = record.session[rows]
    if not (session >= 0).any():
        return begin, end, False
    own = np.where(session >= 0, session, session.max() + 1 + np.arange(len(rows)))
    names, of = np.unique(own, return_inverse=True)
    if len(names) > 0.75 * len(rows):   # few sessions have a second request
        return begin, end, False
    first, last = np.full(len(names), np.inf), np.full(len(names), -np.inf)
    np.minimum.at(first, of, begin)
    np.maximum.at(last, of, end)
    return first, last, True


def _held(begin: FloatArray, end: FloatArray, edges: FloatArray) -> FloatArray:
    """Return the time integral of the number present, in each interval between `edges`."""
    def since(times: FloatArray) -> FloatArray:
        """Return the sum over times of their age at each edge."""
        times = np.sort(times[np.isfinite(times)]) - edges[0]
        upto = np.concatenate(([0.0], np.cumsum(times)))
        at = edges - edges[0]
        count = np.searchsorted(times, at)
        return np.asarray(count * at - upto[count], dtype=np.float64)

    return np.diff(since(begin) - since(end))


def mser(values: FloatArray, *, both_ends: bool = False) -> tuple[int, int]:
    """Return the part of a series, [first, last), whose mean has the least standard error for its length: the least sum
    of squares over the square of the number of values.

    It searches warm-ups of at most half the series, followed by the rest; with `both_ends`, any end in the second half,
    of parts of at least a fifth.
    """
    n = len(values)
    sums, squares = (np.concatenate(([0.0], np.cumsum(v))) for v in (values - values.mean(),
                                                                     (values - values.mean()) ** 2))
    first = np.arange(n // 2 + 1)[:, None]
    last = np.arange(n // 2, n + 1)[None, :] if both_ends else np.array([[n]])
    count = np.maximum(last - first, 1)
    spread = np.maximum(squares[last] - squares[first] - (sums[last] - sums[first]) ** 2 / count, 0.0) / count**2
    spread[np.broadcast_to(last - first < n // 5, spread.shape)] = np.inf
    best = np.flatnonzero(spread.ravel() <= spread.min() * (1 + 1e-9) + 1e-12 * (squares[-1] / n**2))
    # of equal ones the longest: constant series have no warm-up
    chosen = best[np.argmax(count.ravel()[best] if both_ends else -best)]
    row, column = np.unravel_index(chosen, spread.shape)
    return int(first[row, 0]), int(last[0, column])
