"""A scheduler with a queue of its own says so with `num_waiting`: its client notes why sequences wait there."""

from __future__ import annotations

from typing import Literal

from hermes.api import simulate
from hermes.core.generation import Generation
from hermes.core.reasons import Reason
from hermes.memory.blocks import BlockPool
from hermes.schedulers.base import SCHEDULERS, LLMScheduler
from hermes.schedulers.config import SchedulerConfig
from hermes.schedulers.plan import Plan


class Shy(LLMScheduler):
    """Lets one sequence after the other in; the others wait in `mine`."""

    def __init__(self, pool: BlockPool) -> None:
        super().__init__(pool, max_num_seqs=8, max_num_batched_tokens=8192)
        self.mine: list[Generation] = []

    def enqueue(self, seq: Generation) -> None:
        self.mine.append(seq)

    @property
    def num_waiting(self) -> int:
        return super().num_waiting + len(self.mine)

    def plan(self, max_steps: int) -> Plan | None:
        if self.mine and not self.running and not self.waiting:
            super().enqueue(self.mine.pop(0))
        plan = Plan()
        if self.waiting and self.next_fits():
            self.prefill_next(plan)
        elif self.group.n:
            self.decode_all(plan, max_steps)
        self.stopped = int(Reason.SLOTS)
        return plan if plan.prefills or plan.decodes else None


class ShyConfig(SchedulerConfig):
    kind: Literal["shy"] = "shy"

    def build(self, pool: BlockPool, *, every_step: bool) -> Shy:
        return Shy(pool)


def test_a_client_notes_what_waits_in_a_queue_of_its_scheduler() -> None:
    client = {"name": "llm", "model": "llama-3.1-8b", "device": "h100-sxm", "scheduler": {"kind": "shy"}}
    lengths = {"kind": "fixed", "prompt": 100, "output": 4}
    workload = {"requests": 3, "arrivals": {"kind": "at_once"}, "lengths": lengths}
    SCHEDULERS.register("shy")(ShyConfig)
    try:
        runs = simulate({"workload": workload, "clients": [client]}).record.runs
    finally:
        SCHEDULERS.unregister("shy")
    assert runs["decode_seqs"].tolist() == [0, 1] * 3   # a prompt, and a run of its answer, of one after the other
    assert runs["stopped"].tolist() == [Reason.SLOTS] * 4 + [0] * 2
