"""Hybrid retrieval: a dense and a sparse search for every query, and the fusion of their results.

Its latency is that of the two searches, one after the other or in parallel, and of the fusion. The searches are any
services of retrieval (`measured` ones come from `hermes calibrate run`). `evidence.retrieval`
measures its quality, `recall`, which `hermes services` shows.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Annotated, Any, Literal

from pydantic import Field

from hermes.config import Component, ConfigModel, Duration
from hermes.core.stage import ServiceStage
from hermes.errors import inside
from hermes.services.base import SERVICES, MachineSpec, PhaseCost, Service, Work, check_memory
from hermes.sums import float_sum

__all__ = ["Hybrid", "HybridService"]


class Hybrid(ConfigModel):
    """A dense and a sparse search, fused."""

    kind: Literal["hybrid"] = "hybrid"
    dense: Annotated[Any, Component(SERVICES)]
    """Search of embeddings: any service of retrieval."""
    sparse: Annotated[Any, Component(SERVICES)]
    """Search of words."""
    searches: Literal["sequential", "parallel"] = "parallel"
    """One after the other (the sum of their times), or in parallel (the longer, as far as cores and bandwidth of the
    machine allow)."""
    fusion: Duration = 0.0
    """Time of one core to fuse the two lists of one query (`hermes study datastructures` measures it)."""
    recall: Annotated[float, Field(ge=0, le=1)] | None = None
    """Share of the relevant documents that it finds (`hermes services` shows it; it does not affect times)."""

    def build(self, machine: MachineSpec, base_dir: Path | None = None) -> HybridService:
        """Build the service; `InputError` if the two indices do not fit together."""
        with inside("dense"):
            dense = self.dense.build(machine, base_dir)
        with inside("sparse"):
            sparse = self.sparse.build(machine, base_dir)
        return HybridService(self, dense, sparse, machine)


def _both(dense: Mapping[str, int | None], sparse: Mapping[str, int | None]) -> dict[str, int | None]:
    """Return the options that either search reads; of one that both read, the stricter bound (None: any value)."""
    found = {**sparse, **dense}
    for name in dense.keys() & sparse.keys():
        bounds = [bound for bound in (dense[name], sparse[name]) if bound is not None]
        found[name] = max(bounds, default=None)
    return found


class HybridService:
    """See the module's docstring."""

    def __init__(self, config: Hybrid, dense: Service, sparse: Service, machine: MachineSpec) -> None:
        self.config, self.dense, self.sparse, self.cores = config, dense, sparse, machine.cores
        self.recall = config.recall
        self.memory_bytes = dense.memory_bytes + sparse.memory_bytes
        self.options = _both(getattr(dense, "options", {}), getattr(sparse, "options", {}))
        check_memory("two indices", self.memory_bytes, machine, "dense")

    def work(self, tasks: Sequence[ServiceStage]) -> Work:
        dense, sparse = self.dense.work(tasks), self.sparse.work(tasks)
        core_s = dense.cores * dense.alone_s + sparse.cores * sparse.alone_s
        wire_s = dense.bandwidth * dense.alone_s + sparse.bandwidth * sparse.alone_s
        seconds = self._searches_s(dense, sparse)
        fusion_s = self._fusion_s(tasks)
        busy = min(self.cores, self._queries(tasks))
        seconds, core_s = seconds + fusion_s, core_s + fusion_s * busy / self.cores
        if seconds <= 0:
            return Work(0.0)
        return Work(seconds, cores=min(1.0, core_s / seconds), bandwidth=min(1.0, wire_s / seconds),
                    compute_s=dense.compute_s + sparse.compute_s,
                    memory_s=min(seconds, dense.memory_s + sparse.memory_s))

    def _searches_s(self, dense: Work, sparse: Work) -> float:
        """Return the time of parallel searches, limited by all cores and all of the bandwidth."""
        if self.config.searches == "sequential":
            return dense.alone_s + sparse.alone_s
        core_s = dense.cores * dense.alone_s + sparse.cores * sparse.alone_s
        wire_s = dense.bandwidth * dense.alone_s + sparse.bandwidth * sparse.alone_s
        return max(dense.alone_s, sparse.alone_s, core_s, wire_s)

    @staticmethod
    def _queries(tasks: Sequence[ServiceStage]) -> int:
        return sum(max(1, task.items) for task in tasks)

    def _fusion_s(self, tasks: Sequence[ServiceStage]) -> float:
        """Return the time of the fusion; the cores share the queries."""
        return -(-self._queries(tasks) // self.cores) * self.config.fusion

    def outside(self, tasks: Sequence[ServiceStage]) -> list[str]:
        """Return the features in which either search leaves its measured range."""
        found = []
        for name, service in (("dense", self.dense), ("sparse", self.sparse)):
            outside = getattr(service, "outside", None)
            found += [f"{name}.{what}" for what in (outside(tasks) if outside is not None else ())]
        return found

    def costs(self, tasks: Sequence[ServiceStage]) -> list[PhaseCost]:
        """Return the phases of the two searches in turn, or both as one phase, and the fusion."""
        found = []
        for name, service in (("dense", self.dense), ("sparse", self.sparse)):
            whole = [PhaseCost("search", 0.0, 0.0, service.work(tasks).alone_s, "-")]
            phases = service.costs(tasks) if hasattr(service, "costs") else whole
            found += [cost._replace(name=f"{name}: {cost.name}") for cost in phases]
        if self.config.searches == "parallel":
            works = self.dense.work(tasks), self.sparse.work(tasks)
            longer = "dense" if works[0].alone_s >= works[1].alone_s else "sparse"
            flops, num_bytes = (float_sum(getattr(one, name) for one in found) for name in ("flops", "num_bytes"))
            found = [PhaseCost("both searches", flops, num_bytes, self._searches_s(*works), longer)]
        return [*found, PhaseCost("fusion", 0.0, 0.0, self._fusion_s(tasks), "given")]
