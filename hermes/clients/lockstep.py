"""Data-parallel ranks of one engine: LLM clients that take their steps together.

Each rank has its own scheduler, KV memory and requests, and is a client of its own to routers and reports. The layers'
experts wait for the tokens of all ranks, so all ranks start a step together, and it is as long as the slowest one
needs. A rank without requests computes padding meanwhile, and records no steps. (vLLM: DPEngineCoreProc in
vllm/v1/engine/core.py runs a dummy batch on such a rank.)

Runs of steps: the ranks' plans may last for different numbers of steps; all are cut to the shortest, and made anew.
"""

from __future__ import annotations

from bisect import bisect_left
from typing import Any, Protocol, runtime_checkable

import numpy as np

from hermes.clients.llm import LLMClient
from hermes.core.clock import START, STEP_END, Clock, Tick
from hermes.hardware.base import IntArray, StepStats
from hermes.schedulers.cadence import PrefillCadence
from hermes.schedulers.parts import part_of
from hermes.schedulers.plan import Plan

__all__ = ["Lockstep", "LockstepHardware", "RankClient"]


@runtime_checkable
class LockstepHardware(Protocol):
    """Hardware model that prices steps of several ranks together."""

    def lockstep_ns(self, batches: list[StepStats | None], num_steps: int) -> IntArray:
        """Return the durations of `num_steps` steps, int64; None stands for an idle rank."""
        ...


class Lockstep:
    """The steps of the ranks of one engine."""

    def __init__(self, env: Clock, hardware: LockstepHardware) -> None:
        self.env, self.hardware = env, hardware
        self.ranks: list[RankClient] = []
        self.running: list[RankClient] = []   # ranks with a batch in the run in flight
        self.start: Tick | None = None
        self._end: Tick | None = None
        self._ended_ns = -1
        # Steps since the ranks began after all of them were idle, and who asks for it (rule 23 of
        # docs/background/vllm.md).
        self._count = 0
        self.counting: list[PrefillCadence] = []

    def wake(self) -> None:
        """Start a step after all other events of this instant, or at the end of the step in flight."""
        if self._end is not None:
            self.cut()
        elif self.start is None:
            self.start = self.env.tick_at(self.env._now, START + self.ranks[0].index, self._on_start)

    def cut(self) -> None:
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
        self.start = None
        if self._end is None:
            self._begin()

    def _begin(self) -> None:
        for cadence in self.counting:
            cadence.step_counter = self._count
        plans = [rank._next_plan() for rank in self.ranks]
        self.running = [rank for rank, plan in zip(self.ranks, plans, strict=True) if plan is not None]
        if not self.running:
            self._count = 0
            return
        now, num_steps = self.env._now, min(plan.num_steps for plan in plans if plan is not None)
        batches: list[StepStats | None] = list(plans)
        durations = self.hardware.lockstep_ns(batches, num_steps)
        self._by_history(durations, plans, now)
        ends = np.cumsum(durations) + now
        for rank, plan in zip(self.ranks, plans, strict=True):
            if plan is not None:
                rank.launch(plan, ends)
        self._end = self.env.tick_at(int(ends[-1]), STEP_END + self.ranks[0].index, self._on_end)
        for rank in self.running:
            for track, position in rank.tracks:
                track.moved(position, rank)

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
        if self.start is None:
            queue = self.env._queue
            if not queue or queue[0][0] > now:   # no other event at this instant
                self._begin()
            else:
                self.wake()


class RankClient(LLMClient):
    """One rank; `group` is set by its configuration."""

    __slots__ = ("group",)

    def __init__(self, *args: Any, group: Lockstep, **options: Any) -> None:
        super().__init__(*args, **options)
        self.group = group
        group.ranks.append(self)
        cadence = part_of(self.scheduler, PrefillCadence)
        if cadence is not None:
            group.counting.append(cadence)

    @property
    def idle(self) -> bool:
        return ((self._flight.plan is None and self.group.start is None) or self.stuck) and not self.parts_wait()

    def wake(self) -> None:
        self.group.wake()

    def cut(self) -> None:
        self.group.cut()

    def launch(self, plan: Plan, ends: IntArray) -> None:
        """Begin a run whose steps end at these instants."""
        count, flight, now = len(ends), self._flight, self.env._now
        flight.start_ns, flight.plan, flight.planned, flight.held_up = now, plan, count, 0
        self._waits.note(self.scheduler, plan, now)
        for seq, _n in plan.prefills:
            if seq.start_ns < 0:
                seq.start_ns = now
        steps = self.steps
        if steps.pos + count > steps.size:
            steps.reserve(count)
        steps.buffer[steps.pos:steps.pos + count] = ends
        spans = np.diff(ends, prepend=now)
        flight.step_range = int(spans.min()), int(spans.max())
        if plan.prefills and self.events.prefill is not None:
            self.events.prefill(self, plan.prefills, int(ends[-1]))
