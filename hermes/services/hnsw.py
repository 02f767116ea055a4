"""HNSW retrieval: nearest neighbours by a walk through a graph (Malkov and Yashunin, arXiv 1603.09320).

The walk descends the upper levels greedily, then keeps the `ef_search` nearest candidates on the bottom one. With M
links per vector (2M at the bottom) and levels drawn with mL = 1 / ln M (section 4.1 of the paper):

    levels above the bottom   ln(N) / ln(M), with at most 1 / (1 - exp(-mL)) steps on each (section 4.2.1)
    distances                 levels * steps * M  +  ef_search * 2M * new_share
    bytes of a link list      4 per link, so 4M or 8M per step

`ef_search` candidates are expanded at the bottom, with 2M neighbours each; only neighbours not seen before are
compared. (On 10,000 to 100,000 generated vectors faiss 1.15.1 expands 22 to 31 candidates with ef_search 16 and 69 to
82 with 64, the formula 27 to 31 and 75 to 79: scripts/hnsw_distances.py.) Vectors and lists of links are scattered in
memory: a core waits for the first line of each (`access_latency`) and streams the rest.
"""

from __future__ import annotations

import math
from pathlib import Path
from typing import Annotated, Literal

from pydantic import Field

from hermes.config import Duration
from hermes.services.base import MachineSpec
from hermes.services.phases import Phase, SearchConfig, SearchService

__all__ = ["Hnsw", "HnswService"]

LINK_BYTES = 4


class Hnsw(SearchConfig):
    """Approximate nearest neighbours by a walk through a graph of whole vectors."""

    kind: Literal["hnsw"] = "hnsw"
    links: Annotated[int, Field(ge=2, le=1024)] = 16
    """M: links of a vector on a level; the bottom level has twice as many."""
    ef_search: Annotated[int, Field(ge=1, le=10**9)] = 64
    """Candidates that a query keeps; at least `top_k`. A stage's option `ef_search` overrides it."""
    value_bytes: Literal[1, 2, 4] = 4
    """Bytes of one dimension of a stored vector."""
    id_bytes: Annotated[int, Field(ge=0, le=64)] = 8
    """Bytes of a vector's id."""
    new_share: Annotated[float, Field(gt=0, le=1)] = 0.2
    """Share of the neighbours that a step sees for the first time. 1 is the upper bound; faiss needed 0.08 to 0.26 with
    M 16 on generated vectors, more with fewer links and less with more (scripts/hnsw_distances.py)."""
    access_latency: Duration = 90e-9
    """Time until the first bytes of a vector arrive: a DRAM access of a server CPU, assumed. 0: bandwidth only."""

    def build(self, machine: MachineSpec, base_dir: Path | None = None) -> HnswService:
        """Build the service; `InputError` states the missing bytes if the graph does not fit."""
        return HnswService(self, machine)


class HnswService(SearchService):
    """See the module's docstring."""

    effort_option = "ef_search"
    config: Hnsw

    def effort(self) -> int:
        return self.config.ef_search

    def index_bytes(self) -> int:
        """Return the bytes of vectors, ids, 2M links at the bottom and M on each of the 1 / (M - 1) upper levels."""
        c = self.config
        links = 2 * c.links + c.links / (c.links - 1)
        return math.ceil(c.vectors * (c.dim * c.value_bytes + c.id_bytes + links * LINK_BYTES))

    def steps(self, ef_search: int) -> tuple[float, float]:
        """Return (steps on the upper levels, candidates expanded on the bottom one)."""
        c = self.config
        levels = max(0.0, math.log(c.vectors) / math.log(c.links))
        steps = 1 / (1 - math.exp(-1 / math.log(c.links)))
        return levels * steps, float(min(ef_search, c.vectors))

    def distances(self, ef_search: int) -> tuple[float, float]:
        """Return the distance evaluations of one query (upper levels, bottom); at most one per vector."""
        c = self.config
        upper, bottom = self.steps(ef_search)
        return (min(float(c.vectors), upper * c.links),
                min(float(c.vectors), max(bottom, bottom * 2 * c.links * c.new_share)))

    def phases(self, effort: int, top_k: int) -> list[Phase]:
        """Return the descent, and the search on the bottom level (which keeps the results as it proceeds)."""
        c, ef_search = self.config, max(effort, top_k)
        parts = zip(("descend", "search"), self.distances(ef_search), self.steps(ef_search), (1, 2), strict=True)
        return [
            Phase(
                name, 2 * found * c.dim, found * c.dim * c.value_bytes + steps * width * c.links * LINK_BYTES,
                core_bandwidth=c.core_bandwidth, wait_s=(found + steps) * c.access_latency,
            )
            for name, found, steps, width in parts
        ]
