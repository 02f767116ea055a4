"""IVF-flat retrieval: the probed lists hold whole vectors."""

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
        """Build the service; `InputError` states the missing bytes if the index does not fit."""
        return IvfFlatService(self, machine)


class IvfFlatService(InvertedFileService):
    """See the module's docstring."""

    config: IvfFlat

    def vector_bytes(self) -> int:
        return self.config.dim * self.config.value_bytes

    def phases(self, effort: int, top_k: int) -> list[Phase]:
        """Return coarse search, scan and merge."""
        c, nprobe = self.config, min(effort, self.config.nlist)
        scanned = self.scanned(nprobe)
        scan = Phase("scan", 2 * scanned * c.dim, scanned * self.vector_bytes(), core_bandwidth=c.core_bandwidth)
        return [self.coarse_phase(nprobe), scan, self.merge_phase(scanned, nprobe, top_k)]
