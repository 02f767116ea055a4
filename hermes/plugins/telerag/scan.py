"""What scanning clusters costs: the bytes that a stage names, at a rate that was measured or fitted."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Literal

from hermes.config import Bandwidth, ConfigModel, Duration
from hermes.services import SERVICES, MachineSpec, PhaseCost, ServiceStage, Work, count_option

__all__ = ["ClusterScan", "ClusterScanService"]


@SERVICES.register("cluster_scan")
class ClusterScan(ConfigModel):
    """Compares queries with all vectors of some clusters. Stages say how many bytes (`scan_bytes` of their options);
    every query reads its own, so that time is linear in the batch."""

    kind: Literal["cluster_scan"] = "cluster_scan"
    rate: Bandwidth
    """Bytes of vectors that the whole machine compares in a second."""
    fixed: Duration = 0.0
    """Time of a call that scans anything, e.g. of launching it."""

    def build(self, machine: MachineSpec, base_dir: Path | None = None) -> ClusterScanService:
        return ClusterScanService(self)


class ClusterScanService:
    """See `ClusterScan`."""

    options: Mapping[str, int] = {"scan_bytes": 0}
    memory_bytes = 0   # the clusters are the index's, or the buffer's

    def __init__(self, config: ClusterScan) -> None:
        self.config = config

    def _bytes(self, tasks: Sequence[ServiceStage]) -> int:
        return sum(count_option(task, "scan_bytes", 0, least=0) for task in tasks)

    def work(self, tasks: Sequence[ServiceStage]) -> Work:
        """Linear in the bytes; it uses the whole machine."""
        num_bytes = self._bytes(tasks)
        return Work(self.config.fixed + num_bytes / self.config.rate if num_bytes else 0.0, 1.0, 1.0)

    def costs(self, tasks: Sequence[ServiceStage]) -> list[PhaseCost]:
        """One phase: two flops for each value of 4 bytes."""
        num_bytes = self._bytes(tasks)
        return [PhaseCost("scan", num_bytes / 2, float(num_bytes), self.work(tasks).alone_s, "memory bandwidth")]
