"""Speculative decoding as vLLM 0.33 schedules it (docs/background/speculation.md has the rules).

A sequence that decodes gets one token and `num_speculative_tokens` draft tokens in a step. The step verifies the
drafts: it gives as many tokens as are accepted and one more, and takes the KV of the others back. How many are
accepted is drawn for each sequence (`hermes.schedulers.acceptance`), so no two steps are alike, and every step is
planned alone, by the engine's literal loop. `hermes.schedulers.in_flight` keeps the batches in flight.

With `async_scheduling` a step is scheduled when the one before begins: it counts on all drafts in flight, and learns
later which of them were rejected. A sequence may so be computed in one step more after its last token. Without drafts
these are the counts of vLLM's AsyncScheduler, for options under which a step cannot be planned late.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from hermes.core.generation import Generation
from hermes.schedulers.acceptance import Acceptance
from hermes.schedulers.parts import SchedulerPart, Turn, WithParts
from hermes.schedulers.plan import Plan

if TYPE_CHECKING:
    from hermes.schedulers.chunked_config import ChunkedConfig, Speculation

__all__ = ["Drafts", "Share", "drafts_of"]


class _Progress:
    """Progress of a sequence with drafts, as the engine knows it. Counts of tokens.

    `num_computed` of the sequence: in KV memory when all batches in flight are done and no draft is rejected.

    Attributes:
        promised: Given by batches in flight if no draft is rejected (asynchronous only).
        drafts: Proposed for its next step.
        stale: In batches that were in flight when it was preempted: their results change no count.
        in_flight: In all batches in flight.
        verified: Number of times that its drafts were verified.
        prefilling: Whether its latest step was not the last of its prompt (or of what is recomputed).
    """

    __slots__ = ("drafts", "in_flight", "prefilling", "promised", "stale", "verified")

    def __init__(self) -> None:
        self.promised = self.drafts = self.stale = self.in_flight = self.verified = 0
        self.prefilling = True


class Share:
    """A sequence's part of a batch: its tokens, those computed before, drafts among them, tokens that it will give."""

    __slots__ = ("drafts", "gives", "num_tokens", "past", "seq")

    def __init__(self, seq: Generation, num_tokens: int, past: int, drafts: int) -> None:
        self.seq, self.num_tokens, self.past, self.drafts = seq, num_tokens, past, drafts
        self.gives = 0


class Drafts(SchedulerPart):
    """See the module's docstring.

    Args:
        speculative: None for steps without drafts.

    Attributes:
        ahead: Whether a batch is scheduled before the results of the one before it are known.
        shares: What the batch just planned computes.
        progress: Of sequences that were admitted and have not ended.
    """

    turn = Turn.DRAFTS

    def __init__(self, config: ChunkedConfig, speculative: Speculation | None) -> None:
        self.ahead = bool(config.async_scheduling)
        self.hashes_results = config.hashes_results or self.ahead
        self.most = self._lookahead = self._rows = 0
        self._ahead_of_blocks, self.method, self.acceptance = False, "", Acceptance([], [0])
        if speculative is not None:
            self.most, self.method = speculative.num_speculative_tokens, speculative.method
            self.acceptance = speculative.acceptance()
            self._lookahead, self._rows = speculative.lookahead, speculative.slots
            self._ahead_of_blocks = speculative.drops_last_hit
        self._hashes_ahead = config.hashes_ahead
        self.shares: dict[Generation, Share] = {}
        self.progress: dict[Generation, _Progress] = {}
        self._padding: set[Generation] = set()   # sequences of the batch being planned that have rows of padding
        self._others = self._prefilling = False   # whether it computes running sequences, and prompts of them

    def attach(self, scheduler: WithParts) -> None:
        super().attach(scheduler)
        scheduler.draft_tokens, scheduler.lookahead, scheduler.draft_rows = self.most, self._lookahead, self._rows
        self._set_hashes(connected=any(part.connects for part in scheduler.parts))

    def placed(self, ranks: int, *, connected: bool) -> None:
        self._set_hashes(connected=connected)

    def _set_hashes(self, *, connected: bool) -> None:
        """Set what the prefix cache does for hidden states. With a KV connector blocks keep their own hashes."""
        ahead, pool = self._hashes_ahead and not connected, self.scheduler.pool
        pool.drop_last_hit = self._ahead_of_blocks and not ahead
        pool.hash_lookahead = int(self._ahead_of_blocks and ahead)

    def seed(self, seed: int) -> None:
        self.acceptance.seed(seed)

    def refusal(self, seq: Generation) -> str | None:
        scheduler, pool = self.scheduler, self.scheduler.pool
        most = seq.prompt_tokens + seq.target_tokens + self.most * (1 + self.ahead) + self._lookahead
        if pool.blocks_for(most) > pool.num_blocks:
            return (f"needs {pool.blocks_for(most)} KV blocks of {pool.block_size} tokens for {seq.prompt_tokens} "
                    f"prompt and {seq.target_tokens} output tokens and the drafts after them, the client has "
                    f"{pool.num_blocks}")
        if not scheduler.chunking and seq.prompt_tokens + seq.target_tokens > scheduler.max_num_batched_tokens:
            return (f"{seq.prompt_tokens} prompt and {seq.target_tokens} output tokens do not fit in one step of "
                    f"{scheduler.max_num_batched_tokens} tokens, and chunked prefill is off")
        return None

    # -- a batch -------------------------------------------------------------------------------------------------

    def before_plan(self, max_steps: int) -> int:
        self._padding.clear()
        return 1

    def due(self, seq: Generation, num_tokens: int) -> int:
        known = self.progress[seq]
        if known.promised:
            asked = seq.max_new_tokens if seq.stops_early else seq.target_tokens
            if seq.num_computed + 2 - known.promised >= seq.prompt_tokens + asked:
                return 0   # its last token is certainly in flight
        return num_tokens + known.drafts + known.promised

    def before_admission(self, plan: Plan) -> None:
        self._others = bool(plan.prefills)
        self._prefilling = any(self.progress[seq].prefilling for seq, _n in plan.prefills)

    def padded(self, seq: Generation, num_tokens: int, past: int) -> int:
        """Return the rows of a sequence: in a step without prompts one with a single token left to compute gets rows
        for drafts all the same, so that all sequences have as many rows, and the step its captured graph."""
        pads = num_tokens == 1 and self.most > 0 and not self._prefilling and (self._others or past > 0)
        if pads:
            self._padding.add(seq)   # it leaves the set if it is not admitted: the next plan clears it
        return num_tokens + self.most if pads else num_tokens

    def admitted(self, seq: Generation) -> None:
        if seq not in self.progress:
            self.progress[seq] = _Progress()

    def joins(self, seq: Generation) -> None:
        """Note a branch that runs from its first token on, which has drafts for the next."""
        self.progress[seq] = known = _Progress()
        known.drafts, known.prefilling = self.most, False

    def after_plan(self, plan: Plan | None) -> Plan | None:
        self.shares = {}
        if plan is not None:
            for seq, n in plan.prefills:
                self.shares[seq] = self._account(seq, n)
        return plan

    def _account(self, seq: Generation, n: int) -> Share:
        """Count the scheduled tokens as in flight, and draw the accepted drafts."""
        known, past = self.progress[seq], seq.num_computed - n
        padded = seq in self._padding
        drafts = n - 1 if padded else max(0, min(known.drafts, seq.num_computed - seq.num_tokens - known.promised))
        share = Share(seq, n, past, drafts)
        known.drafts = 0   # one that was preempted has lost them
        known.in_flight += n
        known.prefilling = seq.num_computed < seq.num_tokens + known.promised
        if known.prefilling:
            return share
        share.gives = 1
        if share.drafts and not padded:   # the rows of padding are rejected
            share.gives += min(self.acceptance.draw(seq.arrival_order, known.verified), share.drafts)
            known.verified += 1
        if self.ahead:
            known.promised += 1 + share.drafts
            known.drafts = self.most
        return share

    # -- its results ---------------------------------------------------------------------------------------------

    def result(self, share: Share) -> int:
        """Learn the result of a batch for a sequence that has not ended; return how many tokens it gives."""
        seq, known = share.seq, self.progress[share.seq]
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
            seq.num_computed -= rejected
            if self.ahead:
                known.promised -= rejected + tokens
            else:
                known.drafts = self.most
        return tokens

    def verified(self, seq: Generation) -> None:
        """Hash the blocks of verified tokens, which `num_tokens` of the sequence counts by now."""
        if self.hashes_results and seq in self.scheduler.running:
            known = seq.num_computed - self.progress[seq].in_flight
            self.scheduler.pool.commit(seq, min(known, seq.num_tokens - 1))

    # -- at any time in between ------------------------------------------------------------------------------------

    def preempted(self, seq: Generation, returned: int) -> None:
        known = self.progress[seq]
        known.promised = 0
        known.stale = known.in_flight

    def aborted(self, seq: Generation) -> None:
        self.progress.pop(seq, None)

    def completed(self, plan: Plan, num_steps: int, finished: Sequence[Generation]) -> None:
        for seq in finished:
            self.progress.pop(seq, None)   # a branch of a single token never ran


def drafts_of(config: ChunkedConfig) -> Drafts:
    return Drafts(config, config.speculative)
