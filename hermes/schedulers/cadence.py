"""The cadence of prefills: `prefill_schedule_interval` (rule 23 of docs/background/vllm.md).

The ranks of one engine count their steps together. In a step whose number is not a multiple of the interval, sequences
that are still in their prompt get nothing, and only sequences with a single token left to compute are admitted. The
rule is off while no running sequence decodes, and while sequences were left waiting by the latest step that it did not
hold for. (DPEngineCoreProc._should_throttle_prefills in vllm/v1/engine/core.py, defer_prefills in the scheduler.) An
engine without ranks (`local`, from 0.33 on) defers prefills until so many steps have passed since the latest one that
computed some. (local_prefill_interval in the scheduler.)
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from hermes.core.generation import Generation
from hermes.schedulers.chunked import ENTER, STOP
from hermes.schedulers.parts import SchedulerPart, Turn
from hermes.schedulers.plan import Plan

if TYPE_CHECKING:
    from hermes.schedulers.chunked_config import ChunkedConfig

__all__ = ["PrefillCadence", "cadence_of"]


class PrefillCadence(SchedulerPart):
    """See the module's docstring.

    Attributes:
        interval: Steps from one in which prompts may be computed to the next.
        step_counter: Steps since the engine had nothing to do. `Lockstep` sets it for the ranks of one engine.
        local: Whether this engine has no ranks, so that it counts for itself.
    """

    turn = Turn.CADENCE

    def __init__(self, interval: int) -> None:
        self.interval, self.local = interval, False
        self.step_counter = 0
        self._executed = 0                # steps that computed something
        self._last_prefill = -interval    # the latest of them that computed prompts
        self._prefilled = False           # whether a chunk was scheduled, and maybe taken back, in this step
        self._chunks: dict[Generation, None] = {}   # running, and in their prompt after their latest step
        self._defers = False              # whether prefills wait in the step being planned
        self._backlog = False             # whether the latest step that deferred nothing left sequences waiting
        self._lost_one = False            # whether the step being planned preempts

    def placed(self, ranks: int, *, connected: bool) -> None:
        self.local = ranks == 1

    def before_plan(self, max_steps: int) -> int:
        scheduler = self.scheduler
        decodes = bool(scheduler._ending) or len(self._chunks) < len(scheduler.running)
        throttled = (self._executed + 1 - self._last_prefill < self.interval if self.local
                     else self.step_counter % self.interval != 0)
        self._defers = throttled and not self._backlog and decodes
        self._lost_one = self._prefilled = False
        scheduler.every_step = scheduler.literal or self._defers
        # While sequences wait or are in their prompts, each step has a rule of its own.
        return 1 if scheduler.partial or scheduler.num_waiting else max_steps

    def due(self, seq: Generation, num_tokens: int) -> int:
        return 0 if self._defers and seq in self._chunks else num_tokens

    def after_plan(self, plan: Plan | None) -> Plan | None:
        if self.scheduler.bursts:   # batches are kept in flight: the engine counts them when it schedules them
            self.step_counter += 1
        if plan is None:
            return None
        if self._prefilled or any(map(self._is_prefill, plan.prefills)):
            self._last_prefill = self._executed + bool(plan.prefills or plan.decodes)
        if self.scheduler.bursts:
            self._executed += bool(plan.prefills)
        for seq, _n in plan.prefills:
            if seq.num_computed < seq.num_tokens:
                self._chunks[seq] = None
            else:
                self._chunks.pop(seq, None)
        if not (self._defers or self._lost_one):
            self._backlog = self.scheduler.num_waiting > len(self.scheduler.passed_over)
        return plan

    def _is_prefill(self, item: tuple[Generation, int]) -> bool:
        """Whether a sequence of a plan computed prompts: more than one token was left, or its latest step left some."""
        seq, n = item
        return seq in self._chunks or seq.num_computed - n < seq.num_tokens - 1

    def completed(self, plan: Plan, num_steps: int, finished: Sequence[Generation]) -> None:
        scheduler = self.scheduler
        if not scheduler.bursts:
            self.step_counter += num_steps
            if plan.prefills or plan.decodes:
                self._executed += num_steps
        if not (scheduler.running or scheduler.num_waiting or scheduler._ending):   # arrivals may be there unseen
            self.step_counter = 0

    def entry(self, seq: Generation, num_tokens: int, past: int) -> int:
        return STOP if self._defers and num_tokens > 1 else ENTER

    def wants_cut(self, seq: Generation) -> bool:
        return True   # an arrival may be the backlog

    def leaving(self, plan: Plan | None, seqs: Sequence[Generation]) -> None:
        for seq in seqs:
            self._chunks.pop(seq, None)

    def preempted(self, seq: Generation, returned: int) -> None:
        self._lost_one = True
        self._prefilled |= returned > 0 and seq in self._chunks
        self._chunks.pop(seq, None)

    def ending_preempted(self, seq: Generation) -> None:
        self._lost_one = True

    def aborted(self, seq: Generation) -> None:
        self._chunks.pop(seq, None)


def cadence_of(config: ChunkedConfig) -> PrefillCadence:
    return PrefillCadence(config.prefill_schedule_interval)
