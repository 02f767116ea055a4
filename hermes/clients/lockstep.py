"""Data-parallel ranks of one engine: clients that take their steps together.

Each rank has its own scheduler, KV memory and requests, and is a client of its own to routers and reports. The layers'
experts wait for the tokens of all ranks, so all ranks start a step together, and it is as long as the slowest one
needs. A rank without requests computes padding meanwhile, and records no steps. (vLLM: DPEngineCoreProc in
vllm/v1/engine/core.py runs a dummy batch on such a rank.)

Ranks of several stages each have as many batches in flight. A batch of one rank meets the same batch of the others in
every stage, whose layers' experts they share, so that it goes through the stages as one step of all ranks.

What holds up one rank (serial request overhead, loads of adapters) holds up the step of all: they meet in its layers.

Runs of steps: the ranks' plans may last for different numbers of steps; all are cut to the shortest, and made anew.
"""

from __future__ import annotations

from bisect import bisect_left
from typing import TYPE_CHECKING, Protocol, runtime_checkable

import numpy as np

from hermes.arrays import IntArray
from hermes.clients.parts import StepPart
from hermes.core.clock import START, STEP_END, Clock, Tick
from hermes.hardware.base import StepStats
from hermes.schedulers.cadence import PrefillCadence
from hermes.schedulers.parts import part_of
from hermes.schedulers.plan import Plan

if TYPE_CHECKING:
    from hermes.clients.build import Place
    from hermes.clients.llm import LLMClient

__all__ = ["Lockstep", "LockstepHardware", "lockstep_of"]


@runtime_checkable
class LockstepHardware(Protocol):
    """Hardware model that prices steps of several ranks together."""

    def lockstep_ns(self, batches: list[StepStats | None], num_steps: int) -> IntArray:
        """Return the durations of `num_steps` steps, int64; None stands for an idle rank."""
        ...


class Lockstep(StepPart):
    """The steps of the ranks of one engine; with pipeline stages, of one of its batches on all ranks.

    Attributes:
        slower: Time of a step on the devices as a multiple of its usual time.
    """

    def __init__(self, env: Clock, hardware: LockstepHardware) -> None:
        self.env, self.hardware = env, hardware
        self.ranks: list[LLMClient] = []
        self.running: list[LLMClient] = []   # ranks with a batch in the run in flight
        self._start: Tick | None = None
        self._end: Tick | None = None
        self._ended_ns, self.slower = -1, 1.0
        # Steps since the ranks began after all of them were idle, and who asks for it (rule 23 of
        # docs/background/vllm.md).
        self._count = 0
        self.counting: list[PrefillCadence] = []

    def attach(self, client: LLMClient) -> None:
        client.step_parts.pace = self
        self.ranks.append(client)
        cadence = part_of(client.scheduler, PrefillCadence)
        if cadence is not None:
            self.counting.append(cadence)

    def wake(self, client: LLMClient) -> None:
        self._wake()

    def _wake(self) -> None:
        """Start a step after all other events of this instant, or at the end of the step in flight."""
        if self._end is not None:
            self._cut()
        elif self._start is None:
            self._start = self.env.tick_at(self.env._now, START + self.ranks[0].index, self._on_start)

    def starts(self) -> bool:
        return self._start is not None

    def stopped(self, client: LLMClient) -> None:
        """Start no step any more: the engine goes down, or another one takes its place, rank by rank."""
        self._end = None
        self.hang()

    def hang(self) -> None:
        """Let no step start any more: the place of the event that starts one is taken. The step in flight ends."""
        self._cut()
        if self._start is not None:
            self._start.callbacks.clear()
        self._start = self.env.pending()

    def go_on(self) -> None:
        """Let steps start again."""
        if self._start is not None and not self._start.callbacks:   # its place is taken
            self._start = None
            self._wake()

    def first_index(self) -> int:
        return self.ranks[0].index

    def cut(self, client: LLMClient) -> None:
        self._cut()

    def _cut(self) -> None:
        """End the run in flight at the next step boundary (which may be now)."""
        if self._end is None:
            return   # it is ending at this instant
        first = self.running[0]
        steps, pos, planned = first.steps, first.steps.pos, first._flight.planned
        boundary = bisect_left(steps.view, self.env._now, pos, pos + planned)
        if boundary - pos + 1 < planned:
            for rank in self.running:
                rank._flight.planned = boundary - pos + 1
            self._end = self.env.tick_at(steps.view[boundary], STEP_END + self.ranks[0].index, self._on_end)

    def _on_start(self, tick: Tick) -> None:
        self._start = None
        if self._end is None:
            self._begin()

    def _begin(self) -> None:
        for cadence in self.counting:   # a rank that schedules a step ahead has scheduled the one that begins now
            cadence.step_counter = self._count + (cadence.scheduler.ahead if self._count else 0)
        plans = [rank._next_plan() for rank in self.ranks]
        self.running = [rank for rank, plan in zip(self.ranks, plans, strict=True) if plan is not None]
        if not self.running:
            self._count = 0
            return
        now, num_steps = self.env._now, min(plan.num_steps for plan in plans if plan is not None)
        batches: list[StepStats | None] = list(plans)
        held_up, load_ns = self._late(plans)
        stages, drafter, drafting_ns = self.ranks[0].step_parts.stages, self.ranks[0].step_parts.drafter, 0
        if drafter is not None:
            batches = [None if plan is None else drafter.verified(plan) for plan in plans]
            drafting_ns = drafter.common_drafting_ns(plans)
        if stages is not None:
            end = stages.common_end_ns(batches, now + held_up, load_ns, drafting_ns)
            ends = np.array([end], dtype=np.int64)
        else:
            durations = self.hardware.lockstep_ns(batches, num_steps)
            durations[0] += drafting_ns
            if self.slower != 1.0:
                durations = np.rint(durations * self.slower).astype(np.int64)
            durations[0] += load_ns
            self._by_history(durations, plans, now)
            ends = np.cumsum(durations) + (now + held_up)
        for rank, plan in zip(self.ranks, plans, strict=True):
            if plan is not None:
                _launch(rank, plan, ends, held_up)
        self._end = self.env.tick_at(int(ends[-1]), STEP_END + self.ranks[0].index, self._on_end)
        for rank in self.running:
            for track, position in rank.tracks:
                track.moved(position, rank)

    def _late(self, plans: list[Plan | None]) -> tuple[int, int]:
        """Return the time in the serving stack and that of loads of the rank that has most of both: all wait for it."""
        latest = 0, 0
        for rank, plan in zip(self.ranks, plans, strict=True):
            parts = rank.step_parts
            if plan is not None and (parts.holds or parts.loads):
                latest = max(latest, (parts.held_up_ns(rank, plan), parts.load_ns(rank, plan)), key=sum)
        return latest

    def _by_history(self, durations: IntArray, plans: list[Plan | None], now: int) -> None:
        """Lengthen steps by what those before them cost: clocks that sank under prompts, an engine that was idle."""
        longest, idle = int(durations[0]), 0
        for rank, plan in zip(self.ranks, plans, strict=True):
            history = rank._price.history
            if history is not None:
                idle = history.idle_ns
                if plan is not None and plan.prefill_tokens:
                    longest = max(longest, history.step_ns(plan, int(durations[0]), now))
        durations[0] = longest + (idle if now > self._ended_ns else 0)

    def _on_end(self, tick: Tick) -> None:
        if tick is not self._end:
            return   # the run was cut
        self._end = None
        now = self._ended_ns = self.env._now
        self._count += self.running[0]._flight.planned
        for rank in self.running:
            rank._complete(now)
        if self._start is None:
            queue = self.env._queue
            if not queue or queue[0][0] > now:   # no other event at this instant
                self._begin()
            else:
                self._wake()


def _launch(client: LLMClient, plan: Plan, ends: IntArray, held_up: int) -> None:
    """Begin a run of a rank whose steps end at these instants."""
    count, flight, now = len(ends), client._flight, client.env._now
    flight.start_ns, flight.plan, flight.planned, flight.held_up = now, plan, count, held_up
    client._waits.note(client.scheduler, plan, now)
    for seq, _n in plan.prefills:
        if seq.start_ns < 0:
            seq.start_ns = now
    steps = client.steps
    if steps.pos + count > steps.size:
        steps.reserve(count)
    steps.buffer[steps.pos:steps.pos + count] = ends
    spans = np.diff(ends, prepend=now)
    flight.step_range = int(spans.min()), int(spans.max())
    if plan.prefills and client.events.prefill is not None:
        client.events.prefill(client, plan.prefills, int(ends[-1]))


def lockstep_of(ranks: int, place: Place) -> Lockstep:
    assert isinstance(place.hardware, LockstepHardware)   # `hermes.engine.compatibility`
    return Lockstep(place.env, place.hardware)
