"""Latency breakdown: a request's time by stage and by cause, in parts that add up to its latency.

A request's *critical path* is its last stage, before that the stage whose end it waited for, and so on back to the
arrival. Of parallel stages only the one that ended last is on it; faster others would not have reduced the latency.
Work after completion (a write-back) is not on it either.

Each stage on the path is split by cause:

    communication   between assignment and start, while its data was on its way
    queue           the rest of that time
    compute         from start to end; for stages that prefill and decode, also up to the first token

Where a gateway makes attempts, time before a stage is assigned is split (`hermes.results.figures.gateway_times`):

    gateway         in the hop through the gateway, with the wait for its capacity
    held            unplaced in flow control's queue, or waiting for a ready client
    lost            attempts that came to nothing, their back-off, and what the client had offered before

Attempts that came to nothing are not on the path.

The sum over the path is completion - arrival, to the nanosecond: a stage is assigned, or asked for at the gateway, at
the instant at which the one before it ended. (`other_ns` is time that a custom pipeline may leave in between.)
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np

from hermes.arrays import BoolArray, IntArray
from hermes.core.columns import compact, constant
from hermes.core.record import STATUS_COMPLETED, RunRecord
from hermes.results.branches import generations
from hermes.results.distribution import Distribution
from hermes.results.figures.gateway_times import AT_GATEWAY, AtGateway, asked_ns, offered_ns
from hermes.results.metrics import RequestMetrics, over_ns, rows_before, transfers_of_stages
from hermes.units import NS_PER_S

__all__ = ["CAUSES", "CriticalPath", "breakdown", "causes_of", "critical_path", "first_token_parts",
           "first_token_path"]


CAUSES = ("queue", "communication", "compute")


def causes_of(record: RunRecord) -> tuple[str, ...]:
    """Return the causes that a run's times have."""
    return (*AT_GATEWAY, *CAUSES) if record.calls else CAUSES


@dataclass(frozen=True)
class CriticalPath:
    """Per stage row, shape (stages,): whether it is on the path of a completed request, and its times by cause.

    Attributes:
        begins: Whether it is the first one on the path of its request.
        first_token_ns: The part of `compute_ns` up to the first token, 0 without one.
        gateway_ns, held_ns, lost_ns: Before the assignment; 0 without a gateway.
        other_ns: Per request, shape (requests,): latency outside the stages of the path.
    """

    on_path: BoolArray
    begins: BoolArray
    queue_ns: IntArray
    communication_ns: IntArray
    compute_ns: IntArray
    first_token_ns: IntArray
    gateway_ns: IntArray
    held_ns: IntArray
    lost_ns: IntArray
    other_ns: IntArray

    def per_request(self, record: RunRecord, cause: str, rows: BoolArray | None = None) -> IntArray:
        """Return nanoseconds of one of `causes_of` (or "first_token") on the paths, of some stages; shape (requests,).
        """
        chosen = self.on_path if rows is None else self.on_path & rows
        weights = getattr(self, f"{cause}_ns")[chosen]
        return np.bincount(record.stages["request"][chosen], weights=weights,
                           minlength=len(record.arrival_ns)).astype(np.int64)


def critical_path(record: RunRecord) -> CriticalPath:
    """Find the path of every completed request and split its stages by cause."""
    stages = record.stages
    assigned, end = stages["assigned_ns"], over_ns(record)
    asked, offered = asked_ns(record), offered_ns(record)
    counts = record.kept & (asked >= offered[stages["request"]])   # others came to nothing
    before = _waited_for(record, asked, counts)
    del asked
    on_path = np.zeros(len(end), dtype=bool)
    rows, begins = _last_stages(record, counts), np.zeros(len(end), dtype=bool)
    while len(rows):
        on_path[rows] = True
        begins[rows[before[rows] < 0]] = True
        rows = before[rows]
        rows = rows[rows >= 0]
    # where a request migrated before a stage of its began, all of that stage is a wait
    del before, rows, counts
    at, request = AtGateway.of(record), stages["request"]
    lost, gateway, held = at.lost, at.gateway, at.held
    del at
    if record.offers:
        lost = lost + np.where(begins, (offered - record.arrival_ns)[request], 0)
    del offered
    spent = (end - assigned + gateway + held + lost)[on_path]
    other = np.bincount(request[on_path], weights=spent, minlength=len(record.arrival_ns)).astype(np.int64)
    del spent
    other = np.where(record.status == STATUS_COMPLETED, record.finish_ns - record.arrival_ns - other, 0)
    served, start = record.started | on_path, np.where(record.started, np.minimum(stages["start_ns"], end), end)
    moving = compact(np.where(served, _on_the_way(record, start), 0))
    queue, compute = (np.where(served, time, 0) for time in (start - assigned - moving, end - start))
    first = np.where(stages["first_token_ns"] >= 0, np.minimum(stages["first_token_ns"], end), start)
    first -= start
    return CriticalPath(on_path, begins, compact(queue), moving, compute, np.maximum(first, 0, out=first), gateway,
                        held, lost, compact(other))


def _waited_for(record: RunRecord, asked: IntArray, counts: BoolArray) -> IntArray:
    """Return, per stage row, the row of its request's stage that ended last before it was asked for; -1 for none.
    counts: Which stages may be waited for.

    Stages are recorded in order of completion, and a stage is assigned after the record of the one it waited for, so
    that of several ends at that very time only those of earlier rows count.
    """
    stages = record.stages
    n = len(stages["end_ns"])
    if len(record.arrival_ns) and np.bincount(stages["request"]).max(initial=0) <= 1:   # each request has one stage
        return constant(-1, n)
    row = np.arange(n)
    request = np.concatenate((stages["request"], stages["request"]))
    time = np.concatenate((over_ns(record), asked))
    order = np.lexsort((np.concatenate((2 * row + 1, 2 * row)), time, request))   # a stage's start before its end
    is_end = order < n
    is_end &= np.concatenate((counts, counts))[order]
    latest = np.maximum.accumulate(np.where(is_end, np.arange(2 * n), -1))
    at = np.flatnonzero(order >= n)
    asking, found = order[at] - n, latest[at]
    out = np.full(n, -1, dtype=np.int64)
    known = found >= 0
    asking, parent = asking[known], order[found[known]]
    same = stages["request"][parent] == stages["request"][asking]
    out[asking[same]] = parent[same]
    for later, earlier in rows_before(record).items():   # its row may have been written later
        out[later] = earlier
    return out


def _last_stages(record: RunRecord, counts: BoolArray) -> IntArray:
    """Return the row of each completed request's stage that was over last, and no later than the request."""
    request, over = record.stages["request"], over_ns(record)
    counted = (record.status == STATUS_COMPLETED)[request] & (over <= record.finish_ns[request])
    last = np.full(len(record.arrival_ns), -1, dtype=np.int64)
    rows = np.flatnonzero(counted & counts)
    rows = rows[np.argsort(over[rows], kind="stable")]   # a client may go on with what has migrated, and end it later
    last[request[rows]] = rows
    return last[last >= 0]


def _on_the_way(record: RunRecord, start_ns: IntArray) -> IntArray:
    """Return, per stage row, the time between assignment and start in which its data was on its way."""
    stages, sent = record.stages, record.transfers
    n = len(stages["end_ns"])
    if not len(sent["request"]):
        return constant(0, n)
    transfer, stage = transfers_of_stages(record)
    begin = np.full(n, np.iinfo(np.int64).max, dtype=np.int64)
    upto = np.zeros(n, dtype=np.int64)
    np.minimum.at(begin, stage, sent["start_ns"][transfer])
    np.maximum.at(upto, stage, sent["end_ns"][transfer])
    rows, generation, first = generations(record)   # a prompt's KV belongs to all its branches
    for column, function in ((begin, np.minimum), (upto, np.maximum)):
        of_all = column[first]
        function.at(of_all, generation, column[rows])
        column[rows] = of_all[generation]
    within = np.minimum(upto, start_ns) - np.maximum(begin, stages["assigned_ns"])
    return np.asarray(np.maximum(within, 0), dtype=np.int64)


def _in_order(record: RunRecord, path: CriticalPath) -> list[int]:
    """Return the kinds of stage on the paths, by mean time from arrival to assignment, where that is not at once (so
    that a generation after a retrieval comes after it, although other requests begin with theirs)."""
    stages = record.stages
    kind, since = stages["kind"], stages["assigned_ns"] - record.arrival_ns[stages["request"]]
    later = path.on_path & (since > 0)
    n = len(record.stage_kinds)
    count, total = np.bincount(kind[later], minlength=n), np.bincount(kind[later], weights=since[later], minlength=n)
    mean = total / np.maximum(count, 1)
    present = np.unique(kind[path.on_path])
    return [int(code) for code in present[np.argsort(mean[present], kind="stable")]]


def first_token_path(record: RunRecord, path: CriticalPath, metrics: RequestMetrics) -> BoolArray:
    """Return the stages on the way to the first token of each request, shape (stages,): those on the path. Of a
    gateway's call, those of the branch that gave the token, and where an attempt gave it before it came to nothing,
    those of that attempt."""
    chosen = path.on_path
    if not record.calls:
        return chosen
    stages, chosen = record.stages, chosen.copy()
    after = record.sent_after()
    request, attempt = stages["request"], record.stage_attempts
    calls = record.asked_for
    gave = (stages["first_token_ns"] >= 0) & (stages["output_tokens"] > 0)
    gave &= stages["first_token_ns"] + after == metrics.first_token_ns[request]
    missing = np.ones(len(record.arrival_ns), dtype=bool)
    missing[request[gave & chosen]] = False
    rows = np.flatnonzero(gave & missing[request] & np.isin(calls, calls[chosen & (calls >= 0)]))
    rows = rows[np.unique(calls[rows], return_index=True)[1]]   # of branches one
    chosen[np.isin(calls, calls[rows])] = False
    chosen[rows] = True
    names = np.array(record.stage_kinds)[stages["kind"]]
    prefills = np.flatnonzero((names == "prefill") & np.isin(attempt, attempt[rows[names[rows] == "decode"]]))
    chosen[prefills[np.unique(attempt[prefills], return_index=True)[1]]] = True
    return chosen


def _emitted_ns(record: RunRecord, chosen: BoolArray, first_token_ns: IntArray) -> IntArray:
    """Return when an engine had the first token of each request: what comes later is the front end's."""
    emitted, stages = first_token_ns.copy(), record.stages
    if any(record.after_ns) or record.late_ns:
        after = record.sent_after()
        gave = chosen & (stages["first_token_ns"] >= 0)
        gave &= stages["first_token_ns"] + after == first_token_ns[stages["request"]]
        emitted[stages["request"][gave]] = stages["first_token_ns"][gave]
    return emitted


def first_token_parts(record: RunRecord, path: CriticalPath, metrics: RequestMetrics) -> dict[str, IntArray]:
    """Return the time up to the first token of each request with one, by cause, in nanoseconds of shape (requests,);
    with `other` they add up to its TTFT."""
    stages, n = record.stages, len(record.arrival_ns)
    chosen = first_token_path(record, path, metrics)
    until = _emitted_ns(record, chosen, metrics.first_token_ns)
    rows = np.flatnonzero(chosen & (until >= 0)[stages["request"]] & record.started)
    request = stages["request"][rows]
    ends, at = until[request], AtGateway.of(record, until)
    assigned, start, end = (stages[name][rows] for name in ("assigned_ns", "start_ns", "end_ns"))
    wait = np.maximum(np.minimum(start, ends) - assigned, 0)
    moved = np.minimum(path.communication_ns[rows], wait)
    columns = {"gateway": at.gateway[rows], "held": at.held[rows], "lost": at.lost[rows], "queue": wait - moved,
               "communication": moved, "compute": np.maximum(np.minimum(end, ends) - start, 0)}
    out = {cause: np.bincount(request, weights=columns[cause], minlength=n).astype(np.int64)
           for cause in causes_of(record)}
    answered = until >= 0
    if "lost" in out:
        offered = offered_ns(record)
        early = answered & (until < offered)   # from an offer before the last one
        offered[early] = until[early]
        mine = rows[early[request]]
        np.minimum.at(offered, stages["request"][mine], asked_ns(record)[mine])
        out["lost"] += np.where(answered, offered - record.arrival_ns, 0)
    return out | {"other": np.where(answered, metrics.ttft_ns - np.sum(list(out.values()), axis=0), 0)}


def breakdown(record: RunRecord, path: CriticalPath, metrics: RequestMetrics) -> dict[str, Any]:
    """Return `breakdown` of the summary: statistics over completed requests, by cause and by kind of stage; with a
    gateway also `ttft`, those of the time up to the first token by cause.

    A request without a stage of a kind on its path counts with zero, so that means add up to the mean latency. Kinds
    are in the order of their assignment, on average.
    """
    completed = record.status == STATUS_COMPLETED
    latency = (record.finish_ns - record.arrival_ns)[completed]
    total = float(latency.sum())

    def stats(values: IntArray) -> dict[str, Any]:
        return Distribution(values[completed], divisor=NS_PER_S).stats()

    known = causes_of(record)
    causes = {f"{cause}_s": stats(path.per_request(record, cause)) for cause in known}
    out: dict[str, Any] = {}
    for code in _in_order(record, path):
        kind, rows = record.stage_kinds[code], record.stages["kind"] == code
        parts = {cause: path.per_request(record, cause, rows) for cause in known}
        whole = np.sum(list(parts.values()), axis=0)
        out[kind] = {
            "share": float(whole[completed].sum()) / total if total else None,
            "on_path": int((rows & path.on_path).sum()), "beside": int((rows & ~path.on_path).sum()),
            "total_s": stats(whole), **{f"{cause}_s": stats(values) for cause, values in parts.items()},
        }
        first = path.per_request(record, "first_token", rows)
        if first.any() and kind not in ("prefill", "decode"):   # these are the two parts already
            out[kind]["first_token_s"] = stats(first)
    found = {"causes": causes, "stages": out, "other_s": stats(path.other_ns)["mean"]}
    if record.calls:
        answered = completed & (metrics.ttft_ns >= 0)
        parts = first_token_parts(record, path, metrics)
        found["ttft"] = {f"{cause}_s": Distribution(values[answered], divisor=NS_PER_S).stats()
                         for cause, values in parts.items() if cause != "other"}
        found["ttft"]["other_s"] = Distribution(parts["other"][answered], divisor=NS_PER_S).stats()["mean"]
    return found
