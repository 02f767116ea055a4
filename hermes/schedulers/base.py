"""Base of the LLM schedulers: queues, running sequences, KV memory, and the bookkeeping of a run of steps.

The client calls `enqueue` when a sequence arrives (at any time), `plan` when a step may start, `complete` when the
planned steps have run (fewer than planned if the run was cut), and `release` when KV that was kept for a transfer can
go, always in this order. A scheduler knows neither the clock nor the hardware.

A *decode tick* is a step in which the decode group advances. Schedulers that never stall running decodes tick in every
step, so their ticks are step numbers. The others set `ticks_every_step = False`, and the client keeps the map.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Sequence
from typing import TYPE_CHECKING, ClassVar, Final

from hermes.compiled import check_overrides, mypyc_attr
from hermes.config.registry import Registry
from hermes.core.generation import Generation
from hermes.core.reasons import Reason
from hermes.memory.blocks import BlockPool
from hermes.schedulers.config import SchedulerConfig
from hermes.schedulers.decode_group import DecodeGroup
from hermes.schedulers.plan import Plan
from hermes.schedulers.queues import PACKING, FcfsQueue, IndexedFcfsQueue, WaitingQueue

if TYPE_CHECKING:
    from hermes.schedulers.parts import SchedulerPart

__all__ = ["AT_REST", "DOWN", "IN_STEP", "PLANNED", "RESULTS", "SCHEDULERS", "LLMScheduler", "run_order"]

# When `LLMScheduler.leave` is called.
AT_REST: Final = 0   # no step is under way
PLANNED: Final = 1   # a step has just ended; the next one was planned when it began
IN_STEP: Final = 2   # a step ends, and its results are not processed yet
RESULTS: Final = 3   # they have been, just now
DOWN: Final = 4      # the client goes down
_SLOTS, _KV_MEMORY, _TOKEN_BUDGET = int(Reason.SLOTS), int(Reason.KV_MEMORY), int(Reason.TOKEN_BUDGET)

SCHEDULERS: Registry[SchedulerConfig] = Registry("schedulers", "a scheduler", {
    "chunked": "hermes.schedulers.chunked_config:ChunkedConfig",
    "continuous": "hermes.schedulers.continuous:ContinuousConfig",
    "mixed": "hermes.schedulers.mixed_config:MixedConfig",
    "sglang": "hermes.schedulers.sglang_config:SglangConfig",
    "static": "hermes.schedulers.static:StaticConfig",
}, base=SchedulerConfig)


@mypyc_attr(allow_interpreted_subclasses=True)
class LLMScheduler:
    """Base of the LLM schedulers. Subclasses write `plan`, and may override `can_ever_fit` and `wants_cut`."""

    # Beyond 30 attributes Python looks all of them up in a dict at each use. The dict is for others' attributes.
    __slots__ = (
        "__dict__", "_counts", "_plain", "_run", "_split", "ahead", "engine", "fcfs", "group", "holding", "left",
        "max_num_batched_tokens", "max_num_seqs", "num_admissions", "num_preemptions", "partial", "parts", "pool",
        "running", "stopped", "waiting",
    )

    ticks_every_step: ClassVar[bool] = True
    takes_over_kv: ClassVar[bool] = True       # can continue a sequence that another client has prefilled
    # plans a step while the one before runs, and sees arrivals one plan later; the price of a step follows it
    asynchronous: ClassVar[bool] = False
    # a step may give a sequence several tokens or none, which `hermes.schedulers.bursts` notes
    bursts: ClassVar[bool] = False
    # sequences come back when their batch ends, possibly long after their last token
    returns_together: ClassVar[bool] = False
    # a sequence that a stop token ends is in the next step as well, which was planned before the token was known
    keeps_stopped: ClassVar[bool] = False
    # serves several branches of one prompt
    splits: ClassVar[bool] = True
    # kinds of stage that it serves; other kinds end with their prompt
    stages: ClassVar[frozenset[str]] = frozenset(("generate",))

    def __init_subclass__(cls) -> None:
        check_overrides(cls)

    def __init__(
        self, pool: BlockPool, *, max_num_seqs: int, max_num_batched_tokens: int, packing: str = "fcfs",
        grows: bool = True,
    ) -> None:
        self.pool = pool
        self.max_num_seqs = max_num_seqs
        self.max_num_batched_tokens = max_num_batched_tokens
        self.fcfs = packing == "fcfs"
        self.waiting: WaitingQueue = FcfsQueue() if self.fcfs else PACKING.get(packing)()
        # Sequences that hold blocks already (KV that came over the network) go first, or their blocks could stop the
        # sequences in front of them for ever. vLLM drains its `kv_holding_waiting` first for the same reason.
        self.holding: deque[Generation] = deque()
        self.left: dict[Generation, None] = {}   # running, but left out of the batch for a while (`mixed`)
        self.running: dict[Generation, None] = {}
        self.partial: dict[Generation, None] = {}   # running, but outside the decode group
        self.group = DecodeGroup(
            pool.block_size, grows=grows, pool=pool if pool.caching else None, in_flight=int(self.asynchronous),
            keeps_stopped=self.keeps_stopped,
        )
        self._counts = grows and not pool.caching and not pool.by_block   # the group's blocks are a number alone
        self._plain = self._counts and type(pool) is BlockPool   # and those of a sequence without branches too
        self.num_preemptions = 0
        self.num_admissions = 0   # times that a sequence joined running, again after each preemption; branches too
        self.parts: tuple[SchedulerPart, ...] = ()   # what options add to its loop
        # `Reason` for which the latest plan stopped admitting; it means nothing if no sequence waits. A scheduler that
        # leaves it at -1 has the limit that its plan is at (`limit_of`).
        self.stopped = -1
        self.ahead = 0     # steps that it schedules before the results of the one before are known, and keeps
        self.engine = ""   # version of the real engine whose own scheduler decides
        self._run = Plan()   # reused for pure decode runs: one is in flight at a time, and almost every event makes one
        self._run.decodes = True
        self._split: list[Generation] = []   # branches whose prompt was computed in the step being completed

    def seed(self, seed: int) -> None:
        """Take the scenario's seed. A scheduler that draws has a stream of its own."""

    # -- arrivals ------------------------------------------------------------------------------------------------

    def can_ever_fit(self, seq: Generation) -> str | None:
        """Return why this sequence can never be served here, or None. It is rejected at arrival."""
        need = self.pool.blocks_for(seq.prompt_tokens + seq.target_tokens - 1) + self.pool.extra_blocks(seq)
        if need > self.pool.num_blocks:
            return (f"needs {need} KV blocks of {self.pool.block_size} tokens for {seq.prompt_tokens} prompt and "
                    f"{seq.target_tokens} output tokens, the client has {self.pool.num_blocks}")
        return None

    def enqueue(self, seq: Generation) -> None:
        """Add a sequence that has arrived to the queue."""
        if seq.num_blocks:
            self._hold(seq)
        else:
            self.waiting.push(seq)
        if seq.width > 1 and seq.transferred:
            self._branches_arrive(seq)

    def _hold(self, seq: Generation) -> None:
        """Queue a sequence whose KV is here for a slot."""
        self.holding.append(seq)

    @property
    def num_waiting(self) -> int:
        if self.waiting or self.holding or self.left:
            return len(self.waiting) + len(self.holding) + len(self.left)
        return 0

    def has(self, seq: Generation) -> bool:
        """Whether a sequence waits or runs here."""
        return seq in self.running or seq in self.holding or seq in self.waiting

    def next_waiting(self) -> Generation:
        """Return the sequence that may be admitted next."""
        return self.holding[0] if self.holding else self.waiting.peek()

    def wants_cut(self, seq: Generation) -> bool:
        """Whether `seq`, just enqueued, may change a run of decode steps. A needless cut costs only time."""
        return seq.branches is not None or (len(self.running) < self.max_num_seqs and (
            not self.fcfs or len(self.waiting) <= 1 or bool(self.holding)))

    def limit_of(self, plan: Plan) -> int:
        """Return the limit that a plan is at, for a scheduler that does not say why it stopped admitting."""
        if plan.preempted:
            return _KV_MEMORY
        if len(self.running) >= self.max_num_seqs:
            return _SLOTS
        tokens = plan.prefill_tokens + plan.decode_seqs + plan.drafts
        return _TOKEN_BUDGET if tokens >= self.max_num_batched_tokens else _KV_MEMORY

    def stop_of_arrival(self) -> int:
        """Return the reason for which a sequence that arrives during a run of steps, and does not cut it, waits."""
        return _SLOTS

    # -- steps ---------------------------------------------------------------------------------------------------

    def plan(self, max_steps: int) -> Plan | None:
        """Return the plan for at most `max_steps` steps, or None if nothing can run."""
        raise NotImplementedError

    def complete(self, plan: Plan, num_steps: int, step: int, now_ns: int) -> list[Generation]:
        """Complete `num_steps` steps of `plan`; the last is the client's step number `step` and ended at `now_ns`.

        Returns the sequences that reached their target, in order of admission; they still hold their blocks.
        """
        group = self.group
        finished: list[Generation] = []
        if plan.decodes:
            if plan.taken < num_steps:
                pool = self.pool
                if self._counts and not plan.taken:
                    pool.free_blocks -= (group.crossing[group.clock % group.block_size] if num_steps == 1
                                         else group.blocks_for(num_steps))
                elif plan.taken or not group.grows or pool.by_block or group.looked_up or pool.log is not None:
                    self.take_blocks(plan, num_steps)
                else:
                    pool.take(group.blocks_for(num_steps))
            clock = group.clock = group.clock + num_steps
            group.ctx += group.n * num_steps
            heap = group.heap
            if heap and heap[0][0] <= clock:
                finished = group.pop_finished()
        elif self.ticks_every_step and plan.prefills:   # a plan that only preempts is not a step
            group.clock += 1
        if plan.prefills:
            emitted = self._emit(plan, step, now_ns)
            if emitted:
                finished += emitted
                if len(finished) > 1:
                    finished.sort(key=run_order)
        if finished:
            running = self.running
            for seq in finished:
                if not seq.stops_early or not self.keeps_stopped:
                    del running[seq]
        if self._split:
            self._start_branches(finished)
        return finished

    def _emit(self, plan: Plan, step: int, now_ns: int) -> list[Generation]:
        """Emit a token of each sequence that caught up in this step; it joins the decode group, or is done."""
        finished: list[Generation] = []
        tick = self.group.clock
        for seq, _n in plan.prefills:
            if seq.num_computed != seq.num_tokens:
                continue
            if not seq.target_tokens:   # an embedding emits nothing
                del self.partial[seq]
                finished.append(seq)
                continue
            seq.num_tokens += 1
            if seq.emit_step < 0:
                seq.emit_step = step
                seq.join_tick = tick
                if seq.first_step < 0:
                    seq.first_step = step
                    seq.first_token_ns = now_ns
            if seq.width > 1 and not seq.hands_over:   # otherwise another client has its branches
                self._split_up(seq)
            self.partial.pop(seq, None)
            if seq.num_tokens - seq.prompt_tokens >= seq.target_tokens:
                finished.append(seq)
                if not seq.stops_early or not self.keeps_stopped:
                    continue
            self.group.add(seq)
        return finished

    def reserve(self, seq: Generation) -> bool:
        """Take the blocks for KV that is about to arrive over the network; return False if there are not enough.

        Includes room for the first token computed here. Otherwise sequences that together hold all the memory, and each
        need one more block, could never start.
        """
        if self.pool.windowed and not self.pool.reserve_windows(seq, seq.num_tokens):
            return False
        return self.pool.grow(seq, seq.num_tokens)

    def release(self, seq: Generation) -> None:
        """Return the blocks of a finished sequence to the pool."""
        self.pool.free(seq)

    def leave(self, seq: Generation, when: int) -> bool:
        """Let a sequence go that its client has given up. Return whether it has left: an engine that cannot take it out
        goes on with it, until `complete` returns it or the answer is yes.

        when: AT_REST, PLANNED or DOWN: once, as it is given up. One that is given up while a step runs, or stays, is
        asked for with IN_STEP and with RESULTS, for each step, until it has left; it may have ended in that step.
        """
        if when == IN_STEP:
            return False
        if when == RESULTS and not self.has(seq):
            self.release(seq)
        else:
            self._take_out(seq)
        return True

    def _take_out(self, seq: Generation) -> None:
        """Take out an unfinished sequence; its blocks are free at once."""
        self._unlink(seq)
        self._close_segment(seq)   # in the queue, of one whose tokens may still have come of steps in flight
        seq.join_tick = self.group.clock   # no more tokens
        self.release(seq)

    def _unlink(self, seq: Generation) -> None:
        """Take a sequence out of running, or out of the queue."""
        if seq in self.running:
            del self.running[seq]
            if seq.grouped:
                self.group.remove(seq)
            else:
                self.partial.pop(seq, None)
        elif seq in self.holding:
            self.holding.remove(seq)
        else:
            if isinstance(self.waiting, FcfsQueue):
                self.waiting = IndexedFcfsQueue(dict.fromkeys(self.waiting))
            self.waiting.remove(seq)

    # -- branches ------------------------------------------------------------------------------------------------

    def _split_up(self, lead: Generation) -> list[Generation]:
        """Split `lead`, which has its prompt and first token; return its other branches, which have the same."""
        assert lead.branches is not None
        others: list[Generation] = list(lead.branches.split(lead))
        self.pool.relate(lead, others)
        self._split += others
        return others

    def _start_branches(self, finished: list[Generation]) -> None:
        """Start branches after the step that gave their first token, at the end of running, if a slot and a block (for
        their copy of the prompt's last, partial one) are free. The others wait as if preempted."""
        split, self._split = self._split, []
        slots = self._free_slots(finished)
        late: list[Generation] = []
        for seq in split:
            assert seq.branches is not None
            self.pool.share(seq.branches.lead, seq)
            if seq.target_tokens == 1:
                seq.run_order = self.num_admissions
                self.num_admissions += 1
                finished.append(seq)
            elif slots > 0 and self._start_branch(seq):
                slots -= 1
            else:
                late.append(seq)
        for seq in late:
            self._close_segment(seq)
        self._wait_in_front(late)

    def _free_slots(self, finished: list[Generation]) -> int:
        """Return how many sequences may still join running at the end of a step in which these finished."""
        taken = len(self.running) + (len(finished) if self.asynchronous else 0)
        return self.max_num_seqs - taken

    def _start_branch(self, seq: Generation) -> bool:
        """Start a branch that shares its prompt's whole blocks: it takes the rest of its own and decodes from the next
        step on. Return False, without any change, if it cannot."""
        if not self.pool.grow(seq, seq.num_computed):
            return False
        self.running[seq] = None
        seq.run_order = self.num_admissions
        self.num_admissions += 1
        self.group.add(seq)
        return True

    def _wait_in_front(self, seqs: list[Generation]) -> None:
        """Take the blocks of branches that find no room; they wait in front, where preempted sequences do."""
        for seq in reversed(seqs):
            self.pool.free(seq)
            seq.num_computed = 0
            self.waiting.push_preempted(seq)

    def _branches_arrive(self, lead: Generation) -> None:
        """Split a waiting `lead` whose prompt came over the network, or (without blocks) is to be computed again."""
        assert lead.branches is not None
        others: list[Generation] = list(lead.branches.split(lead))
        self.pool.relate(lead, others)
        if not lead.num_blocks:
            for seq in others:
                self.waiting.push(seq)
            return
        late: list[Generation] = []
        for seq in others:
            self.pool.share(lead, seq)
            if LLMScheduler.reserve(self, seq):   # for the same reason as of a sequence alone
                self._hold(seq)
            else:
                late.append(seq)
        self._wait_in_front(late)

    # -- helpers for subclasses ----------------------------------------------------------------------------------

    def take_blocks(self, plan: Plan, num_steps: int, *, hashed: bool = True) -> None:
        """Take the blocks of the first `num_steps` steps of `plan` for the group, except those already taken.

        The order in which members take blocks does not matter, even if blocks have names: taking a block from the front
        of the free queue evicts it in any case. hashed: False leaves out the hashes of blocks that other sequences may
        look up already.
        """
        first, group, pool = plan.taken, self.group, self.pool
        if not plan.decodes or first >= num_steps:
            return
        if pool.log is not None and pool.log.step_ns < 0:
            for step in self._steps_to_log(first, num_steps, hashed=hashed):   # each at its time
                pool.log.step_ns = pool.log.start_of(plan, step)
                self.take_blocks(plan, step + 1, hashed=hashed)
            pool.log.step_ns = -1
            first = plan.taken
            if first >= num_steps:
                return
        plan.taken = num_steps
        if not group.grows:
            return
        if pool.by_block:
            self._grow_members(first, num_steps)
        else:
            blocks = group.blocks_for(num_steps)
            if first:
                blocks -= group.blocks_for(first)
            if pool.caching:
                pool.take(blocks)
            else:
                pool.free_blocks -= blocks
        if group.looked_up and hashed:
            for _step, _order, seq, known in group.fills(first, num_steps):
                pool.commit(seq, known)

    def may_change_cache(self, plan: Plan, num_steps: int) -> bool:
        """Return whether the blocks of the group's steps may change what others look up: a quick bound."""
        group, pool = self.group, self.pool
        return plan.decodes and (pool.by_block or (group.grows and (
            bool(group.looked_up) or pool.may_evict((num_steps // group.block_size + 1) * group.n))))

    def _steps_to_log(self, first: int, num_steps: int, *, hashed: bool) -> Sequence[int]:
        """Return the steps from `first` up to `num_steps` whose blocks may change what a cache holds for others."""
        group, pool = self.group, self.pool
        if pool.by_block:
            return range(first, num_steps)
        if not group.grows:
            return ()
        filling = {step - 1 for step, *_ in group.fills(first, num_steps)} if group.looked_up and hashed else set()
        if not pool.may_evict(group.blocks_for(num_steps) - (group.blocks_for(first) if first else 0)):
            return sorted(filling)
        return sorted(filling.union(group.steps_that_take(first, num_steps)))

    def _grow_members(self, first: int, num_steps: int) -> None:
        """Let each member take its own blocks of the steps after `first` up to `num_steps`."""
        group, pool = self.group, self.pool
        # With asynchronous scheduling the last token is unknown during its step: a block that it fills is hashed a step
        # later.
        bs, clock, ahead, looked_up = pool.block_size, group.clock, int(self.asynchronous), group.looked_up
        for seq in group.members:
            before = clock + seq.base + first
            after = clock + seq.base + num_steps
            # a sequence that fills a block, or takes one
            if (after - ahead) // bs != (before - ahead) // bs or -after // bs != -before // bs:
                seq.num_tokens = after
                pool.grow(seq, after, 0 if seq in looked_up else after - ahead)

    def steps_of_run(self, max_steps: int) -> int:
        """Return the steps that the whole group can decode: until the first completion, or until blocks run out.

        None of these steps' blocks has been taken yet; those of the first step are free.
        """
        group = self.group
        finish, order, seq = group.heap[0]
        if seq.grouped and seq.finish_clock == finish and seq.run_order == order:
            steps = finish - group.clock
        else:
            steps = group.steps_to_finish()
        if steps > max_steps:
            steps = max_steps
        if group.grows and (steps // group.block_size + 1) * group.n > self.pool.free_blocks:
            steps = group.steps_within(steps, self.pool.free_blocks)
        return steps

    def decode_run(self, max_steps: int) -> Plan | None:
        """Plan as many steps as possible in which the whole decode group advances and nothing else happens."""
        plan, group = self._run, self.group
        steps = self.steps_of_run(max_steps)
        if not steps:
            return None
        plan.decode_seqs = plan.sampled = group.n
        plan.decode_ctx = group.ctx
        plan.decode_ctx_max = group.clock + group.max_base if group.max_known else group.longest
        plan.num_steps = steps
        plan.taken = plan.again = 0
        return plan

    def next_fits(self) -> bool:
        """Whether a sequence waits, and a slot and the blocks of its whole prompt are free."""
        self.stopped = _SLOTS
        if not self.num_waiting or len(self.running) >= self.max_num_seqs:
            return False
        seq = self.next_waiting()
        self.stopped = _KV_MEMORY
        return self.pool.missing_blocks(seq, seq.num_tokens) <= self.pool.free_blocks

    def prefill_next(self, plan: Plan, budget: int | None = None) -> int:
        """Admit the next waiting sequence, which fits (`next_fits`), and compute the rest of its prompt in this step.

        Returns the tokens of that; 0, without any change, if they exceed `budget` and the step has other prompts.
        """
        seq = self.next_waiting()
        past = seq.num_computed or self.pool.hit_tokens(seq)
        n = seq.num_tokens - past
        if budget is not None and n > budget and plan.prefills:
            self.stopped = _TOKEN_BUDGET
            return 0
        self.pool.admit(seq, seq.num_tokens)
        self.admit(seq)
        if seq.start_ns < 0 and not seq.transferred:
            seq.cached_tokens = past
        plan.add_prefill(seq, n, past)
        seq.num_computed = past + n
        return n

    def decode_all(self, plan: Plan, max_steps: int) -> None:
        """Let every decoding sequence compute a token, for as many steps as nothing changes. If blocks run out, preempt
        the youngest sequences, which takes a step of its own."""
        group, pool = self.group, self.pool
        while group.n and group.blocks_for(1) > pool.free_blocks:
            self.preempt(next(reversed(self.running)), plan)
        if group.n:
            self.plan_decodes(plan)
            if not plan.preempted:
                plan.num_steps = self.steps_of_run(max_steps)

    def admit(self, seq: Generation) -> None:
        """Move the next waiting sequence to the end of running."""
        if self.holding:
            self.holding.popleft()
        else:
            self.waiting.pop()
        self.running[seq] = None
        self.partial[seq] = None
        seq.run_order = self.num_admissions
        self.num_admissions += 1

    def preempt(self, seq: Generation, plan: Plan) -> None:
        """Free the blocks of a running sequence; it waits and is recomputed (vLLM's rule: outputs are kept)."""
        del self.running[seq]
        if seq.grouped:
            self.group.remove(seq)
        else:
            self.partial.pop(seq, None)
        if not self.bursts:   # otherwise tokens may still come of steps in flight
            self._close_segment(seq)
        self.pool.free(seq)
        seq.num_computed = 0
        seq.preemptions += 1
        self.num_preemptions += 1
        self.waiting.push_preempted(seq)
        plan.preempted.append(seq)

    def _close_segment(self, seq: Generation) -> None:
        """Close the segment of `seq`: its tokens stop coming with every tick."""
        if seq.emit_step >= 0:
            if seq.segments is None:
                seq.segments = []
            seq.segments.append((seq.emit_step, seq.join_tick, self.group.clock))
            seq.emit_step = -1

    def plan_decodes(self, plan: Plan) -> None:
        """Add the whole decode group to `plan`."""
        group = self.group
        n = group.n
        plan.decodes = True
        plan.decode_seqs += n
        plan.decode_ctx += group.ctx
        plan.sampled += n
        longest = group.clock + group.max_base if group.max_known and n else group.longest
        if longest > plan.decode_ctx_max:
            plan.decode_ctx_max = longest

    # -- load, as of the last completed step -----------------------------------------------------------------------

    @property
    def num_decoding(self) -> int:
        """Sequences whose KV grows by a token with each decode step; `tokens_cached` lacks the tokens in flight."""
        return self.group.n

    def tokens_cached(self) -> int:
        """KV tokens of running sequences, including tokens in flight of those outside the group."""
        return self.group.ctx + sum(s.num_computed for s in self.partial)


def run_order(seq: Generation) -> int:
    """Sort key: order of admission, which is the order of vLLM's `running` list."""
    return seq.run_order

