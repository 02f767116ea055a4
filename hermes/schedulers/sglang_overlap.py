"""SGLang's scheduler with overlap scheduling, its default (docs/background/sglang.md, rules 20 to 24).

A batch is planned while the one before runs, so its results are not known: requests that end in it still count, hold
their memory and their slot, and its prompts are not in the tree yet. The client calls `complete` when the results of a
batch are ready; the next plan was made when that batch began. So `complete` only notes what the results change, and the
next `plan` makes that change when it is done.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from hermes.compiled import mypyc_attr
from hermes.core.generation import Generation
from hermes.memory.blocks import BlockPool
from hermes.schedulers.base import run_order
from hermes.schedulers.plan import Plan
from hermes.schedulers.sglang import SglangScheduler

if TYPE_CHECKING:
    from hermes.schedulers.sglang_config import SglangConfig

__all__ = ["OverlapSglangScheduler"]


@mypyc_attr(allow_interpreted_subclasses=True)
class OverlapSglangScheduler(SglangScheduler):
    """See the module's docstring.

    Attributes:
        ending: Requests that ended in the batch in flight, and whether their blocks may be freed with its results.
        overrun: Those of them that the latest plan lets decode once more.
        seen: Blocks that held nothing and blocks that could be evicted, after the latest plan had taken its own and
            before the results of the batch in flight were processed.
    """

    asynchronous = True

    def __init__(self, config: SglangConfig, pool: BlockPool, *, every_step: bool = False) -> None:
        super().__init__(config, pool, every_step=every_step)
        self.ending: dict[Generation, bool] = {}
        self.overrun: list[Generation] = []
        self.seen = (pool.num_blocks, 0)
        self._computed: list[Generation] = []             # by the batch in flight: prompts, then what ended otherwise
        self._in_flight: set[Generation] | None = set()   # running requests with a token in flight; None: all
        self._lost = 0   # tokens that were counted and dropped, to be counted off

    # -- plans -----------------------------------------------------------------------------------------------------

    @property
    def num_running(self) -> int:
        return self.group.n + len(self.ending)

    def _outputs(self) -> list[tuple[Generation, int]]:
        late = self._in_flight
        outputs = [(seq, n - (late is None or seq in late)) for seq, n in super()._outputs()]
        if self.ending:
            outputs += [(seq, seq.target_tokens - 1) for seq in self.ending]
            outputs.sort(key=lambda pair: run_order(pair[0]))
        return outputs

    def wants_cut(self, seq: Generation) -> bool:
        return not self.full and self.num_running < self.max_num_seqs

    def plan(self, max_steps: int) -> Plan | None:
        results = bool(self._computed)
        plan = self._plan_unknowing(1 if results else max_steps)
        self._see(plan)
        for seq in self._given_up:
            self._given_up[seq] += 1
        if plan is not None and self._lost:
            back = min(self._lost, plan.sampled)
            plan.sampled -= back
            self._lost -= back
        if results:
            self._process()
            return Plan() if plan is None else plan
        self._in_flight = set()
        if plan is None:
            self.ratio = self.init_ratio
        return plan

    def _plan_unknowing(self, max_steps: int) -> Plan | None:
        """Plan a batch without the results of the one in flight (rules 20 to 22)."""
        self.overrun = []
        if self.chunk is not None or (self.waiting and (not self.full or not self.num_running)):
            plan = Plan()
            self._prefill_batch(plan)
            if plan.prefills:
                return plan
        if not self.ending:
            return self._decode_batch(max_steps) if self.group.n else None
        over = self._leave_ending()
        if not self.group.n and not over:
            return None
        if not self._fits(self._blocks_with(over)):
            if len(over) < len(self.ending):
                return None   # what ends gives back memory: the others wait for it
            return self._retract_with(over)
        plan = Plan()
        self.decays = True
        self._decode_with(plan, over)
        return plan

    def _retract_with(self, over: list[Generation]) -> Plan:
        """Retract requests from a batch in which these decode once more, and let the others decode."""
        plan = Plan()
        if len(over) + self.group.n == 1:   # alone, and it has ended
            self._end_early(over[0])
            return plan
        self._retract(plan, over)
        self.decays = False
        left = [seq for seq in over if seq in self.ending]
        self._make_room(self.group.n + len(left))
        self._decode_with(plan, left)
        return plan

    def _end_early(self, seq: Generation) -> None:
        # SGLang retracts it and computes its last token anew; here its answer is complete
        if self.ending.pop(seq):
            self._computed.remove(seq)
            super().release(seq)

    def _leave_ending(self) -> list[Generation]:
        """Leave out requests that are known to end by their length; return the other ones that end (rule 21)."""
        over = [seq for seq in self.ending if self.max_new_tokens(seq) > seq.target_tokens]
        if len(over) < len(self.ending):
            self.full = False
        return over

    def _blocks_with(self, over: list[Generation]) -> int:
        """Return the blocks of a decode batch in which these decode once more."""
        return self.group.blocks_for(1) + sum([seq.num_computed % self.pool.block_size == 0 for seq in over])

    def _decode_with(self, plan: Plan, over: list[Generation]) -> None:
        """Let the running requests decode, and those in `over` once more."""
        if self.pool.block_size > 1:
            self._make_room(self.group.n + len(over))
        self.plan_decodes(plan)
        for seq in over:
            plan.decode_seqs += 1
            plan.decode_ctx += seq.num_computed
            plan.decode_ctx_max = max(plan.decode_ctx_max, seq.num_computed)
        self.overrun = over

    def _mix(self, plan: Plan) -> None:
        over = self._leave_ending()
        if (self.group.n or over) and self._fits(self._blocks_with(over)):
            self._decode_with(plan, over)
            self.decays = False

    def _see(self, plan: Plan | None) -> None:
        taken = 0 if plan is None or not plan.decodes else self._blocks_with(self.overrun)
        cached = 0 if self.tree is None else self.tree.tree.evictable
        self.seen = (self.pool.free_blocks - cached - taken, cached)

    # -- retraction ------------------------------------------------------------------------------------------------

    def _known_outputs(self, seq: Generation) -> int:
        late = self._in_flight
        return seq.num_tokens - seq.prompt_tokens - (late is None or seq in late or seq in self.ending)

    def _lose_in_flight(self, seq: Generation) -> None:
        """Drop the token of a retracted request that the batch in flight computes: it is computed anew (rule 24)."""
        if self._known_outputs(seq) == seq.num_tokens - seq.prompt_tokens:
            return
        seq.num_tokens -= 1
        self._lost += 1
        if seq.join_tick < self.group.clock:   # it came with the latest decode batch
            if seq.segments is None:
                seq.segments = []
            seq.segments.append((seq.emit_step, seq.join_tick, self.group.clock - 1))
        elif seq.num_tokens == seq.prompt_tokens:
            seq.first_step = seq.first_token_ns = -1
        seq.emit_step = -1

    # -- results ---------------------------------------------------------------------------------------------------

    def complete(self, plan: Plan, num_steps: int, step: int, now_ns: int) -> list[Generation]:
        if self._given_up:
            for seq, _n in plan.prefills:   # the engine has learned of it before the results
                if self._knows(seq) and seq is not self.chunk and seq not in self._asked:
                    self._end_with_next(seq)
        finished = super().complete(plan, num_steps, step, now_ns)
        self._in_flight = None if plan.decodes else {seq for seq, _n in plan.prefills}
        return finished

    def _results(self, prefills: list[tuple[Generation, int]], finished: list[Generation]) -> None:
        """Note results for the next plan. The chunked request alone enters the tree before it."""
        self._computed = [seq for seq, _n in prefills if seq is not self.chunk]
        self._computed += [seq for seq in finished if seq not in set(self._computed)]
        self.ending = dict.fromkeys(finished, False)
        chunk = self.chunk
        if chunk is not None and self.tree is not None and not self._knows(chunk) and any(
                seq is chunk for seq, _n in prefills):
            self.tree.commit(chunk, chunk.num_computed)

    def _process(self) -> None:
        """Process the results of the batch in flight: texts enter the tree, what has ended is freed (rule 23)."""
        ending, self.ending = self.ending, {}
        computed, self._computed = self._computed, []
        for seq in computed:
            if self.tree is not None:
                tokens = seq.num_computed
                if seq in self.overrun:   # it has the KV of its last token, too
                    tokens += 1
                    self.tree.grow(seq, tokens)
                self.tree.commit(seq, tokens)
            if ending.get(seq):
                super().release(seq)
        if ending:
            self.full = False
        self._in_flight = set()

    def release(self, seq: Generation) -> None:
        if seq in self.ending:
            self.ending[seq] = True
        else:
            super().release(seq)
