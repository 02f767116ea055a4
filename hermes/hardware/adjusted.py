"""Step times of any hardware model, changed by what request times can tell: a factor for each phase, and time of each
step and of each sequence in it.

    step = fixed + per_seq * sequences + s * all + (p - s) * prompts alone + (d - s) * decodes alone,    s = min(p, d)

`all`, `prompts alone` and `decodes alone` are the model's times of the batch, and of the batches of its prompts and its
decodes. A step of prompts alone becomes p times as long, one of decodes alone d times; in a mixed step the smaller
factor applies to what both share, so that more work is never cheaper. `hermes calibrate from-requests` fits the four.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated

import numpy as np
from pydantic import Field

from hermes.config import ConfigModel, Duration
from hermes.hardware.base import FloatArray, HardwareModel, IntArray, StepStats, VectorHardwareModel
from hermes.hardware.config import history_of, name_of
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
        return model if self == StepAdjustment() else AdjustedModel(model, self)


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


class AdjustedModel(VectorHardwareModel):
    """A hardware model with a `StepAdjustment`."""

    def __init__(self, base: HardwareModel, change: StepAdjustment) -> None:
        self.base, self.change = base, change
        self.name = f"{name_of(base)}, adjusted"

    @property
    def info(self) -> HardwareInfo:
        return hardware_info(self.base)

    def history(self) -> StepHistory | None:
        return history_of(self.base)

    def run_seconds(self, stats: StepStats, num_steps: int) -> FloatArray:
        change = self.change
        prompts, decodes = stats.prefill_tokens > 0, stats.decode_seqs > 0
        ns = self.base.run_ns(stats, num_steps).astype(np.float64)
        if prompts and decodes:
            shared = min(change.prompts, change.decodes)
            ns *= shared
            if change.prompts > shared:
                ns += (change.prompts - shared) * self.base.step_ns(prompts_alone(stats))
            if change.decodes > shared:
                ns += (change.decodes - shared) * self.base.run_ns(decodes_alone(stats), num_steps)
        else:
            ns *= change.prompts if prompts else change.decodes
        seqs = stats.prefill_seqs + stats.decode_seqs
        return np.asarray(ns / NS_PER_S + (change.fixed + change.per_seq * seqs))

    def out_of_range(self, columns: dict[str, IntArray], num_steps: IntArray) -> IntArray:
        return self.base.out_of_range(columns, num_steps)
