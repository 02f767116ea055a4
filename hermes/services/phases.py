"""Searches as sequences of phases, and the work of a batch of searches on a machine.

Each phase takes max(arithmetic / peak, bytes / bandwidth), as RAGO models retrieval on CPUs (Jiang et al., arXiv
2503.14649, section 4; HERMES, section 5). A batch puts one query on each core (or on each group of `threads_per_query`
cores) and shares the machine's bandwidth: a phase of B queries on L groups takes

    max(ceil(B / L) * time of one query on its group, bytes of all / bandwidth of all)

A core does flops / (cores of the machine) of the peak arithmetic, and reads at most `core_bandwidth` bytes/s. Data that
all queries of a batch read (the centroids) leave memory once, and pass each core once.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from functools import lru_cache
from typing import Annotated, NamedTuple

from pydantic import Field

from hermes.config import Bandwidth, ConfigModel
from hermes.core.stage import ServiceStage
from hermes.errors import InputError, Verbatim
from hermes.services.base import MachineSpec, PhaseCost, Work, check_memory, count_option

__all__ = ["Count", "Phase", "SearchConfig", "SearchService"]

Count = Annotated[int, Field(ge=1, le=10**13)]
Share = Annotated[float, Field(ge=1e-6, le=1)]


class Phase(NamedTuple):
    """One phase of one query.

    Attributes:
        num_bytes: Its own memory traffic.
        batch_bytes: Traffic that a whole batch causes once.
        core_bandwidth: Bytes/s that one core can read.
        wait_s: Seconds that a core waits in addition (latencies that are not hidden).
    """

    name: str
    flops: float
    num_bytes: float
    batch_bytes: float = 0.0
    core_bandwidth: float = math.inf
    wait_s: float = 0.0


class SearchConfig(ConfigModel):
    """Options of searches in all kinds of index."""

    vectors: Count
    """Vectors in the index."""
    dim: Annotated[int, Field(ge=1, le=2**20)] = 768
    """Dimensions of a vector."""
    top_k: Count = 20
    """Number of nearest vectors to return. A stage's option `top_k` overrides it."""
    compute_share: Share = 0.6
    """Share of the peak arithmetic that is reached (assumed, as for matrices in `hw_profiles/efficiency/cpu.yaml`)."""
    bandwidth_share: Share = 0.8
    """Share of the peak memory bandwidth that is reached (RAGO: 80%)."""
    core_bandwidth: Bandwidth = 18e9
    """Bytes/s that one core reads; by default RAGO's measurement of a core that scans codes."""
    threads_per_query: Annotated[int, Field(ge=1, le=4096)] = 1
    """Cores that work on one query."""


class SearchService:
    """Costs of searches on one machine. Subclasses write `index_bytes`, `effort` and `phases`."""

    effort_option = "nprobe"

    def __init__(self, config: SearchConfig, machine: MachineSpec) -> None:
        self.config, self.machine = config, machine
        if machine.flops <= 0 or machine.memory_bandwidth <= 0:
            raise InputError(Verbatim("missing: retrieval needs the FLOP/s and bandwidth of a device"), field="device")
        self.memory_bytes = self.index_bytes()
        check_memory("an index", self.memory_bytes, machine, "vectors")
        self._batch = lru_cache(maxsize=4096)(self._work_of)   # equal batches recur

    @property
    def options(self) -> dict[str, int]:
        """Options of a stage that it reads, with their least values."""
        return {self.effort_option: 1, "top_k": 1}

    def index_bytes(self) -> int:
        """Return the bytes of the index on this machine."""
        raise NotImplementedError

    def effort(self) -> int:
        """Return the lists or candidates of a query whose stage does not set them."""
        raise NotImplementedError

    def phases(self, effort: int, top_k: int) -> list[Phase]:
        """Return the phases of one query."""
        raise NotImplementedError

    def _phase(self, phase: Phase, queries: int) -> tuple[PhaseCost, float]:
        machine, c = self.machine, self.config
        threads = min(c.threads_per_query, machine.cores)
        rounds = math.ceil(queries / (machine.cores // threads))
        arithmetic = rounds * phase.flops * machine.cores / (machine.flops * c.compute_share) / threads
        streaming = (rounds * phase.num_bytes + phase.batch_bytes) / phase.core_bandwidth / threads
        waiting = rounds * phase.wait_s / threads
        total_bytes = phase.num_bytes * queries + phase.batch_bytes
        together = total_bytes / (machine.memory_bandwidth * c.bandwidth_share)
        on_core = max(arithmetic, streaming) + waiting
        bound = "memory bandwidth" if together > on_core else (
            "latency" if waiting > max(arithmetic, streaming)
            else "arithmetic" if arithmetic >= streaming else "core bandwidth"
        )
        cost = PhaseCost(phase.name, phase.flops * queries, total_bytes, max(on_core, together), bound)
        return cost, on_core / rounds * threads * queries

    def _groups(self, tasks: Sequence[ServiceStage]) -> dict[tuple[int, int], int]:
        """Return (effort, top_k) -> queries: equal ones are searched together."""
        groups: dict[tuple[int, int], int] = {}
        for task in tasks:
            key = count_option(task, self.effort_option, self.effort()), count_option(task, "top_k", self.config.top_k)
            groups[key] = groups.get(key, 0) + max(1, task.items)
        return groups

    def costs(self, tasks: Sequence[ServiceStage]) -> list[PhaseCost]:
        """Return the phases of a batch, in order; groups of unequal queries follow one another."""
        return [self._phase(phase, queries)[0] for (effort, top_k), queries in self._groups(tasks).items()
                for phase in self.phases(effort, top_k)]

    def work(self, tasks: Sequence[ServiceStage]) -> Work:
        return self._batch(tuple(self._groups(tasks).items()))

    def _work_of(self, groups: tuple[tuple[tuple[int, int], int], ...]) -> Work:
        machine, seconds, core_s, flops, num_bytes = self.machine, 0.0, 0.0, 0.0, 0.0
        for (effort, top_k), queries in groups:
            for phase in self.phases(effort, top_k):
                cost, busy_s = self._phase(phase, queries)
                seconds, core_s = seconds + cost.seconds, core_s + busy_s
                flops, num_bytes = flops + cost.flops, num_bytes + cost.num_bytes
        memory_s = num_bytes / machine.memory_bandwidth
        return Work(
            seconds, cores=min(1.0, core_s / machine.cores / seconds),
            bandwidth=min(1.0, memory_s / self.config.bandwidth_share / seconds),
            compute_s=flops / machine.flops, memory_s=memory_s,
        )
