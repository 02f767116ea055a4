"""Mixed batching: whole prompts and decodes in one step (Splitwise's machines, DeepSpeed-FastGen without splitting).

The scheduler fills a batch in this order: waiting prompts, each computed whole in one step, until memory or the token
cap stops; decodes left out of the batch before; running decodes; decodes that have not started, by arrival. Sequences
that do not fit are left out, and keep their memory.

A batch of decodes stays the same until a member is done, until memory comes back from outside while a sequence waits,
or until a sequence arrives for which there is room. A prompt within the token cap always has room, because decodes make
way for it. A longer one runs alone: it has room where one more decode would, if its own decode is to follow here
(splitwise-sim queues both at once); otherwise it waits until the batch changes for another reason.

With `max_passed_over`, a sequence that this many batches in a row have left out goes before all others (splitwise-sim:
four). A decode then takes its token of the cap before any prompt; a prompt moves to the head of the queue. Both still
need memory. Without `max_passed_over`, decodes make way for prompts as long as prompts arrive, and a packing policy may
overtake a prompt for ever; first come, first served overtakes none.

Memory is reserved in one of two ways. `on_demand`: sequences take blocks as tokens come, and when blocks run out the
youngest is preempted and recomputed. `up_front` (splitwise-sim): a prompt reserves itself and its first token when it
starts, and the rest of the answer when its decode starts, so that a running decode never lacks memory.
"""

from __future__ import annotations

from bisect import insort
from typing import TYPE_CHECKING

from hermes.compiled import mypyc_attr
from hermes.core.generation import Generation
from hermes.core.reasons import Reason
from hermes.memory.blocks import BlockPool
from hermes.schedulers.base import LLMScheduler
from hermes.schedulers.plan import Plan
from hermes.schedulers.queues import HurryingQueue

if TYPE_CHECKING:
    from hermes.schedulers.mixed_config import MixedConfig

__all__ = ["MixedScheduler"]

_SLOTS, _KV_MEMORY, _TOKEN_BUDGET = int(Reason.SLOTS), int(Reason.KV_MEMORY), int(Reason.TOKEN_BUDGET)
UNLIMITED = 2**31


@mypyc_attr(allow_interpreted_subclasses=True)
class MixedScheduler(LLMScheduler):
    """See the module's docstring. The decode group is the batch's decodes.

    Attributes:
        holding: Decodes that have not started here, by arrival: their KV came over the network, or (up_front) their
            prompt was computed here.
        left: Decodes that started, but are not in the present batch, in the order in which they return.
    """

    def __init__(self, config: MixedConfig, pool: BlockPool) -> None:
        self.up_front = config.reservation == "up_front"
        super().__init__(
            pool, max_num_seqs=config.max_num_seqs, max_num_batched_tokens=config.max_num_batched_tokens,
            packing=config.policy, grows=not self.up_front,
        )
        self._limit = config.max_passed_over
        self._passed: dict[Generation, int] = {}   # with a limit: batches in a row that left a sequence out
        hurries = bool(self._limit) and isinstance(self.waiting, HurryingQueue)
        self._hurry = self.waiting.hurry if hurries else None  # type: ignore[attr-defined]  # as just checked
        self._seats = min(config.max_num_seqs, config.max_num_batched_tokens)   # most decodes in a step
        self._stale = True                  # the batch may have to change at the next step
        self._num_prompts = 0               # of plan.prefills in the step in flight; decodes that start follow
        self._fresh: list[Generation] = []    # decodes whose prompt ended in the latest step
        self._outside = 0                   # sequences outside this scheduler that hold blocks: KV that moves
        self._preempted: list[Generation] = []
        self._stopped_first = False         # sequences waited when the present batch was made
        self._pressed = False               # overdue sequences went first in the latest batch

    # -- arrivals ------------------------------------------------------------------------------------------------

    def can_ever_fit(self, seq: Generation) -> str | None:
        if not self.up_front:
            return LLMScheduler.can_ever_fit(self, seq)
        need = self.pool.blocks_for(seq.prompt_tokens + seq.target_tokens)
        if need > self.pool.num_blocks:
            return (f"needs {need} KV blocks of {self.pool.block_size} tokens for {seq.prompt_tokens} prompt and "
                    f"{seq.target_tokens} output tokens, the client has {self.pool.num_blocks}")
        return None

    def enqueue(self, seq: Generation) -> None:
        self._outside -= seq.num_blocks > 0
        LLMScheduler.enqueue(self, seq)
        seat = self.group.n < self._seats and (seq.num_blocks > 0 or seq.target_tokens > 1)
        if seat or (not seq.num_blocks and seq.num_tokens <= self.max_num_batched_tokens):
            self._stale = True

    def _hold(self, seq: Generation) -> None:
        insort(self.holding, seq, key=_arrival)

    def wants_cut(self, seq: Generation) -> bool:
        return self._stale or seq.branches is not None

    def stop_of_arrival(self) -> int:
        return _SLOTS if self._seats == self.max_num_seqs else _TOKEN_BUDGET

    def reserve(self, seq: Generation) -> bool:
        taken = super().reserve(seq)
        self._outside += taken
        return taken

    def release(self, seq: Generation) -> None:
        LLMScheduler.release(self, seq)
        self._outside -= 1
        if self.group.n < self._seats and (self.waiting or self.holding or self.left):
            self._stale = True

    def _take_out(self, seq: Generation) -> None:
        self.left.pop(seq, None)
        self._passed.pop(seq, None)
        if seq in self._fresh:
            self._fresh.remove(seq)
        if seq in self.running and seq in self.holding:
            self.holding.remove(seq)
        self._outside += 1   # until it is released
        super()._take_out(seq)
        self._stale = True

    # -- steps ---------------------------------------------------------------------------------------------------

    def plan(self, max_steps: int) -> Plan | None:
        if self.group.n and not self._stale:
            run = self.decode_run(max_steps)
            if run is not None:
                if not self._stopped_first:
                    self.stopped = self.stop_of_arrival()
                return run
        plan = self._new_batch()
        while not plan.prefills and not self.group.n and self._give_up_memory():
            # Sequences that just gave their memory up wait as prompts: do not start them with it.
            plan = self._new_batch(prompts=not self.holding and not self.left)
        self._stale = self._pressed   # an overdue sequence may take its usual place in the next batch
        for seq in self._fresh:
            if seq.num_computed < seq.num_tokens:   # it has to wait
                self._close_segment(seq)
        self._fresh.clear()
        if not plan.prefills and not self.group.n:
            return None
        if self._limit:
            self._count_passes(plan)
        if self.group.n:
            self.plan_decodes(plan)
            if not plan.prefills and not self._preempted:
                plan.num_steps = self.steps_of_run(max_steps)
        plan.preempted, self._preempted = self._preempted, []
        if plan.preempted:
            self.stopped = _KV_MEMORY
        self._stopped_first = bool(self.waiting or self.holding or self.left)
        return plan

    def _new_batch(self, *, prompts: bool = True) -> Plan:
        """Make the next batch; its continuing decodes stay in the group. prompts: whether prompts may start."""
        plan, group = Plan(), self.group
        short, self.stopped = False, self.stop_of_arrival()
        while group.grows and group.n and group.blocks_for(1) > self.pool.free_blocks:
            self._make_wait(next(reversed(self.running)))
            short = True
        first = self._take_overdue() if self._passed else []
        self._pressed = bool(first)
        budget = self.max_num_batched_tokens
        if prompts and (not short or not group.n):
            budget = self._start_prompts(plan, len(first))
        self._num_prompts = len(plan.prefills)
        for seq in first:
            _add_decode(seq, plan)
        self._start_decodes(plan, max(0, min(self.max_num_seqs - self._num_prompts, budget) - len(first)))
        return plan

    def _take_overdue(self) -> list[Generation]:
        """Take the memory of decodes passed over too often, if it is free, and remove them from the queues."""
        limit, passed, taken = self._limit or 0, self._passed, list[Generation]()
        overdue = [seq for seq in (*self.left, *self.holding) if passed.get(seq, 0) >= limit]
        for seq in sorted(overdue, key=_arrival):
            if len(taken) == self._seats:
                break
            if self._take_for_decode(seq):
                taken.append(seq)
                if seq in self.left:
                    del self.left[seq]
                else:
                    self.holding.remove(seq)
                    if seq not in self.running:
                        self._run_now(seq)
        return taken

    def _count_passes(self, plan: Plan) -> None:
        """Count one more pass for every sequence that this batch leaves out."""
        passed, limit, hurry = self._passed, self._limit or 0, self._hurry
        for seq, _n in plan.prefills:
            passed.pop(seq, None)
        for seq in (*self.left, *self.holding):
            passed[seq] = passed.get(seq, 0) + 1
        if hurry is not None:
            for seq in list(self.waiting):
                passed[seq] = passed.get(seq, 0) + 1
                if passed[seq] >= limit:   # repeated, because a preemption resets the order
                    hurry(seq)

    def _start_prompts(self, plan: Plan, taken: int) -> int:
        """Start waiting prompts; return the rest of the token cap. taken: sequences that go before them."""
        pool, budget, waiting = self.pool, self.max_num_batched_tokens - taken, self.waiting
        spare = self._promised()
        while waiting and len(plan.prefills) < self.max_num_seqs - taken:
            seq = waiting.peek()
            past = pool.hit_tokens(seq)
            n = seq.num_tokens - past
            need = seq.num_tokens + 1 if self.up_front else seq.num_tokens
            if n > budget and (plan.prefills or taken):
                self.stopped = _TOKEN_BUDGET
                break
            if pool.missing_blocks(seq, need) + spare > pool.free_blocks:
                self.stopped = _KV_MEMORY
                break
            pool.admit(seq, need)
            waiting.pop()
            self._run_now(seq)
            if seq.start_ns < 0 and not seq.transferred:
                seq.cached_tokens = past
            plan.add_prefill(seq, n, past)
            seq.num_computed = past + n
            budget -= n
        return budget + taken

    def _start_decodes(self, plan: Plan, room: int) -> None:
        """Fill the rest of the batch with at most `room` decodes."""
        group, left = self.group, self.left
        for seq in list(left)[:room] if left and room else ():
            if not self._start_decode(seq, plan):
                break
            del left[seq]
            room -= 1
        if group.n > room:
            for seq in list(group.members)[room:]:
                group.remove(seq)
                self._close_segment(seq)
                left[seq] = self.partial[seq] = None
        room -= group.n
        while room and self.holding:
            seq = self.holding[0]
            # Do not overtake prompts that found no memory, or they could wait for ever.
            if self.up_front and self.waiting and self.waiting.peek().arrival_order < seq.arrival_order:
                return
            if not self._start_decode(seq, plan):
                return
            self.holding.popleft()
            if seq not in self.running:
                self._run_now(seq)
            room -= 1

    def _start_decode(self, seq: Generation, plan: Plan) -> bool:
        """Put a decode into the batch if its memory is free. It joins the group with its first token."""
        if not self._take_for_decode(seq):
            return False
        _add_decode(seq, plan)
        return True

    def _take_for_decode(self, seq: Generation) -> bool:
        """Take the memory of a decode that is to start; return whether it is free."""
        pool = self.pool
        need = seq.prompt_tokens + seq.target_tokens if self.up_front else seq.num_computed + 1
        if pool.missing_blocks(seq, need) + self._promised() > pool.free_blocks:
            self.stopped = _KV_MEMORY
            return False
        pool.grow(seq, need)
        return True

    def _promised(self) -> int:
        """Return the blocks that the group's next step takes."""
        group = self.group
        return group.crossing[group.clock % group.block_size] if group.grows and group.n else 0

    def _run_now(self, seq: Generation) -> None:
        self.running[seq] = self.partial[seq] = None
        seq.run_order = self.num_admissions
        self.num_admissions += 1

    # -- out of memory -------------------------------------------------------------------------------------------

    def _give_up_memory(self) -> bool:
        """When nothing can run and no memory is to come back from outside, preempt the sequence that arrived last.

        This happens if the waiting sequences hold all the memory, and each too little: the others can then continue.
        """
        if self._outside or not (self.holding or self.left):
            return False
        self._make_wait(max([*self.holding, *self.left], key=_arrival))
        return True

    def _make_wait(self, seq: Generation) -> None:
        """Preempt a sequence in any state."""
        self.left.pop(seq, None)
        if not seq.grouped and seq in self.holding:
            self.holding.remove(seq)
            self.running.setdefault(seq)
        scratch = Plan()
        self.preempt(seq, scratch)
        self._preempted += scratch.preempted

    # -- the end of a step ---------------------------------------------------------------------------------------

    def complete(self, plan: Plan, num_steps: int, step: int, now_ns: int) -> list[Generation]:
        finished = LLMScheduler.complete(self, plan, num_steps, step, now_ns)
        if finished or self._num_prompts or plan.preempted:
            self._stale = True
            self._outside += len(finished)
        return finished

    def _emit(self, plan: Plan, step: int, now_ns: int) -> list[Generation]:
        finished = LLMScheduler._emit(self, plan, step, now_ns)
        if self.up_front:
            for seq, _n in plan.prefills[: self._num_prompts]:
                if seq.grouped:   # the rest of its answer has no memory yet
                    self.group.remove(seq)
                    self.partial[seq] = None
                    self._hold(seq)
                    self._fresh.append(seq)
        return finished

    # -- branches ------------------------------------------------------------------------------------------------

    def _free_slots(self, finished: list[Generation]) -> int:
        return UNLIMITED   # a sequence without a place in the next batch keeps its memory

    def _start_branch(self, seq: Generation) -> bool:
        if not self.up_front:
            return super()._start_branch(seq)
        if not self.pool.grow(seq, seq.num_computed + 1):
            return False
        self._run_now(seq)
        self._hold(seq)
        self._fresh.append(seq)
        return True


def _add_decode(seq: Generation, plan: Plan) -> None:
    past = seq.num_computed
    plan.add_prefill(seq, 1, past)
    seq.num_computed = past + 1


def _arrival(seq: Generation) -> int:
    return seq.arrival_order
