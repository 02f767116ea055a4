"""Data for measured indices: generated clustered embeddings or a user's file, and texts for BM25. numpy alone.

Generated embeddings are a mixture: unequal clusters (log-normal weights), members scattered around their centre with a
falling spectrum, everything on the unit sphere. Queries are drawn like the vectors and differ from all of them. Same
seed and sizes, same data.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

__all__ = ["Embeddings", "Texts", "embeddings", "exact_neighbours", "recall", "texts"]

Floats = npt.NDArray[np.float32]
Ints = npt.NDArray[np.int64]

_SPREAD = 0.7        # norm of a member's distance to its centre
_VOCABULARY = 50_000
_ZIPF = 1.07
_DOCUMENT_TOKENS = 100


class Embeddings:
    """`vectors`, shape (vectors, dim), and `queries`, shape (queries, dim); float32, of length 1."""

    def __init__(self, vectors: Floats, queries: Floats) -> None:
        self.vectors, self.queries = vectors, queries


def _unit(rows: Floats) -> Floats:
    norms = np.linalg.norm(rows, axis=1, keepdims=True)
    rows /= np.where(norms > 0, norms, 1.0)
    return rows


def _generated(count: int, dim: int, seed: int) -> Floats:
    rng = np.random.default_rng([seed, count, dim])
    clusters = max(16, count // 500)
    centres = _unit(rng.standard_normal((clusters, dim), dtype=np.float32))
    weights = rng.lognormal(0.0, 1.0, clusters)
    spectrum = rng.permutation((1.0 + np.arange(dim)) ** -0.5).astype(np.float32)
    spectrum *= _SPREAD / np.linalg.norm(spectrum)
    out = np.empty((count, dim), dtype=np.float32)
    for start in range(0, count, 65_536):
        part = out[start : start + 65_536]
        rng.standard_normal(dtype=np.float32, out=part)
        part *= spectrum
        part += centres[rng.choice(clusters, len(part), p=weights / weights.sum())]
        _unit(part)
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
    return Embeddings(_unit(np.array(stored[vectors], dtype=np.float32)), _unit(np.array(stored[others], np.float32)))


def exact_neighbours(data: Embeddings, k: int) -> Ints:
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


def recall(found: npt.NDArray[Any], exact: Ints) -> float:
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
