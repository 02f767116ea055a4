"""Data for measured indices, and the indices behind one interface. Each index imports its library (faiss, bm25s).

Embeddings are a user's file, or a generated mixture: unequal clusters (log-normal weights), members scattered around
their centre with a falling spectrum, everything on the unit sphere. Queries are drawn like the vectors and differ from
all of them. Same seed and sizes, same data. Indices search by inner product; building is seeded.
"""

from __future__ import annotations

import importlib
from collections.abc import Mapping
from pathlib import Path
from types import MappingProxyType
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

from hermes.arrays import IntArray

__all__ = [
    "Embeddings", "Index", "Texts", "build", "embeddings", "exact_neighbours", "library_version", "recall", "texts",
]

Floats = npt.NDArray[np.float32]

_SPREAD = 0.7        # norm of a member's distance to its centre
_VOCABULARY = 50_000
_ZIPF = 1.07
_DOCUMENT_TOKENS = 100

_TRAINING_PER_LIST = 64      # vectors per list that k-means sees; faiss warns below 39
_PQ_TRAINING = 16_384        # vectors and rounds of k-means for the codes: speed does not depend on how good they are
_PQ_ROUNDS = 10


class Embeddings(NamedTuple):
    """`vectors`, shape (vectors, dim), and `queries`, shape (queries, dim); float32, of length 1.

    rewrites: Rewrites of the queries by name, one per query; where the data have them.
    """

    vectors: Floats
    queries: Floats
    rewrites: Mapping[str, Floats] = MappingProxyType({})


def unit(rows: Floats) -> Floats:
    """Bring rows to length 1, in place; return them."""
    norms = np.linalg.norm(rows, axis=1, keepdims=True)
    rows /= np.where(norms > 0, norms, 1.0)
    return rows


def _generated(count: int, dim: int, seed: int) -> Floats:
    rng = np.random.default_rng([seed, count, dim])
    clusters = max(16, count // 500)
    centres = unit(rng.standard_normal((clusters, dim), dtype=np.float32))
    weights = rng.lognormal(0.0, 1.0, clusters)
    spectrum = rng.permutation((1.0 + np.arange(dim)) ** -0.5).astype(np.float32)
    spectrum *= _SPREAD / np.linalg.norm(spectrum)
    out = np.empty((count, dim), dtype=np.float32)
    for start in range(0, count, 65_536):
        part = out[start : start + 65_536]
        rng.standard_normal(dtype=np.float32, out=part)
        part *= spectrum
        part += centres[rng.choice(clusters, len(part), p=weights / weights.sum())]
        unit(part)
    return out


def embeddings(count: int, dim: int, queries: int, seed: int, file: str = "") -> Embeddings:
    """Return `count` vectors and `queries` others; from `file` (.npy, 2-D, at least count + queries rows) if given.

    Raises `ValueError` for a file that does not fit.
    """
    if not file:
        rows = _generated(count + queries, dim, seed)
        return Embeddings(rows[:count], rows[count:])
    try:
        stored = np.load(file, mmap_mode="r", allow_pickle=False)
    except (OSError, ValueError) as error:
        raise ValueError(f"{file}: not a .npy file of numbers ({error})") from None
    if stored.ndim != 2 or stored.shape[1] != dim or len(stored) < count + queries or stored.dtype.kind != "f":
        raise ValueError(f"{file}: {stored.dtype} of shape {stored.shape}; needed: floats, at least "
                         f"{count + queries} rows of {dim}")
    chosen = np.random.default_rng(seed).permutation(len(stored))[: count + queries]
    held = np.sort(chosen[:queries])
    vectors, others = np.sort(chosen[queries:]), held
    return Embeddings(unit(np.array(stored[vectors], dtype=np.float32)), unit(np.array(stored[others], np.float32)))


def exact_neighbours(data: Embeddings, k: int) -> IntArray:
    """Return positions of the k vectors with the largest inner product, shape (queries, k), unordered."""
    best = np.full((len(data.queries), 0), 0, dtype=np.int64)
    scores = np.empty((len(data.queries), 0), dtype=np.float32)
    for start in range(0, len(data.vectors), 32_768):
        product = data.queries @ data.vectors[start : start + 32_768].T
        positions = np.broadcast_to(np.arange(start, start + product.shape[1]), product.shape)
        scores = np.concatenate([scores, product], axis=1)
        best = np.concatenate([best, positions], axis=1)
        if scores.shape[1] > k:
            keep = np.argpartition(-scores, k - 1, axis=1)[:, :k]
            scores, best = np.take_along_axis(scores, keep, 1), np.take_along_axis(best, keep, 1)
    return best


def recall(found: npt.NDArray[Any], exact: IntArray) -> float:
    """Return the share of the exact neighbours that were found; both of shape (queries, k)."""
    hits = sum(len(np.intersect1d(a, b)) for a, b in zip(found, exact, strict=True))
    return hits / exact.size


class Texts:
    """Documents as lists of token numbers below `vocabulary`."""

    def __init__(self, documents: list[list[int]], vocabulary: int) -> None:
        self.documents, self.vocabulary = documents, vocabulary
        self.frequency = np.zeros(vocabulary, dtype=np.int64)
        """Return the documents that hold each token."""
        for document in documents:
            self.frequency[np.unique(document)] += 1

    def queries(self, count: int, tokens: int, seed: int) -> list[list[int]]:
        """Draw `count` queries of `tokens` different words each, words of one document as far as it has so many."""
        rng = np.random.default_rng([seed, count, tokens])
        out = []
        for _ in range(count):
            words: list[int] = []
            while len(words) < tokens:
                document = self.documents[int(rng.integers(len(self.documents)))]
                fresh = np.setdiff1d(document, words)
                words += rng.permutation(fresh)[: tokens - len(words)].tolist()
            out.append(words)
        return out

    def postings(self, queries: list[list[int]]) -> float:
        """Return the mean number of postings of a query."""
        return float(np.mean([self.frequency[query].sum() for query in queries]))


def texts(count: int, seed: int, file: str = "") -> Texts:
    """Return `count` documents: Zipf-distributed words, log-normal lengths around 100; or the first lines of `file`.

    Raises `ValueError` for a file with fewer lines.
    """
    if file:
        return _texts_of(file, count)
    rng = np.random.default_rng([seed, count])
    weights = (1.0 + np.arange(_VOCABULARY)) ** -_ZIPF
    lengths = np.maximum(4, rng.lognormal(np.log(_DOCUMENT_TOKENS), 0.4, count).astype(np.int64))
    cumulative = np.cumsum(weights)
    words = np.searchsorted(cumulative, rng.random(int(lengths.sum())) * cumulative[-1])
    ends = np.cumsum(lengths)
    return Texts([part.tolist() for part in np.split(words, ends[:-1])], _VOCABULARY)


def _texts_of(file: str, count: int) -> Texts:
    numbers: dict[str, int] = {}
    documents: list[list[int]] = []
    try:
        with Path(file).open(encoding="utf-8", errors="replace") as lines:
            for line in lines:
                words = line.lower().split()
                if words and len(documents) < count:
                    documents.append([numbers.setdefault(word, len(numbers)) for word in words])
    except OSError as error:
        raise ValueError(f"{file}: {error.strerror}") from None
    if len(documents) < count:
        raise ValueError(f"{file}: {len(documents)} lines with text; needed: {count}")
    return Texts(documents, len(numbers))


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
        self.faiss: Any = importlib.import_module("faiss")
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

    def __init__(self, data: Embeddings, spec: dict[str, Any], build_threads: int, seed: int = 0) -> None:
        super().__init__(data)
        faiss, vectors, nlist = self.faiss, data.vectors, int(spec["nlist"])
        code = {"ivf-flat": "Flat", "ivf-pq": f"PQ{spec.get('pq_m')}x8np", "ivf-pq-fs": f"PQ{spec.get('pq_m')}x4fs"}
        faiss.omp_set_num_threads(build_threads)
        self.index = faiss.index_factory(vectors.shape[1], f"IVF{nlist},{code[spec['kind']]}",
                                          faiss.METRIC_INNER_PRODUCT)
        if spec["kind"] != "ivf-flat":
            self.index.pq.cp.niter = _PQ_ROUNDS
            self.index.pq.cp.max_points_per_centroid = _PQ_TRAINING // 256
        train = min(len(vectors), max(_TRAINING_PER_LIST * nlist, 0 if spec["kind"] == "ivf-flat" else _PQ_TRAINING))
        chosen = np.random.default_rng(seed).permutation(len(vectors))[:train]
        self.index.train(vectors[np.sort(chosen)])
        self.index.add(vectors)
        self.sizes = np.array([self.index.invlists.list_size(n) for n in range(nlist)])

    def search(self, first: int, batch: int, effort: int, top_k: int, threads: int) -> npt.NDArray[Any]:
        self.faiss.omp_set_num_threads(threads)
        self.index.nprobe = effort
        return np.asarray(self.index.search(self._batch(first, batch), top_k)[1])

    def coarse(self, first: int, batch: int, effort: int) -> bool:
        self.index.quantizer.search(self._batch(first, batch), effort)
        return True

    def work(self, effort: int) -> dict[str, float]:
        lists = self.index.quantizer.search(self._queries, effort)[1]
        return {"codes": float(self.sizes[lists].sum(axis=1).mean())}

    def describe(self) -> dict[str, Any]:
        quantiles = np.percentile(self.sizes, (0, 10, 50, 90, 99, 100))
        filled = np.log(self.sizes[self.sizes > 0])
        return {
            "list_sizes": dict(zip(("min", "p10", "p50", "p90", "p99", "max"), quantiles.tolist(), strict=True)),
            "list_size_log_sigma": float(filled.std()), "code_bytes": int(self.index.code_size),
        }


class HnswIndex(_Embedded):
    """faiss' graph; `effort` is efSearch."""

    def __init__(self, data: Embeddings, spec: dict[str, Any], build_threads: int) -> None:
        super().__init__(data)
        faiss = self.faiss
        faiss.omp_set_num_threads(build_threads)
        self._index = faiss.IndexHNSWFlat(data.vectors.shape[1], int(spec["hnsw_m"]), faiss.METRIC_INNER_PRODUCT)
        self._index.hnsw.efConstruction = int(spec["ef_construction"])
        self._index.add(data.vectors)

    def search(self, first: int, batch: int, effort: int, top_k: int, threads: int) -> npt.NDArray[Any]:
        self.faiss.omp_set_num_threads(threads)
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
