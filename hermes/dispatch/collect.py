"""Collect the record of a finished simulation from its logs, clients, network and coordinator."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import numpy as np
import numpy.typing as npt

from hermes.arrays import FloatArray, IntArray
from hermes.core.client import Client, Columns
from hermes.core.columns import RowLog, compact, kept, release_memory, rows_in_memory
from hermes.core.network import Network
from hermes.core.record import Describe, Labels, Offered, RunRecord
from hermes.core.request import Stream
from hermes.dispatch.coordinator import Coordinator

__all__ = ["collect"]

_NO_STEPS: IntArray = np.empty(0, dtype=np.int64)
_ROWS = 1 << 20   # of clients, after which memory is released


def collect(
    clients: list[Client], streams: list[Stream], network: Network, coordinator: Coordinator, run_log: RowLog,
    describe: list[Describe], labels: Labels, stage_kinds: list[str], offered: Offered,
) -> RunRecord:
    """Return the record of a run. Empties the logs."""
    tables, now = [s.table for s in streams], int(coordinator.env.now)
    stages, runs = coordinator.rows.log.columns(), run_log.columns()
    transfers, steps = coordinator.inputs.transfers.columns(), _steps(clients)
    arrivals, finish = coordinator.arrivals.times_ns, np.array(coordinator.finish_ns, dtype=np.int64)
    if coordinator.unfinished:
        arrivals[arrivals > now] = -1   # had not arrived yet when the run ended
    else:   # ticks that came to nothing may be later: patience that was not needed, the end of a run that was cut
        ends = (arrivals, stages["end_ns"], transfers["end_ns"], *steps, finish)
        now = max(max((int(each.max()) for each in ends if len(each)), default=now), offered.until_ns)
    status = np.frombuffer(bytes(coordinator.status), dtype=np.int8)
    finish[status != 1] = -1
    arrivals, status, finish, prompts, outputs, priority, session = kept((
        arrivals, status, finish, _joined([t.prompt_tokens for t in tables]),
        _joined([t.output_tokens for t in tables]), _joined([t.priority for t in tables]),
        _joined([t.session for t in tables])), len(status))
    decode_steps = [None if c.pauses is None else np.delete(np.arange(c.num_steps), np.array(c.pauses, dtype=np.int64))
                    for c in clients]
    gaps = {row: _steps_of(segments, decode_steps[stages["client"][row]])
            for row, segments in coordinator.rows.gaps.items()}
    rows_of_runs, rows_of_stages = (_rows_by_client(table, len(clients)) for table in (runs, stages))
    ordered = _ordered(runs, rows_of_runs)
    block_ns = np.zeros(len(runs["client"]), dtype=np.int64)
    continued = stage_kinds.index("decode") if coordinator.prefill_gives else -1
    infos, out_of_range, growth = [], [], {}
    each = zip(clients, describe, rows_of_runs, rows_of_stages, decode_steps, strict=True)
    begin = rows = 0
    for client, tell, mine, served, ticks in each:
        begin, rows = begin + rows, len(mine)
        table, where = (ordered, slice(begin, begin + rows)) if ordered else (runs, mine)
        columns = {name: _rows(column, where) for name, column in table.items()}
        ended = columns
        if coordinator.attempts and len(mine):   # a step that a crash cut off says nothing about steps
            ended = {name: column[columns["num_steps"] > 0] for name, column in columns.items()}
        infos.append(tell(ended))
        out_of_range.append(client.out_of_range_steps(ended))
        group = infos[-1].group or infos[-1].name
        if len(mine) and group not in growth and (measure := getattr(client, "step_growth", None)) is not None:
            growth[group] = measure(ended)   # of the first client of equal ones
        if len(mine):
            segments = {row: coordinator.rows.gaps[row] for row in served.tolist() if row in coordinator.rows.gaps}
            block_ns[mine] = client.block_ns(columns, stages, served, segments, continued, ticks)
            for row, moved in client.moved_in_run:
                block_ns[row] -= moved
        if (begin + rows) // _ROWS > begin // _ROWS:
            del columns, ended
            release_memory(_ROWS)
    tiers = {id(tier): tier for client in clients for tier in client.tiers}
    names = [client.name for client in clients]
    return RunRecord(
        clients=infos, stage_kinds=stage_kinds, arrival_ns=arrivals, prompt_tokens=prompts, output_tokens=outputs,
        priority=priority, session=session,
        status=status, finish_ns=finish, reject_reasons=dict(sorted(coordinator.reject_reasons.items())),
        stages=stages, runs=runs | {"kv_block_ns": kept((block_ns,), len(block_ns))[0]}, transfers=transfers,
        step_ends=steps, gaps=gaps, decode_steps=decode_steps,
        out_of_range_steps=out_of_range, end_ns=now, tiers=[tier.info(names) for tier in tiers.values()],
        links=network.links(), machines=[info for info in [c.machine_info() for c in clients] if info is not None],
        sharing=[info for info in [c.sharing_info() for c in clients] if info is not None],
        out_of_requests_ns=coordinator.arrivals.out_of_requests_ns, offered=offered, labels=labels,
        notes=_notes(coordinator), note_names=coordinator.notes.names, **_of_parts(coordinator, now),
        after_ns=[c.after_ns for c in clients], late_ns={
            number: _late(client, len(ends)) for number, (client, ends) in enumerate(zip(clients, steps, strict=True))
            if client.late_log}, stalls=_stalls(clients), step_growth=growth,
        background=np.array([row for row, stage in coordinator.rows.unawaited.items()
                             if stage.background or stage.request.background], dtype=np.int64),
        counters={"steps": sum(c.num_steps for c in clients), "runs": len(runs["client"])} | _tasks_outside(clients),
    )


def _steps(clients: list[Client]) -> list[IntArray]:
    """Return the end times of each client's steps."""
    def taken() -> Iterator[IntArray]:
        for client in clients:
            yield client.steps.array()
            client.steps.replace(_NO_STEPS)   # one by one

    steps = kept(taken(), sum(client.num_steps for client in clients))
    for client, ends in zip(clients, steps, strict=True):
        client.steps.replace(ends)
    return steps


def _ordered(runs: Columns, rows: list[npt.NDArray[np.intp]]) -> Columns:
    """Return the runs of a table on disk by client, so that those of one client lie together; empty for others."""
    count = len(runs["client"])
    if count < rows_in_memory():
        return {}
    order = np.concatenate(rows)
    return dict(zip(runs, kept((_rows(column, order) for column in runs.values()), count), strict=True))


def _rows(column: IntArray, rows: npt.NDArray[np.intp] | slice) -> IntArray:
    """Return some rows of a column; of one that takes no memory, as one that takes none."""
    return column[:len(rows)] if isinstance(rows, np.ndarray) and column.strides == (0,) else column[rows]


def _joined(columns: list[IntArray]) -> IntArray:
    return columns[0] if len(columns) == 1 else compact(np.concatenate(columns))


def _late(client: Client, steps: int) -> IntArray:
    """Return what the user waits in addition for the tokens of each step; nothing for the run that was in flight."""
    late = np.zeros(steps, dtype=np.int64)
    late[:len(client.late_log)] = client.late_log
    return late


def _of_parts(coordinator: Coordinator, end_ns: int) -> dict[str, Any]:   # Any: fields of the record
    """Return what the parts of the dispatch have noted."""
    found: dict[str, Any] = {}
    if coordinator.rows.attempts is not None:
        found["stage_attempts"] = np.frombuffer(coordinator.rows.attempts, dtype=np.int64)
        found["fates"] = np.array(sorted(coordinator.fates.items()), dtype=np.int64).reshape(-1, 2)
    for part in coordinator.parts:
        found |= part.record(end_ns)
    return found


def _notes(coordinator: Coordinator) -> dict[str, FloatArray]:
    """Return the numbers that pipelines noted about requests; NaN for requests without one."""
    notes = {}
    for name in sorted(coordinator.notes.values):
        values = coordinator.notes.values.pop(name)
        notes[name] = np.full(len(coordinator.finish_ns), np.nan)
        notes[name][list(values)] = list(values.values())
    return notes


def _stalls(clients: list[Client]) -> IntArray:
    """Return client, reason, start and end of every wait outside steps."""
    rows = [(c.index, reason, start, end) for c in clients for reason, start, end in getattr(c, "stalls", ())]
    return np.array(rows, dtype=np.int64).reshape(-1, 4)


def _rows_by_client(table: Columns, num_clients: int) -> list[npt.NDArray[np.intp]]:
    """Return the row numbers of each client, in the order of the table."""
    order = np.argsort(table["client"], kind="stable")
    return np.split(order, np.searchsorted(table["client"][order], np.arange(1, num_clients)))


def _tasks_outside(clients: list[Client]) -> dict[str, int]:
    """Count the service tasks in batches outside the range their costs were measured on; empty if there are none."""
    count = sum(client.out_of_range_tasks for client in clients)
    return {"tasks_out_of_range": count} if count else {}


def _steps_of(segments: list[tuple[int, int, int]], ticks: IntArray | None) -> npt.NDArray[np.int32]:
    """Return the step index of each token of a stage that was interrupted. 32 bits: `mixed` interrupts most stages."""
    parts = []
    for emit, start, stop in segments:
        if emit >= 0:
            parts.append(np.array([emit]))
        parts.append(np.arange(start, stop) if ticks is None else ticks[start:stop])
    return np.concatenate(parts).astype(np.int32)
