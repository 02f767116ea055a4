"""Real retrievers over a judged corpus: a graph or an exact search for embeddings, BM25 for texts.

hnswlib (or faiss) and bm25s are imported where they are used; `pip install "hermes-sim[retrieval]"` brings faiss and
bm25s.
"""

from __future__ import annotations

import importlib
from collections.abc import Sequence
from typing import Any

import numpy as np

from evidence.retrieval.corpus import Corpus, Vectors
from hermes.errors import InputError, Verbatim
from hermes.plugins.structures.fusion import Ranking

__all__ = ["Graph", "exact_rankings", "rankings_of", "sparse_rankings"]


def _library(*names: str) -> Any:
    """Import the first installed library of several."""
    for name in names:
        try:
            return importlib.import_module(name)
        except ImportError:
            continue
    raise InputError(f"{' or '.join(names)}, which `pip install \"hermes-sim[retrieval]\"` brings", Verbatim("neither"
                     if len(names) > 1 else "not installed"))


def _rankings(documents: Any, scores: Any) -> list[Ranking]:
    return [Ranking(row.tolist(), values.tolist()) for row, values in zip(documents, scores, strict=True)]


def exact_rankings(vectors: Vectors, queries: Vectors, depth: int) -> list[Ranking]:
    """The `depth` nearest vectors of each query, by inner product. vectors (n, dims), queries (q, dims)."""
    scores = queries @ vectors.T
    depth = min(depth, len(vectors))
    near = np.argpartition(-scores, depth - 1, axis=1)[:, :depth]
    order = np.argsort(-np.take_along_axis(scores, near, axis=1), axis=1, kind="stable")
    near = np.take_along_axis(near, order, axis=1)
    return _rankings(near, np.take_along_axis(scores, near, axis=1))


class Graph:
    """A seeded HNSW graph: equal vectors in equal order and an equal seed give an equal graph.

    It is built with one thread, since several would insert in another order each time. Without hnswlib it uses faiss,
    which draws its levels with a seed of its own.
    """

    def __init__(self, vectors: Vectors, links: int = 16, ef_construction: int = 100, seed: int = 0) -> None:
        if seed < 0:
            raise ValueError(f"a seed of at least 0: {seed}")
        library = _library("hnswlib", "faiss")
        self.library: str = library.__name__
        if self.library == "hnswlib":
            self._index = library.Index(space="ip", dim=vectors.shape[1])
            # its random engine (C++'s minstd) takes 0 for 1: one more keeps seeds 0 and 1 apart
            self._index.init_index(max_elements=len(vectors), ef_construction=ef_construction, M=links,
                                   random_seed=seed + 1)
            self._index.add_items(vectors, np.arange(len(vectors)), num_threads=1)
        else:
            library.omp_set_num_threads(1)
            self._index = library.IndexHNSWFlat(vectors.shape[1], links, library.METRIC_INNER_PRODUCT)
            self._index.hnsw.efConstruction = ef_construction
            self._index.add(vectors)

    def search(self, queries: Vectors, depth: int, ef_search: int) -> list[Ranking]:
        """Return the `depth` nearest vectors of a search with so many candidates (at least `depth`). queries (q,
        dims)."""
        if self.library == "hnswlib":
            self._index.set_ef(max(ef_search, depth))
            found, distances = self._index.knn_query(queries, k=depth, num_threads=1)
            return _rankings(found.astype(np.int64), 1.0 - distances)
        self._index.hnsw.efSearch = max(ef_search, depth)
        scores, found = self._index.search(queries, depth)
        return _rankings(found, scores)


def sparse_rankings(texts: Sequence[str], queries: Sequence[Sequence[str]], depth: int) -> list[Ranking]:
    """Rank by BM25 (bm25s, its defaults k1 = 1.5, b = 0.75) over words split at blanks; documents without a word of the
    query are left out."""
    bm25s = _library("bm25s")
    index = bm25s.BM25()
    index.index([text.split() for text in texts], show_progress=False)
    known = index.vocab_dict
    out = []
    for words in queries:
        asked = [word for word in words if word in known]
        if not asked:
            out.append(Ranking([], []))
            continue
        found, scores = index.retrieve([asked], k=min(depth, len(texts)), show_progress=False, n_threads=1)
        held = scores[0] > 0
        out.append(Ranking(found[0][held].tolist(), scores[0][held].astype(float).tolist()))
    return out


def rankings_of(corpus: Corpus, depth: int, graph: Graph | None = None, ef_search: int = 100,
                ) -> tuple[list[Ranking], list[Ranking]]:
    """Return (dense, sparse) rankings of a corpus's queries; dense by exact search, or by a graph."""
    queries = np.array([query.embedding for query in corpus.queries])
    dense = exact_rankings(corpus.embeddings, queries, depth) if graph is None else graph.search(
        queries, depth, ef_search)
    return dense, sparse_rankings(corpus.texts, [query.words for query in corpus.queries], depth)
