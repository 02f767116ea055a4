"""Evaluation of fusions against relevance judgements: every method on the same rankings of the same queries."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from evidence.retrieval.corpus import Query
from evidence.retrieval.measures import MEASURES, PairedTest, paired_test
from hermes.arrays import FloatArray
from hermes.errors import InputError
from hermes.plugins.structures.fusion import METHODS, Fusion, LearnedFusion, Ranking, fuse

__all__ = ["Judged", "judge"]


@dataclass(frozen=True)
class Judged:
    """Scores of fusions: method -> measure -> value of each judged query, shape (queries,)."""

    scores: Mapping[str, Mapping[str, FloatArray]]

    def mean(self, method: str, measure: str) -> float:
        """Return the mean over the queries."""
        return float(self.scores[method][measure].mean())

    def against(self, method: str, other: str, measure: str) -> PairedTest:
        """Return a paired test of two methods over the same queries."""
        return paired_test(self.scores[method][measure].tolist(), self.scores[other][measure].tolist())


def judge(queries: Sequence[Query], dense: Sequence[Ranking], sparse: Sequence[Ranking], top_k: int = 100) -> Judged:
    """Evaluate every method of `METHODS` and a learned fusion, which is fitted on the first half of the queries. All
    are judged on the second half."""
    if len(queries) < 4:
        raise InputError("at least four judged queries", len(queries))
    half = len(queries) // 2
    learned = LearnedFusion().fit([
        (d, s, set(query.relevant)) for query, d, s in zip(queries[:half], dense, sparse, strict=False)])
    methods: dict[str, Fusion] = {**METHODS, "learned": learned}
    scores: dict[str, dict[str, FloatArray]] = {}
    for name, method in methods.items():
        rankings = [fuse(method, d, s, len(query.words), top_k)
                    for query, d, s in zip(queries[half:], dense[half:], sparse[half:], strict=True)]
        scores[name] = {
            measure: np.array([of(ranking, query.relevant)
                               for ranking, query in zip(rankings, queries[half:], strict=True)])
            for measure, of in MEASURES.items()
        }
    return Judged(scores)
