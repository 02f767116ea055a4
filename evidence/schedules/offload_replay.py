"""Replay of schedules recorded from vLLM with its OffloadingConnector (KV offload to host memory).

Format: docs/reference/schedules.md. The replay plays the workers by the same rules as the recording: every job is
complete a given number of steps after it was started (`evidence.schedules.vllm_offload_alone`).
"""

from __future__ import annotations

from collections import deque
from typing import Annotated, Any, ClassVar, Literal

from pydantic import Field

from evidence.schedules.vllm_replay import (
    MOST_IDLE,
    Count,
    RecordedSchedule,
    RecordedStep,
    config_of,
    given_up_of,
    sequences_of,
    set_interval,
)
from hermes.clients.schedule_rows import Row, row_of, rows_of
from hermes.core.generation import Generation
from hermes.hardware.descriptions.engines import EngineDescription
from hermes.memory.fenced import FencedPool
from hermes.memory.host_cache import HostCache
from hermes.schedulers.base import AT_REST, RESULTS
from hermes.schedulers.host_offload import HostOffload, Job
from hermes.schedulers.in_flight import InFlightScheduler
from hermes.schedulers.plan import Plan

__all__ = ["RecordedOffload", "replay_offload"]


class OffloadStep(RecordedStep):
    """One schedule that computes, loads, stores or flushes something."""

    preempted: list[int] = []
    loading: list[int] = []
    """Requests that wait for their load, in the order of its start."""
    loads: list[Annotated[list[int], Field(min_length=3, max_length=3)]] = []
    """[id, blocks of the device, chunks of the host]."""
    stores: list[Annotated[list[int], Field(min_length=3, max_length=3)]] = []
    flushed: int = 0
    """Jobs that the step waits for."""
    host: Annotated[list[int], Field(min_length=2, max_length=2)]
    """Chunks in the host cache, and those of them that may be evicted."""


class RecordedOffload(RecordedSchedule):
    """A recorded file; see the module's docstring."""

    offloads: ClassVar[bool] = True

    host_chunks: int = Field(ge=1)
    blocks_per_chunk: int = Field(ge=1)
    eviction_policy: Literal["lru", "arc"]
    offload_prompt_only: bool
    store_threshold: int = Count
    load_steps: int = Count
    store_steps: int = Count
    blocks_per_step: int = Count
    steps: list[OffloadStep]  # type: ignore[assignment]  # of a kind of their own


def replay_offload(
    recorded: RecordedOffload, engine: EngineDescription | None = None, *, every_step: bool
) -> list[Row]:
    """Return the rows of the simulator's scheduler, in the recording's format.

    engine: Whose rules it follows; left out, those of the first version that the recording names.
    """
    return _Replay(recorded, engine, every_step=every_step).rows()


class _Replay:
    """A scheduler, and the workers that carry out its jobs."""

    def __init__(self, recorded: RecordedOffload, engine: EngineDescription | None, *, every_step: bool) -> None:
        self.recorded, self.every_step = recorded, every_step
        config = config_of(recorded, engine)
        host = HostCache(recorded.host_chunks, recorded.eviction_policy, recorded.store_threshold,
                         ranked=config.ranks_chunks)
        self.offload = HostOffload(host, blocks_per_chunk=recorded.blocks_per_chunk,
                                   prompt_only=recorded.offload_prompt_only, offers_anew=config.offers_anew)
        self.scheduler = config.build_with(
            FencedPool(recorded.num_blocks, recorded.block_size), (self.offload,), every_step=every_step)
        set_interval(recorded, self.scheduler)
        self.due: dict[Job, int] = {}

    def rows(self) -> list[Row]:
        if isinstance(self.scheduler, InFlightScheduler):
            return self._rows_of_batches(self.scheduler)
        scheduler, offload, arrivals = self.scheduler, self.offload, sequences_of(self.recorded)
        between, while_running = given_up_of(self.recorded, arrivals)
        rows: list[Row] = []
        step = arrived = idle = 0
        ended = False   # in the latest step: the engine schedules once more
        while arrived < len(arrivals) or self._anyone or ended or offload.jobs:
            while arrived < len(arrivals) and arrivals[arrived][0] <= step:
                scheduler.enqueue(arrivals[arrived][1])
                arrived += 1
            ended |= self._cancel(between, step, AT_REST, [])
            if not (self._anyone or ended or offload.jobs):
                if arrived < len(arrivals):
                    step = arrivals[arrived][0]
                continue
            changes = [arrival for arrival, _seq in arrivals[arrived : arrived + 1]] + list(between.values())
            until = min(changes + [last + 1 for last in while_running.values()], default=1 << 30) - step
            plan = scheduler.plan(1 if self.every_step else until)
            idle = 0 if plan is not None or offload.jobs or ended else idle + 1
            if idle > 2:   # nothing will ever run: report the rows so far instead of looping
                break
            started, flushed = offload.take_jobs()
            rows += self._rows(plan, started, flushed)
            self._take_jobs(step, started, flushed)
            num_steps = 1 if plan is None else plan.num_steps
            step += num_steps
            finished = [] if plan is None else scheduler.complete(plan, num_steps, step - 1, step)
            ended = self._cancel(while_running, step - 1, RESULTS, finished) or bool(finished)
            for seq in finished:
                scheduler.release(seq)
            for job in [job for job, due in self.due.items() if due < step]:
                del self.due[job]
                offload.job_done(job)
        return rows

    @property
    def _anyone(self) -> bool:
        """Whether a sequence waits or runs."""
        scheduler = self.scheduler
        return bool(scheduler.running or scheduler.waiting or scheduler.holding)

    def _cancel(self, due: dict[Generation, int], now: int, when: int, finished: list[Generation]) -> bool:
        """Let the sequences leave that are given up by now; return whether any does.

        finished: What ended in the step that has just run.
        """
        gone = [seq for seq, last in due.items() if last <= now]
        leaving = [seq for seq in gone if seq in finished or self.scheduler.has(seq)]
        for seq in gone:
            del due[seq]
        for seq in leaving:
            self.scheduler.leave(seq, when)
            if seq in finished:
                finished.remove(seq)
        return bool(leaving)

    def _rows_of_batches(self, scheduler: InFlightScheduler) -> list[Row]:
        """Drive a scheduler with batches in flight as the engine's loop does."""
        offload, arrivals = self.offload, sequences_of(self.recorded)
        between, while_running = given_up_of(self.recorded, arrivals)
        most = 1 + scheduler.ahead
        rows: list[Row] = []
        in_flight: deque[int] = deque()   # numbers of schedules
        step = arrived = idle = 0
        ended = False   # since the latest schedule
        while arrived < len(arrivals) or self._anyone or ended or offload.jobs or in_flight:
            while arrived < len(arrivals) and arrivals[arrived][0] <= step:
                scheduler.enqueue(arrivals[arrived][1])
                arrived += 1
            ended |= self._cancel(between, step, AT_REST, [])
            busy = bool(self._anyone or ended or offload.jobs)
            if not busy and not in_flight:
                if arrived < len(arrivals):
                    step = arrivals[arrived][0]
                continue
            if busy:
                batch = scheduler.add_batch()
                started, flushed = offload.take_jobs()
                rows += self._with_jobs([row_of(batch, scheduler.pool.free_blocks)] if batch.shares else [],
                                        batch.plan, started, flushed)
                self._take_jobs(step, started, flushed)
                in_flight.append(step)
                step += 1
                ended = False
                idle = 0 if batch.shares or offload.jobs else idle + 1
                if idle > MOST_IDLE:   # nothing will ever run: report the rows so far instead of looping
                    break
                if len(in_flight) < most and batch.shares:
                    continue
            number = in_flight.popleft()
            ended |= self._cancel(while_running, number, RESULTS, [])
            finished = scheduler.complete(Plan(), 1, 0, 0)
            for seq in finished:
                scheduler.release(seq)
            ended |= bool(finished)
            for job in [job for job, due in self.due.items() if due <= number]:
                del self.due[job]
                offload.job_done(job)
        return rows

    def _take_jobs(self, step: int, started: list[Job], flushed: list[Job]) -> None:
        recorded = self.recorded
        for job in started:
            more = (len(job.blocks) - 1) // recorded.blocks_per_step if recorded.blocks_per_step else 0
            self.due[job] = step + more + (recorded.load_steps if job.load else 1 + recorded.store_steps)
        for job in flushed:
            self.due[job] = step

    def _rows(self, plan: Plan | None, started: list[Job], flushed: list[Job]) -> list[Row]:
        scheduler = self.scheduler
        rows: list[Row] = []
        if plan is not None:
            scheduler.take_blocks(plan, 1)
            rows = rows_of(scheduler, plan, plan.preempted, scheduler.pool.free_blocks)
        return self._with_jobs(rows, plan, started, flushed)

    def _with_jobs(self, rows: list[Row], plan: Plan | None, started: list[Job], flushed: list[Job]) -> list[Row]:
        """Return the rows of a plan with its jobs, which the first one starts, and the state of the host."""
        def name(seq: Generation) -> Any:   # Any: a recording has only the id
            return seq.request

        jobs = [(job.load, [name(job.seq), len(job.blocks), len(job.keys)]) for job in started]
        if not rows and (jobs or flushed):
            rows = [{"scheduled": [], "preempted": [] if plan is None else [name(seq) for seq in plan.preempted],
                     "free_blocks_after": self.scheduler.pool.free_blocks}]
        host = self.offload.host
        for i, row in enumerate(rows):
            row |= {
                "loading": [name(seq) for seq in self.offload.waiting_for_load()],
                "loads": [job for load, job in jobs if load and not i],
                "stores": [job for load, job in jobs if not load and not i],
                "flushed": 0 if i else len(flushed), "host": [host.used, host.evictable],
            }
        return rows
