"""Measured indices behind one interface. Each imports its library (faiss, bm25s) itself.

Embeddings are of length 1 and searched by inner product. Building is seeded: faiss trains with its own fixed seed.
"""

from __future__ import annotations

import importlib
from typing import Any

import numpy as np
import numpy.typing as npt

from hermes.calibration.collect.retrieval_data import Embeddings, Texts

__all__ = ["Index", "build", "library_version"]

_TRAINING_PER_LIST = 64      # vectors per list that k-means sees; faiss warns below 39
_PQ_TRAINING = 16_384        # vectors and rounds of k-means for the codes: speed does not depend on how good they are
_PQ_ROUNDS = 10


class Index:
    """A built index, and the queries it is measured with."""

    library: str
    queries: int
    """Number of queries."""

    def search(self, first: int, batch: int, effort: int, top_k: int, threads: int) -> npt.NDArray[Any]:
        """Return positions found for the queries first, first + 1, ... (with wrap-around), shape (batch, top_k)."""
        raise NotImplementedError

    def coarse(self, first: int, batch: int, effort: int) -> bool:
        """Run only the search for the lists to probe, with the last search's threads; False if there is no such
        stage."""
        return False

    def work(self, effort: int) -> dict[str, float]:
        """Return a query's costs in countable units, mean over the queries: `codes` scanned, or `postings`."""
        return {}

    def describe(self) -> dict[str, Any]:
        """Return sizes: of lists, of the index in memory."""
        return {}


class _Embedded(Index):
    """An index of embeddings, built by faiss."""

    library = "faiss"

    def __init__(self, data: Embeddings) -> None:
        self._faiss: Any = importlib.import_module("faiss")
        self._queries, self.queries = data.queries, len(data.queries)

    def _batch(self, first: int, batch: int) -> npt.NDArray[np.float32]:
        return np.take(self._queries, np.arange(first, first + batch), axis=0, mode="wrap")


def library_version(name: str) -> str:
    """Return the version of a library, "" if it is not installed."""
    try:
        return str(getattr(importlib.import_module(name), "__version__", "?"))
    except ImportError:
        return ""


class IvfIndex(_Embedded):
    """faiss: inverted lists with flat vectors (`ivf-flat`), 8-bit PQ codes (`ivf-pq`) or 4-bit ones scanned in
    registers (`ivf-pq-fs`)."""

    def __init__(self, data: Embeddings, spec: dict[str, Any], build_threads: int) -> None:
        super().__init__(data)
        faiss, vectors, nlist = self._faiss, data.vectors, int(spec["nlist"])
        code = {"ivf-flat": "Flat", "ivf-pq": f"PQ{spec.get('pq_m')}x8np", "ivf-pq-fs": f"PQ{spec.get('pq_m')}x4fs"}
        faiss.omp_set_num_threads(build_threads)
        self._index = faiss.index_factory(vectors.shape[1], f"IVF{nlist},{code[spec['kind']]}",
                                          faiss.METRIC_INNER_PRODUCT)
        if spec["kind"] != "ivf-flat":
            self._index.pq.cp.niter = _PQ_ROUNDS
            self._index.pq.cp.max_points_per_centroid = _PQ_TRAINING // 256
        train = min(len(vectors), max(_TRAINING_PER_LIST * nlist, 0 if spec["kind"] == "ivf-flat" else _PQ_TRAINING))
        chosen = np.random.default_rng(0).permutation(len(vectors))[:train]
        self._index.train(vectors[np.sort(chosen)])
        self._index.add(vectors)
        self._sizes = np.array([self._index.invlists.list_size(n) for n in range(nlist)])

    def search(self, first: int, batch: int, effort: int, top_k: int, threads: int) -> npt.NDArray[Any]:
        self._faiss.omp_set_num_threads(threads)
        self._index.nprobe = effort
        return np.asarray(self._index.search(self._batch(first, batch), top_k)[1])

    def coarse(self, first: int, batch: int, effort: int) -> bool:
        self._index.quantizer.search(self._batch(first, batch), effort)
        return True

    def work(self, effort: int) -> dict[str, float]:
        lists = self._index.quantizer.search(self._queries, effort)[1]
        return {"codes": float(self._sizes[lists].sum(axis=1).mean())}

    def describe(self) -> dict[str, Any]:
        quantiles = np.percentile(self._sizes, (0, 10, 50, 90, 99, 100))
        filled = np.log(self._sizes[self._sizes > 0])
        return {
            "list_sizes": dict(zip(("min", "p10", "p50", "p90", "p99", "max"), quantiles.tolist(), strict=True)),
            "list_size_log_sigma": float(filled.std()), "code_bytes": int(self._index.code_size),
        }


class HnswIndex(_Embedded):
    """faiss' graph; `effort` is efSearch."""

    def __init__(self, data: Embeddings, spec: dict[str, Any], build_threads: int) -> None:
        super().__init__(data)
        faiss = self._faiss
        faiss.omp_set_num_threads(build_threads)
        self._index = faiss.IndexHNSWFlat(data.vectors.shape[1], int(spec["hnsw_m"]), faiss.METRIC_INNER_PRODUCT)
        self._index.hnsw.efConstruction = int(spec["ef_construction"])
        self._index.add(data.vectors)

    def search(self, first: int, batch: int, effort: int, top_k: int, threads: int) -> npt.NDArray[Any]:
        self._faiss.omp_set_num_threads(threads)
        self._index.hnsw.efSearch = max(effort, top_k)
        return np.asarray(self._index.search(self._batch(first, batch), top_k)[1])


class Bm25Index(Index):
    """bm25s; `effort` is the number of words of a query."""

    library = "bm25s"

    def __init__(self, data: Texts, count: int, efforts: list[int], seed: int) -> None:
        bm25s: Any = importlib.import_module("bm25s")

        self.queries = count
        self._model = bm25s.BM25(backend="numpy")
        vocabulary = {str(n): n for n in range(data.vocabulary)}
        self._model.index((data.documents, vocabulary), show_progress=False)
        self._asked = {effort: data.queries(count, effort, seed) for effort in efforts}
        self._postings = {effort: data.postings(asked) for effort, asked in self._asked.items()}

    def search(self, first: int, batch: int, effort: int, top_k: int, threads: int) -> npt.NDArray[Any]:
        asked = self._asked[effort]
        chosen = [[str(word) for word in asked[(first + n) % len(asked)]] for n in range(batch)]
        found = self._model.retrieve(chosen, k=top_k, n_threads=threads if threads > 1 else 0, show_progress=False)
        return np.asarray(found.documents)

    def work(self, effort: int) -> dict[str, float]:
        return {"postings": self._postings[effort]}


def build(data: Any, spec: dict[str, Any], *, seed: int, build_threads: int, queries: int, efforts: list[int]) -> Index:
    """Build the index of a plan. Raises `ImportError` if its library is missing."""
    if spec["kind"] == "bm25":
        return Bm25Index(data, queries, efforts, seed)
    return (HnswIndex if spec["kind"] == "hnsw" else IvfIndex)(data, spec, build_threads)
