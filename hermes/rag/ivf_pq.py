"""Retrieval from an IVF-PQ index on a CPU, as RAGO models it (Jiang et al., arXiv 2503.14649, section 4; HERMES, 5).

A query (i) compares with the coarse centroids, all of them or a two-level tree of them, (ii) builds the tables of
distances to the codewords, (iii) scans the codes of the probed lists, and (iv) merges the nearest. Each takes
max(flops / peak, bytes / bandwidth). A batch puts one query on each core and shares the bandwidth: a phase of B queries
on C cores takes max(ceil(B / C) * time on one core, bytes of all / bandwidth of all). The centroids are read once a
batch, everything else once a query.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from pathlib import Path
from typing import Annotated, Literal, NamedTuple

from pydantic import Field

from hermes.config import Bandwidth, ConfigModel
from hermes.errors import InputError, Verbatim
from hermes.services import SERVICES, MachineSpec, Work
from hermes.stages import Stage

__all__ = ["IvfPq", "IvfPqService", "Phase"]

Count = Annotated[int, Field(ge=1, le=10**13)]


class Phase(NamedTuple):
    """One of the four phases for one query: arithmetic and bytes on a core, and bytes read once for a whole batch."""

    name: str
    flops: float
    num_bytes: float
    batch_bytes: float = 0.0
    core_bandwidth: float = math.inf
    """Bytes/s one core gets through, where that is known to be the bound."""


@SERVICES.register("ivf_pq")
class IvfPq(ConfigModel):
    """Approximate nearest neighbours in an inverted file of product-quantised vectors."""

    kind: Literal["ivf_pq"] = "ivf_pq"
    vectors: Count
    """Vectors in the index."""
    dim: Annotated[int, Field(ge=1, le=2**20)] = 768
    """Dimensions of a vector."""
    nlist: Count = 4_000_000
    """Lists (coarse centroids); a list holds vectors / nlist vectors."""
    nprobe: Count = 50
    """Lists a query scans, where the stage does not say (`nprobe` of its options)."""
    code_bytes: Annotated[int, Field(ge=1, le=2**16)] = 96
    """Bytes of a vector's code, one per sub-quantiser (8 bits, 256 codewords)."""
    id_bytes: Annotated[int, Field(ge=0, le=64)] = 8
    """Bytes of a vector's identity, beside its code."""
    top_k: Count = 20
    """Nearest vectors wanted, where the stage does not say."""
    coarse: Literal["flat", "two_level"] = "flat"
    """Compare with all centroids, or with sqrt(nlist) groups and the members of the nearest ones."""
    scan_rate: Bandwidth = 18e9
    """Bytes of codes a core scans in a second (RAGO measured 18 GB/s on an AMD EPYC 7R13)."""
    bandwidth_share: Annotated[float, Field(gt=0, le=1)] = 0.8
    """Part of the peak memory bandwidth that is reached (RAGO: 80%)."""
    threads_per_query: Annotated[int, Field(ge=1, le=4096)] = 1
    """Cores that work on one query."""

    def build(self, machine: MachineSpec, base_dir: Path | None = None) -> IvfPqService:
        """The service on a machine; `InputError` where the index does not fit, with what is missing."""
        return IvfPqService(self, machine)


class IvfPqService:
    """See the module's description."""

    def __init__(self, config: IvfPq, machine: MachineSpec) -> None:
        self.config, self.machine = config, machine
        self.memory_bytes = config.vectors * (config.code_bytes + config.id_bytes) + config.nlist * config.dim * 4
        if machine.flops <= 0 or machine.memory_bandwidth <= 0:
            raise InputError("a client with a device: retrieval needs its FLOP/s and bandwidth", field="device")
        if self.memory_bytes > machine.memory_bytes:
            missing = self.memory_bytes - machine.memory_bytes
            raise InputError(
                f"an index that fits in {machine.memory_bytes / 1e9:,.0f} GB",
                Verbatim(f"{self.memory_bytes / 1e9:,.0f} GB, {missing / 1e9:,.0f} GB too much"), field="vectors",
            )

    def phases(self, nprobe: int, top_k: int) -> list[Phase]:
        """The four phases of one query."""
        c = self.config
        nprobe = min(nprobe, c.nlist)
        if c.coarse == "flat":
            compared, group = float(c.nlist), 0.0
        else:
            group = math.sqrt(c.nlist)
            compared = group + min(float(c.nlist), max(1.0, nprobe / 4) * group)
        scanned = nprobe * c.vectors / c.nlist
        flat = c.coarse == "flat"
        coarse_bytes = compared * c.dim * 4
        return [
            Phase("coarse", 2 * compared * c.dim, 0.0 if flat else coarse_bytes, coarse_bytes if flat else 0.0),
            Phase("tables", 2.0 * nprobe * 256 * c.dim, nprobe * 256 * c.code_bytes * 4.0),
            Phase("scan", 2 * scanned * c.code_bytes, scanned * c.code_bytes, core_bandwidth=c.scan_rate),
            Phase("merge", scanned * 2 + top_k * math.log2(max(2, top_k)), 8.0 * top_k * nprobe),
        ]

    def phase_seconds(self, phase: Phase, queries: int) -> tuple[float, float, float]:
        """(seconds, core-seconds, bytes) of a phase for a batch."""
        machine, c = self.machine, self.config
        lanes = max(1, machine.cores // c.threads_per_query)
        core_flops = machine.flops / machine.cores
        core_s = max(phase.flops / core_flops, phase.num_bytes / phase.core_bandwidth)
        total_bytes = phase.num_bytes * queries + phase.batch_bytes
        seconds = max(
            math.ceil(queries / lanes) * core_s / c.threads_per_query,
            total_bytes / (machine.memory_bandwidth * c.bandwidth_share),
        )
        return seconds, core_s * queries, total_bytes

    def work(self, tasks: Sequence[Stage]) -> Work:
        c, machine = self.config, self.machine
        seconds = core_s = num_bytes = 0.0
        groups: dict[tuple[int, int], int] = {}
        for task in tasks:
            key = int(task.options.get("nprobe", c.nprobe)), int(task.options.get("top_k", c.top_k))
            groups[key] = groups.get(key, 0) + task.items
        for (nprobe, top_k), queries in groups.items():
            for phase in self.phases(nprobe, top_k):
                part_s, part_core_s, part_bytes = self.phase_seconds(phase, queries)
                seconds, core_s, num_bytes = seconds + part_s, core_s + part_core_s, num_bytes + part_bytes
        bandwidth = num_bytes / (machine.memory_bandwidth * c.bandwidth_share) / seconds
        return Work(seconds, cores=min(1.0, core_s / machine.cores / seconds), bandwidth=min(1.0, bandwidth))
