"""Inverted files (IVF): the search for the lists to probe, and the sizes of the lists."""

from __future__ import annotations

import math
from typing import Annotated, Literal, Self

from pydantic import Field, model_validator

from hermes.errors import InputError, Verbatim
from hermes.services.phases import Count, Phase, SearchConfig, SearchService

__all__ = ["InvertedFile", "InvertedFileService"]


class InvertedFile(SearchConfig):
    """Vectors in lists around centroids. A query is compared with the centroids and scans the nearest lists."""

    nlist: Count = 4_000_000
    """Lists (coarse centroids); a list holds vectors / nlist vectors."""
    nprobe: Count = 50
    """Lists that a query scans. A stage's option `nprobe` overrides it."""
    id_bytes: Annotated[int, Field(ge=0, le=64)] = 8
    """Bytes of a vector's id, stored with its code."""
    coarse: Literal["flat", "two_level"] = "flat"
    """Compare with all centroids, or with groups of them and then with the members of the nearest groups (a tree)."""
    coarse_groups: Count | None = None
    """Groups of a two-level search. Left out, the square root of `nlist`."""
    coarse_probes: Count | None = None
    """Groups whose members are compared. Left out, a quarter of `nprobe`."""
    shards: Annotated[int, Field(ge=1, le=100_000)] = 1
    """Equal machines over which the vectors of every list are spread. They search each query in parallel, all with the
    same centroids. The client's `devices` counts them for power and price. Collecting their answers is free."""

    @model_validator(mode="after")
    def _lists(self) -> Self:
        if self.nlist > self.vectors:
            raise InputError(f"at most the {self.vectors} vectors", self.nlist, field="nlist")
        for name in ("coarse_groups", "coarse_probes"):
            value = getattr(self, name)
            if value is not None and self.coarse == "flat":
                raise InputError(Verbatim("has no effect with coarse: flat; leave it out, or write coarse: two_level"),
                                 field=name)
        groups = self.coarse_groups
        if groups is not None and groups > self.nlist:
            raise InputError(f"at most the {self.nlist} lists", groups, field="coarse_groups")
        return self


class InvertedFileService(SearchService):
    """Coarse search and sizes; subclasses add the phases that look at the lists."""

    config: InvertedFile

    def effort(self) -> int:
        return self.config.nprobe

    def vector_bytes(self) -> int:
        """Return the bytes of one vector in a list, without its id."""
        raise NotImplementedError

    @property
    def groups(self) -> float:
        """Groups of centroids of a two-level search."""
        c = self.config
        return float(c.coarse_groups) if c.coarse_groups is not None else math.sqrt(c.nlist)

    def index_bytes(self) -> int:
        c = self.config
        codes = math.ceil(c.vectors / c.shards) * (self.vector_bytes() + c.id_bytes)
        groups = math.ceil(self.groups) * c.dim * 4 if c.coarse == "two_level" else 0
        return codes + c.nlist * c.dim * 4 + groups

    def scanned(self, nprobe: int) -> float:
        """Return the vectors that a query scans on one machine, for lists of equal size."""
        c = self.config
        return min(nprobe, c.nlist) * c.vectors / c.nlist / c.shards

    def coarse_phase(self, nprobe: int) -> Phase:
        """Compare with the centroids: 2 flops per dimension and centroid, fp32. A batch reads all of them once; in a
        tree every query reads the groups and the members of those it chose."""
        c = self.config
        if c.coarse == "flat":
            return Phase("coarse", 2.0 * c.nlist * c.dim, 0.0, c.nlist * c.dim * 4.0, c.core_bandwidth)
        probes = float(c.coarse_probes) if c.coarse_probes is not None else max(1.0, min(nprobe, c.nlist) / 4)
        compared = self.groups + min(float(c.nlist), probes * c.nlist / self.groups)
        return Phase("coarse", 2 * compared * c.dim, compared * c.dim * 4, core_bandwidth=c.core_bandwidth)

    @staticmethod
    def merge_phase(scanned: float, nprobe: int, top_k: int) -> Phase:
        """Keep the best: two operations per scanned vector, with a heap of the results; every list returns `top_k`
        candidates of 8 bytes."""
        return Phase("merge", scanned * 2 + top_k * math.log2(max(2, top_k)), 8.0 * top_k * nprobe)
