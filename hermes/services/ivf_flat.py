"""Retrieval from an IVF-flat index: the vectors of the probed lists are compared as they are."""

from __future__ import annotations

from pathlib import Path
from typing import Literal

from hermes.services.base import MachineSpec
from hermes.services.ivf import InvertedFile, InvertedFileService
from hermes.services.phases import Phase

__all__ = ["IvfFlat", "IvfFlatService"]


class IvfFlat(InvertedFile):
    """Nearest neighbours in an inverted file of whole vectors: as `ivf_pq` without tables, and more bytes to scan."""

    kind: Literal["ivf_flat"] = "ivf_flat"
    value_bytes: Literal[1, 2, 4] = 4
    """Bytes of one dimension of a stored vector."""

    def build(self, machine: MachineSpec, base_dir: Path | None = None) -> IvfFlatService:
        """The service on a machine; `InputError` where the index does not fit, with what is missing."""
        return IvfFlatService(self, machine)


class IvfFlatService(InvertedFileService):
    """See the module's description."""

    config: IvfFlat

    def vector_bytes(self) -> int:
        return self.config.dim * self.config.value_bytes

    def phases(self, effort: int, top_k: int) -> list[Phase]:
        """Coarse search, scan, merge."""
        c, nprobe = self.config, min(effort, self.config.nlist)
        scanned = self.scanned(nprobe)
        scan = Phase("scan", 2 * scanned * c.dim, scanned * self.vector_bytes(), core_bandwidth=c.core_bandwidth)
        return [self.coarse_phase(nprobe), scan, self.merge_phase(scanned, nprobe, top_k)]
