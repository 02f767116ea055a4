"""Pipeline stages with several batches in flight: an engine as so many clients that take turns on its stages.

An engine with `pp` pipeline stages keeps up to `pp` batches in flight (vLLM: EngineCore.step_with_batch_queue in
vllm/v1/engine/core.py), each of other sequences. Here each of these batches is a client with a scheduler and a part of
the KV memory of its own. Its step goes through the stages one after the other and waits for each until the batch
before it has left. So a lone batch takes the sum of the stages, and batches that fill the pipeline one longest stage
each.

What is simpler than in the engine: a sequence stays with its batch, which a router chooses when the request arrives,
and the batches do not lend each other KV blocks.
"""

from __future__ import annotations

from typing import Any, Protocol, runtime_checkable

import numpy as np

from hermes.core.clock import Clock
from hermes.hardware.base import IntArray, StepStats
from hermes.hardware.info import HardwareInfo, hardware_info

__all__ = ["Pipeline", "StagedBatch", "StagedHardware"]


@runtime_checkable
class StagedHardware(Protocol):
    """Hardware model that prices a step by pipeline stage."""

    def stages_ns(self, stats: StepStats) -> list[int]:
        """Return the time of a batch in each stage, the way there included; `step_ns` is their sum."""
        ...

    def out_of_range(self, columns: dict[str, IntArray], num_steps: IntArray) -> IntArray: ...


class Pipeline:
    """When each stage of an engine is free again."""

    def __init__(self, stages: int) -> None:
        self.free_ns = [0] * stages

    def enter(self, now_ns: int, times_ns: list[int]) -> int:
        """Send a batch through all stages; return when it leaves the last."""
        at = now_ns
        for stage, ns in enumerate(times_ns):
            at = self.free_ns[stage] = max(at, self.free_ns[stage]) + ns
        return at


class StagedBatch:
    """Hardware model of one of the batches in flight: its steps wait for those of the others.

    Unlike other hardware models it depends on the clock, so every client has one of its own.
    """

    def __init__(self, env: Clock, hardware: StagedHardware, pipeline: Pipeline) -> None:
        self.env, self.hardware, self.pipeline = env, hardware, pipeline

    @property
    def info(self) -> HardwareInfo:
        return hardware_info(self.hardware)   # type: ignore[arg-type]

    @property
    def pure(self) -> StagedHardware:
        """The model of one batch alone, which does not depend on the clock."""
        return self.hardware

    def step_ns(self, stats: StepStats) -> int:
        now = self.env._now
        return self.pipeline.enter(now, self.hardware.stages_ns(stats)) - now

    def run_ns(self, stats: StepStats, num_steps: int) -> IntArray:
        """Return the duration of one step: how long a second one waits is known when it starts."""
        if num_steps != 1:
            raise ValueError("a batch in a pipeline is priced step by step")
        return np.array([self.step_ns(stats)], dtype=np.int64)

    def out_of_range(self, columns: dict[str, IntArray], num_steps: IntArray) -> IntArray:
        return self.hardware.out_of_range(columns, num_steps)

    def terms_ns(self, stats: StepStats) -> dict[str, float]:
        terms: dict[str, float] = self._model.terms_ns(stats)
        return terms

    def sources_of(self) -> dict[str, str]:
        sources: dict[str, str] = self._model.sources_of()
        return sources

    @property
    def _model(self) -> Any:   # Any: what `hermes explain` asks a hardware model for, if it has it
        return self.hardware
