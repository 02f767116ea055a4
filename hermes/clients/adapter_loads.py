"""Step times with the loads of LoRA adapters: a step that first uses an adapter waits until it is on the device.

vLLM keeps `max_loras` adapters on the device and takes out the least recently used (LRUCacheWorkerLoRAManager in
vllm/lora/worker_manager.py). Here a load takes the adapter's bytes over the device's link to the host, one after the
other. All adapters are in the host's memory: reading them from storage takes no time.
"""

from __future__ import annotations

from typing import Any

from hermes.hardware.base import HardwareModel, StepStats
from hermes.schedulers.adapters import AdapterSlots

__all__ = ["WithLoads"]


class WithLoads:
    """A hardware model that adds the loads of its client's scheduler to the step that needs them.

    Only steps with an admission load, and those are planned one by one: runs of steps have the model's times.
    """

    def __init__(self, base: HardwareModel, slots: AdapterSlots, load_ns: int) -> None:
        self.base, self.slots, self.load_ns = base, slots, load_ns

    def __getattr__(self, name: str) -> Any:   # Any: what the model has besides `step_ns`
        return getattr(self.base, name)

    @property
    def pure(self) -> HardwareModel:
        """The model without the loads, which the scheduler decides."""
        return self.base

    def step_ns(self, stats: StepStats) -> int:
        loads = self.slots.take_loads()
        return self.base.step_ns(stats) + loads * self.load_ns
