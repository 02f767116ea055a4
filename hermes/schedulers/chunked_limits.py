"""Two limits of vLLM's scheduler that are off by default: LoRA slots and the data-parallel cadence of prefills.

`max_loras` (rule 22): a step computes at most that many adapters. A waiting sequence whose adapter would be one more is
passed over and keeps its place; those behind it may be admitted. From 0.33 on, adapters of all running sequences count,
also of those that get nothing in the step. (vllm/v1/core/sched/scheduler.py: scheduled_loras.)

`prefill_schedule_interval` (rule 23): the ranks of one engine count their steps together. In a step whose number is not
a multiple of the interval, sequences that are still in their prompt get nothing, and only sequences with a single token
left to compute are admitted. The rule is off while no running sequence decodes, and while sequences were left waiting
by the latest step that it did not hold for. (DPEngineCoreProc._should_throttle_prefills in vllm/v1/engine/core.py,
defer_prefills in the scheduler.) An engine without ranks (`local`, from 0.33 on) defers prefills until so many steps
have passed since the latest one that computed some. (local_prefill_interval in the scheduler.)

A schedule with these limits is planned by the same code as one without; `ChunkedConfig.build` chooses the class.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import TYPE_CHECKING

from hermes.core import block_hashes
from hermes.core.generation import Generation
from hermes.core.reasons import Reason
from hermes.memory.blocks import BlockPool
from hermes.schedulers.chunked import ENTER, SKIP, STOP, AsyncChunkedScheduler, ChunkedScheduler
from hermes.schedulers.plan import Plan

if TYPE_CHECKING:
    from hermes.schedulers.chunked_config import ChunkedConfig

    Base = ChunkedScheduler
else:
    Base = object   # a compiled class can be the base of an interpreted one by one way only

__all__ = ["AsyncLimitedScheduler", "LimitedScheduler", "Limits", "adapter_of", "count_adapters"]


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
        decodes: Sequences that get one token each, beside `plan.prefills`.
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


class Limits(Base):
    """What makes a chunked scheduler one with `max_loras`, `prefill_schedule_interval`, or both.

    Attributes:
        step_counter: Steps since the engine had nothing to do. Ranks of one engine are told it (`Lockstep`).
        local: Whether this engine has no ranks, so that it counts for itself.
        num_loads: Adapters loaded since it was last read (`take_loads`).
    """

    def __init__(self, config: ChunkedConfig, pool: BlockPool, *, every_step: bool = False) -> None:
        super().__init__(config, pool, every_step=every_step)
        self.max_loras = config.max_loras or 0
        self.interval = config.prefill_schedule_interval
        self.step_counter = 0
        self._executed = 0                     # steps that computed something
        self._last_prefill = -self.interval    # the latest of them that computed prompts
        self._prefilled = False                # whether a chunk was scheduled, and maybe taken back, in this step
        self.counts_all_adapters = config.counts_all_adapters
        self.num_loads = 0
        self._every_step = every_step
        self._limited = True
        self._slots: dict[int, None] = {}      # adapters on the device, the least recently used first
        self._active: dict[int, None] = {}     # adapters of the step being planned
        self._number_of: Callable[[Generation], int] = _Numbers().__getitem__
        self._skipped: list[Generation] = []        # taken out of the queue while a step is planned
        self._passed_over: set[Generation] = set()  # passed over and not admitted since
        self._chunks: dict[Generation, None] = {}   # running, and in their prompt after their latest step
        self._defers = False                   # whether prefills wait in the step being planned
        self._backlog = False                  # whether the latest step that deferred nothing left sequences waiting
        self._lost_one = False                 # whether the step being planned preempts
        self._counted = False                  # whether the adapters of the step being planned are counted

    # -- the cadence of prefills -------------------------------------------------------------------------------------

    def plan(self, max_steps: int) -> Plan | None:
        self._counted = False
        plan = self._plan(max_steps)
        if plan is not None and self.max_loras and not self._counted:
            count_adapters(plan, self.group.members if plan.decodes else (), self._number_of)
        return plan

    def _plan(self, max_steps: int) -> Plan | None:
        if self.interval == 1:
            return super().plan(max_steps)
        decodes = bool(self._ending) or len(self._chunks) < len(self.running)
        throttled = (self._executed + 1 - self._last_prefill < self.interval if self.local
                     else self.step_counter % self.interval != 0)
        self._defers = throttled and not self._backlog and decodes
        self._lost_one = self._prefilled = False
        self.every_step = self._every_step or self._defers
        self._held = dict(self._chunks) if self._defers else {}
        # While sequences wait or are in their prompts, each step has a rule of its own.
        plan = super().plan(1 if self.partial or self.num_waiting else max_steps)
        if plan is not None:
            if self._prefilled or any(map(self._is_prefill, plan.prefills)):
                self._last_prefill = self._executed + bool(plan.prefills or plan.decodes)
            for seq, _n in plan.prefills:
                if seq.num_computed < seq.num_tokens:
                    self._chunks[seq] = None
                else:
                    self._chunks.pop(seq, None)
            if not (self._defers or self._lost_one):
                self._backlog = self.num_waiting > len(self._passed_over)
        return plan

    def _is_prefill(self, item: tuple[Generation, int]) -> bool:
        """Whether a sequence of a plan computed prompts: more than one token was left, or its latest step left some."""
        seq, n = item
        return seq in self._chunks or seq.num_computed - n < seq.num_tokens - 1

    def complete(self, plan: Plan, num_steps: int, step: int, now_ns: int) -> list[Generation]:
        finished = super().complete(plan, num_steps, step, now_ns)
        self.step_counter += num_steps
        if plan.prefills or plan.decodes:
            self._executed += num_steps
        if not (self.running or self.num_waiting or self._ending):   # while some end, arrivals may be there unseen
            self.step_counter = 0
        if self._slots:
            for seq in finished:
                self._touch(seq)
        return finished

    def _let_go(self, plan: Plan | None) -> None:
        if plan is not None and self.max_loras:   # with those that the step computes although they have ended
            count_adapters(plan, self.group.members if plan.decodes else (), self._number_of)
            self._counted = True
        for seq in self._leaving:
            self._chunks.pop(seq, None)
        super()._let_go(plan)

    def preempt(self, seq: Generation, plan: Plan) -> None:
        self._lost_one = True
        self._prefilled |= self._returned > 0 and seq in self._chunks
        self._returned = 0
        self._chunks.pop(seq, None)
        self._touch(seq)
        super().preempt(seq, plan)

    def abort(self, seq: Generation) -> None:
        self._chunks.pop(seq, None)
        self._passed_over.discard(seq)
        super().abort(seq)

    def _preempt_ending(self, order: list[Generation]) -> Generation | None:
        victim = super()._preempt_ending(order)
        if victim is not None:
            self._lost_one = True
        return victim

    # -- admission ---------------------------------------------------------------------------------------------------

    def wants_cut(self, seq: Generation) -> bool:
        # Behind one that is passed over, any arrival may be admitted; an arrival may also be the backlog.
        return self.interval > 1 or len(self.running) < self.max_num_seqs

    def _admit_waiting(self, plan: Plan, budget: int, cap: int) -> None:
        if self.max_loras:
            group = self.group.members if plan.decodes else ()
            if self.counts_all_adapters:
                self._active = dict.fromkeys(map(self._number_of, [*self.running, *self._ending]))
            else:
                self._active = dict.fromkeys(map(self._number_of, group))
                self._active |= dict.fromkeys(self._number_of(seq) for seq, _n in plan.prefills)
            self._active.pop(0, None)
        super()._admit_waiting(plan, budget, cap)
        if self._skipped and not (self.waiting or self.holding):   # a slot, blocks and tokens are left
            self.stopped = int(Reason.ADAPTERS)
        for seq in reversed(self._skipped):   # back to their places
            if seq.num_blocks:
                self.holding.appendleft(seq)
            else:
                self.waiting.push_preempted(seq)
        self._skipped.clear()

    def _entry(self, seq: Generation, n: int) -> int:
        number = adapter_of(seq)
        if number and self.max_loras and number not in self._active and len(self._active) >= self.max_loras:
            (self.holding.popleft if self.holding else self.waiting.pop)()
            self._skipped.append(seq)
            self._passed_over.add(seq)
            return SKIP
        return STOP if self._defers and n > 1 else ENTER

    def admit(self, seq: Generation) -> None:
        super().admit(seq)
        self._passed_over.discard(seq)
        number = adapter_of(seq)
        if number and self.max_loras:
            self._active[number] = None
            if number not in self._slots:
                self.num_loads += 1
                if len(self._slots) >= self.max_loras:
                    del self._slots[next(one for one in self._slots if one not in self._active)]
                self._slots[number] = None
            self._touch(seq)

    # -- adapters on the device --------------------------------------------------------------------------------------

    def _touch(self, seq: Generation) -> None:
        number = adapter_of(seq)
        if number in self._slots:
            del self._slots[number]
            self._slots[number] = None

    def take_loads(self) -> int:
        """Return how many adapters the planned step loads, once."""
        loads, self.num_loads = self.num_loads, 0
        return loads


class LimitedScheduler(Limits, ChunkedScheduler):
    """A chunked scheduler with these limits."""


class AsyncLimitedScheduler(Limits, AsyncChunkedScheduler):
    """The same, planned while the step before runs."""
