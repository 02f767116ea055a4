"""What a run writes down about requests: rows of the table of stages.

A row is one of each sequence, branch or task, written when it leaves its client.
"""

from __future__ import annotations

from array import array
from collections.abc import Iterable

import numpy as np

from hermes.arrays import IntArray
from hermes.core.client import Client
from hermes.core.clock import Clock
from hermes.core.columns import RowLog
from hermes.core.generation import Generation, Segments
from hermes.core.record import STAGE_FIELDS
from hermes.core.stage import Stage

__all__ = ["StageRows", "Table"]


class Table:
    """A table of integers that grows by rows, whose values may change later. `columns`: by name."""

    def __init__(self, fields: Iterable[str]) -> None:
        self.columns = {name: array("q") for name in fields}

    def add(self, *row: int) -> int:
        """Add a row; return its number."""
        for column, value in zip(self.columns.values(), row, strict=True):
            column.append(value)
        return len(self) - 1

    def __len__(self) -> int:
        return len(next(iter(self.columns.values())))

    def arrays(self) -> dict[str, IntArray]:
        """Return its columns, which share its memory: no row can be added any more."""
        return {name: np.frombuffer(column, dtype=np.int64) for name, column in self.columns.items()}


class StageRows:
    """Writes the table of stages.

    Attributes:
        gaps: Row -> segments of a sequence that was interrupted (see `Generation`).
        unawaited: Row -> stage that its pipeline had not waited for by its end.
        attempts: The attempt of each row, -1 for stages without; None where no gateway makes any.
    """

    def __init__(self, env: Clock, kinds: list[str], *, attempts: bool) -> None:
        self.env, self.log = env, RowLog(STAGE_FIELDS)
        self._kinds = {kind: i for i, kind in enumerate(kinds)}
        self.gaps: dict[int, Segments] = {}
        self.unawaited: dict[int, Stage] = {}
        self.attempts: array[int] | None = array("q") if attempts else None

    def sequence(self, client: Client, stage: Generation, kind: str, emitted: int, group: int = -1, branch: int = -1,
                 *, repeats: bool = False) -> None:
        """Write the row of a sequence, or of one branch of generation `group`. repeats: Whether another row counts its
        cached tokens and preemptions."""
        log, request, first_step, last_step = self.log, stage.request, -1, -1
        lead = stage if stage.branches is None else stage.branches.lead
        asked = lead.original or lead
        if asked.background or request.background:
            self.unawaited[len(log)] = asked
        if self.attempts is not None:
            self.attempts.append(stage.attempt)
        if emitted:
            first_step = stage.first_step
            if stage.segments is not None:
                stage.segments.append((stage.emit_step, stage.join_tick, client.decode_clock()))
                self.gaps[len(log)] = stage.segments
            last_step = first_step + emitted - 1 if client.returns_together else client.num_steps - 1
        pos = log.pos
        log.write(
            log.buffer, pos, request.id, self._kinds[kind], client.index, stage.assigned_ns, stage.start_ns,
            stage.first_token_ns, self.env._now, stage.prompt_tokens, emitted, first_step, last_step,
            0 if repeats else stage.preemptions, 0 if repeats else stage.cached_tokens, group, branch,
        )
        log.pos = pos = pos + log.size
        if pos == log.limit:
            log.flush()

    def branch(self, client: Client, stage: Generation, kind: str, emitted: int, index: int) -> None:
        """Write the row of a branch. Cached tokens and preemptions during the prompt count at the lead."""
        assert stage.branches is not None
        self.sequence(client, stage, kind, emitted, stage.branches.lead.arrival_order, index,
                      repeats=kind == "prefill" and index > 0)

    def task(self, client: Client, stage: Stage) -> None:
        """Write the row of a stage at a client without an engine."""
        request, log, asked = stage.request, self.log, stage.original or stage
        if asked.background or request.background:
            self.unawaited[len(log)] = asked
        if self.attempts is not None:
            self.attempts.append(stage.attempt)
        log.write(
            log.buffer, log.pos, request.id, self._kinds[stage.kind], client.index, stage.assigned_ns, stage.start_ns,
            -1, self.env._now, stage.prompt_tokens, 0, -1, -1, 0, stage.cached_tokens, -1, -1,
        )
        log.pos += log.size
        if log.pos == log.limit:
            log.flush()
