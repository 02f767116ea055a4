"""Parts of vLLM's scheduler: what an option adds to the loop of `hermes.schedulers.chunked`.

A part is one class in one file. It hears what the loop does through the hooks of `SchedulerPart`, and the loop asks it
before an admission. A scheduler without parts is a plain `ChunkedScheduler`, which calls no hook: `ChunkedConfig.parts`
says which parts the options need, and `ChunkedConfig.build` chooses the class.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, TypeVar

from hermes.core.generation import Generation
from hermes.memory.blocks import BlockPool
from hermes.schedulers.base import LLMScheduler
from hermes.schedulers.chunked import ENTER, SKIP, AsyncChunkedScheduler, ChunkedScheduler
from hermes.schedulers.plan import Plan

if TYPE_CHECKING:
    from hermes.schedulers.chunked_config import ChunkedConfig

    Base = ChunkedScheduler
else:
    Base = object   # a compiled class can be the base of an interpreted one by one way only

__all__ = ["AsyncPartedScheduler", "PartedScheduler", "SchedulerPart", "WithParts", "part_of"]

PartT = TypeVar("PartT", bound="SchedulerPart")


class SchedulerPart:
    """Hooks of a part; each does nothing here. A part changes its own state, and of the scheduler only what a hook
    names. Hooks of several parts are called in the order of `ChunkedConfig.parts`."""

    scheduler: WithParts

    def attach(self, scheduler: WithParts) -> None:
        """Join a scheduler; called once, before anything else."""
        self.scheduler = scheduler

    def placed(self, ranks: int) -> None:
        """Hear how many data-parallel ranks the engine has; called once, before the first plan."""

    def before_plan(self, max_steps: int) -> int:
        """Called once for each plan, before it is made. Returns at most how many steps it may have. May set
        `scheduler.every_step` (plan this step by the literal loop) and `scheduler._held` (running sequences that get
        nothing in it)."""
        return max_steps

    def after_plan(self, plan: Plan | None) -> None:
        """Called once for each plan, when it is made and sequences that had ended have left. May add statistics."""

    def before_admission(self, plan: Plan) -> None:
        """Called at most once for each plan, between the running sequences' part of it and the queue's."""

    def entry(self, seq: Generation, num_tokens: int) -> int:
        """Return whether the sequence at the head of the queue, with so many tokens to compute, may enter the step:
        ENTER, SKIP (it keeps its place, those behind it are asked) or STOP. Called for each sequence at the head, also
        for those that find no blocks afterwards. Must not modify anything."""
        return ENTER

    @property
    def skips_for(self) -> int:
        """The `Reason` for which a sequence waits that this part skips."""
        raise AssertionError("a part that skips says why")

    def admitted(self, seq: Generation) -> None:
        """Called when a sequence joins running."""

    def preempted(self, seq: Generation, returned: int) -> None:
        """Called before a running sequence is preempted. returned: Tokens that it had been given in this step."""

    def ending_preempted(self, seq: Generation) -> None:
        """Called when blocks are taken from a sequence whose last token is in flight (asynchronous scheduling)."""

    def aborted(self, seq: Generation) -> None:
        """Called before a sequence that was given up leaves, between two steps."""

    def leaving(self, plan: Plan | None, seqs: Sequence[Generation]) -> None:
        """Called before sequences leave that ended in the step before the one just planned (asynchronous scheduling):
        `plan` may compute them."""

    def completed(self, plan: Plan, num_steps: int, finished: Sequence[Generation]) -> None:
        """Called when steps of a plan have run, with the sequences that ended in them."""

    def wants_cut(self, seq: Generation) -> bool:
        """Return whether the arrival of a sequence may change a run of decode steps that the loop alone would keep."""
        return False


class WithParts(Base):
    """What makes a chunked scheduler one with parts.

    Attributes:
        literal: Whether the literal loop plans every step.
        passed_over: Waiting sequences that a part has skipped, and that were not admitted since.
    """

    def __init__(self, config: ChunkedConfig, pool: BlockPool, *, every_step: bool = False) -> None:
        super().__init__(config, pool, every_step=every_step)
        self.literal = every_step
        self._limited = True
        self._skipped: list[Generation] = []   # taken out of the queue while a step is planned
        self.passed_over: set[Generation] = set()
        self._skips_for = 0
        self.parts = config.parts()
        for part in self.parts:
            part.attach(self)

    def plan(self, max_steps: int) -> Plan | None:
        for part in self.parts:
            max_steps = part.before_plan(max_steps)
        plan = super().plan(max_steps)
        for part in self.parts:
            part.after_plan(plan)
        return plan

    def complete(self, plan: Plan, num_steps: int, step: int, now_ns: int) -> list[Generation]:
        finished = super().complete(plan, num_steps, step, now_ns)
        for part in self.parts:
            part.completed(plan, num_steps, finished)
        return finished

    def wants_cut(self, seq: Generation) -> bool:
        return super().wants_cut(seq) or any(part.wants_cut(seq) for part in self.parts)

    def abort(self, seq: Generation) -> None:
        self.passed_over.discard(seq)
        for part in self.parts:
            part.aborted(seq)
        super().abort(seq)

    def preempt(self, seq: Generation, plan: Plan) -> None:
        returned, self._returned = self._returned, 0
        for part in self.parts:
            part.preempted(seq, returned)
        super().preempt(seq, plan)

    def _preempt_ending(self, order: list[Generation]) -> Generation | None:
        victim = super()._preempt_ending(order)
        if victim is not None:
            for part in self.parts:
                part.ending_preempted(victim)
        return victim

    def _let_go(self, plan: Plan | None) -> None:
        for part in self.parts:
            part.leaving(plan, self._leaving)
        super()._let_go(plan)

    # -- admission ---------------------------------------------------------------------------------------------------

    def _admit_waiting(self, plan: Plan, budget: int, cap: int) -> None:
        for part in self.parts:
            part.before_admission(plan)
        super()._admit_waiting(plan, budget, cap)
        if self._skipped and not (self.waiting or self.holding):   # a slot, blocks and tokens are left
            self.stopped = self._skips_for
        for seq in reversed(self._skipped):   # back to their places
            if seq.num_blocks:
                self.holding.appendleft(seq)
            else:
                self.waiting.push_preempted(seq)
        self._skipped.clear()

    def _entry(self, seq: Generation, n: int) -> int:
        for part in self.parts:
            entry = part.entry(seq, n)
            if entry == SKIP:
                (self.holding.popleft if self.holding else self.waiting.pop)()
                self._skipped.append(seq)
                self.passed_over.add(seq)
                self._skips_for = part.skips_for
            if entry != ENTER:
                return entry
        return ENTER

    def admit(self, seq: Generation) -> None:
        super().admit(seq)
        self.passed_over.discard(seq)
        for part in self.parts:
            part.admitted(seq)


class PartedScheduler(WithParts, ChunkedScheduler):
    """A chunked scheduler with parts."""


class AsyncPartedScheduler(WithParts, AsyncChunkedScheduler):
    """The same, planned while the step before runs."""


def part_of(scheduler: LLMScheduler, kind: type[PartT]) -> PartT | None:
    """Return a scheduler's part of a kind, None if it has none."""
    return next((part for part in scheduler.parts if isinstance(part, kind)), None)
