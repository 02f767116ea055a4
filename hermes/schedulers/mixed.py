"""Mixed batching: whole prompts and decodes in one step (Splitwise's machines, DeepSpeed-FastGen without splitting).

A batch is put together from, in this order: waiting prompts, each computed whole in one step, until memory or the
token cap stops; decodes that were left out of the batch before; decodes that run; decodes that have not started,
by arrival. What does not fit is left out, and keeps its memory.

A batch of decodes stays as it is until a member is done, until memory comes back from outside while somebody waits,
or until a sequence arrives for which there is room. A prompt finds room wherever it is no longer than the token cap,
because decodes make way for it; a longer one, which runs alone, finds room where one more decode would, if its own is
to follow here (splitwise-sim queues both at once), and else waits until the batch changes for another reason.

With `max_passed_over`, a sequence that so many batches in a row have left out goes before all others (splitwise-sim
does so after four): a decode takes its token of the cap before any prompt does, a prompt moves to the head of the
queue. Memory has to be there as for everybody. Without it, decodes make way for prompts as long as prompts come, and a
packing policy may overtake a prompt for ever; first come first served overtakes none.

Two ways to hold memory. `on_demand`: blocks are taken as tokens come, and the youngest sequence is preempted and
recomputed when they run out. `up_front` (splitwise-sim): a prompt and its first token are reserved when the prompt
starts, the rest of the answer when its decode starts, so that a decode that runs is never short.
"""

from __future__ import annotations

from bisect import insort
from typing import Annotated, Literal

from pydantic import Field

from hermes.config import ConfigModel, Named
from hermes.core.stage import Stage
from hermes.memory.blocks import BlockPool
from hermes.schedulers.base import LLMScheduler, Plan
from hermes.schedulers.queues import PACKING

__all__ = ["MixedConfig", "MixedScheduler"]


UNLIMITED = 2**31


class MixedConfig(ConfigModel):
    """Whole prompts and decodes in one step."""

    kind: Literal["mixed"] = "mixed"
    max_num_batched_tokens: int = Field(default=2048, ge=1, le=2**31)
    """Most tokens in a step; a decode counts as one. The first prompt of a step may be longer."""
    max_num_seqs: int = Field(default=512, ge=1, le=2**31)
    """Most sequences in a step."""
    reservation: Literal["on_demand", "up_front"] = "on_demand"
    """Whether blocks are taken as tokens come, or for the prompt and one token when a prompt starts and for the whole
    answer when its decode starts."""
    policy: Annotated[str, Named(PACKING)] = "fcfs"
    """Order of the waiting prompts."""
    max_passed_over: int | None = Field(default=None, ge=1, le=2**31)
    """A sequence that this many batches in a row have left out goes before all others (splitwise-sim: 4); left out,
    decodes make way for prompts as long as prompts come."""

    def build(self, pool: BlockPool, *, every_step: bool) -> MixedScheduler:
        return MixedScheduler(self, pool)


class MixedScheduler(LLMScheduler):
    """See the module's docstring. The decode group is the batch's decodes.

    holding: decodes that have not started here, by arrival: their KV came over the network, or (up_front) their prompt
    was computed here; left: decodes that started, but were left out of the present batch, in the order they go first
    """

    def __init__(self, config: MixedConfig, pool: BlockPool) -> None:
        self.up_front = config.reservation == "up_front"
        super().__init__(
            pool, max_num_seqs=config.max_num_seqs, max_num_batched_tokens=config.max_num_batched_tokens,
            packing=config.policy, grows=not self.up_front,
        )
        self.left: dict[Stage, None] = {}
        self._limit = config.max_passed_over
        self._passed: dict[Stage, int] = {}   # with a limit: batches in a row that left them out
        self._hurry = getattr(self.waiting, "hurry", None) if self._limit else None
        self._seats = min(config.max_num_seqs, config.max_num_batched_tokens)   # most decodes in a step
        self._stale = True                  # the batch may have to change at the next step
        self._num_prompts = 0               # of plan.prefills in the step in flight; decodes that start follow
        self._fresh: list[Stage] = []    # decodes whose prompt ended in the latest step
        self._outside = 0                   # sequences that hold blocks here and are not ours: KV that comes or goes
        self._preempted: list[Stage] = []
        self._pressed = False               # overdue sequences went first into the latest batch

    # -- arrivals ------------------------------------------------------------------------------------------------

    def can_ever_fit(self, seq: Stage) -> str | None:
        if not self.up_front:
            return super().can_ever_fit(seq)
        need = self.pool.blocks_for(seq.prompt_tokens + seq.target_tokens)
        if need > self.pool.num_blocks:
            return (f"needs {need} KV blocks of {self.pool.block_size} tokens for {seq.prompt_tokens} prompt and "
                    f"{seq.target_tokens} output tokens, the client has {self.pool.num_blocks}")
        return None

    def enqueue(self, seq: Stage) -> None:
        self._outside -= seq.num_blocks > 0
        super().enqueue(seq)
        seat = self.group.n < self._seats and (seq.num_blocks > 0 or seq.target_tokens > 1)
        if seat or (not seq.num_blocks and seq.num_tokens <= self.max_num_batched_tokens):
            self._stale = True

    def _hold(self, seq: Stage) -> None:
        insort(self.holding, seq, key=_arrival)

    @property
    def num_waiting(self) -> int:
        return len(self.waiting) + len(self.holding) + len(self.left)

    def wants_cut(self, seq: Stage) -> bool:
        return self._stale or seq.branches is not None

    def reserve(self, seq: Stage) -> bool:
        taken = super().reserve(seq)
        self._outside += taken
        return taken

    def release(self, seq: Stage) -> None:
        super().release(seq)
        self._outside -= 1
        if self.group.n < self._seats and self.num_waiting:
            self._stale = True

    # -- steps ---------------------------------------------------------------------------------------------------

    def plan(self, max_steps: int) -> Plan | None:
        if self.group.n and not self._stale:
            run = self.decode_run(max_steps)
            if run is not None:
                return run
        plan = self._new_batch()
        while not plan.prefills and not self.group.n and self._give_up_memory():
            # Not to those who just gave it up.
            plan = self._new_batch(prompts=not self.holding and not self.left)
        self._stale = self._pressed   # what went first may go on in its place in the next batch
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
        return plan

    def _new_batch(self, *, prompts: bool = True) -> Plan:
        """The next batch; its decodes that go on are left in the group. prompts: whether any may start."""
        plan, group = Plan(), self.group
        short = False
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

    def _take_overdue(self) -> list[Stage]:
        """Decodes that were passed over too often and whose memory is there: it is taken. They wait nowhere now."""
        limit, passed, taken = self._limit or 0, self._passed, list[Stage]()
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
        """A batch was put together: whoever waits was passed over once more."""
        passed, limit, hurry = self._passed, self._limit or 0, self._hurry
        for seq, _n in plan.prefills:
            passed.pop(seq, None)
        for seq in (*self.left, *self.holding):
            passed[seq] = passed.get(seq, 0) + 1
        if hurry is not None:
            for seq in list(self.waiting):
                passed[seq] = passed.get(seq, 0) + 1
                if passed[seq] >= limit:   # again after a preemption
                    hurry(seq)

    def _start_prompts(self, plan: Plan, taken: int) -> int:
        """Start waiting prompts; returns what they leave of the token cap. taken: sequences that go before them."""
        pool, budget, waiting = self.pool, self.max_num_batched_tokens - taken, self.waiting
        spare = self._promised()
        while waiting and len(plan.prefills) < self.max_num_seqs - taken:
            seq = waiting.peek()
            past = pool.hit_tokens(seq)
            n = seq.num_tokens - past
            need = seq.num_tokens + 1 if self.up_front else seq.num_tokens
            if (n > budget and (plan.prefills or taken)) or pool.missing_blocks(seq, need) + spare > pool.free_blocks:
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
        """Fill what the prompts left of the batch with at most `room` decodes."""
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
            # Prompts that found no memory are not overtaken, or they could wait for ever.
            if self.up_front and self.waiting and self.waiting.peek().arrival_order < seq.arrival_order:
                return
            if not self._start_decode(seq, plan):
                return
            self.holding.popleft()
            if seq not in self.running:
                self._run_now(seq)
            room -= 1

    def _start_decode(self, seq: Stage, plan: Plan) -> bool:
        """Put a decode into the batch, if its memory is there. It is in the group from its first token on."""
        if not self._take_for_decode(seq):
            return False
        _add_decode(seq, plan)
        return True

    def _take_for_decode(self, seq: Stage) -> bool:
        """The memory of a decode that is to start, if it is there."""
        pool = self.pool
        need = seq.prompt_tokens + seq.target_tokens if self.up_front else seq.num_computed + 1
        if pool.missing_blocks(seq, need) + self._promised() > pool.free_blocks:
            return False
        pool.grow(seq, need)
        return True

    def _promised(self) -> int:
        """Blocks that the group's next step takes."""
        return self.group.blocks_for(1) if self.group.grows and self.group.n else 0

    def _run_now(self, seq: Stage) -> None:
        self.running[seq] = self.partial[seq] = None
        seq.run_order = self._admissions
        self._admissions += 1

    # -- out of memory -------------------------------------------------------------------------------------------

    def _give_up_memory(self) -> bool:
        """Nothing can run. Unless memory is going to come back from outside, whoever arrived last waits without.

        Happens where those who wait hold all the memory, each too little of it: the others can go on then.
        """
        if self._outside or not (self.holding or self.left):
            return False
        self._make_wait(max([*self.holding, *self.left], key=_arrival))
        return True

    def _make_wait(self, seq: Stage) -> None:
        """Preempt a sequence, wherever it is."""
        self.left.pop(seq, None)
        if not seq.grouped and seq in self.holding:
            self.holding.remove(seq)
            self.running.setdefault(seq)
        scratch = Plan()
        self.preempt(seq, scratch)
        self._preempted += scratch.preempted

    # -- the end of a step ---------------------------------------------------------------------------------------

    def complete(self, plan: Plan, num_steps: int, step: int, now_ns: int) -> list[Stage]:
        finished = super().complete(plan, num_steps, step, now_ns)
        if finished or self._num_prompts or plan.preempted:
            self._stale = True
            self._outside += len(finished)
        return finished

    def _emit(self, plan: Plan, step: int, now_ns: int) -> list[Stage]:
        finished = super()._emit(plan, step, now_ns)
        if self.up_front:
            for seq, _n in plan.prefills[: self._num_prompts]:
                if seq.grouped:   # it has no memory yet for the rest of its answer
                    self.group.remove(seq)
                    self.partial[seq] = None
                    self._hold(seq)
                    self._fresh.append(seq)
        return finished

    # -- branches ------------------------------------------------------------------------------------------------

    def _free_slots(self, finished: list[Stage]) -> int:
        return UNLIMITED   # whoever has no place in the next batch keeps its memory

    def _start_branch(self, seq: Stage) -> bool:
        if not self.up_front:
            return super()._start_branch(seq)
        if not self.pool.grow(seq, seq.num_computed + 1):
            return False
        self._run_now(seq)
        self._hold(seq)
        self._fresh.append(seq)
        return True


def _add_decode(seq: Stage, plan: Plan) -> None:
    past = seq.num_computed
    plan.add_prefill(seq, 1, past)
    seq.num_computed = past + 1


def _arrival(seq: Stage) -> int:
    return seq.arrival_order
