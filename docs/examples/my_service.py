from pathlib import Path
from typing import Literal

from pydantic import Field

from hermes.config import ConfigModel
from hermes.services import SERVICES, MachineSpec, ServiceStage, Work, check_memory


@SERVICES.register("brute_force")
class BruteForce(ConfigModel):
    """Exact search: every query is compared with every vector, and a batch reads them once."""

    kind: Literal["brute_force"] = "brute_force"
    vectors: int = Field(ge=1)
    """Vectors of 32-bit numbers."""
    dim: int = Field(default=768, ge=1)
    """Their dimensions."""

    def build(self, machine: MachineSpec, base_dir: Path | None = None) -> "BruteForceService":
        return BruteForceService(self, machine)


class BruteForceService:
    def __init__(self, config: BruteForce, machine: MachineSpec) -> None:
        self.values, self.machine = config.vectors * config.dim, machine
        self.memory_bytes = 4 * self.values
        check_memory("an index", self.memory_bytes, machine, "vectors")

    def work(self, tasks: list[ServiceStage]) -> Work:
        compute_s = 2 * self.values * sum(task.items for task in tasks) / self.machine.flops
        memory_s = self.memory_bytes / self.machine.memory_bandwidth
        seconds = max(compute_s / 0.6, memory_s / 0.8)   # of the peaks, 60% and 80% are reached
        return Work(seconds, compute_s / 0.6 / seconds, memory_s / 0.8 / seconds, compute_s, memory_s)
