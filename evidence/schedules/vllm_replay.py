"""Replay of schedules recorded from a real engine through the simulator's scheduler (`hermes conform`).

A recorded file (format: docs/reference/schedules.md) lists requests by arrival step. For every engine step that
scheduled something it lists the tokens of each sequence, the preempted sequences, and the free blocks afterwards. The
replay drives the scheduler itself, step by step (`every_step`) or in runs that end where the next request arrives
(`runs`). The LLM client decides which arrivals an asynchronous engine sees, so asynchronous schedules are replayed
through a client, on a clock that ticks once per step.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Annotated, Any, ClassVar, Self

import numpy as np
from pydantic import Field, ValidationError, model_validator

from hermes.arrays import IntArray
from hermes.clients.llm import LLMClient
from hermes.clients.schedule_rows import Row, compared, row_of, rows_of
from hermes.config import ConfigModel
from hermes.config.validation import validate
from hermes.config.yaml_document import as_node
from hermes.core.block_hashes import AdapterText, GroupPrefix, PromptContent
from hermes.core.client import Client, ClientEvents
from hermes.core.clock import ARRIVAL, Clock
from hermes.core.generation import Generation
from hermes.core.record import run_log
from hermes.errors import InputError, Verbatim
from hermes.hardware.base import StepStats
from hermes.hardware.descriptions.engines import NEWEST_ENGINE, EngineDescription, load_engine
from hermes.hardware.descriptions.files import read_json
from hermes.memory import BlockPool, PrefixBlockPool
from hermes.memory.reference import ReferencePrefixPool
from hermes.schedulers.base import AT_REST, RESULTS
from hermes.schedulers.chunked import AsyncChunkedScheduler, ChunkedScheduler
from hermes.schedulers.chunked_config import ChunkedConfig
from hermes.schedulers.in_flight import Batch, InFlightScheduler
from hermes.schedulers.plan import Plan

__all__ = [
    "FileResult", "RecordedSchedule", "config_of", "conform_file", "find_files", "given_up_of", "load_schedule",
    "replay", "sequences_of", "set_interval",
]

MOST_IDLE = 50   # steps without results
Count = Field(ge=0, le=2**31)


class RecordedRequest(ConfigModel):
    """One request of a recording."""

    id: int
    arrival_step: int = Count
    prompt_tokens: int = Field(ge=1, le=2**31)
    output_tokens: int = Field(ge=1, le=2**31)
    abort_step: int | None = Field(default=None, ge=1, le=2**31)
    """When its client gives it up, counted as `arrival_step`, which is earlier."""
    abort_in_step: int | None = Field(default=None, ge=0, le=2**31)
    """The step during which its client gives it up: before its results, where `abort_step` is between two steps."""
    max_new_tokens: int | None = Field(default=None, ge=1, le=2**31)
    """Output tokens that it asks for, if a stop token ends it before."""
    priority: int = 0
    prefix_group: int | None = None
    prefix_tokens: int = Count
    adapter: int = Field(default=0, ge=0)

    @model_validator(mode="after")
    def _tokens_of_a_group(self) -> Self:
        if self.prefix_tokens and self.prefix_group is None:
            raise InputError(f"the group whose text the first {self.prefix_tokens} tokens are", Verbatim("none"),
                             field="prefix_group")
        return self


class RecordedStep(ConfigModel):
    """One engine step: [[id, num_tokens, num_computed_tokens before], ...], preempted ids, free blocks afterwards."""

    scheduled: list[Annotated[list[int], Field(min_length=3, max_length=3)]]
    preempted: list[int]
    free_blocks_after: int


class RecordedRun(ConfigModel):
    """Steps in which the sequences of the step before get one token more each: free blocks after each of them."""

    again: list[int] = Field(min_length=1)


class RecordedSchedule(ConfigModel):
    """A recorded file; see the module's docstring."""

    model_config = ConfigModel.model_config | {"extra": "ignore"}
    offloads: ClassVar[bool] = False   # whether KV was copied to host memory

    engine: str = ""
    engine_version: str | list[str] = ""
    """The versions that take these steps. Left out, the one that `engine` names, or else the newest."""
    max_num_batched_tokens: int = Field(ge=1)
    max_num_seqs: int = Field(ge=1)
    num_blocks: int = Field(ge=1)
    block_size: int = Field(ge=1)
    prefix_caching: bool
    scheduling_policy: str
    long_prefill_token_threshold: int = Count
    watermark: float = Field(default=0.0, ge=0, lt=1)
    chunked_prefill: bool = True
    reserve_full_isl: bool | None = None
    adaptive_cap: bool = False
    async_scheduling: bool = False
    num_speculative_tokens: int = Field(default=0, ge=0, le=64)
    speculative_method: str = "ngram"
    accepted: list[int] = []
    """Accepted drafts, used in turn by every request each time that some of its drafts are verified."""
    scheduler_config: dict[str, int] = {}
    max_loras: int | None = None
    local_interval: bool = False
    """Whether `prefill_schedule_interval` is that of an engine without data-parallel ranks."""
    requests: list[RecordedRequest]
    steps: list[RecordedStep | RecordedRun]

    @model_validator(mode="after")
    def _runs_follow_a_step(self) -> Self:
        if self.steps and isinstance(self.steps[0], RecordedRun):
            raise InputError("a step, which later ones continue", Verbatim("again"), field="steps.0")
        return self

    @property
    def rows(self) -> list[Row]:
        """The steps one by one."""
        rows: list[Row] = []
        for step in self.steps:
            if isinstance(step, RecordedStep):
                rows.append(step.model_dump())
                continue
            for free_blocks in step.again:
                scheduled = [[name, 1, past + tokens] for name, tokens, past in rows[-1]["scheduled"]]
                rows.append({"scheduled": scheduled, "preempted": [], "free_blocks_after": free_blocks})
        return rows

    @property
    def versions(self) -> list[str]:
        """The engine's versions that take these steps, at least one."""
        if self.engine_version:
            return [self.engine_version] if isinstance(self.engine_version, str) else self.engine_version
        named = re.match(r"vllm (\d+\.\d+\.\d+)", self.engine)
        return [named[1] if named else NEWEST_ENGINE.removeprefix("vllm-")]

    def engines(self) -> list[EngineDescription]:
        """Return the engines of these versions, of equal rules only one. `InputError` if one is unknown."""
        found: dict[tuple[str, bool], EngineDescription] = {}
        for version in self.versions:
            engine = load_engine(f"vllm-{version}")
            found.setdefault((engine.rules, engine.reserve_full_isl), engine)
        return list(found.values())


@dataclass
class FileResult:
    """Number of a file's steps that are identical in the replay, and the first that is not."""

    file: str
    steps: int
    identical: int
    first_difference: dict[str, Any] | None   # Any: JSON

    @property
    def ok(self) -> bool:
        return self.identical == self.steps and self.first_difference is None


def load_schedule(path: Path) -> RecordedSchedule:
    """Read a recorded schedule. `InputError` names file and field."""
    return _schedule_of(read_json(path), path)


def _schedule_of(data: Any, path: Path) -> RecordedSchedule:   # Any: JSON
    kind: type[RecordedSchedule] = RecordedSchedule
    if isinstance(data, dict) and "host_chunks" in data:
        from evidence.schedules.offload_replay import RecordedOffload

        kind = RecordedOffload
    try:
        return kind.model_validate(data)
    except (ValidationError, RecursionError):   # find the place, which takes longer than a plain read
        return validate(kind, as_node(data), str(path))


def find_files(paths: list[Path]) -> list[Path]:
    """Return the recorded files among `paths` and below their folders, sorted."""
    files: list[Path] = []
    for path in paths:
        found = sorted(path.rglob("*.json")) if path.is_dir() else [path]
        if not found or not path.exists():
            raise InputError("a recorded schedule or a folder of them", str(path))
        files += found
    return files


def config_of(recorded: RecordedSchedule, engine: EngineDescription | None = None) -> ChunkedConfig:
    """Return the scheduler's configuration. engine: As for `replay`."""
    engine = engine or recorded.engines()[0]
    given, default = recorded.reserve_full_isl, engine.reserve_full_isl
    return validate(ChunkedConfig, {
        "max_num_batched_tokens": recorded.max_num_batched_tokens, "max_num_seqs": recorded.max_num_seqs,
        "policy": recorded.scheduling_policy, "long_prefill_token_threshold": recorded.long_prefill_token_threshold,
        "watermark": recorded.watermark, "enable_chunked_prefill": recorded.chunked_prefill,
        "reserve_full_isl": default if given is None else given,
        "adaptive_long_prefill_threshold": recorded.adaptive_cap, "async_scheduling": recorded.async_scheduling,
        "speculative": None if not recorded.num_speculative_tokens else {
            "method": recorded.speculative_method, "num_speculative_tokens": recorded.num_speculative_tokens,
            "accepted": recorded.accepted},
        "max_loras": recorded.max_loras, **recorded.scheduler_config,
    }).following(engine.rules)


def _pool(recorded: RecordedSchedule, config: ChunkedConfig, *, every_step: bool) -> BlockPool:
    if not recorded.prefix_caching:
        return BlockPool(recorded.num_blocks, recorded.block_size)
    pool_type = ReferencePrefixPool if every_step else PrefixBlockPool
    return pool_type(recorded.num_blocks, recorded.block_size, unhashed_to_front=config.unhashed_to_front)


def sequences_of(recorded: RecordedSchedule) -> list[tuple[int, Generation]]:
    """Return (arrival step, sequence) in order of arrival; a sequence's `request` is its id in the recording."""
    arrivals: list[tuple[int, Generation]] = []
    for order, request in enumerate(sorted(recorded.requests, key=lambda r: r.arrival_step)):
        content: PromptContent | None = None
        if request.prefix_group is not None:
            content = GroupPrefix(request.prefix_group, request.prefix_tokens)
        if request.adapter:
            content = AdapterText(request.adapter, content)
        seq = Generation(request.prompt_tokens, request.output_tokens, request.priority, arrival_order=order,
                       content=content)
        seq.request = request.id  # type: ignore[assignment]  # a recording has only the id
        if request.max_new_tokens is not None and request.max_new_tokens > request.output_tokens:
            seq.max_new_tokens, seq.stops_early = request.max_new_tokens, True
        arrivals.append((request.arrival_step, seq))
    return arrivals


def replay(recorded: RecordedSchedule, engine: EngineDescription | None = None, *, every_step: bool) -> list[Row]:
    """Return the rows of the simulator's scheduler, in the recording's format.

    engine: Whose rules it follows; left out, those of the first version that the recording names.
    """
    if recorded.offloads:
        from evidence.schedules.offload_replay import RecordedOffload, replay_offload

        assert isinstance(recorded, RecordedOffload)
        return replay_offload(recorded, engine, every_step=every_step)
    config = config_of(recorded, engine)
    pool = _pool(recorded, config, every_step=every_step)
    if config.speculative is not None:
        batches = _BatchRecorder(config, pool)
        set_interval(recorded, batches)
        return _replay_batches(recorded, batches)
    if recorded.async_scheduling:
        recorder = _recorder(config.scheduler_type)(config, pool, every_step=every_step)
        set_interval(recorded, recorder)
        return _replay_client(recorded, recorder, every_step=every_step)
    scheduler = config.scheduler_type(config, pool, every_step=every_step)
    set_interval(recorded, scheduler)
    return _replay_steps(recorded, scheduler, every_step=every_step)


def set_interval(recorded: RecordedSchedule, scheduler: ChunkedScheduler) -> None:
    """Let the scheduler count its steps for itself, as an engine without ranks does, if the recording is of one."""
    if recorded.local_interval:
        for part in scheduler.parts:
            part.placed(ranks=1, connected=recorded.offloads)


def _replay_steps(recorded: RecordedSchedule, scheduler: ChunkedScheduler, *, every_step: bool) -> list[Row]:
    """Drive the scheduler alone: it sees arrivals between steps."""
    arrivals = sequences_of(recorded)
    given_up, while_running = given_up_of(recorded, arrivals)
    rows: list[Row] = []
    step = next_arrival = unfinished = idle_plans = 0
    while next_arrival < len(arrivals) or unfinished:
        while next_arrival < len(arrivals) and arrivals[next_arrival][0] <= step:
            scheduler.enqueue(arrivals[next_arrival][1])
            next_arrival += 1
            unfinished += 1
        for seq in [seq for seq, last in given_up.items() if last <= step]:
            if seq in scheduler.running or seq in scheduler.waiting:
                scheduler.leave(seq, AT_REST)
                unfinished -= 1
            del given_up[seq]
        if not unfinished:
            if next_arrival < len(arrivals):
                step = arrivals[next_arrival][0]
            continue
        changes = [arrival for arrival, _seq in arrivals[next_arrival : next_arrival + 1]] + list(given_up.values())
        changes += [last + 1 for last in while_running.values()]
        until = min(changes, default=1 << 30) - step
        plan = scheduler.plan(1 if every_step else until)
        idle_plans = idle_plans + 1 if plan is None else 0
        if idle_plans > 2:   # nothing will ever run: report the rows so far instead of looping
            break
        if plan is None:
            step += 1
            continue
        scheduler.take_blocks(plan, 1)
        rows += rows_of(scheduler, plan, plan.preempted, scheduler.pool.free_blocks)
        step += plan.num_steps
        finished = scheduler.complete(plan, plan.num_steps, step - 1, step)
        for seq in [seq for seq, last in while_running.items() if last < step]:
            del while_running[seq]
            if seq in finished or seq in scheduler.running or seq in scheduler.waiting:
                scheduler.leave(seq, RESULTS)
                unfinished -= 1
                if seq in finished:
                    finished.remove(seq)
        for seq in finished:
            scheduler.release(seq)
            unfinished -= 1
    return rows


def given_up_of(
    recorded: RecordedSchedule, arrivals: list[tuple[int, Generation]]
) -> tuple[dict[Generation, int], dict[Generation, int]]:
    """Return the sequences that their clients give up, and when: between two steps, and while one runs."""
    by_id = {request.id: request for request in recorded.requests}
    asked = [(seq, by_id[seq.request]) for _arrival, seq in arrivals]  # type: ignore[index]  # its id
    between = {seq: one.abort_step for seq, one in asked if one.abort_step is not None}
    return between, {seq: one.abort_in_step for seq, one in asked if one.abort_in_step is not None}


def _recorder(kind: type[ChunkedScheduler]) -> type[_Recorder]:
    """Return a scheduler class that records what it does."""
    if kind is AsyncChunkedScheduler:
        return _Recorder
    return type("_PartedRecorder", (_Recorder, kind), {})


class _Recorder(AsyncChunkedScheduler):
    """A scheduler that records rows of the steps that a client has taken."""

    def __init__(self, config: ChunkedConfig, pool: BlockPool, *, every_step: bool) -> None:
        super().__init__(config, pool, every_step=every_step)
        self.rows: list[Row] = []
        self._planned: list[Row] = []
        self._victims: list[Generation] = []
        self._free_blocks = -1
        self._seen = False   # whether the rows of the plan were noted before sequences left that it computes

    def plan(self, max_steps: int) -> Plan | None:
        self._victims, self._free_blocks, self._seen = [], -1, False
        plan = super().plan(max_steps)
        if plan is not None and not self._seen:
            self.take_blocks(plan, 1)
            now = self.pool.free_blocks
            first = now if self._free_blocks < 0 else self._free_blocks
            self._planned = rows_of(self, plan, self._victims, first, now - first)
        return plan

    def complete(self, plan: Plan, num_steps: int, step: int, now_ns: int) -> list[Generation]:
        self.rows += self._planned[:num_steps]
        return super().complete(plan, num_steps, step, now_ns)

    def _let_go(self, plan: Plan | None) -> None:
        self._free_blocks = self.pool.free_blocks
        if self._unseen and plan is not None:
            self._seen = True
            self._planned = rows_of(self, plan, self._victims, self._free_blocks)
        super()._let_go(plan)

    def preempt(self, seq: Generation, plan: Plan) -> None:
        self._victims.append(seq)
        super().preempt(seq, plan)

    def _preempt_ending(self, order: list[Generation]) -> Generation | None:
        seq = super()._preempt_ending(order)
        if seq is not None:
            self._victims.append(seq)
        return seq


class _BatchRecorder(InFlightScheduler):
    """A scheduler that records every batch when it is scheduled."""

    def __init__(self, config: ChunkedConfig, pool: BlockPool) -> None:
        super().__init__(config, pool)
        self.rows: list[Row] = []

    def schedule(self) -> Batch:
        batch = super().schedule()
        if batch.shares:
            self.rows.append(row_of(batch, self.pool.free_blocks))
        return batch


def _replay_batches(recorded: RecordedSchedule, scheduler: _BatchRecorder) -> list[Row]:
    """Drive the scheduler as the engine's loop does: a batch is scheduled, or the oldest in flight gives its results.

    `arrival_step` counts batches scheduled, or, with asynchronous scheduling, batches that gave results.
    """
    arrivals = sequences_of(recorded)
    given_up, while_running = given_up_of(recorded, arrivals)
    ahead = arrived = counted = idle = 0   # ahead: steps that passed while nothing ran

    def cancel(due: dict[Generation, int]) -> None:
        now = ahead + counted
        for seq in [seq for seq, last in due.items() if last <= now]:
            del due[seq]
            if seq in scheduler.running or seq in scheduler.waiting:
                scheduler.leave(seq, AT_REST)

    while arrived < len(arrivals) or not scheduler.at_rest:
        if scheduler.at_rest and arrived == len(arrivals):
            break
        if scheduler.at_rest and arrivals[arrived][0] > ahead + counted:
            ahead = arrivals[arrived][0] - counted
        while arrived < len(arrivals) and arrivals[arrived][0] <= ahead + counted:
            scheduler.enqueue(arrivals[arrived][1])
            arrived += 1
        cancel(given_up)
        if scheduler.at_rest:
            continue
        scheduled, given = scheduler.advance(partial(cancel, while_running))
        counted += given if recorded.async_scheduling else scheduled
        idle = 0 if given else idle + 1
        if idle > MOST_IDLE:   # nothing will ever run: report the rows so far
            break
    return scheduler.rows


class _OneTick:
    """Hardware model with steps of two nanoseconds, so that the clock counts halves of steps and idle ticks."""

    def step_ns(self, stats: StepStats) -> int:
        return 2

    def run_ns(self, stats: StepStats, num_steps: int) -> IntArray:
        return np.full(num_steps, 2, dtype=np.int64)

    def out_of_range(self, columns: dict[str, IntArray], num_steps: IntArray) -> IntArray:
        return np.zeros(len(num_steps), dtype=np.int64)


def _replay_client(recorded: RecordedSchedule, scheduler: _Recorder, *, every_step: bool) -> list[Row]:
    """Drive the scheduler with the simulator's LLM client. `arrival_step` counts steps that took time."""
    env = Clock()
    events = ClientEvents()
    ended: set[Generation] = set()

    def done(_client: Client, seq: Generation) -> None:
        scheduler.release(seq)
        ended.add(seq)

    def cancel(seq: Generation) -> None:
        if seq not in ended:
            client.abort(seq)

    events.ended = done
    events.aborted = lambda _client, seq: None
    client = LLMClient(env, 0, "engine", scheduler, _OneTick(), run_log(), events, every_step=every_step)
    arrivals = sequences_of(recorded)
    between, while_running = given_up_of(recorded, arrivals)
    times = [(2 * last, seq) for seq, last in between.items()]
    times += [(2 * last + 1, seq) for seq, last in while_running.items()]
    for last, seq in times:
        env.tick_at(last, ARRIVAL, lambda _tick, seq=seq: cancel(seq))  # type: ignore[misc]
    for arrival, seq in arrivals:
        env.tick_at(2 * arrival, ARRIVAL, lambda _tick, seq=seq: client.submit(seq))  # type: ignore[misc]
    env.drain()
    return scheduler.rows


def conform_file(path: Path, *, every_step: bool) -> FileResult:
    """Replay one file and compare step by step, with the rules of every version that it names.

    Returns the result of the first version that differs, or of all.
    """
    data = read_json(path)
    if isinstance(data, dict) and data.get("engine") == "sglang":
        from evidence.schedules.sglang_replay import both_schedules

        theirs, ours = both_schedules(data, path, every_step=every_step)
        return FileResult(str(path), len(theirs), *compared(theirs, ours, "recorded"))
    recorded = _schedule_of(data, path)
    theirs = recorded.rows
    for engine in recorded.engines():
        identical, first = compared(theirs, replay(recorded, engine, every_step=every_step), "recorded")
        if first is not None:
            break
    return FileResult(str(path), len(theirs), identical, first)
