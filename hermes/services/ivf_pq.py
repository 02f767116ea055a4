"""IVF-PQ retrieval on a CPU, as RAGO models it (Jiang et al., arXiv 2503.14649, section 4; HERMES, 5).

A query (i) is compared with the coarse centroids, all of them or a two-level tree of them, (ii) builds the tables of
distances to the codewords, (iii) scans the codes of the probed lists, and (iv) merges the nearest.
`hermes.services.phases` computes the time of a batch of such phases.
"""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Literal

from pydantic import Field

from hermes.config import Bandwidth
from hermes.services.base import MachineSpec
from hermes.services.ivf import InvertedFile, InvertedFileService
from hermes.services.phases import Phase

__all__ = ["IvfPq", "IvfPqService"]

CODEWORDS = 256


class IvfPq(InvertedFile):
    """Approximate nearest neighbours in an inverted file of product-quantised vectors."""

    kind: Literal["ivf_pq"] = "ivf_pq"
    code_bytes: Annotated[int, Field(ge=1, le=2**16)] = 96
    """Bytes of a vector's code, one per sub-quantiser (8 bits, 256 codewords)."""
    scan_rate: Bandwidth = 18e9
    """Bytes of codes that a core scans per second (RAGO measured 18 GB/s on an AMD EPYC 7R13)."""
    tables: Literal["per_list", "per_query"] = "per_list"
    """Distance tables for every probed list (codes are of residuals), or one for the query (codes of the vectors)."""

    def build(self, machine: MachineSpec, base_dir: Path | None = None) -> IvfPqService:
        """Build the service; `InputError` states the missing bytes if the index does not fit."""
        return IvfPqService(self, machine)


class IvfPqService(InvertedFileService):
    """See the module's docstring."""

    config: IvfPq

    def vector_bytes(self) -> int:
        return self.config.code_bytes

    def phases(self, effort: int, top_k: int) -> list[Phase]:
        """Return the four phases of one query."""
        c, nprobe = self.config, min(effort, self.config.nlist)
        tables, scanned = nprobe if c.tables == "per_list" else 1, self.scanned(nprobe)
        return [
            self.coarse_phase(nprobe),
            # the distances of the query's parts to all codewords, and a table entry of 4 bytes each
            Phase("tables", 2.0 * tables * CODEWORDS * c.dim, tables * CODEWORDS * c.code_bytes * 4.0),
            # one addition per byte of code
            Phase("scan", 2 * scanned * c.code_bytes, scanned * c.code_bytes, core_bandwidth=c.scan_rate),
            self.merge_phase(scanned, nprobe, top_k),
        ]
