"""Features of the retrieval cost model: countable work of a search.

A call searches a batch of queries. It distributes them over `workers` threads, and ends with the slowest of them, which
has `rows` queries. Every feature counts work of that thread; its coefficient is the seconds of one unit. For IVF the
stages are those of RAGO (arXiv 2503.14649): compare with the centroids, build look-up tables, scan the lists, merge.
BM25 adds up postings and scans the scores of all documents, which takes longer the more of them are zero. A walk
through a graph takes distance evaluations. Most neighbours have been seen already, so that their number is not
proportional to efSearch and links, and grows slowly with the corpus: the model takes it as a product of powers of the
three, with fitted exponents.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Annotated, Literal

from pydantic import Field, model_validator

from hermes.config import ConfigModel
from hermes.errors import InputError

__all__ = [
    "CANDIDATES", "COARSE_FEATURES", "FEATURES", "Bm25", "GraphExponents", "HnswGraph", "InvertedLists",
    "RetrievalIndex", "RetrievalKind", "features", "shares",
]

RetrievalKind = Literal["ivf-flat", "ivf-pq", "ivf-pq-fs", "hnsw", "bm25"]
Count = Annotated[int, Field(ge=1, le=2**48)]


class InvertedLists(ConfigModel):
    """An IVF index: flat vectors, 8-bit product-quantised codes, or 4-bit ones scanned in registers."""

    kind: Literal["ivf-flat", "ivf-pq", "ivf-pq-fs"]
    vectors: Count
    """Vectors in the index."""
    dim: Count
    """Dimensions of a vector."""
    nlist: Count
    """Inverted lists (clusters)."""
    pq_m: Count | None = None
    """Subquantisers of a code; not for `ivf-flat`."""
    size_bias: Annotated[float, Field(gt=0, le=1e6)] | None = None
    """Codes in a probed list over the mean list size: probed lists are larger than average. Default: as measured."""

    @model_validator(mode="after")
    def _codes(self) -> InvertedLists:
        if (self.pq_m is None) != (self.kind == "ivf-flat"):
            expected = "nothing for ivf-flat" if self.kind == "ivf-flat" else "the number of subquantisers"
            raise InputError(expected, self.pq_m, field="pq_m")
        if self.nlist > self.vectors:
            raise InputError(f"at most the {self.vectors} vectors", self.nlist, field="nlist")
        return self

    @property
    def code_bytes(self) -> float:
        """Bytes scanned per vector: fp32 components, a byte or half a byte per subquantiser."""
        if self.pq_m is None:
            return 4.0 * self.dim
        return self.pq_m * (1.0 if self.kind == "ivf-pq" else 0.5)


class HnswGraph(ConfigModel):
    """A graph of fp32 vectors."""

    kind: Literal["hnsw"] = "hnsw"
    vectors: Count
    """Vectors in the index."""
    dim: Count
    """Dimensions of a vector."""
    hnsw_m: Count
    """Links per vector and level (twice as many at the bottom)."""
    library: Literal["hnswlib", "faiss"] = "hnswlib"
    """Library of the implementation; libraries use threads differently."""


class Bm25(ConfigModel):
    """An inverted index of words."""

    kind: Literal["bm25"] = "bm25"
    vectors: Count
    """Documents."""
    postings_per_token: Annotated[float, Field(gt=0)] | None = None
    """Mean number of documents with a word of a query. Default: the measured share of the corpus."""


RetrievalIndex = InvertedLists | HnswGraph | Bm25


class GraphExponents(ConfigModel):
    """Exponents: distance evaluations grow like efSearch ** effort * M ** links * (vectors / 1000) ** vectors."""

    effort: Annotated[float, Field(ge=0, le=2)] = 1.0
    links: Annotated[float, Field(ge=0, le=2)] = 1.0
    vectors: Annotated[float, Field(ge=0, le=2)] = 0.0

FEATURES: dict[str, str] = {
    "call": "calls", "query": "queries", "probe": "lists probed", "coarse_macs": "multiply-adds with centroids",
    "lut_macs": "multiply-adds of look-up tables", "scan_bytes": "bytes of codes scanned", "codes": "codes scanned",
    "shared_bytes": "bytes scanned beside each other worker's", "step": "candidates examined (efSearch)",
    "distances": "distance evaluations (efSearch x M)", "distance_macs": "multiply-adds of distances",
    "deep_macs": "multiply-adds of distances x log2(vectors / 1024)",
    "shared_macs": "multiply-adds of distances beside each other worker's",
    "token": "words", "postings": "postings added up", "documents": "scores looked through",
    "untouched": "scores that stay zero (selecting the best of equal ones is slow)",
    "shared_work": "postings and scores beside each other worker's",
}
"""Unit of each feature."""

COARSE_FEATURES = ("call", "query", "probe", "coarse_macs")
"""Features of the search for the lists to probe, measured alone."""

_IVF_BASE = ("call", "query", "coarse_macs", "scan_bytes")
CANDIDATES: dict[str, tuple[tuple[str, ...], ...]] = {
    "ivf-flat": (
        _IVF_BASE, (*_IVF_BASE, "probe"), (*_IVF_BASE, "codes"), (*_IVF_BASE, "probe", "codes"),
        (*_IVF_BASE, "probe", "shared_bytes"), (*_IVF_BASE, "probe", "codes", "shared_bytes"),
    ),
    "ivf-pq": (
        _IVF_BASE, (*_IVF_BASE, "probe"), (*_IVF_BASE, "probe", "lut_macs"), (*_IVF_BASE, "probe", "codes"),
        (*_IVF_BASE, "probe", "lut_macs", "codes"), (*_IVF_BASE, "probe", "lut_macs", "codes", "shared_bytes"),
    ),
    "hnsw": (
        ("call", "query", "distances"), ("call", "query", "distances", "distance_macs"),
        ("call", "query", "distances", "distance_macs", "shared_macs"),
    ),
    "bm25": (
        ("call", "query", "postings"), ("call", "query", "documents"), ("call", "query", "postings", "documents"),
        ("call", "query", "postings", "documents", "untouched"),
        ("call", "query", "token", "postings", "documents", "untouched"),
        ("call", "query", "token", "postings", "documents", "untouched", "shared_work"),
    ),
}
CANDIDATES["ivf-pq-fs"] = CANDIDATES["ivf-pq"]


def shares(index: RetrievalIndex, batch: int, threads: int) -> tuple[int, int]:
    """Return (workers, queries of the busiest): the distribution of a batch by the library of an index.

    faiss and bm25s give each thread a slice; hnswlib uses one thread for batches of up to four times the threads.
    """
    workers = min(batch, threads)
    if isinstance(index, HnswGraph) and index.library == "hnswlib" and batch <= 4 * threads:
        workers = 1
    return workers, -(-batch // workers)


def features(
    index: RetrievalIndex, effort: int, batch: int, threads: int, work: Mapping[str, float],
    exponents: GraphExponents | None = None,
) -> dict[str, float]:
    """Return every feature of a call that its kind of index has.

    Args:
        effort: Lists probed (IVF), efSearch (HNSW), words of a query (BM25).
        work: `codes` scanned or `postings` added up per query.
    """
    workers, rows = shares(index, batch, threads)
    others = float(workers - 1)
    out = {"call": 1.0, "query": float(rows)}
    if isinstance(index, InvertedLists):
        scanned = rows * work["codes"] * index.code_bytes
        return out | {
            "probe": float(rows * effort), "coarse_macs": float(rows * index.nlist * index.dim),
            "lut_macs": float(rows * (256 if index.kind == "ivf-pq" else 16) * index.dim),
            "scan_bytes": scanned, "codes": rows * work["codes"], "shared_bytes": others * scanned,
        }
    if isinstance(index, HnswGraph):
        powers = exponents or GraphExponents()
        each = effort**powers.effort * index.hnsw_m**powers.links * (index.vectors / 1000) ** powers.vectors
        macs = rows * each * index.dim
        return out | {"distances": rows * each, "distance_macs": macs, "shared_macs": others * macs}
    postings, documents = rows * work["postings"], float(rows * index.vectors)
    return out | {
        "token": float(rows * effort), "postings": postings, "documents": documents,
        # words occur in documents independently, as far as the mean number per document can tell
        "untouched": documents * math.exp(-work["postings"] / index.vectors),
        "shared_work": others * (postings + documents),
    }
