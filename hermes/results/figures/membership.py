"""Clients that come and go: how long each is held, and the changes as a table.

A client's devices are *held* from the start of a replica (`starting`) until it is `gone`; they cost money and draw idle
power then, and only then. Clients that are not in the record's table `membership` are held throughout.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Iterable
from typing import Any

import numpy as np

from hermes.arrays import IntArray
from hermes.core.record import ATTEMPT_OUTCOMES, CUT, DOWN, DRAINING, GONE, READY, RECLAIMED, STARTING, RunRecord
from hermes.sums import float_sum
from hermes.units import NS_PER_S

__all__ = ["CAUSES", "SERVES", "clients_of", "dollars_within", "fleet_groups", "fleet_summary", "held_ns",
           "mean_devices", "replicas_of", "spans_in"]

CAUSES = {"crashed": "crashed", "hung": "hung", "device down": "device_down",
           "node down": "node_down", "zone down": "zone_down", RECLAIMED: "reclaimed"}
SERVES = READY, DRAINING   # states of a client that has work


def fleet_groups(record: RunRecord) -> dict[str, list[int]]:
    """Return the clients that come and go by the name of their group, in order."""
    groups: dict[str, list[int]] = {}
    for index in sorted(set(record.membership[:, 0].tolist())):
        info = record.clients[index]
        groups.setdefault(info.group or info.name, []).append(index)
    return groups


def replicas_of(record: RunRecord, members: Iterable[int]) -> list[int]:
    """Return one client of each replica among these, the first: those of one engine come and go together."""
    return [mine[0] for mine in clients_of(record, members).values()]


def clients_of(record: RunRecord, members: Iterable[int]) -> dict[str, list[int]]:
    """Return the clients of each replica among these, by its name."""
    found: dict[str, list[int]] = {}
    for index in members:
        found.setdefault(record.clients[index].replica or record.clients[index].name, []).append(index)
    return found


def held_ns(record: RunRecord, start_ns: int, end_ns: int) -> IntArray:
    """Return how long each client is held within a window, shape (clients,), in ns."""
    return _in_states(record, start_ns, end_ns, lambda state: state != GONE)


def dollars_within(record: RunRecord, start_ns: int, end_ns: int) -> float | None:
    """Return the dollars of all clients in a window, busy or not; None if no client has a price."""
    if not any(info.price_per_hour for info in record.clients):
        return None
    if not len(record.membership):
        return math.fsum(info.price_per_hour for info in record.clients) * ((end_ns - start_ns) / NS_PER_S) / 3600.0
    held = held_ns(record, start_ns, end_ns).tolist()
    return math.fsum(info.price_per_hour * ns / NS_PER_S / 3600.0
                     for info, ns in zip(record.clients, held, strict=True))


def spans_in(record: RunRecord, client: int, states: tuple[int, ...], start_ns: int, end_ns: int
             ) -> tuple[IntArray, IntArray]:
    """Return when a client is in one of these states within a window, as disjoint spans in order; all of the window for
    one that is there throughout."""
    times, now = record.membership[record.membership[:, 0] == client][:, [2, 3]].T
    if not len(times):
        return np.array([start_ns]), np.array([end_ns])
    chosen = np.isin(now, states)
    begin, end = (np.clip(one, start_ns, max(end_ns, start_ns))[chosen]
                  for one in (times, np.append(times[1:], max(end_ns, int(times[-1])))))
    return begin[end > begin], end[end > begin]


def mean_devices(record: RunRecord, start_ns: int, end_ns: int) -> float:
    """Return how many devices are held on average over a window: all of them where no client comes and goes."""
    if not len(record.membership) or end_ns <= start_ns:
        return float_sum(info.num_devices for info in record.clients)
    held = held_ns(record, start_ns, end_ns)
    device_ns = sum(info.num_devices * int(ns) for info, ns in zip(record.clients, held, strict=True))
    return device_ns / (end_ns - start_ns)


def fleet_summary(record: RunRecord, start_ns: int, end_ns: int) -> dict[str, Any]:
    """Return `fleet` of the summary: by group slots, mean and most ready replicas, device-hours held, starts and
    drains, and where there are any, failures by cause, and answers that the end of a drain cut; empty if all clients
    serve throughout."""
    rows = record.membership
    if not len(rows):
        return {}
    held = held_ns(record, start_ns, end_ns)
    ready = _in_states(record, start_ns, end_ns, lambda state: state == READY)
    length = max(end_ns - start_ns, 1)
    found = {}
    for name, members in fleet_groups(record).items():
        each = replicas_of(record, members)
        mine = rows[np.isin(rows[:, 0], each)]
        change = np.where(mine[:, 3] == READY, 1, 0)
        left = _leaves_ready(mine)
        count = np.cumsum(change - left)
        found[name] = {
            "slots": len(each), "ready_mean": float(ready[each].sum() / length), "ready_most": int(count.max()),
            "held_device_hours": math.fsum(
                record.clients[i].num_devices * int(held[i]) / NS_PER_S / 3600 for i in members),
            "started": _starts(mine), "drained": int((mine[:, 3] == DRAINING).sum()),
            **_failures(record, mine),
            **({"cut": cut} if (cut := _cut(record, members)) else {}),
        }
    return {"fleet": found}


def _starts(rows: IntArray) -> int:
    """Return how many replicas began to start; each phase of a start has a row."""
    starting = rows[rows[:, 3] == STARTING]
    return len(np.unique(starting[:, :2], axis=0))


def _failures(record: RunRecord, rows: IntArray) -> dict[str, int]:
    """Return how often replicas failed by cause, for causes that there are. One that is taken back begins to drain, or
    is gone at once if it did not serve."""
    mine, count = {tuple(row) for row in rows.tolist()}, Counter[str]()
    last: dict[int, str] = {}
    for row, reason in zip(record.membership.tolist(), record.membership_reasons, strict=True):
        if tuple(row) in mine:
            before, last[row[0]] = last.get(row[0]), reason
            if reason in CAUSES and row[3] in (DOWN, GONE, DRAINING) and not (reason == before == RECLAIMED):
                count[CAUSES[reason]] += 1
    return dict(count)


def _cut(record: RunRecord, members: list[int]) -> int:
    """Return the attempts that were cut since the drain of their replica was over: they failed, or migrated."""
    ended = {(row[0], row[2]) for row, reason in zip(record.membership.tolist(), record.membership_reasons, strict=True)
             if reason in (CUT, RECLAIMED) and row[3] == GONE and row[0] in members}
    if not ended:
        return 0
    failed = np.isin(record.attempts["outcome"], [ATTEMPT_OUTCOMES.index(name) for name in ("failed", "migrated")])
    at = zip(record.attempts["client"][failed].tolist(), record.attempts["end_ns"][failed].tolist(), strict=True)
    return sum(place in ended for place in at)


def _leaves_ready(rows: IntArray) -> IntArray:
    """Return for each change 1 if its client was ready before it, else 0."""
    state: dict[int, int] = {}
    out = np.zeros(len(rows), dtype=np.int64)
    for place, (client, now) in enumerate(rows[:, [0, 3]].tolist()):
        out[place] = state.get(client) == READY
        state[client] = now
    return out


def _in_states(record: RunRecord, start_ns: int, end_ns: int, counts: Any) -> IntArray:   # Any: int -> bool
    """Return how long each client is in the states that count, within a window."""
    length = max(end_ns - start_ns, 0)
    total = np.full(len(record.clients), length, dtype=np.int64)
    rows = record.membership
    for index in set(rows[:, 0].tolist()):
        times, states = rows[rows[:, 0] == index][:, [2, 3]].T
        until = np.append(times[1:], max(end_ns, int(times[-1])))
        spans = np.clip(until, start_ns, end_ns) - np.clip(times, start_ns, end_ns)
        total[index] = sum(int(span) for span, state in zip(spans, states.tolist(), strict=True) if counts(state))
    return total
