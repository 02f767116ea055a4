"""Speculative decoding as vLLM 0.33 schedules it (docs/background/speculation.md has the rules).

A sequence that decodes gets one token and `num_speculative_tokens` draft tokens in a step. The step verifies the
drafts: it gives as many tokens as are accepted and one more, and takes the KV of the others back. How many are
accepted is drawn for each sequence (`hermes.schedulers.acceptance`), so no two steps are alike, and every step is
planned alone.

With `async_scheduling` a step is scheduled when the one before begins: it counts on all drafts in flight, and learns
later which of them were rejected. A sequence may so be computed in one step more after its last token.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from typing import TYPE_CHECKING

from hermes.compiled import mypyc_attr
from hermes.core.generation import Generation
from hermes.core.reasons import Reason
from hermes.memory.blocks import BlockPool
from hermes.schedulers.base import LLMScheduler
from hermes.schedulers.bursts import TokenBursts
from hermes.schedulers.plan import Plan

if TYPE_CHECKING:
    from hermes.schedulers.chunked_config import ChunkedConfig

__all__ = ["SpeculativeBatch", "SpeculativeScheduler"]

MOST_EMPTY = 5   # empty batches in a row


class _Progress:
    """What the engine knows of a sequence beside its tokens. Counts of tokens.

    Attributes:
        computed: In KV memory when all batches in flight are done and no draft is rejected.
        promised: Given by batches in flight if no draft is rejected (asynchronous only).
        drafts: Proposed for its next step.
        stale: In batches that were in flight when it was preempted: their results change no count.
        in_flight: In all batches in flight.
        verified: Number of times that its drafts were verified.
        prefilling: Whether its latest step was not the last of its prompt (or of what is recomputed).
    """

    __slots__ = ("computed", "drafts", "in_flight", "prefilling", "promised", "stale", "verified")

    def __init__(self) -> None:
        self.computed = self.promised = self.drafts = self.stale = self.in_flight = self.verified = 0
        self.prefilling = True


class _Share:
    """A sequence's part of a batch: its tokens, those computed before, drafts among them, tokens that it will give."""

    __slots__ = ("drafts", "gives", "num_tokens", "past", "seq")

    def __init__(self, seq: Generation, num_tokens: int, past: int, drafts: int) -> None:
        self.seq, self.num_tokens, self.past, self.drafts = seq, num_tokens, past, drafts
        self.gives = 0


class SpeculativeBatch:
    """Sequences and tokens of one step, and the sequences preempted for it."""

    __slots__ = ("preempted", "shares", "stopped")

    def __init__(self) -> None:
        self.shares: dict[Generation, _Share] = {}
        self.preempted: list[Generation] = []
        self.stopped = int(Reason.SLOTS)   # why it admits no more


@mypyc_attr(allow_interpreted_subclasses=True)
class SpeculativeScheduler(LLMScheduler):
    """See the module's docstring."""

    takes_over_kv = False
    aborts = aborts_first = True
    splits = False

    def __init__(self, config: ChunkedConfig, pool: BlockPool) -> None:
        assert config.max_num_seqs is not None
        assert config.max_num_batched_tokens is not None
        assert config.speculative is not None
        self.input_budget = config.max_num_batched_tokens
        super().__init__(
            pool, max_num_seqs=config.max_num_active_seqs or config.max_num_seqs, packing=config.policy,
            max_num_batched_tokens=min(self.input_budget, config.max_num_scheduled_tokens or self.input_budget))
        speculative = config.speculative
        self.drafts = speculative.num_speculative_tokens
        self.lookahead, self.slots = speculative.lookahead, speculative.slots
        self.method = speculative.method
        self.acceptance = speculative.acceptance()
        pool.drop_last_hit = speculative.drops_last_hit and not config.hashes_ahead
        pool.hash_lookahead = int(speculative.drops_last_hit and config.hashes_ahead)
        self.ahead = bool(config.async_scheduling)
        self.chunking = config.enable_chunked_prefill
        self.threshold = config.long_prefill_token_threshold
        self.adaptive = config.adaptive_long_prefill_threshold
        self.whole_must_fit = config.reserve_full_isl is not False
        self.by_priority = config.policy == "priority"
        self.spare_lone_prefill = config.spares_lone_prefill
        self.keeps_its_place = config.keeps_its_place
        self.goes_on = config.goes_on
        self.hashes_results = config.hashes_results or self.ahead
        self.watermark_blocks = int(config.watermark * (pool.num_blocks + 1))   # as in `ChunkedScheduler`
        self._progress: dict[Generation, _Progress] = {}
        self._batches: deque[SpeculativeBatch] = deque()   # in flight, the oldest first
        self._bursts = TokenBursts(self.group)

    def seed(self, seed: int) -> None:
        self.acceptance.seed(seed)

    def can_ever_fit(self, seq: Generation) -> str | None:
        if seq.branches is not None:
            return "speculative decoding of branches is not modelled"
        most = seq.prompt_tokens + seq.target_tokens + self.drafts * (1 + self.ahead) + self.lookahead
        if self.pool.blocks_for(most) > self.pool.num_blocks:
            return (f"needs {self.pool.blocks_for(most)} KV blocks of {self.pool.block_size} tokens for "
                    f"{seq.prompt_tokens} prompt and {seq.target_tokens} output tokens and the drafts after them, the "
                    f"client has {self.pool.num_blocks}")
        if not self.chunking and seq.prompt_tokens + seq.target_tokens > self.max_num_batched_tokens:
            return (f"{seq.prompt_tokens} prompt and {seq.target_tokens} output tokens do not fit in one step of "
                    f"{self.max_num_batched_tokens} tokens, and chunked prefill is off")
        return None

    def enqueue(self, seq: Generation) -> None:
        self._progress[seq] = _Progress()
        self.waiting.push(seq)

    def wants_cut(self, seq: Generation) -> bool:
        return False   # runs have one step

    # -- steps ---------------------------------------------------------------------------------------------------

    def plan(self, max_steps: int) -> Plan | None:
        """Schedule until as many batches are in flight as the engine keeps; return the oldest that computes something.

        An empty batch takes no time: its results are there at once.
        """
        empty, victims = 0, []
        while True:
            if (self.running or self.waiting) and len(self._batches) < 1 + self.ahead:
                self._batches.append(self._schedule())
                if len(self._batches) < 1 + self.ahead and (self._batches[-1].shares or self.running or self.waiting):
                    continue
            if not self._batches:
                break
            batch = self._batches[0]
            victims += batch.preempted
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

    @property
    def at_rest(self) -> bool:
        """Whether nothing runs, waits or is in flight."""
        return not (self.running or self.waiting or self._batches)

    def advance(self, before_results: Callable[[], None]) -> tuple[bool, bool]:
        """Take a step of the engine's loop without a client: schedule if there is room, else give results.

        before_results: Is called before the results of a batch that computed something are processed.

        Returns whether a batch was scheduled, and whether a batch that computed something gave results.
        """
        scheduled = bool(self.running or self.waiting)
        if scheduled:
            self._batches.append(self._schedule())
            if len(self._batches) < 1 + self.ahead and (self._batches[-1].shares or self.running or self.waiting):
                return True, False
        if not self._batches or not self._batches[0].shares:
            if self._batches:
                self._batches.popleft()
            return scheduled, False
        before_results()
        for seq in self.complete(Plan(), 1, 0, 0):
            self.release(seq)
        return scheduled, True

    def abort(self, seq: Generation) -> None:
        self._bursts.forget(seq)
        del self._progress[seq]
        super().abort(seq)

    def _plan_of(self, batch: SpeculativeBatch, victims: list[Generation]) -> Plan:
        """Return the work of a batch."""
        plan = Plan()
        plan.preempted = victims
        for share in batch.shares.values():
            plan.add_verified(share.seq, share.num_tokens, share.past, share.drafts)
        plan.decodes = True   # a step, even if all its sequences have ended meanwhile
        plan.prefills = [(seq, n) for seq, n in plan.prefills if seq in self._progress]   # others have ended meanwhile
        return plan

    def complete(self, plan: Plan, num_steps: int, step: int, now_ns: int) -> list[Generation]:
        if not self._batches or not self._batches[0].shares:
            return []   # the plan only preempted
        finished: list[Generation] = []
        given: dict[Generation, int] = {}
        for share in self._batches.popleft().shares.values():
            known = self._progress.get(share.seq)
            if known is None:
                continue
            tokens = self._result(share, known)
            if tokens:
                given[share.seq] = tokens
        self._bursts.note(given, step, now_ns)
        plan.sampled = sum(given.values())
        for seq in given:
            known = self._progress[seq]
            if self.hashes_results and seq in self.running:
                self.pool.commit(seq, min(known.computed - known.in_flight, seq.num_tokens - 1))
            if seq.num_tokens - seq.prompt_tokens >= seq.target_tokens:
                finished.append(seq)
                self._bursts.forget(seq)
                del self._progress[seq]
                if seq in self.running:
                    del self.running[seq], self.partial[seq]
                else:
                    self._forget_waiting(seq)
        return finished

    def _result(self, share: _Share, known: _Progress) -> int:
        """Learn the result of a batch for a sequence; return how many tokens it gives."""
        seq = share.seq
        known.in_flight -= share.num_tokens
        stale = known.stale > 0
        if stale:
            known.stale -= share.num_tokens
        tokens = share.gives
        if not tokens:
            return 0
        rejected = share.drafts - (tokens - 1)
        tokens = min(tokens, seq.prompt_tokens + seq.target_tokens - seq.num_tokens)
        if not stale:
            known.computed -= rejected
            if self.ahead:
                known.promised -= rejected + tokens
            else:
                known.drafts = self.drafts
            seq.num_computed = known.computed
        return tokens

    def _forget_waiting(self, seq: Generation) -> None:
        """Take a sequence out of the queue whose last tokens were in flight when it was preempted."""
        rest = [other for other in self.waiting if other is not seq]
        while self.waiting:
            self.waiting.pop()
        for other in rest:
            self.waiting.push(other)

    # -- the engine's loop ---------------------------------------------------------------------------------------

    def _schedule(self) -> SpeculativeBatch:
        """Schedule one batch, sequence by sequence."""
        batch = SpeculativeBatch()
        budget, room = self.max_num_batched_tokens, self.input_budget   # room: drafting takes slots of the input
        cap = self._cap()
        order = list(self.running)
        index, prefilling = 0, False
        while index < len(order) and budget > 0 and room > self.slots:
            seq = order[index]
            known = self._progress[seq]
            asked = seq.max_new_tokens if seq.stops_early else seq.target_tokens
            if known.promised and known.computed + 2 - known.promised >= seq.prompt_tokens + asked:
                index += 1   # its last token is certainly in flight
                continue
            n = seq.num_tokens + known.drafts + known.promised - known.computed
            if 0 < cap < n:
                n = cap
            n = min(n, budget, room - self.slots)
            if not n:
                index += 1
                continue
            while not self._grow(seq, known, n):
                victim = self._victim(order)
                if order.index(victim) < index and (victim in batch.shares or not self.keeps_its_place):
                    index -= 1
                order.remove(victim)
                if victim in batch.shares:
                    restored = batch.shares.pop(victim).num_tokens
                    budget += restored
                    room += restored + self.slots
                self._preempt(victim, batch)
                if victim is seq:
                    break
            if seq not in self.running:   # it preempted itself
                if self.goes_on and self.by_priority:
                    continue
                break
            drafts = max(0, min(known.drafts, n + known.computed - seq.num_tokens - known.promised))
            known.drafts = 0
            batch.shares[seq] = _Share(seq, n, known.computed, drafts)
            prefilling |= known.prefilling
            budget -= n
            room -= n + self.slots
            index += 1
        padded: set[Generation] = set()
        if not batch.preempted:
            self._admit_waiting(batch, budget, room, cap, prefilling, padded)
        else:
            batch.stopped = int(Reason.KV_MEMORY)
        for share in batch.shares.values():
            self._account(share, share.seq in padded)
        return batch

    def _grow(self, seq: Generation, known: _Progress, n: int) -> bool:
        computed = known.computed + n
        return self.pool.grow(seq, computed + self.lookahead, min(computed, seq.num_tokens))

    def _cap(self) -> int:
        """Return the cap on one sequence's new tokens, 0 for none (rule 7)."""
        eligible = len(self.running) + len(self.waiting)
        if not self.threshold or (self.spare_lone_prefill and eligible <= 1):
            return 0
        return max(self.threshold, self.input_budget // eligible) if self.adaptive else self.threshold

    def _victim(self, order: list[Generation]) -> Generation:
        return max(order, key=lambda s: (s.priority, s.arrival_order)) if self.by_priority else order[-1]

    def _preempt(self, seq: Generation, batch: SpeculativeBatch) -> None:
        known = self._progress[seq]
        del self.running[seq], self.partial[seq]
        self.pool.free(seq)
        known.computed = known.promised = known.drafts = seq.num_computed = 0
        known.stale = known.in_flight
        seq.preemptions += 1
        self.num_preemptions += 1
        self.waiting.push_preempted(seq)
        batch.preempted.append(seq)

    def _admit_waiting(self, batch: SpeculativeBatch, budget: int, room: int, cap: int, prefilling: bool,
                       padded: set[Generation]) -> None:
        """Admit the head of the queue while budget, slots and blocks last.

        A sequence with one token left to compute gets rows for drafts all the same, in a step without prompts: then all
        sequences have as many rows, and the step its captured graph.
        """
        pool, waiting = self.pool, self.waiting
        others = bool(batch.shares)   # of the sequences that run already
        while budget > 0 and waiting and room > self.slots and len(self.running) < self.max_num_seqs:
            seq = waiting.peek()
            past = pool.hit_tokens(seq)
            n, most = seq.num_tokens - past, min(budget, room - self.slots)
            pads = n == 1 and not prefilling and (others or past > 0)
            if pads:
                n += self.drafts
                if n > most:
                    batch.stopped = int(Reason.TOKEN_BUDGET)
                    return
            if 0 < cap < n:
                n = cap
            if n > most:
                if not self.chunking:
                    batch.stopped = int(Reason.TOKEN_BUDGET)
                    return
                n = most
            water = self.watermark_blocks if self.running else 0
            need = pool.missing_blocks(seq, past + n + self.lookahead)
            if self.whole_must_fit:
                need = max(need, pool.missing_blocks(seq, seq.num_tokens))
            if need + water > pool.free_blocks:
                batch.stopped = int(Reason.KV_MEMORY)
                return
            pool.admit(seq, past + n + self.lookahead, min(past + n, seq.num_tokens))
            self.admit(seq)
            if past and seq.start_ns < 0:
                seq.cached_tokens = past
            self._progress[seq].computed = past
            batch.shares[seq] = _Share(seq, n, past, n - 1 if pads else 0)
            if pads:
                padded.add(seq)
            budget -= n
            room -= n + self.slots
        batch.stopped = int(Reason.SLOTS if len(self.running) >= self.max_num_seqs else Reason.TOKEN_BUDGET)

    def _account(self, share: _Share, padded: bool) -> None:
        """Count what is scheduled as computed, and draw what its drafts will give."""
        seq, n = share.seq, share.num_tokens
        known = self._progress[seq]
        known.computed += n
        known.in_flight += n
        seq.num_computed = known.computed
        known.prefilling = known.computed < seq.num_tokens + known.promised
        if known.prefilling:
            return
        share.gives = 1
        if share.drafts and not padded:   # the rows of padding are rejected
            share.gives += min(self.acceptance.draw(seq.arrival_order, known.verified), share.drafts)
            known.verified += 1
        if self.ahead:
            known.promised += 1 + share.drafts
            known.drafts = self.drafts
