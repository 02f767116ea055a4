"""Replicas over time: how many of a group are in each state, how long each is in it, and what changed their number.

Everything is read from the record's table `membership`. States go by their names in `MEMBER_STATES`; a client that is
`gone` is in none.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import NamedTuple

import numpy as np

from hermes.arrays import IntArray
from hermes.core.record import GONE, MEMBER_STATES, RunRecord
from hermes.results.figures.membership import held_ns, replicas_of
from hermes.units import NS_PER_S

__all__ = ["STACK", "Decision", "Queue", "Span", "decisions", "group_dollars", "longest_queue", "spans", "state_counts"]

# from the bottom of a stack to its top: what serves, what will, what still does, what does not
_ORDER = ("ready", "starting", "draining", "down")
STACK = (*(name for name in _ORDER if name in MEMBER_STATES),
         *(name for name in MEMBER_STATES if name not in _ORDER and MEMBER_STATES.index(name) != GONE))
"""Names of the states in which a replica is there, in the order in which a chart stacks them."""


class Span(NamedTuple):
    """Time that a replica is in one state. then: The next state with its reason, "" at the end of the run."""

    client: int
    incarnation: int
    state: str
    start_ns: int
    end_ns: int
    reason: str
    then: str


class Decision(NamedTuple):
    """Changes of one instant with one reason. text: For example `+2 schedule`."""

    time_ns: int
    text: str


class Queue(NamedTuple):
    """The longest queue of a group, and when it was first that long (ns)."""

    stages: int
    time_ns: int


def spans(record: RunRecord) -> list[Span]:
    """Return the spans of all replicas in order of their start, the time gone left out."""
    upto = max(record.end_ns, int(record.membership[:, 2].max(initial=0)))
    follows: dict[int, int] = {}   # client -> its next row
    found: list[Span] = []
    rows, reasons = record.membership.tolist(), record.membership_reasons
    for number in range(len(rows) - 1, -1, -1):
        client, incarnation, time, state = rows[number]
        after = follows.get(client)
        follows[client] = number
        if state == GONE:
            continue
        end, then = upto, ""
        if after is not None:
            end, then = rows[after][2], f"{MEMBER_STATES[rows[after][3]]} ({reasons[after]})"
        found.append(Span(client, incarnation, MEMBER_STATES[state], time, end, reasons[number], then))
    return found[::-1]


def state_counts(record: RunRecord, members: Sequence[int]) -> tuple[IntArray, IntArray]:
    """Return the times (ns) at which the states of these clients' replicas change, and the number in each state of
    `MEMBER_STATES` from then on, shape (times, states)."""
    rows = record.membership[np.isin(record.membership[:, 0], replicas_of(record, members))]
    change = np.zeros((len(rows), len(MEMBER_STATES)), dtype=np.int64)
    state: dict[int, int] = {}
    for place, (client, now) in enumerate(rows[:, [0, 3]].tolist()):
        if client in state:
            change[place, state[client]] -= 1
        change[place, now] += 1
        state[client] = now
    times = rows[:, 2]
    last = np.append(times[1:] != times[:-1], True)[:len(times)]   # of each instant what is left at its end
    return times[last], np.cumsum(change, axis=0)[last]


def decisions(record: RunRecord, members: Sequence[int]) -> list[Decision]:
    """Return what changed the number of these clients' replicas: starts, drains, starts given up, those that went
    down."""
    found: dict[tuple[int, str], int] = {}   # time, reason -> replicas more or fewer
    state: dict[int, str] = {}
    mine = set(replicas_of(record, members))
    for (client, _, time, code), reason in zip(record.membership.tolist(), record.membership_reasons, strict=True):
        if client not in mine:
            continue
        before, now = state.get(client), MEMBER_STATES[code]
        state[client] = now
        if before is None:   # as the run begins
            continue
        fewer = now in ("draining", "down") or (now == "gone" and before in ("starting", "ready"))
        if fewer or (now == "starting" != before):   # a phase of a start is no decision
            found[time, reason] = found.get((time, reason), 0) + (-1 if fewer else 1)
    return [Decision(time, f"{more:+d} {reason}") for (time, reason), more in found.items()]


def longest_queue(record: RunRecord, members: Sequence[int]) -> Queue:
    """Return the most stages that waited at these clients at a time, from their assignment to their start; a stage
    whose request was given up waits until then. Of equal times, those that end come first."""
    stages = record.stages
    rows = np.isin(stages["client"], members)
    begins = stages["assigned_ns"][rows]
    ends = np.where(record.started, stages["start_ns"], stages["end_ns"])[rows]
    if not len(begins):
        return Queue(0, 0)
    times = np.concatenate((ends, begins))
    order = np.argsort(times, kind="stable")
    waiting = np.cumsum(np.repeat([-1, 1], len(begins))[order])
    # a stage that starts as it is assigned ends before it begins here: it never waits
    most = int(waiting.argmax())
    return Queue(max(int(waiting[most]), 0), int(times[order][most]))


def group_dollars(record: RunRecord, members: Sequence[int], start_ns: int, end_ns: int) -> tuple[float, float] | None:
    """Return the dollars of these clients in a window while they are held, and if all were held throughout; None
    without a price."""
    prices = [record.clients[index].price_per_hour for index in members]
    if not any(prices):
        return None
    held = held_ns(record, start_ns, end_ns)
    return (math.fsum(price * int(held[index]) / NS_PER_S / 3600.0
                      for price, index in zip(prices, members, strict=True)),
            math.fsum(prices) * (end_ns - start_ns) / NS_PER_S / 3600.0)
