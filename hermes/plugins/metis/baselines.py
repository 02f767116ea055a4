"""Baselines for METIS's choice: one configuration for all, the best measured F1 at any cost, and hindsight.

Parrot* is `fixed` with the pipeline's `co_schedule`.
"""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Callable, Sequence
from functools import lru_cache
from typing import ClassVar, Literal

import numpy as np

from hermes.config import stream
from hermes.plugins.metis.choosers import CHOOSERS, Chooser, Chooses, QueryState, Setting
from hermes.plugins.metis.datasets import Query, dataset
from hermes.plugins.metis.decision import MAX_CHUNKS, METHODS, Configuration, Lengths, Profile
from hermes.plugins.metis.measured import Queries
from hermes.plugins.metis.quality import Formula, QualityModel

__all__ = ["DECODE_WORTH", "GRIDS", "SAMPLES", "BestMeasured", "grid", "quickest_best", "work"]

DECODE_WORTH = 75
"""Prompt tokens that take as long as one token of an answer: a decode step reads 4 GB of weights at 696 GB/s and
computes little, about 12 ms, against 0.16 ms for each prompt token (Mistral-7B, 4 bits, A40)."""
WORDS = (15, 30, 45, 60, 90, 120, 200, 300)
"""Words of a summary in the grids."""
SAMPLES = 150
"""Answers on which AdaptiveRAG* measures every configuration (METIS's own baseline: 150 samples)."""


def grid(most_chunks: int = MAX_CHUNKS, words: Sequence[int] = WORDS) -> list[Configuration]:
    """Return configurations over the whole range of the knobs, with summaries of some lengths."""
    return [Configuration(method, chunks, length) for method in METHODS for chunks in range(1, most_chunks + 1)
            for length in (words if method == "map_reduce" else (0,))]


def _coarse() -> list[Configuration]:
    """Return every method with chunks in powers of two and three lengths of summaries: 36 to measure, not 350."""
    return [one for one in grid(32, (30, 60, 120)) if one.num_chunks.bit_count() == 1]


GRIDS: dict[str, Callable[[], list[Configuration]]] = {
    "full": grid,
    "words-120": lambda: grid(words=[words for words in WORDS if words <= 120]),
    "coarse": _coarse,
    "chunks": lambda: [Configuration("stuff", chunks) for chunks in range(1, MAX_CHUNKS + 1)],
}
"""Configurations that AdaptiveRAG* measures. The paper does not state them. `full`: the whole range of the knobs;
`words-120`: summaries of up to 120 words; `coarse`: powers of two; `chunks`: numbers of chunks only, all in one
prompt."""


def work(config: Configuration, lengths: Lengths) -> float:
    """Return roughly how long a configuration takes alone, in prompt tokens."""
    (prompt, summary), (last_prompt, answer) = lengths.mapper(config), lengths.last(config)
    count = config.num_chunks if config.method != "stuff" else 0
    return count * prompt + last_prompt + DECODE_WORTH * (summary + answer)


def quickest_best(f1: Sequence[float], works: Sequence[float], within: float) -> int:
    """Return the index of the least work whose F1 is at most the share `within` below the best."""
    least = (1 - within) * max(f1)
    return min((i for i, value in enumerate(f1) if value >= least), key=lambda i: works[i])


@CHOOSERS.register("fixed")
class Fixed(Chooser):
    """One configuration for every query: the pipeline's `method`, `chunks` and `words`."""

    kind: Literal["fixed"] = "fixed"
    profiled: ClassVar[bool] = False

    def begin(self, setting: Setting) -> Chooses:
        return _Fixed(setting.fixed)


class _Fixed(Chooses):
    def __init__(self, configuration: Configuration) -> None:
        self.configuration = configuration

    def choose(self, state: QueryState) -> Configuration:
        return self.configuration


@CHOOSERS.register("hindsight")
class Hindsight(Chooser):
    """The least work within 2% of the query's best F1, which it knows in advance."""

    kind: Literal["hindsight"] = "hindsight"
    profiled: ClassVar[bool] = False

    def begin(self, setting: Setting) -> Chooses:
        return _Hindsight()


class _Hindsight(Chooses):
    def __init__(self) -> None:
        self._grid = grid()

    def choose(self, state: QueryState) -> Configuration:
        works = [work(config, state.lengths) for config in self._grid]
        return self._grid[quickest_best(state.f1_of_each(self._grid), works, 0.02)]


@CHOOSERS.register("adaptive_rag")
class AdaptiveRag(Chooser):
    """AdaptiveRAG*: the configuration of best measured F1 of the query's class, at any cost."""

    kind: Literal["adaptive_rag"] = "adaptive_rag"

    def begin(self, setting: Setting) -> Chooses:
        return _AdaptiveRag(setting)


class _AdaptiveRag(Chooses):
    def __init__(self, setting: Setting) -> None:
        self.setting = setting
        self._best: BestMeasured | None = None

    def choose(self, state: QueryState) -> Configuration:
        if self._best is None:   # the first view says which prompts the model takes
            self._best = self._measured(state.view.max_model_len)
        return self._best.choose(state.known)

    def _measured(self, longest: int | None) -> BestMeasured:
        given, quality = self.setting.parameters, self.setting.quality
        seed = self.setting.seed if given.noise else 0   # without noise every seed measures the same
        settings = given.noise, given.grid, given.tolerance, seed, longest
        if isinstance(quality, Formula) and given.queries is None:
            return _of_data_set(given.dataset, quality, *settings)
        return _best_measured(self.setting.queries, quality, *settings)


@lru_cache(maxsize=64)
def _of_data_set(name: str, quality: Formula, noise: float, grid: str, within: float, seed: int,
                 longest: int | None) -> BestMeasured:
    """Return the measurement of a data set, which the simulations of a sweep share."""
    return _best_measured(Queries(dataset(name), None, ()), quality, noise, grid, within, seed, longest)


def _best_measured(queries: Queries, quality: QualityModel, noise: float, grid: str, within: float, seed: int,
                   longest: int | None) -> BestMeasured:
    """Return the measurement on some queries. The samples are the same in every run, the answers to them differ by
    seed."""
    name = queries.dataset.name
    return BestMeasured(queries, quality, stream(0, f"metis samples/{name}"), stream(seed, f"metis answers/{name}"),
                        noise=noise, grid=grid, within=within, longest=longest)


class BestMeasured:
    """For each class of query (joint reasoning, complexity) the configuration of best measured F1, at any cost.

    Every configuration of a grid answers the queries of a class among `SAMPLES` of the data set. Its measured F1 is the
    mean of those answers' F1, each with a deviation of its own: a model does not answer every query as well as queries
    of this kind are answered on average. So with n queries the mean deviates by noise / sqrt(n).

    Args:
        queries: Draws the samples.
        model: Their true F1.
        samples: Random stream of the sample queries.
        answers: Random stream of the deviations.
        noise: Standard deviation of one answer's F1 around the quality model's; 0: the quality model's F1 itself.
        grid: Name of the grid, of `GRIDS`.
        within: Share of the best measured F1 within which the quickest configuration is taken; 0: the best.
        longest: Most tokens of a prompt and its answer that the serving model takes; longer ones get no answer.
    """

    def __init__(self, queries: Queries, model: QualityModel, samples: np.random.Generator,
                 answers: np.random.Generator, *, noise: float, grid: str, within: float,
                 longest: int | None = None) -> None:
        groups: dict[tuple[bool, bool], list[Query]] = defaultdict(list)
        for number in range(SAMPLES):
            query = queries.draw(number, samples)
            groups[query.profile.joint, query.profile.complex].append(query)
        dataset = queries.dataset
        lengths = dataset.lengths(dataset.question_tokens[1])
        configs = [one for one in GRIDS[grid]()
                   if longest is None or max(sum(lengths.mapper(one)), sum(lengths.last(one))) <= longest]
        works = [work(config, lengths) for config in configs]
        self._best: dict[tuple[bool, bool], Configuration] = {}
        for kind, group in sorted(groups.items()):
            each = [model.f1_of_each(query, configs) for query in group]
            f1 = np.mean(each, axis=0) + noise / math.sqrt(len(group)) * answers.standard_normal(len(configs))
            self._best[kind] = configs[quickest_best(f1.tolist(), works, within)]

    def choose(self, profile: Profile) -> Configuration:
        """Return the configuration for a profile; that of the most similar class if the samples have none of its
        own."""
        kinds = [(profile.joint, profile.complex), (profile.joint, not profile.complex),
                 (not profile.joint, profile.complex), (not profile.joint, not profile.complex)]
        return next(self._best[kind] for kind in kinds if kind in self._best)
