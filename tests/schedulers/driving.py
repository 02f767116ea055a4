"""Drive a scheduler step by step without a clock, and see who got what."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from hermes.core.block_hashes import GroupPrefix
from hermes.core.branches import branch_into
from hermes.hardware.descriptions.engines import Rules
from hermes.memory import BlockPool, PrefixBlockPool
from hermes.schedulers import SCHEDULERS, Generation, LLMScheduler


@dataclass
class Step:
    """Names with new tokens in the order of `running`, names preempted, names finished, free blocks in between."""

    got: dict[str, int]
    preempted: list[str]
    finished: list[str]
    free: int


class Drive:
    """`add` sequences by name, take a `step`. Blocks are of one token unless said otherwise."""

    def __init__(self, every_step: bool, blocks: int = 1000, *, kind: str = "chunked", block_size: int = 1,
                 caching: bool = False, rules: Rules | None = None, **config: Any) -> None:
        pool = (PrefixBlockPool if caching else BlockPool)(blocks, block_size)
        component = SCHEDULERS.get(kind).model_validate({"kind": kind, **config})
        if rules is not None:
            component = component.following(rules)
        self.scheduler: LLMScheduler = component.build(pool, every_step=every_step)
        self.pool, self.steps = pool, 0
        self.names: dict[Generation, str] = {}

    def add(
        self, name: str, prompt: int, output: int, priority: int = 0, group: int | None = None, shared: int = 0,
        branches: tuple[int, ...] = (),
    ) -> Generation:
        content = None if group is None else GroupPrefix(group, shared)
        seq = Generation(prompt, output, priority, arrival_order=100 * len(self.names), content=content)
        if branches:
            branch_into(seq, branches)
        assert self.scheduler.can_ever_fit(seq) is None
        self.names[seq] = name
        self.scheduler.enqueue(seq)
        return seq

    def name(self, seq: Generation) -> str:
        """Branches after the first are called by their number as well."""
        return self.names[seq] if seq.branch < 0 else self.names[seq.branches.lead] + (str(seq.branch or ""))

    def step(self) -> Step | None:
        """The next step; None if there is none."""
        scheduler = self.scheduler
        plan = scheduler.plan(1)
        if plan is None:
            return None
        chunks = dict(plan.prefills)
        decoding = {s for s in scheduler.running if s.grouped and plan.decodes}
        got = {self.name(s): chunks.get(s, 1) for s in scheduler.running if s in chunks or s in decoding}
        free = self.pool.free_blocks - (scheduler.group.blocks_for(1) if plan.decodes and not plan.taken else 0)
        preempted = [self.name(s) for s in plan.preempted]
        finished = scheduler.complete(plan, 1, self.steps, self.steps + 1)
        self.steps += 1
        for seq in finished:
            scheduler.release(seq)
        return Step(got, preempted, [self.name(s) for s in finished], free)

    def got(self, steps: int) -> list[dict[str, int]]:
        """Who got how many tokens in the next `steps` steps."""
        taken = [self.step() for _ in range(steps)]
        return [{} if step is None else step.got for step in taken]

    def rest(self) -> list[dict[str, int]]:
        """All steps until nothing is left."""
        rows = []
        while (step := self.step()) is not None:
            rows.append(step.got)
            assert len(rows) < 1000
        return rows

    def waiting(self) -> list[str]:
        return [self.name(s) for s in self.scheduler.waiting]
