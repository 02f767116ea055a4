"""Baselines for METIS's choice: the middle of the pruned space, the best F1 at any cost, and hindsight."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Sequence

import numpy as np

from hermes.plugins.metis.datasets import Dataset, Query
from hermes.plugins.metis.decision import MAX_CHUNKS, METHODS, Configuration, Lengths, Profile, Space
from hermes.plugins.metis.quality import QualityModel

__all__ = ["DECODE_WORTH", "AdaptiveRag", "grid", "median", "quickest_best", "work"]

DECODE_WORTH = 75
"""Prompt tokens that take as long as one token of an answer: a decode step reads 4 GB of weights at 696 GB/s and
computes little, about 12 ms, against 0.16 ms for each prompt token (Mistral-7B, 4 bits, A40)."""
_WORDS = (15, 30, 45, 60, 90, 120, 200, 300)


def grid(most_chunks: int = MAX_CHUNKS) -> list[Configuration]:
    """Return configurations over the whole range of the knobs, with summaries of some lengths."""
    return [Configuration(method, chunks, words) for method in METHODS for chunks in range(1, most_chunks + 1)
            for words in (_WORDS if method == "map_reduce" else (0,))]


def median(space: Space) -> Configuration:
    """Return the middle of a pruned space: its last method (map_reduce if it is left), with median chunks and
    summaries."""
    box = space[-1]
    return Configuration(box.method, sum(box.chunks) // 2, sum(box.words) // 2)


def work(config: Configuration, lengths: Lengths) -> float:
    """Return roughly how long a configuration takes alone, in prompt tokens."""
    (prompt, summary), (last_prompt, answer) = lengths.mapper(config), lengths.last(config)
    count = config.num_chunks if config.method != "stuff" else 0
    return count * prompt + last_prompt + DECODE_WORTH * (summary + answer)


def quickest_best(f1: Sequence[float], works: Sequence[float], within: float) -> int:
    """Return the index of the least work whose F1 is at most the share `within` below the best."""
    least = (1 - within) * max(f1)
    return min((i for i, value in enumerate(f1) if value >= least), key=lambda i: works[i])


class AdaptiveRag:
    """AdaptiveRAG*: for each class of query (joint reasoning, complexity) the configuration of best F1, at any cost.

    It is measured on `samples` queries of the data set. Measured F1 cannot tell differences below 1%, so it takes the
    quickest of those (`within` 0 takes the best to the last digit: the longest summaries).
    """

    def __init__(self, dataset: Dataset, model: QualityModel, rng: np.random.Generator, *, samples: int = 150,
                 within: float = 0.01) -> None:
        queries: dict[tuple[bool, bool], list[Query]] = defaultdict(list)
        for _ in range(samples):
            query = dataset.draw(rng)
            queries[query.profile.joint, query.profile.complex].append(query)
        configs = grid()
        works = [work(config, dataset.lengths(dataset.question_tokens[1])) for config in configs]
        self._best: dict[tuple[bool, bool], Configuration] = {}
        for kind, group in queries.items():
            each = [model.f1_of_each(q.profile, q.heavy_ranks if model.heavy_tail else q.ranks, configs) for q in group]
            f1 = [sum(of_one) for of_one in zip(*each, strict=True)]
            self._best[kind] = configs[quickest_best(f1, works, within)]

    def choose(self, profile: Profile) -> Configuration:
        """Return the configuration for a profile; that of the most similar class if the samples have none of its
        own."""
        kinds = [(profile.joint, profile.complex), (profile.joint, not profile.complex),
                 (not profile.joint, profile.complex), (not profile.joint, not profile.complex)]
        return next(self._best[kind] for kind in kinds if kind in self._best)
