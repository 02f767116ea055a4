"""LoRA slots: a step computes at most `max_loras` adapters (rule 22 of docs/background/vllm.md).

A waiting sequence whose adapter would be one more is passed over and keeps its place; those behind it may be admitted.
From 0.33 on, adapters of all running sequences count, also of those that get nothing in the step.
(vllm/v1/core/sched/scheduler.py: scheduled_loras.)
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from typing import TYPE_CHECKING

from hermes.core import block_hashes
from hermes.core.generation import Generation
from hermes.core.reasons import Reason
from hermes.schedulers.chunked import ENTER, SKIP
from hermes.schedulers.parts import SchedulerPart, Turn
from hermes.schedulers.plan import Plan

if TYPE_CHECKING:
    from hermes.schedulers.chunked_config import ChunkedConfig

__all__ = ["AdapterSlots", "adapter_of", "count_adapters", "slots_of"]

MOST_NUMBERS = 8192   # sequences whose adapters are kept


def adapter_of(seq: Generation) -> int:
    """Return the number of a sequence's adapter, 0 for none."""
    return block_hashes.adapter_of(seq.content)


class _Numbers(dict[Generation, int]):
    """Adapters of sequences that were in a step: looked up once, since steps are many."""

    def __missing__(self, seq: Generation) -> int:
        if len(self) >= MOST_NUMBERS:
            self.clear()
        number = self[seq] = adapter_of(seq)
        return number


def count_adapters(
    plan: Plan, decodes: Iterable[Generation], number_of: Callable[[Generation], int] = adapter_of,
    others: Iterable[tuple[int, int]] = (),
) -> None:
    """Note in a plan the tokens of sequences with adapters, and how many adapters these are.

    Args:
        decodes: Sequences that get one token each, in addition to `plan.prefills`.
        number_of: Gives the adapter of a sequence.
        others: (adapter, tokens) of what else the step computes.
    """
    numbers = list(map(number_of, decodes))
    tokens, found = len(numbers) - numbers.count(0), set(numbers)
    for seq, n in plan.prefills:
        number = number_of(seq)
        if number:
            tokens += n
            found.add(number)
    for number, n in others:
        tokens += n if number else 0
        found.add(number)
    found.discard(0)
    plan.lora_tokens, plan.lora_adapters = tokens, len(found)


class AdapterSlots(SchedulerPart):
    """See the module's docstring.

    Args:
        max_loras: Most adapters in a step, which are also the adapters that the device keeps.
        counts_all: Whether adapters of all running sequences count.
    """

    turn = Turn.ADAPTERS

    def __init__(self, max_loras: int, *, counts_all: bool) -> None:
        self.max_loras, self.counts_all = max_loras, counts_all
        self.num_loads = 0                     # adapters loaded since it was last read
        self._slots: dict[int, None] = {}      # adapters on the device, the least recently used first
        self._active: dict[int, None] = {}     # adapters of the step being planned
        self._number_of: Callable[[Generation], int] = _Numbers().__getitem__
        self._counted = False                  # whether the adapters of the step being planned are counted

    def take_loads(self) -> int:
        """Return how many adapters the planned step loads, once."""
        loads, self.num_loads = self.num_loads, 0
        return loads

    # -- the adapters of a step --------------------------------------------------------------------------------------

    def before_plan(self, max_steps: int) -> int:
        self._counted = False
        return max_steps

    def leaving(self, plan: Plan | None, seqs: Sequence[Generation]) -> None:
        if plan is not None:   # with those that the step computes although they have ended
            self._count(plan)

    def after_plan(self, plan: Plan | None) -> Plan | None:
        if plan is not None and not self._counted:
            self._count(plan)
        return plan

    def _count(self, plan: Plan) -> None:
        count_adapters(plan, self.scheduler.group.members if plan.decodes else (), self._number_of)
        self._counted = True

    # -- admission ---------------------------------------------------------------------------------------------------

    def before_admission(self, plan: Plan) -> None:
        scheduler = self.scheduler
        if self.counts_all:
            self._active = dict.fromkeys(map(self._number_of, [*scheduler.running, *scheduler._ending]))
        else:
            self._active = dict.fromkeys(map(self._number_of, scheduler.group.members if plan.decodes else ()))
            self._active |= dict.fromkeys(self._number_of(seq) for seq, _n in plan.prefills)
        self._active.pop(0, None)

    def entry(self, seq: Generation, num_tokens: int, past: int) -> int:
        number = adapter_of(seq)
        return SKIP if number and number not in self._active and len(self._active) >= self.max_loras else ENTER

    @property
    def skips_for(self) -> int:
        return int(Reason.ADAPTERS)

    def wants_cut(self, seq: Generation) -> bool:
        # behind one that is passed over, any arrival may be admitted
        return len(self.scheduler.running) < self.scheduler.max_num_seqs

    # -- adapters on the device --------------------------------------------------------------------------------------

    def admitted(self, seq: Generation) -> None:
        number = adapter_of(seq)
        if not number:
            return
        self._active[number] = None
        if number not in self._slots:
            self.num_loads += 1
            if len(self._slots) >= self.max_loras:
                del self._slots[next(one for one in self._slots if one not in self._active)]
            self._slots[number] = None
        self._touch(seq)

    def preempted(self, seq: Generation, returned: int) -> None:
        self._touch(seq)

    def completed(self, plan: Plan, num_steps: int, finished: Sequence[Generation]) -> None:
        if self._slots:
            for seq in finished:
                self._touch(seq)

    def _touch(self, seq: Generation) -> None:
        number = adapter_of(seq)
        if number in self._slots:
            del self._slots[number]
            self._slots[number] = None


def slots_of(config: ChunkedConfig) -> AdapterSlots:
    assert config.max_loras is not None
    return AdapterSlots(config.max_loras, counts_all=config.counts_all_adapters)
