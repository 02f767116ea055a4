"""Loads of LoRA adapters: a step that first uses an adapter waits until it is on the device.

vLLM keeps `max_loras` adapters on the device and takes out the least recently used (LRUCacheWorkerLoRAManager in
vllm/lora/worker_manager.py). Here a load takes the adapter's bytes over the device's link to the host, one after the
other. All adapters are in the host's memory: reading them from storage takes no time.

Each data-parallel rank loads for itself, and all wait for the one that loads longest (`hermes.clients.lockstep`). With
pipeline stages each stage loads its devices' part when the stage before has loaded (`hermes.clients.pipeline`).
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from hermes.clients.parts import StepPart
from hermes.errors import InputError, Verbatim
from hermes.schedulers.adapters import AdapterSlots
from hermes.schedulers.parts import part_of
from hermes.schedulers.plan import Plan
from hermes.units import NS_PER_S

if TYPE_CHECKING:
    from hermes.clients.build import Place
    from hermes.clients.llm import LLMClient

__all__ = ["AdapterLoads", "loads_of"]


class AdapterLoads(StepPart):
    """Adds the loads of its client's scheduler to the step that needs them. Only steps with an admission load, and
    those are planned one by one.

    Args:
        slots: The scheduler's adapters.
        each_ns: Time of one load.
    """

    def __init__(self, slots: AdapterSlots, each_ns: int) -> None:
        self.slots, self.each_ns = slots, each_ns

    def attach(self, client: LLMClient) -> None:
        client.step_parts.loads += (self,)

    def load_ns(self, client: LLMClient, plan: Plan) -> int:
        return self.slots.take_loads() * self.each_ns


def loads_of(adapter_bytes: int, place: Place) -> AdapterLoads:
    """Return the loads of adapters of so many bytes on a device. Raises `InputError` without a known device."""
    device = place.config.device_of(place.info, place.base_dir)
    if device is None:
        raise InputError(Verbatim("needs the client's `device`, for its link to the host"), field="adapter_bytes")
    slots = part_of(place.scheduler, AdapterSlots)
    assert slots is not None   # `hermes.engine.compatibility`
    return AdapterLoads(slots, round(adapter_bytes / device.host_bandwidth * NS_PER_S))
