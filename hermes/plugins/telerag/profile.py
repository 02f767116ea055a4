"""Fitted parameters of lookahead retrieval, with their sources: `hw_profiles/lookahead/NAME.yaml`.

The file holds strengths of the rewrites and the bias to large clusters, for each family of perturbation, and the scan
rates of machines: the baseline's search and the search of missed clusters are two rates of one CPU.
`scripts/build_lookahead.py` writes it; no other file has these numbers.
"""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Literal

from pydantic import Field

from hermes.config import Bandwidth, Bytes, ConfigModel, load
from hermes.errors import InputError
from hermes.hardware import find
from hermes.plugins.telerag.client import ClusterModel

__all__ = ["FittedFamily", "FittedIndex", "FittedRate", "LookaheadProfile", "load_lookahead"]

Sources = Annotated[list[str], Field(min_length=1)]


class FittedIndex(ConfigModel):
    """The index that the fits are for."""

    clusters: Annotated[int, Field(ge=2, le=2**20)]
    total: Bytes
    vector_bytes: Annotated[int, Field(ge=1, le=2**20)]
    size_sigma: Annotated[float, Field(ge=0, le=3)]
    nprobe: Annotated[int, Field(ge=1, le=2**20)]
    probed_mean: Bytes
    """Mean bytes of the `nprobe` probed clusters."""
    provenance: Sources


class FittedFamily(ConfigModel):
    """A family of perturbation with its structure, and what was fitted."""

    name: Annotated[str, Field(min_length=1, max_length=200)]
    """Name of the family in the profile."""
    family: str
    shape: dict[str, float] = {}
    """Arguments of the family (`hermes.plugins.telerag.overlap.make_family`)."""
    bias: float
    strengths: dict[str, dict[str, Annotated[float, Field(ge=0)]]]
    """Strength by data set and pipeline; 0 for a pipeline without rewrites."""


class FittedRate(ConfigModel):
    """Bytes of vectors that a machine scans per second."""

    rate: Bandwidth
    provenance: Sources


class LookaheadProfile(ConfigModel):
    """Format `hermes-lookahead/1`."""

    format: Literal["hermes-lookahead/1"]
    name: Annotated[str, Field(min_length=1, max_length=200)]
    index: FittedIndex
    families: Annotated[list[FittedFamily], Field(min_length=1)]
    """Families in the order of their errors on the measured index: use the first. The others are for comparison."""
    scans: dict[str, dict[str, FittedRate]]
    """By machine and stage (`cpu_search`, `miss_search`, `gpu_search`)."""
    provenance: Sources

    def family(self, name: str = "") -> FittedFamily:
        """Return a family of the profile, by default the first. Raises `InputError` for an unknown one."""
        for fitted in self.families:
            if name in ("", fitted.name):
                return fitted
        raise InputError(f"one of {', '.join(f.name for f in self.families)}", name, field="families")

    def cluster_model(self, name: str = "") -> ClusterModel:
        """Return the index of an `ivf_index` client, with a family's bias and spread."""
        fitted, index = self.family(name), self.index
        return ClusterModel(
            clusters=index.clusters, total=index.total, vector_bytes=index.vector_bytes, size_sigma=index.size_sigma,
            size_bias=fitted.bias, family=fitted.family, spread=fitted.shape.get("spread", 0.0),
            dimensions=int(fitted.shape["dimensions"]) if "dimensions" in fitted.shape else None,
        )


def load_lookahead(name_or_path: str | Path, base_dir: Path | None = None) -> LookaheadProfile:
    """Load a shipped profile by name, or a file by path relative to `base_dir`. Raises `InputError`."""
    return load(LookaheadProfile, find(name_or_path, base_dir, "lookahead", "a lookahead profile"))
