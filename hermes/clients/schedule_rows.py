"""Rows of a schedule: what each step scheduled, as recorded schedules have it, and the comparison of two schedules."""

from __future__ import annotations

from collections.abc import Callable
from itertools import zip_longest
from operator import attrgetter
from typing import Any

from hermes.core.generation import Generation
from hermes.schedulers.chunked import ChunkedScheduler
from hermes.schedulers.in_flight import Batch
from hermes.schedulers.plan import Plan

__all__ = ["Row", "compared", "row_of", "rows_of"]

Row = dict[str, Any]   # Any: JSON


def rows_of(
    scheduler: ChunkedScheduler, plan: Plan, preempted: list[Generation], free_blocks: int, returned: int = 0,
    name: Callable[[Generation], Any] = attrgetter("request"),
) -> list[Row]:
    """Return the rows of a planned run. In a run, every member of the decode group advances by one token a step.

    Args:
        free_blocks: Free blocks after the first step took its own.
        returned: Blocks that come back between the first step and the next.
        name: Returns what stands for a sequence.
    """
    chunks = dict(plan.prefills)
    group = scheduler.group
    rows: list[Row] = []
    for j in range(plan.num_steps):
        scheduled = []
        for seq in scheduler.running:
            if seq in chunks:
                scheduled.append([name(seq), chunks[seq], seq.num_computed - chunks[seq]])
            elif seq.grouped and plan.decodes:
                scheduled.append([name(seq), 1, group.clock + seq.base + j])
        rows.append({
            "scheduled": scheduled, "preempted": [name(seq) for seq in preempted],
            "free_blocks_after": free_blocks + (returned + group.blocks_for(1) - group.blocks_for(j + 1) if j else 0),
        })
    return [row for row in rows if row["scheduled"]]


def row_of(batch: Batch, free_blocks: int, name: Callable[[Generation], Any] = attrgetter("request")) -> Row:
    """Return the row of a batch that was just scheduled. name: Returns what stands for a sequence."""
    return {"scheduled": [[name(share.seq), share.num_tokens, share.past] for share in batch.shares.values()],
            "preempted": [name(seq) for seq in batch.plan.preempted], "free_blocks_after": free_blocks}


def compared(theirs: list[Row], ours: list[Row], source: str) -> tuple[int, Row | None]:
    """Return how many steps of two schedules are identical, and the first that is not: its number and both rows.

    source: Key of their row.
    """
    identical, first = 0, None
    for index, (a, b) in enumerate(zip_longest(theirs, ours)):
        if a == b:
            identical += 1
        elif first is None:
            first = {"step": index, source: a, "hermes": b}
    return identical, first
