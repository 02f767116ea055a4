"""Continuous batching: a step is either a prefill batch or a decode batch, prefills first (Orca, vLLM v0).

While waiting sequences fit, a step computes whole prompts and running decodes stall. Otherwise every running sequence
decodes. When blocks run out, the scheduler preempts the youngest running sequence, which is recomputed later.
"""

from __future__ import annotations

from typing import Annotated, Literal

from pydantic import Field

from hermes.config import ConfigModel, Named
from hermes.memory.blocks import BlockPool
from hermes.schedulers.base import SCHEDULERS, LLMScheduler, Plan
from hermes.schedulers.queues import PACKING

__all__ = ["ContinuousConfig", "ContinuousScheduler"]


@SCHEDULERS.register("continuous")
class ContinuousConfig(ConfigModel):
    """Orca's and vLLM v0's batching: a prefill batch if one can start, otherwise a decode batch."""

    kind: Literal["continuous"] = "continuous"
    max_num_batched_tokens: int = Field(default=8192, ge=1, le=2**31)
    """Most prompt tokens in a prefill batch. A longer prompt is computed alone."""
    max_num_seqs: int = Field(default=256, ge=1, le=2**31)
    """Most sequences running at once."""
    policy: Annotated[str, Named(PACKING)] = "fcfs"
    """Order of the waiting queue."""

    def build(self, pool: BlockPool, *, every_step: bool) -> ContinuousScheduler:
        return ContinuousScheduler(self, pool)


class ContinuousScheduler(LLMScheduler):
    """See the module's docstring."""

    ticks_every_step = False

    def __init__(self, config: ContinuousConfig, pool: BlockPool) -> None:
        super().__init__(
            pool, max_num_seqs=config.max_num_seqs, max_num_batched_tokens=config.max_num_batched_tokens,
            packing=config.policy,
        )

    def plan(self, max_steps: int) -> Plan | None:
        if not (self.waiting or self.holding) and self.group.n:
            run = self._decode_run(max_steps)
            if run is not None:
                return run
        plan = Plan()
        self._prefill_batch(plan)
        if not plan.prefills and self.group.n:
            self._decode_batch(plan, max_steps)
        return plan if plan.prefills or plan.decodes or plan.preempted else None

    def _prefill_batch(self, plan: Plan) -> None:
        """Add whole prompts while tokens, slots and blocks last; a prompt above the budget is computed alone."""
        pool, budget = self.pool, self.max_num_batched_tokens
        while self.num_waiting and len(self.running) < self.max_num_seqs:
            seq = self.next_waiting()
            past = seq.num_computed or pool.hit_tokens(seq)
            n = seq.num_tokens - past
            if n > budget and plan.prefills:
                return
            if pool.missing_blocks(seq, seq.num_tokens) > pool.free_blocks:
                return
            pool.admit(seq, seq.num_tokens)
            self._admit(seq)
            if seq.start_ns < 0 and not seq.transferred:
                seq.cached_tokens = past
            plan.add_prefill(seq, n, past)
            seq.num_computed = past + n
            budget -= n

    def _decode_batch(self, plan: Plan, max_steps: int) -> None:
        """Let all running sequences decode; preempt the youngest if blocks run out."""
        group, pool = self.group, self.pool
        while group.n and group.blocks_for(1) > pool.free_blocks:
            self._preempt(next(reversed(self.running)), plan)
        if group.n:
            self._decode_stats(plan)
            if not plan.preempted:
                plan.num_steps = self._steps_of_run(max_steps)
