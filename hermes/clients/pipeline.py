"""Pipeline stages with several batches in flight: one client for each batch; they take turns on the stages.

An engine with `pp` pipeline stages keeps up to `pp` batches in flight (vLLM: EngineCore.step_with_batch_queue in
vllm/v1/engine/core.py), each of other sequences. Here each of these batches is a client with a scheduler and a part of
the KV memory of its own. Its step goes through the stages one after the other and waits for each until the batch
before it has left. So a lone batch takes the sum of the stages, and batches that fill the pipeline one longest stage
each.

Adapters that a step loads (`hermes.clients.adapter_loads`) are on the devices of every stage: a stage loads its part
when the one before has loaded and the batch before has left, while the stage before computes. (The worker loads when it
gets the values of the stage before, whose sender only waits for its own load: execute_model in
vllm/v1/worker/gpu_worker.py.)

What is simpler than in the engine: a sequence stays with its batch, which a router chooses when the request arrives,
the batches do not lend each other KV blocks, and each counts its own adapters.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Protocol, runtime_checkable

from hermes.clients.parts import StepPart
from hermes.hardware.base import StepStats
from hermes.schedulers.plan import Plan

if TYPE_CHECKING:
    from hermes.clients.build import Place
    from hermes.clients.llm import LLMClient

__all__ = ["Pipeline", "StagedHardware", "Stages", "stages_of"]


@runtime_checkable
class StagedHardware(Protocol):
    """Hardware model that prices a step by pipeline stage."""

    def stages_ns(self, stats: StepStats) -> list[int]:
        """Return the time of a batch in each stage, the way there included; `step_ns` is their sum."""
        ...

    def lockstep_stages_ns(self, batches: list[StepStats | None]) -> list[int]:
        """Return the time of a step of all data-parallel ranks in each stage; None stands for an idle rank."""
        ...


class Pipeline:
    """When each stage of an engine is free again."""

    def __init__(self, stages: int) -> None:
        self.free_ns = [0] * stages

    def enter(self, now_ns: int, times_ns: list[int], load_ns: int = 0) -> int:
        """Send a batch through all stages, each of which loads for so long first; return when it leaves the last."""
        free_ns, at, loaded = self.free_ns, now_ns, now_ns
        for stage, ns in enumerate(times_ns):   # without `max`: every step of a batch passes here
            loaded = (free_ns[stage] if free_ns[stage] > loaded else loaded) + load_ns
            at = free_ns[stage] = (loaded if loaded > at else at) + ns
        return at


class Stages(StepPart):
    """Ends the steps of the batches in flight of one engine: they go through its pipeline.

    Attributes:
        slower: Time of a stage as a multiple of its usual time.
    """

    def __init__(self, hardware: StagedHardware, stages: int) -> None:
        self.hardware, self.pipeline, self.slower = hardware, Pipeline(stages), 1.0

    def attach(self, client: LLMClient) -> None:
        client.step_parts.stages = self
        client._max_run = 1   # how long a second step waits is known when it starts

    def end_ns(self, client: LLMClient, plan: Plan, begin_ns: int, load_ns: int) -> int:
        drafter = client.step_parts.drafter
        if drafter is None:
            return self._enter(begin_ns, self.hardware.stages_ns(plan), load_ns)
        times = self.hardware.stages_ns(drafter.verified(plan))
        times[-1] += drafter.drafting_ns(plan)
        return self._enter(begin_ns, times, load_ns)

    def common_end_ns(self, batches: list[StepStats | None], begin_ns: int, load_ns: int, drafting_ns: int) -> int:
        times = self.hardware.lockstep_stages_ns(batches)
        times[-1] += drafting_ns
        return self._enter(begin_ns, times, load_ns)

    def _enter(self, begin_ns: int, times_ns: list[int], load_ns: int) -> int:
        if self.slower != 1.0:
            times_ns = [round(ns * self.slower) for ns in times_ns]
        return self.pipeline.enter(begin_ns, times_ns, load_ns)


def stages_of(stages: int, place: Place) -> Stages:
    assert isinstance(place.hardware, StagedHardware)   # `hermes.engine.compatibility`
    return Stages(place.hardware, stages)
