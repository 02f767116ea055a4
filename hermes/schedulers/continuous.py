"""Continuous batching: a step is either a prefill batch or a decode batch, prefills first (Orca, vLLM v0).

While waiting sequences fit, a step computes whole prompts and running decodes stall. Otherwise every running sequence
decodes. When blocks run out, the scheduler preempts the youngest running sequence, which is recomputed later.
"""

from __future__ import annotations

from typing import Annotated, Literal

from pydantic import Field

from hermes.config import Named
from hermes.core.reasons import Reason
from hermes.memory.blocks import BlockPool
from hermes.schedulers.base import LLMScheduler
from hermes.schedulers.config import SchedulerConfig
from hermes.schedulers.plan import Plan
from hermes.schedulers.queues import PACKING

__all__ = ["ContinuousConfig", "ContinuousScheduler"]


class ContinuousConfig(SchedulerConfig):
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
            run = self.decode_run(max_steps)
            if run is not None:
                return run
        plan = Plan()
        self._prefill_batch(plan)
        if not plan.prefills and self.group.n:
            self.decode_all(plan, max_steps)
            if plan.preempted:
                self.stopped = int(Reason.KV_MEMORY)
        return plan if plan.prefills or plan.decodes or plan.preempted else None

    def _prefill_batch(self, plan: Plan) -> None:
        """Add whole prompts while tokens, slots and blocks last; a prompt above the budget is computed alone."""
        budget = self.max_num_batched_tokens
        while self.next_fits():
            computed = self.prefill_next(plan, budget)
            if not computed:
                return
            budget -= computed
