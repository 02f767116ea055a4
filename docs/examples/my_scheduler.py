"""A scheduler that computes one prompt a step."""

from typing import Literal

from pydantic import Field

from hermes.schedulers import SCHEDULERS, BlockPool, LLMScheduler, Plan, SchedulerConfig


@SCHEDULERS.register("one_prompt")
class OnePrompt(SchedulerConfig):
    """A step computes one whole prompt, or a token of every answer."""

    kind: Literal["one_prompt"] = "one_prompt"
    max_num_seqs: int = Field(default=64, ge=1)
    """Most sequences running at once."""

    def build(self, pool: BlockPool, *, every_step: bool) -> "OnePromptScheduler":
        return OnePromptScheduler(pool, max_num_seqs=self.max_num_seqs, max_num_batched_tokens=8192)


class OnePromptScheduler(LLMScheduler):
    ticks_every_step = False      # decodes stand still while a prompt is computed

    def plan(self, max_steps: int) -> Plan | None:
        plan = Plan()
        if self.next_fits():      # someone waits; slot and blocks are free
            self.prefill_next(plan)
        elif self.group.n:        # sequences that decode
            self.decode_all(plan, max_steps)
        return plan if plan.prefills or plan.decodes or plan.preempted else None
