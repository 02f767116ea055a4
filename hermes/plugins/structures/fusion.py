"""Fusion of two rankings of documents, a dense one and a sparse one.

`nasf` is normalised adaptive score fusion: it scales each list's scores to [0, 1] by their minimum and maximum, and
adds them with a weight that depends on the length of the query, since short queries are keywords and long ones
sentences. The module also has the methods that it is compared with. A document missing from a list has the list's
lowest score (normalised: 0). Ties go to the document that comes first in the dense list, then in the sparse one.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from hermes.arrays import FloatArray
from hermes.errors import InputError

__all__ = ["METHODS", "Fusion", "LearnedFusion", "Ranking", "adaptive_alpha", "fuse", "min_max", "z_scores"]

Scores = FloatArray


@dataclass(frozen=True)
class Ranking:
    """Documents with their scores, best first, shapes (n,). Higher is better."""

    documents: Sequence[int]
    scores: Sequence[float]

    def __post_init__(self) -> None:
        if len(self.documents) != len(self.scores):
            raise InputError("as many scores as documents", f"{len(self.scores)} for {len(self.documents)}")
        if len(set(self.documents)) != len(self.documents):
            raise InputError("each document once in a ranking", "one that comes twice")


def adaptive_alpha(query_tokens: int) -> float:
    """Return the weight of the dense score: 0.7 above 10 tokens, 0.5 from 5 to 10, 0.3 below."""
    return 0.7 if query_tokens > 10 else 0.5 if query_tokens >= 5 else 0.3


def min_max(scores: Scores) -> Scores:
    """Scale scores to [0, 1]; all 1 if they are equal. Empty stays empty."""
    if not len(scores):
        return scores
    low, high = scores.min(), scores.max()
    return np.ones_like(scores) if high == low else (scores - low) / (high - low)


def z_scores(scores: Scores) -> Scores:
    """Return scores as deviations from their mean, in standard deviations; all 0 if they are equal."""
    if not len(scores):
        return scores
    spread = scores.std()
    return np.zeros_like(scores) if spread == 0 else (scores - scores.mean()) / spread


def _aligned(dense: Ranking, sparse: Ranking, scale: Callable[[Scores], Scores]) -> tuple[list[int], Scores, Scores]:
    """Return all documents of the two lists, in order of appearance, and their scaled scores in each."""
    documents = list(dict.fromkeys([*dense.documents, *sparse.documents]))
    place = {document: i for i, document in enumerate(documents)}
    columns = []
    for ranking in (dense, sparse):
        scaled = scale(np.asarray(ranking.scores, dtype=np.float64))
        column = np.full(len(documents), scaled.min() if len(scaled) else 0.0)
        column[[place[document] for document in ranking.documents]] = scaled
        columns.append(column)
    return documents, columns[0], columns[1]


def _identity(scores: Scores) -> Scores:
    return scores


# (dense, sparse, tokens of the query) -> documents, their scores
Fusion = Callable[[Ranking, Ranking, int], tuple[list[int], Scores]]


def _weighted(scale: Callable[[Scores], Scores], alpha: float | None) -> Fusion:
    """Return a weighted sum as a method. alpha None: adaptive."""

    def method(dense: Ranking, sparse: Ranking, query_tokens: int) -> tuple[list[int], Scores]:
        weight = adaptive_alpha(query_tokens) if alpha is None else alpha
        documents, d, s = _aligned(dense, sparse, scale)
        return documents, weight * d + (1 - weight) * s

    return method


def _reciprocal_rank(dense: Ranking, sparse: Ranking, query_tokens: int) -> tuple[list[int], Scores]:
    """Sum of 1 / (60 + rank), ranks from 1 (Cormack et al., SIGIR 2009)."""
    total: dict[int, float] = dict.fromkeys([*dense.documents, *sparse.documents], 0.0)
    for ranking in (dense, sparse):
        for rank, document in enumerate(ranking.documents, 1):
            total[document] += 1.0 / (60 + rank)
    return list(total), np.array(list(total.values()))


def _only(which: int) -> Fusion:
    def method(dense: Ranking, sparse: Ranking, query_tokens: int) -> tuple[list[int], Scores]:
        chosen = (dense, sparse)[which]
        return list(chosen.documents), np.asarray(chosen.scores, dtype=np.float64)

    return method


METHODS: Mapping[str, Fusion] = {   # read-only: pass another method to `fuse` as a function
    "nasf": _weighted(min_max, None),
    "normalised": _weighted(min_max, 0.5),       # NASF without the adaptive weight
    "adaptive": _weighted(_identity, None),      # NASF without the normalisation
    "naive": _weighted(_identity, 0.5),          # half of the plain sum: the same order
    "rrf": _reciprocal_rank,
    "z_score": _weighted(z_scores, 0.5),
    "dense": _only(0),
    "sparse": _only(1),
}


def fuse(method: str | Fusion, dense: Ranking, sparse: Ranking, query_tokens: int, top_k: int) -> list[int]:
    """Return the best `top_k` documents of two rankings. `method`: a name in `METHODS`, or a function."""
    if isinstance(method, str):
        if method not in METHODS:
            raise InputError(f"one of {', '.join(METHODS)}", method)
        method = METHODS[method]
    documents, scores = method(dense, sparse, query_tokens)
    best = np.argsort(-scores, kind="stable")[:top_k]
    return [documents[i] for i in best]


class LearnedFusion:
    """A linear combination of the two normalised scores, fitted to judged queries by ridge regression.

    Callable like the other methods. Features: the two scores brought to [0, 1], and their product.
    """

    def __init__(self, ridge: float = 1e-3) -> None:
        self.ridge = ridge
        self.weights_: Scores | None = None

    @staticmethod
    def _features(dense: Ranking, sparse: Ranking) -> tuple[list[int], Scores]:
        documents, d, s = _aligned(dense, sparse, min_max)
        return documents, np.column_stack([d, s, d * s, np.ones_like(d)])

    def fit(self, queries: Sequence[tuple[Ranking, Ranking, set[int]]]) -> LearnedFusion:
        """Fit the weights. queries: (dense, sparse, relevant documents) of each judged query."""
        if not queries:
            raise InputError("at least one judged query to learn from", 0)
        rows, wanted = [], []
        for dense, sparse, relevant in queries:
            documents, features = self._features(dense, sparse)
            rows.append(features)
            wanted.append(np.array([float(document in relevant) for document in documents]))
        x, y = np.concatenate(rows), np.concatenate(wanted)
        self.weights_ = np.linalg.solve(x.T @ x + self.ridge * np.eye(x.shape[1]), x.T @ y)
        return self

    def __call__(self, dense: Ranking, sparse: Ranking, query_tokens: int) -> tuple[list[int], Scores]:
        if self.weights_ is None:
            raise InputError("a fusion that has been fitted", "one that has not")
        documents, features = self._features(dense, sparse)
        return documents, features @ self.weights_
