"""A chunked scheduler that keeps the engine's batches in flight, as vLLM's EngineCore does.

Results of a step with drafts cannot be foreseen, so a batch that is scheduled ahead of them is kept as it is until its
turn comes; so is one with copies of KV blocks. (Otherwise `AsyncChunkedScheduler` plans each step late and forgets what
the engine cannot know yet.)

With a KV connector and two batches in flight, the blocks of a sequence that ends, or is given up, while a batch
computes it come back when the batches in flight are done. A victim whose blocks would come back late is not preempted:
the loop over running sequences ends there.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING

from hermes.core.generation import Generation
from hermes.memory.blocks import BlockPool
from hermes.schedulers.bursts import TokenBursts
from hermes.schedulers.chunked import ChunkedScheduler
from hermes.schedulers.drafts import Drafts, Share
from hermes.schedulers.parts import SchedulerPart, WithParts, part_of
from hermes.schedulers.plan import Plan

if TYPE_CHECKING:
    from hermes.schedulers.chunked_config import ChunkedConfig

__all__ = ["Batch", "InFlightScheduler"]

MOST_EMPTY = 5   # empty batches in a row


class Batch:
    """One scheduled step: its plan, each sequence's share, why it admits no more, and whose blocks it gives back."""

    __slots__ = ("frees", "plan", "shares", "stopped")

    def __init__(self, plan: Plan, shares: dict[Generation, Share], stopped: int) -> None:
        self.plan, self.shares, self.stopped = plan, shares, stopped
        self.frees: list[Generation] = []


class InFlightScheduler(WithParts, ChunkedScheduler):
    """See the module's docstring. One of its parts is `Drafts`; the literal loop plans every step."""

    bursts = True

    def __init__(self, config: ChunkedConfig, pool: BlockPool, *, every_step: bool = False,
                 parts: Sequence[SchedulerPart] = ()) -> None:
        super().__init__(config, pool, every_step=True, parts=parts)
        drafts = part_of(self, Drafts)
        assert drafts is not None
        self.drafts = drafts
        self.ahead = int(drafts.ahead)
        self._connected = any(part.connects for part in self.parts)
        self._num_empty = 0   # batches in a row that computed nothing
        self._batches: deque[Batch] = deque()   # in flight, the oldest first
        self._bursts = TokenBursts(self.group)

    @property
    def _anyone(self) -> bool:
        return bool(self.running or self.waiting or self.holding) or any(part.unsettled for part in self.parts)

    @property
    def at_rest(self) -> bool:
        """Whether nothing runs, waits or is in flight."""
        return not (self._anyone or self._batches)

    def wants_cut(self, seq: Generation) -> bool:
        return False   # runs have one step

    def reserve(self, seq: Generation) -> bool:
        most = seq.num_tokens + self.drafts.most + self.lookahead
        if self.pool.windowed and not self.pool.reserve_windows(seq, most):
            return False
        return self.pool.grow(seq, most, seq.num_tokens)

    # -- steps ---------------------------------------------------------------------------------------------------

    def schedule(self) -> Batch:
        """Schedule one batch, which may be empty."""
        plan = super().plan(1) or Plan()
        return Batch(plan, self.drafts.shares, self.stopped)

    def add_batch(self) -> Batch:
        """Schedule a batch, which is in flight then."""
        self._batches.append(self.schedule())
        return self._batches[-1]

    def _fill(self) -> bool:
        """Schedule a batch if the engine keeps more in flight; return whether it schedules another one at once."""
        if not self._anyone or len(self._batches) >= 1 + self.ahead:
            return False
        batch = self.add_batch()
        return len(self._batches) < 1 + self.ahead and (bool(batch.shares) or self._anyone)

    def plan(self, max_steps: int) -> Plan | None:
        """Schedule until as many batches are in flight as the engine keeps; return the oldest that computes something.

        An empty batch takes no time: its results are there at once. With a KV connector it is returned as well, since
        it may start jobs.
        """
        empty, victims = 0, []
        if self._connected:
            return self._next_batch()
        while True:
            if self._fill():
                continue
            if not self._batches:
                break
            batch = self._batches[0]
            victims += batch.plan.preempted
            self.stopped = batch.stopped
            if batch.shares:
                return self._plan_of(batch, victims)
            self._batches.popleft()
            empty += 1
            if empty > MOST_EMPTY:
                break
        if not victims:
            return None
        plan = Plan()
        plan.preempted = victims
        return plan

    def _next_batch(self) -> Plan | None:
        """Return the oldest batch, empty or not; None after many empty ones, or if nothing is left to schedule."""
        while self._fill():
            pass
        if not self._batches:
            self._num_empty = 0
            return None
        batch = self._batches[0]
        self.stopped = batch.stopped
        self._num_empty = 0 if batch.shares else self._num_empty + 1
        if self._num_empty > MOST_EMPTY:
            self._num_empty = 0
            self._batches.popleft()
            return None
        return self._plan_of(batch, batch.plan.preempted)

    def advance(self, before_results: Callable[[], None]) -> tuple[bool, bool]:
        """Take a step of the engine's loop without a client: schedule if there is room, else give results.

        before_results: Is called before the results of a batch that computed something are processed.

        Returns whether a batch was scheduled, and whether a batch that computed something gave results.
        """
        scheduled = self._anyone
        if self._fill():
            return True, False
        if not self._batches or not self._batches[0].shares:
            if self._batches:
                self._batches.popleft()
            return scheduled, False
        before_results()
        for seq in self.complete(Plan(), 1, 0, 0):
            self.release(seq)
        return scheduled, True

    def _plan_of(self, batch: Batch, victims: list[Generation]) -> Plan:
        """Return the work of a batch, as it is known when it runs."""
        plan, progress = Plan(), self.drafts.progress
        plan.preempted = victims
        plan.lora_tokens, plan.lora_adapters = batch.plan.lora_tokens, batch.plan.lora_adapters
        for share in batch.shares.values():
            plan.add_verified(share.seq, share.num_tokens, share.past, share.drafts)
        plan.decodes = bool(batch.shares)   # a step, even if all its sequences have ended meanwhile
        plan.prefills = [(seq, n) for seq, n in plan.prefills if seq in progress]
        return plan

    def complete(self, plan: Plan, num_steps: int, step: int, now_ns: int) -> list[Generation]:
        if not self._batches or not self._batches[0].shares:
            if self._connected and self._batches:
                self._batches.popleft()
            return []   # the plan only preempted
        drafts, finished = self.drafts, []
        given: dict[Generation, int] = {}
        batch = self._batches.popleft()
        for seq in batch.frees:
            super().release(seq)
        for share in batch.shares.values():
            if share.seq in drafts.progress:
                tokens = drafts.result(share)
                if tokens:
                    given[share.seq] = tokens
        self._bursts.note(given, step, now_ns)
        plan.sampled = sum(given.values())
        for seq in [seq for seq in given if seq.width > 1 and not seq.hands_over]:
            plan.sampled += seq.width - 1
            for other in self._split_up(seq):
                other.num_computed = seq.prompt_tokens
        for seq in given:
            drafts.verified(seq)
            if seq.num_tokens - seq.prompt_tokens >= seq.target_tokens:
                finished.append(seq)
                self._bursts.forget(seq)
                if seq in self.running:
                    del self.running[seq], self.partial[seq]
                else:   # its last tokens were in flight when it was preempted
                    self._unlink(seq)
        if self._split:
            self._start_branches(finished)
        for part in self.parts:
            part.completed(plan, num_steps, finished)
        return finished

    def _start_branches(self, finished: list[Generation]) -> None:
        """Start branches; those of a prompt that was preempted while its first token was in flight wait in front."""
        split = self._split
        self._split = [seq for seq in split if seq.branches is None or seq.branches.lead.num_blocks]
        alone = [seq for seq in split if seq not in self._split]
        super()._start_branches(finished)
        for seq in reversed(alone):
            self._close_segment(seq)
            if seq.target_tokens == 1:
                finished.append(seq)
            else:
                seq.num_computed = 0
                self.waiting.push_preempted(seq)

    def _start_branch(self, seq: Generation) -> bool:
        if not self.pool.grow(seq, seq.num_computed + self.lookahead, seq.num_computed):
            return False
        self.running[seq] = self.partial[seq] = None
        seq.run_order = self.num_admissions
        self.num_admissions += 1
        self._bursts.join(seq)
        self.drafts.joins(seq)
        return True

    def release(self, seq: Generation) -> None:
        if self._connected and self._computes(seq):
            next(batch for batch in reversed(self._batches) if batch.shares).frees.append(seq)
        else:
            super().release(seq)

    def _computes(self, seq: Generation) -> bool:
        """Whether a batch in flight computes a sequence."""
        return any(seq in batch.shares for batch in self._batches)

    def _may_preempt(self, seq: Generation) -> bool:
        return not (self._connected and self._computes(seq)) and super()._may_preempt(seq)

    def leave(self, seq: Generation, when: int) -> bool:
        self._take_out(seq)   # the engine does so before it has the results of the step in flight
        return True

    def _take_out(self, seq: Generation) -> None:
        self._bursts.forget(seq)
        super()._take_out(seq)
