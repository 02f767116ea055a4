"""Time that requests spend at a gateway before a client has them: per stage row, in parts that add up.

A call enters the gateway when its pipeline asks for it. Then it waits for the gateway's capacity, passes the hop, waits
unplaced (in flow control, or for a ready client), and is with one client after the other until one completes it:

    hop_wait   wait for the gateway's capacity
    hop        its service and delay
    held       wait in flow control's queue, or for a ready client
    lost       the rest: attempts that came to nothing, and the back-off after each

Of an attempt that goes on with the tokens of another one, they begin when that one was over.

A request that its client offers again has lost all the time until the last offer.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np

from hermes.arrays import BoolArray, IntArray
from hermes.core.columns import compact, constant
from hermes.core.record import RunRecord
from hermes.results.metrics import rows_before

__all__ = ["AT_GATEWAY", "AtGateway", "asked_ns", "offered_ns", "shares_of_ttft"]

AT_GATEWAY = ("gateway", "held", "lost")
"""Causes in a breakdown; `gateway` is hop_wait and hop."""
_NEVER = np.iinfo(np.int64).max


@dataclass(frozen=True)
class AtGateway:
    """Nanoseconds per stage row, shape (stages,), up to a time; 0 for stages that no gateway passes on, and for the
    decode of a prefill."""

    hop_wait: IntArray
    hop: IntArray
    held: IntArray
    lost: IntArray

    @classmethod
    def of(cls, record: RunRecord, until_ns: IntArray | None = None) -> AtGateway:
        """Split the time from each call to the assignment of each stage. until_ns: Per request, the end of the time
        that counts; None for no end."""
        stages = record.stages
        zero = constant(0, len(stages["request"]))
        rows = np.flatnonzero(_first_rows(record))
        if not len(rows):
            return cls(zero, zero, zero, zero)
        end_of = np.full(len(record.arrival_ns), _NEVER) if until_ns is None else until_ns
        calls = record.calls
        call = record.attempts["call"][record.stage_attempts[rows]]
        end = np.minimum(stages["assigned_ns"][rows], end_of[stages["request"][rows]])
        asked = np.minimum(asked_ns(record)[rows], end)
        served, passed = (np.clip(calls[name][call], asked, end) for name in ("served_ns", "passed_ns"))
        held = _held_before(record, end_of[calls["request"]], call, stages["assigned_ns"][rows])
        if record.migrations:   # those before the attempts whose tokens it goes on with are these attempts'
            held -= _held_before(record, end_of[calls["request"]], call, asked_ns(record)[rows])
        parts = served - asked, passed - served, held, end - passed - held
        columns = []
        for part in parts:
            column = zero.copy()
            column[rows] = part
            columns.append(column)
        return cls(*columns)

    @property
    def gateway(self) -> IntArray:
        """Time in the hop, with the wait for it."""
        return compact(self.hop_wait + self.hop)


def _first_rows(record: RunRecord) -> BoolArray:
    """Return whether each stage begins an attempt of a gateway: all but the decode of a prefill."""
    if not record.calls:
        return np.zeros(len(record.stages["request"]), dtype=bool)
    decode = [code for code, kind in enumerate(record.stage_kinds) if kind == "decode"]
    return np.asarray((record.stage_attempts >= 0) & ~np.isin(record.stages["kind"], decode))


def _held_before(record: RunRecord, end_of: IntArray, call: IntArray, before: IntArray) -> IntArray:
    """Return how long each of these calls had waited unplaced before a time. end_of: By call, the end of what counts.
    """
    of, asked, left = (np.concatenate(parts) for parts in zip(*(
        (table["call"], table["asked_ns"], table["left_ns"]) for table in (record.held, record.queued) if table),
        strict=True)) if record.held or record.queued else (np.zeros(0, dtype=np.int64),) * 3
    over = left >= 0
    of, asked, left = of[over], asked[over], left[over]
    spent = np.maximum(np.minimum(left, end_of[of]) - asked, 0)
    # of each call, the waits that were over by then: a running sum in order of call and time
    time = np.concatenate((left, before))
    key = np.concatenate((of, call))
    is_row = np.arange(len(key)) >= len(of)
    order = np.lexsort((is_row, time, key))
    total = np.cumsum(np.concatenate((spent, np.zeros(len(call), dtype=np.int64)))[order])
    begin = np.searchsorted(key[order], key[order])
    out = np.empty(len(key), dtype=np.int64)
    out[order] = total - np.concatenate(([0], total))[begin]
    return out[len(of):]


def asked_ns(record: RunRecord) -> IntArray:
    """Return when each stage was asked for: of an attempt, when its call entered the gateway, or when the attempt was
    over with whose tokens it goes on. Shape (stages,)."""
    asked = record.stages["assigned_ns"].copy()
    rows = np.flatnonzero(_first_rows(record))
    asked[rows] = record.calls["asked_ns"][record.attempts["call"][record.stage_attempts[rows]]] if len(rows) else 0
    for row, before in rows_before(record).items():
        asked[row] = record.attempts["end_ns"][record.stage_attempts[before]]
    return asked


def offered_ns(record: RunRecord) -> IntArray:
    """Return when the client of each request offered it for the last time, shape (requests,)."""
    offered = record.arrival_ns.copy()
    if record.offers:
        offered[record.offers["request"]] = record.offers["offered_ns"]
    return offered


def shares_of_ttft(summary: Mapping[str, Any]) -> dict[str, float]:
    """Return the shares of a summary's mean TTFT by `AT_GATEWAY`; none without a gateway, or without an answer."""
    means, ttft = summary.get("breakdown", {}).get("ttft", {}), summary["latency"]["ttft_s"]["mean"]
    return {name: (means[f"{name}_s"]["mean"] or 0.0) / ttft for name in AT_GATEWAY} if means and ttft else {}
