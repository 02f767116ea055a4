"""Measured retrieval: times from a profile fitted on a machine instead of peak rates.

The profile (`hermes.services.retrieval_profile`) gives the time of a library call that searches a batch with a number
of threads. For batches outside its measured range the service extrapolates the formula and counts them, or refuses
them.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Annotated, Literal

from pydantic import Field

from hermes.config import ConfigModel
from hermes.core.stage import ServiceStage
from hermes.errors import InputError, Verbatim, inside
from hermes.services.base import MachineSpec, PhaseCost, Work, check_memory, count_option
from hermes.services.retrieval_costs import Bm25, HnswGraph, InvertedLists, RetrievalIndex, shares
from hermes.services.retrieval_profile import RetrievalProfile, load_retrieval_profile

__all__ = ["Measured", "MeasuredService"]

OPTION = {"ivf-flat": "nprobe", "ivf-pq": "nprobe", "ivf-pq-fs": "nprobe", "hnsw": "ef_search", "bm25": "words"}


class Measured(ConfigModel):
    """Retrieval with the times of a retrieval profile."""

    kind: Literal["measured"] = "measured"
    profile: Annotated[str, Field(min_length=1, max_length=4096)]
    """A shipped retrieval profile (`hw_profiles/retrieval/NAME.yaml`) or a file of that form."""
    index: Annotated[InvertedLists | HnswGraph | Bm25, Field(discriminator="kind")]
    """The index: its contents and its parameters."""
    effort: Annotated[int, Field(ge=1, le=10**9)] = 32
    """Lists probed (IVF), candidates kept (HNSW) or words of a query (BM25). A stage's option (`nprobe`, `ef_search` or
    `words`) overrides it."""
    threads: Annotated[int, Field(ge=1, le=4096)] = 1
    """Threads that share a batch."""
    outside: Literal["count", "refuse"] = "count"
    """Batches outside the measured range: extrapolate and count them, or raise an error."""

    def build(self, machine: MachineSpec, base_dir: Path | None = None) -> MeasuredService:
        """Build the service; `InputError` for an index that the profile does not cover or that does not fit."""
        with inside("profile"):
            profile = load_retrieval_profile(self.profile, base_dir)
        return MeasuredService(self, profile, machine)


class MeasuredService:
    """See the module's docstring."""

    def __init__(self, config: Measured, profile: RetrievalProfile, machine: MachineSpec) -> None:
        self.config, self.profile, self.machine = config, profile, machine
        if config.threads > machine.cores:
            raise InputError(f"at most the {machine.cores} cores of the client", config.threads, field="threads")
        with inside("index"):
            profile.seconds(config.index, config.effort)   # raises for an index that the profile does not cover
        self.memory_bytes = _index_bytes(config.index)
        check_memory("an index", self.memory_bytes, machine, "index.vectors")

    @property
    def options(self) -> dict[str, int]:
        """The option of a stage that it reads, with its least value."""
        return {OPTION[self.config.index.kind]: 1}

    def _groups(self, tasks: Sequence[ServiceStage]) -> dict[int, int]:
        option = OPTION[self.config.index.kind]
        groups: dict[int, int] = {}
        for task in tasks:
            effort = count_option(task, option, self.config.effort)
            groups[effort] = groups.get(effort, 0) + max(1, task.items)
        return groups

    def outside(self, tasks: Sequence[ServiceStage]) -> list[str]:
        """Return the features of the cost model in which a batch leaves the measured range."""
        c = self.config
        found = [name for effort, queries in self._groups(tasks).items()
                 for name in self.profile.outside(c.index, effort, queries, c.threads)]
        return list(dict.fromkeys(found))

    def costs(self, tasks: Sequence[ServiceStage]) -> list[PhaseCost]:
        """Return one call per effort of the queries; bytes are those of the scanned codes, flops are not counted."""
        c = self.config
        return [
            PhaseCost(f"search ({OPTION[c.index.kind]} {effort})", 0.0, self._scan_bytes(effort) * queries,
                      self.profile.seconds(c.index, effort, queries, c.threads), "measured")
            for effort, queries in self._groups(tasks).items()
        ]

    def _scan_bytes(self, effort: int) -> float:
        index = self.config.index
        if not isinstance(index, InvertedLists):
            return 0.0
        return self.profile.model(index.kind).work(index, effort)["codes"] * index.code_bytes

    def work(self, tasks: Sequence[ServiceStage]) -> Work:
        c, machine = self.config, self.machine
        if c.outside == "refuse":
            left = self.outside(tasks)
            if left:
                raise InputError(Verbatim(f"a batch leaves the measured range of {self.profile.name} in "
                                          f"{', '.join(left)}; write outside: count to extrapolate"), field="outside")
        seconds = busy_s = num_bytes = 0.0
        for effort, queries in self._groups(tasks).items():
            took = self.profile.seconds(c.index, effort, queries, c.threads)
            seconds, busy_s = seconds + took, busy_s + took * shares(c.index, queries, c.threads)[0]
            num_bytes += self._scan_bytes(effort) * queries
        memory_s = num_bytes / machine.memory_bandwidth if machine.memory_bandwidth > 0 else 0.0
        return Work(seconds, cores=min(1.0, busy_s / machine.cores / seconds),
                    bandwidth=min(1.0, memory_s / seconds), memory_s=min(memory_s, seconds))


def _index_bytes(index: RetrievalIndex) -> int:
    """Return the bytes of the index in memory, with ids of 8 bytes; for BM25 8 bytes per known posting."""
    if isinstance(index, InvertedLists):
        return round(index.vectors * (index.code_bytes + 8)) + index.nlist * index.dim * 4
    if isinstance(index, HnswGraph):
        links = 2 * index.hnsw_m + index.hnsw_m / max(1, index.hnsw_m - 1)
        return round(index.vectors * (index.dim * 4 + 8 + links * 4))
    return 0
