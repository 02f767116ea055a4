"""Service that scans clusters: time of the bytes that a stage names, at a measured or fitted rate."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Literal

from hermes.config import Bandwidth, ConfigModel, Duration
from hermes.services import SERVICES, MachineSpec, PhaseCost, ServiceStage, Work, count_option

__all__ = ["ClusterScan", "ClusterScanService"]


@SERVICES.register("cluster_scan")
class ClusterScan(ConfigModel):
    """Compare queries with all vectors of some clusters. Stages give the bytes (option `scan_bytes`); every query reads
    its own, so that time is linear in the batch."""

    kind: Literal["cluster_scan"] = "cluster_scan"
    rate: Bandwidth
    """Bytes of vectors that the whole machine compares per second."""
    fixed: Duration = 0.0
    """Fixed time of a call that scans, e.g. of its launch."""

    def build(self, machine: MachineSpec, base_dir: Path | None = None) -> ClusterScanService:
        return ClusterScanService(self)


class ClusterScanService:
    """Service of `ClusterScan`."""

    options: Mapping[str, int] = {"scan_bytes": 0}
    memory_bytes = 0   # the clusters' memory belongs to the index or the buffer

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
