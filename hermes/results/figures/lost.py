"""Requests that were lost: timed out, or at a replica that had gone down, and the time in which they were.

A time-out, as patience, keeps the queue of a full client short. What the engines lacked is what work waited for in the
longest stretch of time in which requests were under way that came to nothing (`time_of`).
"""

from __future__ import annotations

import re

import numpy as np

from hermes.core.reasons import DEAD, DRAINS, GAVE_UP, LATE, NAMES, Reason
from hermes.core.record import ATTEMPT_OUTCOMES, DOWN, READY, RunRecord
from hermes.results.figures.waiting import merged
from hermes.units import NS_PER_S

__all__ = ["chosen_dead", "dead_replica", "lost_at", "time_of"]

FAILED = ATTEMPT_OUTCOMES.index("failed")

_TIMED_OUT = "timed out: "   # begins the reasons
_CUT = re.compile(r"(?:^|: )(\S+) was stopped while it drained")
_UNREACHED = re.compile(r"(?:^|: )(\S+) (?:cannot be reached|went down)")


def lost_at(text: str) -> tuple[str, str]:
    """Return what lost a request that was rejected for a reason, and the name of the replica that had gone down or was
    stopped; "" for what is neither late nor at one."""
    if text.startswith(_TIMED_OUT):
        return LATE, ""
    if text.startswith(GAVE_UP):
        return NAMES[Reason.PATIENCE], ""
    if cut := _CUT.search(text):
        return DRAINS, cut[1]
    found = _UNREACHED.search(text)
    return ("", "") if found is None else (DEAD, found[1])


def chosen_dead(record: RunRecord) -> list[tuple[int, int, int]]:
    """Return the client, and from when to when (ns) routers chose it, for each crash after which they did: up to the
    last attempt that failed there before it was ready again, however many phases its start-up has."""
    found, members = [], record.membership
    for client, _, down, state in members.tolist() if record.attempts else ():
        if state != DOWN:
            continue
        ready = (members[:, 0] == client) & (members[:, 2] > down) & (members[:, 3] == READY)
        at, client_at, outcome = (record.attempts[name] for name in ("start_ns", "client", "outcome"))
        tried = at[(client_at == client) & (outcome == FAILED) & (at >= down) & (
            at < members[ready, 2].min(initial=record.end_ns + 1))]
        if len(tried):
            found.append((client, down, int(tried.max())))
    return found


def dead_replica(record: RunRecord, texts: list[str]) -> dict[str, str | float]:
    """Return the `replica` at which most of these requests were lost, and for how long routers chose it after it had
    gone down (`detection_s`)."""
    names = [name for what, name in map(lost_at, texts) if what == DEAD]
    name = max(sorted(set(names)), key=names.count)
    index = next((place for place, info in enumerate(record.clients) if info.name == name), -1)
    longest = max((last - down for client, down, last in chosen_dead(record) if client == index), default=0)
    return {"replica": name, "detection_s": longest / NS_PER_S}


def time_of(record: RunRecord, rows: list[int]) -> tuple[int, int] | None:
    """Return the stretch of time with most of these requests, which were answered too late: from the first one's
    arrival to the end of its last wait or stage, as far as they follow one another."""
    until = record.arrival_ns.copy()
    for table, name in ((record.stages, "end_ns"), (record.held, "left_ns"), (record.attempts, "end_ns")):
        if table:
            np.maximum.at(until, table["request"], table[name])
    begin, end = merged(record.arrival_ns[rows], until[rows])
    if not len(begin):
        return None
    number = np.bincount(np.searchsorted(begin, record.arrival_ns[rows], side="right") - 1)
    most = int(np.argmax(number))
    return (int(begin[most]), int(end[most])) if end[most] > begin[most] else None
