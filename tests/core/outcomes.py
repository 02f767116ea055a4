"""Run a scenario in one stepping mode, and look at everything it leaves behind."""

from __future__ import annotations

import hashlib
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt
from scenario_parts import LivelockError, Probe

from hermes.compiled import is_compiled
from hermes.core.record import RUN_FIELDS, STAGE_FIELDS, TRANSFER_FIELDS, RunRecord
from hermes.dispatch.simulation import Simulation
from hermes.scenario import Scenario, load_scenario
from hermes.scenario.build import build

IntArray = npt.NDArray[np.int64]
MAX_CHANGES = 3_000_000   # of one pool's free blocks


@dataclass
class Outcome:
    record: RunRecord
    simulation: Simulation
    loads: list[tuple[Any, ...]]


def watched(pool: Any) -> None:
    """From now on the pool refuses to hand out blocks it does not have, or to take back more than it gave. A compiled
    pool would not see the property: it stays as it is."""
    base = type(pool)
    if is_compiled(base):
        return

    def get(self: Any) -> int:
        return self.watched_free

    def put(self: Any, value: int) -> None:
        assert 0 <= value <= self.num_blocks, f"{value} of {self.num_blocks} blocks free"
        self.watched_free = value
        self.changes += 1
        if self.changes > MAX_CHANGES:
            raise LivelockError(f"free blocks changed {MAX_CHANGES} times")

    pool.watched_free, pool.changes = pool.free_blocks, 0
    pool.__class__ = type(base.__name__, (base,), {"free_blocks": property(get, put)})


def run(data: Mapping[str, Any], stepping: str = "runs", **changes: Any) -> Outcome:
    """Simulate a scenario given as a dict."""
    return simulated(load_scenario({**data, "stepping": stepping, **changes}))


def in_steps(scenario: Scenario) -> Outcome:
    """Simulate a loaded scenario again, with every step on its own. Both share the hardware model, a pure function."""
    return simulated(scenario.model_copy(update={"stepping": "every_step"}))


def simulated(scenario: Scenario) -> Outcome:
    """Simulate a loaded scenario."""
    simulation = build(scenario)
    for client in simulation.clients:
        watched(client.scheduler.pool)
    Probe.log.clear()
    record = simulation.run()
    return Outcome(record, simulation, list(Probe.log))


def stage_token_steps(record: RunRecord, row: int) -> IntArray:
    """Step indices of a stage's tokens, by the rules written at `RunRecord`."""
    if row in record.gaps:
        return record.gaps[row]
    stages, client = record.stages, int(record.stages["client"][row])
    first, last, count = (int(stages[name][row]) for name in ("first_step", "last_step", "output_tokens"))
    if first < 0 or count == 0:
        return np.empty(0, dtype=np.int64)
    ticks = record.decode_steps[client]
    if ticks is None:
        assert last - first + 1 == count, f"stage {row}: {count} tokens from steps {first} to {last}"
        return np.arange(first, last + 1)
    until = ticks[ticks <= last]
    return np.concatenate([[first], until[len(until) - (count - 1):]]) if count > 1 else np.array([first])


def step_rows(record: RunRecord) -> dict[tuple[int, int], tuple[int, ...]]:
    """What each step computed, whatever run it was part of: (client, step) -> its statistics."""
    names = ("prefill_seqs", "prefill_tokens", "prefill_past", "prefill_attn", "decode_seqs", "sampled")
    rows: dict[tuple[int, int], tuple[int, ...]] = {}
    for values in zip(*(record.runs[name].tolist() for name in RUN_FIELDS), strict=True):
        run = dict(zip(RUN_FIELDS, values, strict=True))
        for j in range(run["num_steps"]):
            rows[run["client"], run["first_step"] + j] = (
                *(run[name] for name in names), run["decode_ctx"] + j * run["decode_seqs"],
                run["decode_ctx_max"] + (j if run["decode_seqs"] else 0), run["preempted"] if j == 0 else 0,
            )
    return rows


def boundary_rows(outcome: Outcome) -> dict[tuple[int, int], tuple[int, ...]]:
    """What was true when each run ended: (client, last step) -> (end, running, waiting, used blocks).

    Not where something arrived at this very instant: a run that it cuts ends after it, a single step ends before.
    """
    record, clients = outcome.record, outcome.simulation.clients
    runs = {name: column.tolist() for name, column in record.runs.items()}
    names = ("client", "first_step", "num_steps", "end_ns", "running", "waiting", "used_blocks")
    columns = (runs[name] for name in names)
    busy = {*record.arrival_ns.tolist(), *record.stages["assigned_ns"].tolist()}
    busy |= {*record.transfers["start_ns"].tolist(), *record.transfers["end_ns"].tolist()}
    assigned = zip(*(record.stages[name].tolist() for name in ("client", "assigned_ns", "prompt_tokens")), strict=True)
    busy |= {   # a front end hands it over later
        at + before + round(each * tokens) for c, at, tokens in assigned
        if (before := clients[c].stack.before_ns) + (each := clients[c].stack.token_ns)
    }
    rows = {(c, first + n - 1): tuple(rest) for c, first, n, *rest in zip(*columns, strict=True)}
    return {key: row for key, row in rows.items() if row[0] not in busy}


def waits(record: RunRecord) -> tuple[dict[tuple[int, int], int], list[list[int]]]:
    """Return the nanoseconds in which sequences waited, by client and reason, and the waits outside steps."""
    total: dict[tuple[int, int], int] = {}
    columns = (record.runs[name].tolist() for name in ("client", "stopped", "stopped_ns"))
    for client, stopped, ns in zip(*columns, strict=True):
        if stopped:
            total[client, stopped] = total.get((client, stopped), 0) + ns
        else:
            assert not ns
    return total, record.stalls.tolist()


def kv_means(record: RunRecord) -> list[tuple[int, int] | None]:
    """Per client: KV blocks in use times ns, and the most there were at the end of a step.

    None for a client of a hand-over at the very end of one of its steps: a single step may count those blocks or not.
    """
    out: list[tuple[int, int] | None] = []
    moves = {int(time) for name in ("start_ns", "end_ns") for time in record.transfers[name]}
    for index, client in enumerate(record.clients):
        mine = record.runs["client"] == index
        peak = max(int(record.runs["used_blocks"][mine].max(initial=0)), client.peak_blocks_inside)
        held = int(record.runs["kv_block_ns"][mine].sum())
        out.append(None if moves & set(record.step_ends[index].tolist()) else (held, peak))
    return out


def assert_same_columns(ours: dict[str, IntArray], theirs: dict[str, IntArray], what: str) -> None:
    for name, column in ours.items():
        assert column.tolist() == theirs[name].tolist(), f"{what}.{name}"


def assert_same(runs: Outcome, steps: Outcome) -> None:
    """Run mode and every_step mode left exactly the same behind."""
    a, b = runs.record, steps.record
    for name in ("arrival_ns", "status", "finish_ns"):
        assert getattr(a, name).tolist() == getattr(b, name).tolist(), name
    assert a.reject_reasons == b.reject_reasons
    for ours, theirs in zip(a.step_ends, b.step_ends, strict=True):
        assert ours.tolist() == theirs.tolist(), "step_ends"
    assert_same_columns(a.stages, b.stages, "stages")
    assert_same_columns(a.transfers, b.transfers, "transfers")
    assert {row: s.tolist() for row, s in a.gaps.items()} == {row: s.tolist() for row, s in b.gaps.items()}
    for row in range(len(a.stages["request"])):
        assert stage_token_steps(a, row).tolist() == stage_token_steps(b, row).tolist(), f"tokens of stage {row}"
    assert step_rows(a) == step_rows(b)
    ends = boundary_rows(steps)
    assert {key: ends[key] for key in boundary_rows(runs)} == boundary_rows(runs)
    assert a.end_ns == b.end_ns
    assert waits(a) == waits(b), "reasons for which sequences waited"
    assert kv_means(a) == kv_means(b), "KV blocks over time"
    assert runs.loads == steps.loads, "loads as routers saw them"


def digest(record: RunRecord) -> str:
    """Hash of every column of a record."""
    h = hashlib.sha256()

    def add(name: str, column: Any) -> None:
        h.update(f"{name}:{column.dtype}:{column.shape}".encode())
        h.update(np.ascontiguousarray(column).tobytes())

    for name in ("arrival_ns", "prompt_tokens", "output_tokens", "priority", "session", "status", "finish_ns"):
        add(name, getattr(record, name))
    tables = {STAGE_FIELDS: record.stages, RUN_FIELDS: record.runs, TRANSFER_FIELDS: record.transfers}
    for fields, table in tables.items():
        for name in fields:
            add(name, table[name])
    for i, ends in enumerate(record.step_ends):
        add(f"step_ends.{i}", ends)
    for row, steps in sorted(record.gaps.items()):
        add(f"gaps.{row}", steps)
    for i, ticks in enumerate(record.decode_steps):
        if ticks is not None:
            add(f"ticks.{i}", ticks)
    h.update(repr((record.reject_reasons, record.out_of_range_steps, record.end_ns, record.clients)).encode())
    return h.hexdigest()
