"""Chunked prefill as vLLM V1 schedules it (Sarathi-Serve's idea, vLLM 0.33.0's rules; docs/background/vllm.md).

A step is planned in one of two ways. `_literal_plan` is the engine's loop, sequence by sequence. It is the reference
(`stepping: every_step` uses nothing else) and handles every case. `_lockstep_plan` plans the usual case, in which every
running sequence gets all the tokens it can take and its blocks, from the aggregates of the decode group. In other cases
it declines, and the literal loop plans the step.

With `async_scheduling` (`AsyncChunkedScheduler`) the engine plans a step while the one before it runs, and so knows the
results of one step less. A sequence that finishes keeps its slot and its blocks for one more plan. A block that an
answer fills is hashed one step later. A sequence that arrives during a step is seen one plan later (the client holds it
back until then).
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from hermes.compiled import mypyc_attr
from hermes.core.generation import Generation
from hermes.core.reasons import Reason
from hermes.memory.blocks import BlockPool
from hermes.schedulers.base import PLANNED, RESULTS, LLMScheduler, run_order
from hermes.schedulers.plan import Plan

if TYPE_CHECKING:
    from hermes.schedulers.chunked_config import ChunkedConfig

__all__ = ["AsyncChunkedScheduler", "ChunkedScheduler", "urgency"]

# What a part says of the sequence at the head of the queue: it may enter; it is passed over; nothing enters any more in
# this step; it has to wait for blocks.
ENTER, SKIP, STOP, WAIT = 0, 1, 2, 3
_SLOTS, _KV_MEMORY, _TOKEN_BUDGET = int(Reason.SLOTS), int(Reason.KV_MEMORY), int(Reason.TOKEN_BUDGET)
DEFAULT_BUDGET, DEFAULT_SEQS = 2048, 256   # for a scheduler built without a client, and so without an engine


@mypyc_attr(allow_interpreted_subclasses=True)
class ChunkedScheduler(LLMScheduler):
    """See the module's docstring. every_step: always use the literal loop."""

    __slots__ = (
        "_emptied", "_ending", "_leaving", "_limited", "_returned", "adaptive", "by_priority", "chunking", "draft_rows",
        "draft_tokens", "every_step", "goes_on", "input_budget", "keeps_its_place", "lookahead", "spare_lone_prefill",
        "threshold", "watermark_blocks", "whole_must_fit",
    )

    def __init__(self, config: ChunkedConfig, pool: BlockPool, *, every_step: bool = False) -> None:
        self.input_budget = config.max_num_batched_tokens or DEFAULT_BUDGET   # the adaptive cap is a share of this
        super().__init__(
            pool, max_num_seqs=config.max_num_active_seqs or config.max_num_seqs or DEFAULT_SEQS,
            max_num_batched_tokens=min(self.input_budget, config.max_num_scheduled_tokens or self.input_budget),
            packing=config.policy,
        )
        self.every_step = every_step
        self.chunking = config.enable_chunked_prefill
        self.threshold = config.long_prefill_token_threshold
        self.spare_lone_prefill = config.spares_lone_prefill
        self.keeps_its_place = config.keeps_its_place
        self.goes_on = config.goes_on
        self.adaptive = config.adaptive_long_prefill_threshold
        self.whole_must_fit = config.reserve_full_isl is not False
        self.by_priority = config.policy == "priority"
        # The engine includes its reserved block, and truncates with int().
        self.watermark_blocks = int(config.watermark * (pool.num_blocks + 1))
        # Sequences finished in the step in flight, and whether their blocks may be freed then; None for one that was
        # given up during that step (asynchronous only).
        self._ending: dict[Generation, bool | None] = {}
        # All that leave when the next step is planned, in the order in which they free their blocks.
        self._leaving: list[Generation] = []
        # `hermes.schedulers.parts` sets these: whether parts are asked about each sequence; drafts of a step, KV slots
        # held past a sequence's tokens, and rows of the input that each sequence takes besides its own for drafting.
        self._limited = False
        self.draft_tokens = self.lookahead = self.draft_rows = 0
        self._returned = 0   # tokens of this step that the latest victim gave back
        self._emptied = _TOKEN_BUDGET   # why sequences wait although the queue has been gone through

    def can_ever_fit(self, seq: Generation) -> str | None:
        if not self.chunking and seq.prompt_tokens + seq.target_tokens - 1 > self.max_num_batched_tokens:
            return (f"{seq.prompt_tokens} prompt and {seq.target_tokens} output tokens do not fit in one step of "
                    f"{self.max_num_batched_tokens} tokens, and chunked prefill is off")
        return LLMScheduler.can_ever_fit(self, seq)

    def plan(self, max_steps: int) -> Plan | None:
        group = self.group
        if not self.every_step:
            if (
                group.n and not self.partial and group.n <= self.max_num_batched_tokens
                and (not (self.waiting or self.holding) or len(self.running) + len(self._ending) >= self.max_num_seqs)
            ):
                run = self.decode_run(max_steps)
                if run is not None:
                    self.stopped = _SLOTS
                    return run
            if not self.running and not self.waiting and not self.holding:
                return None
            plan = self._lockstep_plan(max_steps)
            if plan is not None:
                return plan if plan.prefills or plan.decodes else None
        elif not self.running and not self.waiting and not self.holding:
            return None
        return self._literal_plan()

    def _cap(self) -> int:
        """Return the cap on one sequence's new tokens in this step, 0 for none (rule 7)."""
        eligible = len(self.running) + len(self._ending) + self.num_waiting
        if not self.threshold or (self.spare_lone_prefill and eligible <= 1):
            return 0
        if self.adaptive:
            return max(self.threshold, self.input_budget // eligible)
        return self.threshold

    def wants_cut(self, seq: Generation) -> bool:
        if self.adaptive and not self.whole_must_fit:
            return True   # one more eligible sequence shortens the head's chunk, which may then fit
        return seq.branches is not None or (len(self.running) < self.max_num_seqs and (   # the base's, without a call
            not self.fcfs or len(self.waiting) <= 1 or bool(self.holding)))

    # -- the common case -------------------------------------------------------------------------------------------

    def _lockstep_plan(self, max_steps: int) -> Plan | None:
        """Return a plan from the group's aggregates; None, without any change, if a sequence would get fewer tokens."""
        group, pool, partial = self.group, self.pool, self.partial
        n_decodes = group.n
        if len(partial) + n_decodes != len(self.running):
            raise AssertionError("running sequences out of step with the decode group")
        budget = self.max_num_batched_tokens - n_decodes
        blocks = group.crossing[group.clock % group.block_size]   # `blocks_for(1)`; 0 without decodes
        free = pool.free_blocks - blocks
        if budget < 0 or free < 0:
            return None
        cap = self._cap() if self.threshold else 0
        chunks: list[tuple[Generation, int]] = []
        if partial:
            for seq in sorted(partial, key=run_order) if len(partial) > 1 else partial:
                n = seq.num_tokens - seq.num_computed
                if 0 < cap < n:
                    n = cap
                if n > budget:
                    # The newest running sequence takes the rest of the budget. Any other one would reduce the share of
                    # the sequences behind it.
                    if not budget or seq is not next(reversed(self.running)):
                        return None
                    n = budget
                budget -= n
                free -= max(0, pool.blocks_for(seq.num_computed + n) - seq.num_blocks)
                if free < 0:
                    return None
                chunks.append((seq, n))
        if n_decodes:
            plan = Plan(n_decodes, group.ctx, group.clock + group.max_base if group.max_known else group.longest)
            if self._counts:
                plan.taken = 1
                pool.free_blocks -= blocks
            elif group.looked_up and chunks:
                self._take_in_order(plan, chunks)
            else:
                self.take_blocks(plan, 1)
        else:
            plan = Plan()
        # Blocks are taken in running order, in which members of the group and chunks mix. Which of them takes which
        # block has no effect: a block loses its hash in any case.
        for seq, n in chunks:
            past = seq.num_computed
            pool.grow(seq, past + n)
            plan.add_prefill(seq, n, past)
            seq.num_computed = past + n
        if self.waiting or self.holding:
            self._admit_waiting(plan, budget, budget, cap)
        if n_decodes and not plan.prefills:   # the next sequence cannot be admitted before another is done
            steps = self.steps_of_run(max_steps)
            if group.looked_up and (self.waiting or self.holding):   # it may find a block that an answer fills
                steps = min((step - 1 for step, *_ in group.fills(1, steps)), default=steps)
            plan.num_steps = max(1, steps)   # the first step has its blocks
        return plan

    def _take_in_order(self, plan: Plan, chunks: list[tuple[Generation, int]]) -> None:
        """Take blocks as `take_blocks` does, in a step in which prompts and answers may name blocks alike: of equal
        blocks the one whose sequence comes first in running order is the older."""
        self.take_blocks(plan, 1, hashed=False)
        filled = {seq: known for _step, _order, seq, known in self.group.fills(0, 1)}
        taken = {seq: seq.num_computed + n for seq, n in chunks}
        for seq in sorted([*filled, *taken], key=run_order):
            if seq in filled:
                self.pool.commit(seq, filled[seq])
            else:
                self.pool.grow(seq, taken[seq])

    def _admit_waiting(self, plan: Plan, budget: int, rows: int, cap: int) -> None:
        """Admit the head of the queue while budget, slots and blocks last (rules 5 to 10).

        rows: Rows of the input that are left; not fewer than the budget, unless drafting takes some.
        """
        pool, running, limited, plain = self.pool, self.running, self._limited, self._plain
        waiting, holding = self.waiting, self.holding
        slots = self.max_num_seqs - len(running) - len(self._ending)
        spare, lookahead = self.draft_rows, self.lookahead
        rows -= spare
        most = budget if budget <= rows else rows   # tokens that the next sequence may compute
        while most > 0 and (holding or waiting) and slots > 0:
            seq = holding[0] if holding else waiting.peek()
            if limited:
                self._consider(seq)
            past = seq.num_computed
            if not past and (not self._counts or seq.common is not None):
                past = pool.hit_tokens(seq)
            n = seq.num_tokens - past
            if limited:
                entry = self._entry(seq, n, past)
                if entry == STOP:
                    self.stopped = int(Reason.BATCH_ENDS)
                    return
                if entry == WAIT:
                    self.stopped = self._out_of_blocks()
                    return
                if entry == SKIP:   # it is no longer in the queue
                    continue
                padded = self._padded(seq, n, past)
                if padded > n:
                    n = padded
                    if n > most:   # padding is never cut
                        self.stopped = _TOKEN_BUDGET
                        return
            if 0 < cap < n:
                n = cap
            if n > most:
                if not self.chunking:
                    self.stopped = _TOKEN_BUDGET
                    return
                n = most
            held = past + n + lookahead
            whole = seq.num_tokens if self.whole_must_fit and held < seq.num_tokens else held
            alone = plain and seq.common is None   # its blocks are a number: `BlockPool`'s methods, inlined
            if alone:
                need = -(-whole // pool.block_size) - seq.num_blocks
                if need < 0:
                    need = 0
            else:
                need = pool.missing_blocks(seq, whole)
            if running or self._ending:
                need += self.watermark_blocks
            if need > pool.free_blocks:
                self.stopped = self._out_of_blocks() if limited else _KV_MEMORY
                return
            if alone:
                need = -(-held // pool.block_size) - seq.num_blocks
                if need > 0:
                    pool.free_blocks -= need
                    seq.num_blocks += need
            elif lookahead:
                pool.admit(seq, held, min(past + n, seq.num_tokens))
            else:
                pool.admit(seq, held)
            self.admit(seq)
            slots -= 1
            if past and seq.start_ns < 0 and not seq.transferred:
                seq.cached_tokens = past
            plan.add_prefill(seq, n, past)
            seq.num_computed = past + n
            budget -= n
            if spare:
                rows -= n + spare
                most = budget if budget <= rows else rows
            else:
                most -= n
        if slots <= 0:
            self.stopped = _SLOTS
        else:
            self.stopped = _TOKEN_BUDGET if budget <= 0 else self._emptied

    # What parts are asked (`hermes.schedulers.parts`); without parts nothing asks.

    def _due(self, seq: Generation) -> int:
        """Return the tokens that a running sequence has to compute in this step, 0 for none."""
        raise AssertionError("without parts nothing asks")

    def _consider(self, seq: Generation) -> None:
        """Note that the sequence at the head of the queue is looked at."""
        raise AssertionError("without parts nothing asks")

    def _entry(self, seq: Generation, num_tokens: int, past: int) -> int:
        """Return whether the sequence at the head of the queue, with so many tokens to compute, may enter."""
        raise AssertionError("without parts nothing asks")

    def _padded(self, seq: Generation, num_tokens: int, past: int) -> int:
        """Return the rows that such a sequence takes, if they are more than its tokens."""
        raise AssertionError("without parts nothing asks")

    def _may_preempt(self, seq: Generation) -> bool:
        """Return whether a victim may be preempted."""
        raise AssertionError("without parts nothing asks")

    def _out_of_blocks(self) -> int:
        """Return the `Reason` for which the blocks of the sequence at the head of the queue are not free."""
        raise AssertionError("without parts nothing asks")

    # -- the engine's loop -----------------------------------------------------------------------------------------

    def _literal_plan(self) -> Plan | None:
        """Plan one step, sequence by sequence (rules 1 to 18)."""
        decoding = self.group.clear()
        self.partial.update(dict.fromkeys(decoding))
        in_flight = set(decoding) if self.asynchronous else ()   # all of them sampled a token in the step before
        running, pool, plan, limited = self.running, self.pool, Plan(), self._limited
        budget, rows, cap = self.max_num_batched_tokens, self.input_budget, self._cap()
        spare, lookahead = self.draft_rows, self.lookahead
        scheduled: dict[Generation, int] = {}
        may_admit, short = True, False
        order = list(running)
        index = skipped = 0
        while index < len(order) and budget > 0 and rows > spare:
            seq = order[index]
            computed = seq.num_computed
            n = self._due(seq) if limited else seq.num_tokens - computed
            if n <= 0:
                index += 1
                continue
            if 0 < cap < n:
                n = cap
            if n > budget:
                n = budget
            if n > rows - spare:
                n = rows - spare
            known = computed if seq in in_flight else None
            if lookahead:
                known = min(computed + n, seq.num_tokens)
            while not pool.grow(seq, computed + n + lookahead, known):
                if self._ending and (ended := self._preempt_ending(order)) is not None:
                    may_admit = False
                    skipped += self.by_priority and self.keeps_its_place and ended.run_order < seq.run_order
                    continue
                victim = max(order, key=urgency) if self.by_priority else order[-1]
                if limited and not self._may_preempt(victim):
                    short = True
                    break
                may_admit = False
                if order.index(victim) < index and (victim in scheduled or not self.keeps_its_place):
                    index -= 1
                order.remove(victim)
                self._returned = scheduled.pop(victim, 0)
                if self._returned:
                    budget += self._returned
                    rows += self._returned + spare
                self.preempt(victim, plan)
                if victim is seq:
                    break
            else:
                scheduled[seq] = n
                budget -= n
                rows -= n + spare
                index += 1
                if skipped:
                    index, skipped = self._after(skipped, order, index), 0
                continue
            if short or not self.goes_on:   # otherwise it preempted itself
                break
        bursts = self.bursts
        if bursts:   # the work of a batch is counted when it runs
            plan.prefills = list(scheduled.items())
        else:
            for seq in running:
                if seq not in scheduled and seq.num_computed >= seq.prompt_tokens:
                    self._close_segment(seq)   # a decode did not get its token
                    pool.commit(seq, seq.num_computed)
        for seq, n in scheduled.items():
            computed = seq.num_computed
            if not bursts:
                plan.add_prefill(seq, n, computed)
            seq.num_computed = computed + n
        if may_admit:
            self._admit_waiting(plan, budget, rows, cap)
        else:
            self.stopped = _KV_MEMORY
        return plan if plan.prefills or plan.preempted else None

    def _after(self, skipped: int, order: list[Generation], index: int) -> int:
        """Return the index at which the loop goes on when it misses as many running sequences, or finished ones.

        Up to vLLM 0.27 the loop keeps its position in the list when a finished sequence before it is preempted.
        """
        at = order[index - 1].run_order
        for _ in range(skipped):
            rest = order[index:index + 1] + [seq for seq in self._ending if seq.run_order > at]
            if rest:
                missed = min(rest, key=run_order)
                index += missed not in self._ending
                at = missed.run_order
        return index

    def _preempt_ending(self, order: list[Generation]) -> Generation | None:
        """Free the blocks of a finished sequence if the engine would preempt it (asynchronous scheduling only)."""
        raise AssertionError("nothing ends while a step is planned")

    def _let_go(self, plan: Plan | None) -> None:
        """Remove the sequences that have ended (asynchronous scheduling only)."""
        raise AssertionError("nothing ends while a step is planned")


def urgency(seq: Generation) -> tuple[int, int]:
    """Sort key of `policy: priority`: the most urgent first."""
    return seq.priority, seq.arrival_order


@mypyc_attr(allow_interpreted_subclasses=True)
class AsyncChunkedScheduler(ChunkedScheduler):
    """Plans a step while the one before it runs (vLLM's AsyncScheduler, two batches in flight; rule 20).

    The client calls `complete` when the results of a step are ready. The next plan was made when that step began, so it
    does not know them. A sequence that finished in the step still has a slot and blocks, and is not scheduled. Every
    other sequence is known to get one token, but not which token. An empty plan is the engine's empty batch: it takes
    no time, and the next plan knows all results.
    """

    __slots__ = ("_num_aborted", "_unseen")

    asynchronous = True
    keeps_stopped = True

    def __init__(self, config: ChunkedConfig, pool: BlockPool, *, every_step: bool = False) -> None:
        super().__init__(config, pool, every_step=every_step)
        self._num_aborted = 0   # first in `_leaving`: given up before the step's results were known
        # Those of `_leaving` that the next step computes once more: ended by a stop token (and whether their blocks may
        # be freed), or given up (None).
        self._unseen: dict[Generation, bool | None] = {}

    def plan(self, max_steps: int) -> Plan | None:
        if not self._leaving:
            return super().plan(max_steps)
        plan = super().plan(1 if self.waiting or self.holding or self._unseen else max_steps)
        if plan is not None:
            self.take_blocks(plan, 1)   # before finished sequences free theirs
        self._let_go(plan)
        return Plan() if plan is None else plan

    def _let_go(self, plan: Plan | None) -> None:
        """Remove the sequences that finished in the step whose results are ready; `plan` is the next."""
        ending, self._ending = self._ending, {}
        leaving, self._leaving, self._num_aborted = self._leaving, [], 0
        for seq in leaving:
            if seq in self._unseen:
                self._leave_late(seq, plan)
                continue
            released = ending[seq]
            if released is not None:
                self.pool.commit(seq, seq.num_computed)
            if released is not False:
                super().release(seq)

    def _leave_late(self, seq: Generation, plan: Plan | None) -> None:
        """Remove a sequence that `plan` may compute, although it has ended."""
        released, grouped, ran = self._unseen.pop(seq), seq.grouped, seq in self.running
        stopped = released is not None
        if ran or not stopped:   # one that has stopped is in no queue
            self._unlink(seq)
        if grouped and plan is not None and plan.decodes:
            plan.again += 1
            seq.num_blocks = -(-(seq.num_computed + 1) // self.pool.block_size)   # it has taken its block
            stopped = True   # its blocks are hashed as those of the others
        if ran and stopped:
            self.pool.commit(seq, seq.num_computed if grouped else seq.num_tokens - 1)
        if ran and not grouped and plan is not None:
            self._take_back(seq, plan)
        if released is not False:
            super().release(seq)

    def _take_back(self, seq: Generation, plan: Plan) -> None:
        """Take a sequence out of the list of those that get a token; the step computes it all the same."""
        kept = [item for item in plan.prefills if item[0] is not seq]
        if len(kept) == len(plan.prefills):
            return
        plan.prefills = kept
        plan.decodes = plan.decodes or not kept   # a step, even if all its sequences have ended
        plan.again += seq.width if seq.num_computed == seq.num_tokens else 0

    def complete(self, plan: Plan, num_steps: int, step: int, now_ns: int) -> list[Generation]:
        finished = super().complete(plan, num_steps, step, now_ns)
        if finished:
            self._leaving = finished.copy()
            for seq in finished:
                (self._unseen if seq.stops_early else self._ending)[seq] = False
        return finished

    def leave(self, seq: Generation, when: int) -> bool:
        if when not in (PLANNED, RESULTS):
            return super().leave(seq, when)
        if seq in self._leaving:   # it has ended in that step
            self._leaving.remove(seq)
        # before those that end in this step, or behind them
        self._leaving.insert(self._num_aborted if when == RESULTS else len(self._leaving), seq)
        self._num_aborted += when == RESULTS
        if seq in self._ending:
            self._ending[seq] = None
        else:   # the next plan knows it
            self._unseen[seq] = None
            if seq.grouped:
                seq.num_computed = self.group.clock + seq.base
                seq.num_tokens = seq.num_computed + 1
        self._close_segment(seq)
        seq.join_tick = self.group.clock
        return True

    def release(self, seq: Generation) -> None:
        if seq in self._ending:
            self._ending[seq] = True
        elif seq in self._unseen:
            self._unseen[seq] = True
            seq.emit_step = -1   # its token times are recorded
        else:
            super().release(seq)

    def preempt(self, seq: Generation, plan: Plan) -> None:
        if seq not in self._unseen:
            super().preempt(seq, plan)
            return
        # The engine queues it, and takes it out of the queue when it learns that it has ended.
        self._unlink(seq)
        del self._unseen[seq]
        self._leaving.remove(seq)
        super().release(seq)

    def _free_slots(self, finished: list[Generation]) -> int:
        return self.max_num_seqs - len(self.running) - sum([seq not in self.running for seq in finished])

    def _preempt_ending(self, order: list[Generation]) -> Generation | None:
        """Return the engine's next victim if its last token is in flight, and free its blocks; otherwise None.

        The victim is not scheduled again, so only its blocks are taken back. The blocks that its answer filled last
        have no hash yet, and get none.
        """
        def rank(seq: Generation) -> tuple[int, int]:
            return (seq.priority, seq.arrival_order) if self.by_priority else (0, seq.run_order)

        last = max(self._ending, key=rank)
        if self._ending[last] is False or rank(last) < max(map(rank, order)):
            return None
        del self._ending[last]
        self._leaving.remove(last)
        super().release(last)
        return last
