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
    """Compare queries with all vectors of some clusters. Stages give the bytes (option `scan_bytes`), summed over their
    queries (`items`): every query reads its own."""

    kind: Literal["cluster_scan"] = "cluster_scan"
    rate: Bandwidth
    """Bytes of vectors that the whole machine compares per second."""
    query_rate: Bandwidth | None = None
    """Bytes that the scan of one query compares per second, for a search that splits over queries (Faiss's default on a
    CPU); default: `rate`, so that time is linear in the queries."""
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
        """Time of all queries at the machine's rate, or of one query at its own rate if that is longer. A scan uses the
        whole machine."""
        config, num_bytes = self.config, self._bytes(tasks)
        each = num_bytes / max(1, sum(task.items for task in tasks))
        scan_s = max(num_bytes / config.rate, each / (config.query_rate or config.rate))
        return Work(config.fixed + scan_s if num_bytes else 0.0, 1.0, 1.0)

    def costs(self, tasks: Sequence[ServiceStage]) -> list[PhaseCost]:
        """One phase: two flops for each value of 4 bytes."""
        num_bytes = self._bytes(tasks)
        return [PhaseCost("scan", num_bytes / 2, float(num_bytes), self.work(tasks).alone_s, "memory bandwidth")]
