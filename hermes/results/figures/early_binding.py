"""Requests that wait at a replica to which they were bound before another one was free.

A router binds a request to a replica as it comes. If none is free then (each has work that waits), and one becomes free
or ready later, the request stays where it is. A gateway that holds requests while all replicas are full binds late. How
much that would serve is estimated from the replicas that are free meanwhile, each by the part of a full batch that
it has room for: work that waits at `k` replicas while `h` have room takes `k / (k + h)` of the time.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from hermes.arrays import FloatArray, IntArray
from hermes.core.record import READY, RunRecord
from hermes.results.figures.membership import SERVES, spans_in
from hermes.results.figures.usage import window_ns
from hermes.results.figures.waiting import merged, overlaps

__all__ = ["Early", "early_binding"]

MOST = 0.5     # of the waiting time that is to be of requests that were bound early
LEAST = 1.1    # gain below which it is not worth a word
BUSY = 0.5     # of the longest wait at a replica: one that has work waiting for as long is named with it

Spans = tuple[IntArray, IntArray]


@dataclass(frozen=True)
class Early:
    """Early binding at a group of clients, over the whole run.

    Attributes:
        replicas: That have the work that waits, of `of` which ever were ready.
        share: Of their time, in which work waits at these.
        waiting: Share of the time that requests wait, for which those bound early wait while another replica is free.
        gain: Time in which work waits, over the one with late binding.
    """

    replicas: int
    of: int
    share: float
    waiting: float
    gain: float


def early_binding(record: RunRecord, members: list[int]) -> Early | None:
    """Return what early binding costs at clients of one group; None where it costs little."""
    start, end = window_ns(record)
    ready, there = ([spans_in(record, client, states, start, end) for client in members]
                    for states in ((READY,), SERVES))
    waits = [_waits(record, client, start, end) for client in members]
    free = [_without(spans, wait) for spans, wait in zip(ready, waits, strict=True)]
    one_free = merged(*map(np.concatenate, zip(*free, strict=True)))
    mine = np.isin(record.stages["client"], members)
    begin = record.stages["assigned_ns"][mine]
    until = np.where(record.started, record.stages["start_ns"], record.stages["end_ns"])[mine]
    bound = overlaps(begin, begin + 1, one_free) == 0   # as no replica was free
    waited, early = float((until - begin).sum()), float(overlaps(begin[bound], until[bound], one_free).sum())
    if early < MOST * waited or not waited:
        return None
    at, full, room = _counts(waits, free)
    some = (full[:-1] > 0) & (room[:-1] > 0)
    spans = merged(at[:-1][some], at[1:][some])
    helps = room[:-1] * _room(record, members, waits, free, spans)
    work = np.diff(at) * full[:-1]
    shorter = float((work * full[:-1] / np.maximum(full[:-1] + helps, 1)).sum())
    gain = float(work.sum()) / max(shorter, 1.0)
    if gain < LEAST:
        return None
    lengths = np.array([float((high - low).sum()) for low, high in waits])
    held = np.array([float((high - low).sum()) for low, high in there])
    busy = lengths >= BUSY * lengths.max()
    return Early(int(busy.sum()), int((held > 0).sum()), min(float(lengths[busy].sum() / held[busy].sum()), 1.0),
                 early / waited, gain)


def _waits(record: RunRecord, client: int, start: int, end: int) -> Spans:
    """Return when sequences wait at a client, in its steps or without one to run."""
    runs, stalls = record.runs, record.stalls[record.stalls[:, 0] == client]
    rows = np.flatnonzero((runs["client"] == client) & (runs["waiting"] > 0) & (runs["stopped"] > 0))
    until = runs["end_ns"][rows]
    return merged(np.clip(np.concatenate((until - runs["stopped_ns"][rows], stalls[:, 2])), start, end),
                  np.clip(np.concatenate((until, stalls[:, 3])), start, end))


def _without(spans: Spans, taken: Spans) -> Spans:
    """Return the parts of disjoint spans that others do not cover."""
    edges = np.unique(np.concatenate((*spans, *taken)))
    low, high = edges[:-1], edges[1:]
    middle = (low + high) // 2
    inside = [np.searchsorted(one[0], middle, side="right") > np.searchsorted(one[1], middle, side="right")
              for one in (spans, taken)]
    kept = inside[0] & ~inside[1]
    return low[kept], high[kept]


def _counts(waits: list[Spans], free: list[Spans]) -> tuple[IntArray, IntArray, IntArray]:
    """Return times, and at how many replicas work waits, and how many are free, from then on."""
    at = np.unique(np.concatenate([edge for spans in (*waits, *free) for edge in spans]))

    def count(of: list[Spans]) -> IntArray:
        begin, end = (np.sort(np.concatenate(edges)) for edges in zip(*of, strict=True))
        number: IntArray = np.searchsorted(begin, at, side="right") - np.searchsorted(end, at, side="right")
        return number

    return at, count(waits), count(free)


def _room(record: RunRecord, members: list[int], waits: list[Spans], free: list[Spans], spans: Spans) -> float:
    """Return the part of a batch for which free replicas have room, in these spans: what those with work waiting run,
    less what they run."""
    runs = record.runs

    def running(of: list[Spans]) -> float:
        held = total = 0.0
        for client, mine in zip(members, of, strict=True):
            inside = _both(mine, spans)
            rows = np.flatnonzero(runs["client"] == client)
            taken: FloatArray = overlaps(runs["start_ns"][rows], runs["end_ns"][rows], inside)
            total += float((taken * runs["running"][rows]).sum())
            held += float((inside[1] - inside[0]).sum())
        return total / max(held, 1.0)

    full = running(waits)
    return max(1.0 - running(free) / full, 0.0) if full else 1.0


def _both(one: Spans, other: Spans) -> Spans:
    """Return what two lists of disjoint spans share."""
    return _without(one, _without(one, other))
