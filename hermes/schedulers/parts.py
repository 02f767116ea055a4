"""Parts of vLLM's scheduler: what an option adds to the loop of `hermes.schedulers.chunked`.

A part is one class in one file. The loop calls the hooks of `SchedulerPart` that a part has. A scheduler without parts
is a plain `ChunkedScheduler`, which calls no hook: `ChunkedConfig.parts` says which parts the options need, and
`ChunkedConfig.build` chooses the class.
"""

from __future__ import annotations

from collections.abc import Sequence
from enum import IntEnum, auto
from typing import TYPE_CHECKING, ClassVar, TypeVar

from hermes.core.generation import Generation
from hermes.core.reasons import Reason
from hermes.memory.blocks import BlockPool
from hermes.schedulers.base import RESULTS, LLMScheduler
from hermes.schedulers.chunked import ENTER, SKIP, AsyncChunkedScheduler, ChunkedScheduler
from hermes.schedulers.plan import Plan

if TYPE_CHECKING:
    from hermes.schedulers.chunked_config import ChunkedConfig

    Base = ChunkedScheduler
else:
    Base = object   # a compiled class can be the base of an interpreted one by one way only

__all__ = ["AsyncPartedScheduler", "PartedScheduler", "SchedulerPart", "Turn", "WithParts", "part_of"]

PartT = TypeVar("PartT", bound="SchedulerPart")


class Turn(IntEnum):
    """Order of the parts. It is the engine's at the head of the queue: an adapter's slot, KV in host memory, whether
    prefills wait, rows for drafts. A new part that may refuse what others would admit comes before them."""

    ADAPTERS = auto()
    HOST_MEMORY = auto()
    CADENCE = auto()
    DRAFTS = auto()


class SchedulerPart:
    """Hooks of a part; each does nothing here. A part changes its own state, and of the scheduler only what a hook
    names. Of the four hooks for single sequences of a step (`due`, `consider`, `entry`, `padded`) only those are called
    that a part overrides.

    Attributes:
        turn: Hooks of several parts are called in this order (`Turn`).
        connects: Whether it stands for a KV connector, whose copies may write to blocks during steps.
    """

    turn: ClassVar[Turn]
    connects: ClassVar[bool] = False
    scheduler: WithParts

    def attach(self, scheduler: WithParts) -> None:
        """Join a scheduler; called once, before anything else. May set its `draft_tokens`, `lookahead`
        and `draft_rows`."""
        self.scheduler = scheduler

    def seed(self, seed: int) -> None:
        """Take the scenario's seed; called once, before the first plan."""

    def placed(self, ranks: int, *, connected: bool) -> None:
        """Note the engine's deployment; called once, before the first plan.

        ranks: Its data-parallel ranks. connected: Whether KV leaves or enters its devices through a connector.
        """

    def refusal(self, seq: Generation) -> str | None:
        """Return why a sequence can never be served, or None. Called when it arrives. Must not modify anything."""
        return None

    # -- a step, in the order of its calls -----------------------------------------------------------------------------

    def before_plan(self, max_steps: int) -> int:
        """Called once for each plan, before it is made. Returns at most how many steps it may have. May set
        `scheduler.every_step` (plan this step by the literal loop)."""
        return max_steps

    def due(self, seq: Generation, num_tokens: int) -> int:
        """Return how many tokens a running sequence has to compute, 0 for none in this step. Called once for each, in
        the literal loop only. Must not modify anything.

        num_tokens: What the loop, or the part before, makes of it.
        """
        return num_tokens

    def before_admission(self, plan: Plan) -> None:
        """Called at most once for each plan, between the running sequences' part of it and the queue's."""

    def consider(self, seq: Generation) -> None:
        """Called when a sequence is at the head of the queue, before its tokens are counted, also if it finds no blocks
        then. May set its `num_computed`, to what is in memory."""

    def entry(self, seq: Generation, num_tokens: int, past: int) -> int:
        """Return whether the sequence at the head of the queue, with `num_tokens` to compute after `past`, may enter:

        - ENTER. It may still find no blocks.
        - SKIP. It keeps its place, and those behind it are asked; or the part has taken it out of the queue.
        - STOP. Nothing enters any more in this step.
        - WAIT. The same, since blocks are lacking.

        Called for each sequence at the head, before its blocks are counted: one that may enter may be asked again in
        each step. Parts are asked in turn until one does not say ENTER; for that answer a part may change its own
        state, for ENTER it must not modify anything.
        """
        return ENTER

    @property
    def skips_for(self) -> int:
        """The `Reason` for which a sequence waits that this part skips."""
        raise AssertionError("a part that skips says why")

    def padded(self, seq: Generation, num_tokens: int, past: int) -> int:
        """Return the rows that a sequence takes which may enter, if they are more than its tokens. Must not modify
        anything."""
        return num_tokens

    def out_of_blocks(self) -> int | None:
        """Return the `Reason` for which blocks are lacking, None for the memory. Must not modify anything."""
        return None

    def admitted(self, seq: Generation) -> None:
        """Called when a sequence is admitted from the queue, before its tokens are counted, and again after each
        preemption. Not called for branches that start where their prompt ran, which `scheduler.num_admissions` counts
        as well."""

    def after_admission(self) -> None:
        """Called after `before_admission`, when the queue has been gone through. May put sequences that the part took
        out of the queue into `scheduler.holding`."""

    def leaving(self, plan: Plan | None, seqs: Sequence[Generation]) -> None:
        """Called before sequences leave that ended, or were given up, in the step before the one just planned
        (asynchronous scheduling): `plan` may compute them."""

    def after_plan(self, plan: Plan | None) -> Plan | None:
        """Called once for each plan, when it is made and sequences that had ended have left. Returns it, or for None an
        empty `Plan()`: a step that takes no time, which a part needs that skipped a sequence and whose answer changes
        without any event. May add statistics, and set `plan.num_steps` to 1, which a part has to do whose answers may
        differ in the next step: a run of decodes counts on nothing entering."""
        return plan

    def completed(self, plan: Plan, num_steps: int, finished: Sequence[Generation]) -> None:
        """Called when steps of a plan have run, with the sequences that ended in them."""

    @property
    def unsettled(self) -> bool:
        """Whether a step has to be planned for this part alone, although no sequence waits or runs. Asked before each
        batch of a scheduler that keeps batches in flight."""
        return False

    def may_preempt(self, seq: Generation) -> bool:
        """Return whether the victim that the loop has chosen may be preempted. If not, its loop over running sequences
        ends there. Called in the literal loop only, each time that blocks are lacking. Must not modify anything."""
        return True

    # -- at any time in between --------------------------------------------------------------------------------------

    def preempted(self, seq: Generation, returned: int) -> None:
        """Called before a running sequence is preempted. returned: Tokens that it had been given in this step."""

    def ending_preempted(self, seq: Generation) -> None:
        """Called when blocks are taken from a sequence whose last token is in flight (asynchronous scheduling)."""

    def aborted(self, seq: Generation) -> None:
        """Called before a sequence that was given up leaves, between two steps. With asynchronous scheduling `leaving`
        is called in its place."""

    def left_first(self, seq: Generation) -> None:
        """Called when a sequence has left that was given up while a step ran, after `completed`: it leaves before those
        that ended in the step, of which it may be one."""

    def wants_cut(self, seq: Generation) -> bool:
        """Return whether the arrival of a sequence may change a run of decode steps that the loop alone would keep."""
        return False


class WithParts(Base):
    """A chunked scheduler with parts.

    Args:
        parts: Parts of other options than the scheduler's, in addition to those of `config`.

    Attributes:
        literal: Whether the literal loop plans every step.
        skipped: Waiting sequences that a part has skipped while a step is planned.
        passed_over: Those, and those of earlier steps, that were not admitted since; one may wait for blocks by now.
        kept: Sequences whose blocks stay when they leave. The part that put one here calls `release` when they may go.
    """

    def __init__(self, config: ChunkedConfig, pool: BlockPool, *, every_step: bool = False,
                 parts: Sequence[SchedulerPart] = ()) -> None:
        super().__init__(config, pool, every_step=every_step)
        self.literal = every_step
        self._limited = True
        self.skipped: list[Generation] = []
        self.passed_over: set[Generation] = set()
        self.kept: set[Generation] = set()
        self.parts = tuple(sorted((*config.parts(), *parts), key=lambda part: part.turn))
        self._that_say_what_is_due = self._with("due")
        self._that_consider = self._with("consider")
        self._that_limit_entry = self._with("entry")
        self._that_pad = self._with("padded")
        for part in self.parts:
            part.attach(self)

    def _with(self, hook: str) -> tuple[SchedulerPart, ...]:
        """Return the parts that override a hook."""
        return tuple(part for part in self.parts
                     if any(hook in vars(kind) for kind in type(part).__mro__ if kind is not SchedulerPart))

    def seed(self, seed: int) -> None:
        for part in self.parts:
            part.seed(seed)

    def can_ever_fit(self, seq: Generation) -> str | None:
        for part in self.parts:
            reason = part.refusal(seq)
            if reason is not None:
                return reason
        return super().can_ever_fit(seq)

    def plan(self, max_steps: int) -> Plan | None:
        for part in self.parts:
            max_steps = part.before_plan(max_steps)
        plan = super().plan(max_steps)
        for part in self.parts:
            plan = part.after_plan(plan)
        return plan

    def complete(self, plan: Plan, num_steps: int, step: int, now_ns: int) -> list[Generation]:
        finished = super().complete(plan, num_steps, step, now_ns)
        for part in self.parts:
            part.completed(plan, num_steps, finished)
        return finished

    def wants_cut(self, seq: Generation) -> bool:
        return super().wants_cut(seq) or any(part.wants_cut(seq) for part in self.parts)

    def _unlink(self, seq: Generation) -> None:
        self.passed_over.discard(seq)
        super()._unlink(seq)

    def _take_out(self, seq: Generation) -> None:
        for part in self.parts:
            part.aborted(seq)
        super()._take_out(seq)

    def leave(self, seq: Generation, when: int) -> bool:
        left = super().leave(seq, when)
        if when == RESULTS and left:
            for part in self.parts:
                part.left_first(seq)
        return left

    def release(self, seq: Generation) -> None:
        if seq not in self.kept:
            super().release(seq)

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

    def _due(self, seq: Generation) -> int:
        due = seq.num_tokens - seq.num_computed
        for part in self._that_say_what_is_due:
            due = part.due(seq, due)
        return due

    # -- admission ---------------------------------------------------------------------------------------------------

    def _admit_waiting(self, plan: Plan, budget: int, rows: int, cap: int) -> None:
        self._emptied = int(Reason.TOKEN_BUDGET)
        for part in self.parts:
            part.before_admission(plan)
        super()._admit_waiting(plan, budget, rows, cap)
        for seq in reversed(self.skipped):   # back to their places
            if seq.num_blocks:
                self.holding.appendleft(seq)
            else:
                self.waiting.push_preempted(seq)
        self.skipped.clear()
        for part in self.parts:
            part.after_admission()

    def _consider(self, seq: Generation) -> None:
        for part in self._that_consider:
            part.consider(seq)

    def _entry(self, seq: Generation, num_tokens: int, past: int) -> int:
        for part in self._that_limit_entry:
            entry = part.entry(seq, num_tokens, past)
            if entry == SKIP:
                self._emptied = part.skips_for
                self.passed_over.add(seq)
                if (self.holding or self.waiting) and self.next_waiting() is seq:
                    (self.holding.popleft if self.holding else self.waiting.pop)()
                    self.skipped.append(seq)
            if entry != ENTER:
                return entry
        return ENTER

    def _padded(self, seq: Generation, num_tokens: int, past: int) -> int:
        for part in self._that_pad:
            num_tokens = part.padded(seq, num_tokens, past)
        return num_tokens

    def _may_preempt(self, seq: Generation) -> bool:
        return all(part.may_preempt(seq) for part in self.parts)

    def _out_of_blocks(self) -> int:
        for part in self.parts:
            reason = part.out_of_blocks()
            if reason is not None:
                return reason
        return int(Reason.KV_MEMORY)

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
