"""Step times of any hardware model, changed by what request times can tell: a factor for each phase, and time of each
step and of each sequence in it.

    step = fixed + per_seq * sequences + s * all + (p - s) * prompts alone + (d - s) * decodes alone,    s = min(p, d)

`all`, `prompts alone` and `decodes alone` are the model's times of the batch, and of the batches of its prompts and its
decodes. A step of prompts alone becomes p times as long, one of decodes alone d times; in a mixed step the smaller
factor applies to what both share, so that more work is never cheaper. `hermes calibrate from-requests` fits the four.

The same holds for a step of data-parallel ranks, whose batches are changed together (`sequences` are those of the rank
that has the most, since ranks have an engine each), and for each pipeline stage; `fixed` and `per_seq` are the first
stage's, as the engine's other time is.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Annotated, Protocol, TypeVar, cast

import numpy as np
from pydantic import Field

from hermes.arrays import FloatArray, IntArray
from hermes.config import ConfigModel, Duration
from hermes.hardware.base import HardwareModel, StepStats, VectorHardwareModel
from hermes.hardware.config import history_of, name_of, prices, write_ends_of
from hermes.hardware.info import HardwareInfo, hardware_info
from hermes.units import NS_PER_S

if TYPE_CHECKING:
    from hermes.hardware.history import StepHistory

__all__ = ["AdjustedModel", "StepAdjustment", "decodes_alone", "prompts_alone"]

Factor = Annotated[float, Field(ge=0, le=1e4)]


class StepAdjustment(ConfigModel):
    """Changes of step times, whatever hardware model gives them."""

    prompts: Factor = 1.0
    """Factor of the time of steps with prompts alone."""
    decodes: Factor = 1.0
    """Factor of the time of steps with decodes alone."""
    fixed: Duration = 0.0
    """Added to each step."""
    per_seq: Duration = 0.0
    """Added to each step for each of its sequences: an engine's or API server's time that the device waits for."""

    def apply(self, model: HardwareModel) -> HardwareModel:
        """Return the changed model; the same one for figures that change nothing."""
        if self == StepAdjustment():
            return model
        if prices(model, "stages_ns") and prices(model, "lockstep_ns"):
            return AdjustedParallel(cast(_Parallel, model), self)
        return AdjustedModel(model, self)


def prompts_alone(stats: StepStats) -> StepStats:
    """Return the batch of a step's prompts."""
    return StepStats(
        stats.prefill_seqs, stats.prefill_tokens, stats.prefill_past, stats.prefill_attn,
        sampled=max(stats.sampled - stats.decode_seqs, 0), embed_tokens=stats.embed_tokens, embedded=stats.embedded,
        prefill_max=stats.prefill_max)


def decodes_alone(stats: StepStats) -> StepStats:
    """Return the batch of a step's decodes."""
    return StepStats(decode_seqs=stats.decode_seqs, decode_ctx=stats.decode_ctx, decode_ctx_max=stats.decode_ctx_max,
                     sampled=min(stats.sampled, stats.decode_seqs))


class _Parallel(HardwareModel, Protocol):
    """A model that prices pipeline stages and data-parallel ranks too."""

    def stages_ns(self, stats: StepStats) -> list[int]: ...

    def lockstep_ns(self, batches: Sequence[StepStats | None], num_steps: int) -> IntArray: ...

    def lockstep_stages_ns(self, batches: Sequence[StepStats | None]) -> list[int]: ...


Alone = Callable[[StepStats], StepStats]   # `prompts_alone` or `decodes_alone`
N = TypeVar("N", float, FloatArray)   # nanoseconds, of one step or of several


class AdjustedModel(VectorHardwareModel):
    """A hardware model with a `StepAdjustment`."""

    def __init__(self, base: HardwareModel, change: StepAdjustment) -> None:
        self.base, self.change = base, change
        self.name = f"{name_of(base)}, adjusted"
        self._base_ends = write_ends_of(base)
        if self._base_ends is not None:
            self.write_ends = self._write_ends

    @property
    def info(self) -> HardwareInfo:
        return hardware_info(self.base)

    def history(self) -> StepHistory | None:
        return history_of(self.base)

    def run_seconds(self, stats: StepStats, num_steps: int) -> FloatArray:
        ns = self._scaled(self.base.run_ns(stats, num_steps).astype(np.float64), stats.prefill_tokens > 0,
                          stats.decode_seqs > 0,
                          lambda alone: self.base.run_ns(alone(stats), num_steps).astype(np.float64))
        return np.asarray(ns / NS_PER_S + self._added_s(stats))

    def step_ns(self, stats: StepStats) -> int:
        """What `run_ns` gives for one step, in plain floats."""
        base = self.base
        ns = self._scaled(float(base.step_ns(stats)), stats.prefill_tokens > 0, stats.decode_seqs > 0,
                          lambda alone: float(base.step_ns(alone(stats))))
        return max(round((ns / NS_PER_S + self._added_s(stats)) * NS_PER_S), 1)

    def _write_ends(self, stats: StepStats, num_steps: int, ends: memoryview[int], pos: int, now_ns: int) -> int:
        """Write the ends of a short run of decodes: those of the base from 0 on, and in their place its own."""
        assert self._base_ends is not None
        self._base_ends(stats, num_steps, ends, pos, 0)
        factor, added_s, before = self.change.decodes, self._added_s(stats), 0
        for index in range(pos, pos + num_steps):
            end = ends[index]
            ns = round(((end - before) * factor / NS_PER_S + added_s) * NS_PER_S)
            ends[index] = now_ns = now_ns + (ns if ns > 1 else 1)
            before = end
        return now_ns

    def _scaled(self, ns: N, prompts: bool, decodes: bool, price: Callable[[Alone], N]) -> N:
        """Return the base's times of a batch, scaled. price: The base's times of one kind of its work alone."""
        change = self.change
        if not (prompts and decodes):
            return ns * (change.prompts if prompts else change.decodes)
        shared = min(change.prompts, change.decodes)
        ns = ns * shared
        if change.prompts > shared:
            ns = ns + (change.prompts - shared) * price(prompts_alone)
        if change.decodes > shared:
            ns = ns + (change.decodes - shared) * price(decodes_alone)
        return ns

    def _added_s(self, stats: StepStats) -> float:
        return self.change.fixed + self.change.per_seq * (stats.prefill_seqs + stats.decode_seqs)

    def out_of_range(self, columns: dict[str, IntArray], num_steps: IntArray) -> IntArray:
        return self.base.out_of_range(columns, num_steps)


class AdjustedParallel(AdjustedModel):
    """The same, of a model that prices pipeline stages and data-parallel ranks."""

    base: _Parallel

    def stages_ns(self, stats: StepStats) -> list[int]:
        """Return the nanoseconds of a batch in each pipeline stage; their sum is `step_ns`."""
        ns = self._scaled(np.array(self.base.stages_ns(stats), dtype=np.float64), stats.prefill_tokens > 0,
                          stats.decode_seqs > 0,
                          lambda alone: np.array(self.base.stages_ns(alone(stats)), dtype=np.float64))
        return _adding_up_to(self.step_ns(stats), ns)

    def lockstep_ns(self, batches: Sequence[StepStats | None], num_steps: int) -> IntArray:
        """Return the durations of `num_steps` steps that all data-parallel ranks take together, int64."""
        ns = self._scaled_common(
            self.base.lockstep_ns(batches, num_steps).astype(np.float64), batches,
            lambda alone: self.base.lockstep_ns(_each(batches, alone), num_steps).astype(np.float64))
        added = max((self._added_s(batch) for batch in batches if batch is not None), default=0.0)
        return np.maximum(np.rint((ns / NS_PER_S + added) * NS_PER_S).astype(np.int64), 1)

    def lockstep_stages_ns(self, batches: Sequence[StepStats | None]) -> list[int]:
        """Return the nanoseconds of one step of all ranks in each pipeline stage; their sum is `lockstep_ns`."""
        ns = self._scaled_common(
            np.array(self.base.lockstep_stages_ns(batches), dtype=np.float64), batches,
            lambda alone: np.array(self.base.lockstep_stages_ns(_each(batches, alone)), dtype=np.float64))
        return _adding_up_to(int(self.lockstep_ns(batches, 1)[0]), ns)

    def _scaled_common(self, ns: FloatArray, batches: Sequence[StepStats | None],
                       price: Callable[[Alone], FloatArray]) -> FloatArray:
        own = [batch for batch in batches if batch is not None]
        return self._scaled(ns, any(batch.prefill_tokens > 0 for batch in own),
                            any(batch.decode_seqs > 0 for batch in own), price)


def _adding_up_to(total: int, stages: FloatArray) -> list[int]:
    """Return the stages' times in ns; the first one has what is added to a step, and rounding."""
    out: list[int] = np.maximum(np.rint(stages).astype(np.int64), 1).tolist()
    out[0] = max(total - sum(out[1:]), 1)
    return out


def _each(batches: Sequence[StepStats | None], alone: Alone) -> list[StepStats | None]:
    """Return one kind of work of each rank; None for a rank without any."""
    parts = [None if batch is None else alone(batch) for batch in batches]
    return [part if part is not None and part.prefill_seqs + part.decode_seqs else None for part in parts]
