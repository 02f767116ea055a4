"""Queues of a run: where work waited, and how the queues grew.

A *place* is where stages wait: the queue of a group of clients, memory at the clients that take KV over, or a link. It
has the intervals in which a stage waited there. A request that did not finish waits, from the end of its last completed
stage on, where other requests are served next.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from hermes.arrays import FloatArray, IntArray
from hermes.core.record import STATUS_UNFINISHED, ClientInfo, RunRecord
from hermes.results.metrics import transfers_of_stages

__all__ = ["Place", "client_groups", "merged", "overlaps", "waiting_places"]


GROWS = 0.02     # share of what arrives at a place that stays there: more is a growing queue
NOISE = 3.0      # square roots of the queue that growth must exceed
FOREVER = 2**62


@dataclass
class Place:
    """Intervals in which stages waited at one place.

    Attributes:
        kind: "queue", "memory" (for KV that is to move there) or "link"; with a gateway also "hop" (for its capacity)
            and "held" (by flow control, or for a ready client).
        group: The clients that the work waits for; of a link those at its end; of a hop "gateway".
        order: Mean time from arrival to the begin of these waits, in nanoseconds: upstream before downstream.
    """

    kind: str
    group: str
    begin: IntArray
    end: IntArray
    order: float

    def mean(self, start: float, end: float) -> float:
        """Return the mean number that waited in an interval."""
        inside = np.minimum(self.end, end) - np.maximum(self.begin, start)
        return float(np.clip(inside, 0, None).sum()) / max(end - start, 1.0)

    def grows(self, start: int, end: int) -> bool:
        """Whether the queue grew from the first to the last quarter of an interval by more than chance."""
        quarter = (end - start) / 4
        early, late = self.mean(start, start + quarter), self.mean(end - quarter, end)
        came = int(((self.begin >= start) & (self.begin < end)).sum())
        return bool(late - early > max(GROWS * came * 0.75, NOISE * np.sqrt(max(late, 1.0))))


def client_groups(clients: list[ClientInfo]) -> dict[str, list[int]]:
    """Return the indices of the clients of each group, by the group's name. A client without a group is one by itself.
    """
    groups: dict[str, list[int]] = {}
    for index, info in enumerate(clients):
        name = info.group or info.name
        alike = groups.get(name)
        if alike is not None and (not info.group or clients[alike[0]].kind != info.kind):
            name = f"{name}#{index}"
        groups.setdefault(name, []).append(index)
    return groups


def merged(begin: IntArray, end: IntArray) -> tuple[IntArray, IntArray]:
    """Return the union of intervals as disjoint ones, in order."""
    if not len(begin):
        return begin, end
    order = np.argsort(begin, kind="stable")
    begin, upto = begin[order], np.maximum.accumulate(end[order])
    first = np.concatenate(([True], begin[1:] > upto[:-1]))
    return begin[first], upto[np.concatenate((np.flatnonzero(first)[1:] - 1, [len(upto) - 1]))]


def overlaps(begin: IntArray, end: IntArray, of: tuple[IntArray, IntArray]) -> FloatArray:
    """Return how much of each interval the disjoint intervals `of` cover, in nanoseconds."""
    low, high = of
    if not len(low) or not len(begin):
        return np.zeros(len(begin))
    edges = np.stack((low, high), axis=1).ravel()
    covered = np.concatenate(([0], np.cumsum(high - low)))
    values = np.stack((covered[:-1], covered[1:]), axis=1).ravel()
    return np.asarray(np.interp(end, edges, values) - np.interp(begin, edges, values))


def waiting_places(record: RunRecord) -> list[Place]:
    """Return every place where stages waited, upstream first."""
    stages = record.stages
    names = {index: name for name, members in client_groups(record.clients).items() for index in members}
    group_of = np.array([list(dict.fromkeys(names.values())).index(names[i]) for i in range(len(record.clients))])
    groups = list(dict.fromkeys(names.values()))
    assigned = stages["assigned_ns"]
    start = np.where(record.started, stages["start_ns"], stages["end_ns"])   # until they are given up
    arrival = record.arrival_ns[stages["request"]]
    ready, room, there = assigned.copy(), assigned.copy(), assigned.copy()   # to move, with memory, with its data
    transfer, stage = transfers_of_stages(record)
    if len(transfer):
        room[stage], there[stage] = FOREVER, 0
        np.minimum.at(room, stage, record.transfers["start_ns"][transfer])
        np.maximum.at(there, stage, record.transfers["end_ns"][transfer])
    there = np.clip(there, assigned, np.maximum(start, assigned))
    room = np.clip(room, assigned, there)
    if "prefill" in record.stage_kinds and "decode" in record.stage_kinds:   # KV ahead of its prefill's end is no wait
        prefill = np.flatnonzero(stages["kind"] == record.stage_kinds.index("prefill"))
        ended = np.zeros(len(record.arrival_ns), dtype=np.int64)
        np.maximum.at(ended, stages["request"][prefill], stages["end_ns"][prefill])
        ready = np.minimum(np.maximum(assigned, ended[stages["request"]]), room)
    out = _at_gateway(record, group_of, groups)
    lost = _unfinished(record)
    for code, name in enumerate(groups):
        mine = group_of[stages["client"]] == code
        for kind in np.unique(stages["kind"][mine]).tolist():
            rows = np.flatnonzero(mine & (stages["kind"] == kind))
            since = np.flatnonzero(lost[0] == kind)
            for what, begin, end in (("memory", ready, room), ("link", room, there), ("queue", there, start)):
                low, high = begin[rows], end[rows]
                if what == "queue" and len(since):
                    low = np.concatenate((low, lost[1][since]))
                    high = np.concatenate((high, np.full(len(since), FOREVER)))
                if (high > low).any():
                    out.append(Place(what, name, low, high, float((low[:len(rows)] - arrival[rows]).mean())))
    return sorted(out, key=lambda place: place.order)


def _at_gateway(record: RunRecord, group_of: IntArray, groups: list[str]) -> list[Place]:
    """Return the places of a gateway: its capacity, and the groups of clients for which calls wait unplaced."""
    calls, out = record.calls, list[Place]()
    if not calls:
        return out
    arrival = record.arrival_ns[calls["request"]]
    waited = np.flatnonzero(calls["served_ns"] > calls["asked_ns"])
    if len(waited):
        asked = calls["asked_ns"][waited]
        out.append(Place("hop", "gateway", asked, calls["served_ns"][waited], float((asked - arrival[waited]).mean())))
    tables = [table for table in (record.held, record.queued) if table]
    if not tables:
        return out
    call, begin, left = (np.concatenate([table[name] for table in tables]) for name in ("call", "asked_ns", "left_ns"))
    end = np.where(left < 0, FOREVER, left)
    keeps = record.halts["client"] if record.halts and len(record.halts["client"]) else np.zeros(0, dtype=np.int64)
    most = int(np.bincount(group_of[keeps]).argmax()) if len(keeps) else 0   # that most is held from
    group = np.full(len(calls["request"]), most)
    served = record.attempts["client"] >= 0
    group[record.attempts["call"][served]] = group_of[record.attempts["client"][served]]
    if len(keeps):
        group = np.where(np.isin(group, group_of[keeps]), group, most)
    for code in np.unique(group[call]).tolist():
        mine = np.flatnonzero((group[call] == code) & (end > begin))
        if len(mine):
            out.append(Place("held", groups[code], begin[mine], end[mine],
                             float((begin[mine] - arrival[call[mine]]).mean())))
    return out


def _unfinished(record: RunRecord) -> tuple[IntArray, IntArray]:
    """Return, of the requests that did not finish, the kind of stage they wait for (-1: unknown) and since when."""
    stages, kinds = record.stages, len(record.stage_kinds)
    elsewhere = np.zeros(len(record.arrival_ns), dtype=bool)   # at a gateway, which has places of its own
    if record.calls:
        elsewhere[record.calls["request"][record.calls["passed_ns"] > record.end_ns]] = True
        for table in (record.held, record.queued):
            if table:
                elsewhere[record.calls["request"][table["call"][table["left_ns"] < 0]]] = True
    late = np.flatnonzero((record.status == STATUS_UNFINISHED) & (record.arrival_ns >= 0) & ~elsewhere)
    if not len(late) or not len(stages["kind"]):
        return np.zeros(0, dtype=np.int64), np.zeros(0, dtype=np.int64)
    order = np.lexsort((stages["assigned_ns"], stages["request"]))
    request, kind = stages["request"][order], stages["kind"][order]
    follows = np.zeros((kinds + 1, kinds), dtype=np.int64)   # the last row: the first stage of a request
    same = request[1:] == request[:-1]
    np.add.at(follows, (kind[:-1][same], kind[1:][same]), 1)
    np.add.at(follows, (np.full(1 + int((~same).sum()), kinds), np.concatenate((kind[:1], kind[1:][~same]))), 1)
    after = np.where(follows.sum(axis=1) > 0, follows.argmax(axis=1), -1)
    last, since = np.full(len(record.arrival_ns), kinds), record.arrival_ns.copy()
    last[request] = kind   # in order of time
    np.maximum.at(since, stages["request"], stages["end_ns"])
    return after[last[late]], since[late]
