"""Model of answer quality: F1 as a function of a query's true profile and of the configuration that answered it.

A simulation writes no text, so quality is a model: one registered in `QUALITY`, as the `quality` of the pipeline. The
shipped `Formula` is stated in full:

    F1 = (floor + (1 - floor) * covered) * synthesis * dilution * summaries          (1 is the best attainable)

- covered: share of the needed pieces among the chunks that were read, from the rank of each in the retrieval. The ranks
  are drawn with the query (`datasets`), independently of the numbers of chunks that the pruning rule allows.
- synthesis: joint reasoning loses 1/1.35 with map_rerank, which sees one chunk at a time; high complexity loses 1/1.30
  without map_reduce (METIS measured gains of about 35% and 30%).
- dilution: unneeded chunks cost up to 20% (measured there too; "Lost in the middle", Liu et al. 2023, finds the same
  order for 10 to 30 documents): 1 - 0.2 (1 - exp(-u / 10)) for u of them in one prompt. Calls that see one chunk each
  lose half as much (`seen_apart`, assumed): an irrelevant chunk still competes for the answer.
- summaries: 1 - exp(-tokens / t). Simple queries saturate at 10-20 tokens, t = 5; complex ones need 70-100, t = 28.

The model decides signs and orderings. Sizes follow from the assumptions, so studies also run alternatives. `measured`
takes F1 from a file instead (`hermes.plugins.metis.measured`).
"""

from __future__ import annotations

import math
from bisect import bisect_right
from collections.abc import Iterable, Sequence
from typing import Annotated, Any, Literal

from pydantic import Field

from hermes.config import ConfigModel, Registry
from hermes.plugins.metis.datasets import Query
from hermes.plugins.metis.decision import Configuration, Profile, summary_tokens

__all__ = ["FORMULAS", "QUALITY", "Formula", "Quality", "QualityModel"]


class QualityModel:
    """What answers in a simulation. It must not change: equal queries and configurations have equal F1."""

    @property
    def queries(self) -> Sequence[str]:
        """Names of the queries that the model knows, empty if it knows every query. Without a file of queries, the n-th
        request asks the n-th of them, and the first again after the last."""
        return ()

    def f1(self, query: Query, config: Configuration) -> float:
        """Return the F1 of the answer, 0 to 1. Called once for each request when its configuration is chosen, and again
        after a step that changes its query."""
        raise NotImplementedError

    def f1_of_each(self, query: Query, configs: Iterable[Configuration]) -> list[float]:
        """Return the F1 of each configuration. Called by choosers that know or measure quality, for whole grids."""
        return [self.f1(query, config) for config in configs]

    def is_measured(self, query: Query, config: Configuration) -> bool | None:
        """Return whether this very F1 was measured, or stands for that of another configuration; None, the default,
        for a model without measurements. Results show the share of the requests."""
        return None

    def answer_tokens(self, query: Query, config: Configuration) -> int | None:
        """Return the tokens of the answer; None, the default, for those of the query. Called once for each request."""
        return None


class Quality(ConfigModel, QualityModel):
    """Base of quality models. Derive from it, give `kind` and fields, write `f1`, and register the class in `QUALITY`.
    """

    def opened(self) -> QualityModel:
        """Return the model that answers, by default itself. Called once before a simulation: read files here."""
        return self


QUALITY: Registry[Any] = Registry("metis_quality", "a model of answer quality", {
    "measured": "hermes.plugins.metis.measured:Measured",
}, base=Quality)

Share = Annotated[float, Field(ge=0, le=1)]
Gain = Annotated[float, Field(ge=1, le=100)]
Scale = Annotated[float, Field(gt=0, le=1e6)]


class Formula(Quality):
    """The module's formula, with its parameters."""

    kind: str
    floor: Share = 0.2
    """F1 of an answer without any needed piece."""
    joint_gain: Gain = 1.35
    """Gain of methods that see chunks together, where the query reasons jointly."""
    complex_gain: Gain = 1.30
    """Gain of map_reduce on queries of high complexity."""
    dilution: Share = 0.2
    """Most that chunks without a needed piece cost."""
    dilution_chunks: Scale = 10.0
    """Chunks without a needed piece that cost 63% of it."""
    seen_apart: Share = 0.5
    """Share of that cost in calls that see one chunk each."""
    simple_tokens: Scale = 5.0
    """Tokens of a summary that keep 63% of a chunk, for simple queries."""
    complex_tokens: Scale = 28.0
    """The same for complex ones."""
    whole: bool = False
    """Whether joint reasoning needs all pieces, and scores nothing otherwise."""
    heavy_tail: bool = False
    """Whether pieces rank as in open-domain retrieval."""

    def ranks(self, query: Query) -> tuple[int, ...]:
        """Return the ranks of the query's pieces."""
        return query.heavy_ranks if self.heavy_tail else query.ranks

    def f1(self, query: Query, config: Configuration) -> float:
        profile, ranks = query.profile, self.ranks(query)
        found = sum(rank <= config.num_chunks for rank in ranks)
        covered = found / len(ranks)
        if self.whole and profile.joint:
            covered = float(found == len(ranks))
        return ((self.floor + (1 - self.floor) * covered) * self.synthesis(profile, config.method)
                * self.diluted(config.num_chunks - found, config.method) * self.summarised(profile, config))

    def f1_of_each(self, query: Query, configs: Iterable[Configuration]) -> list[float]:
        """Return the `f1` of each configuration; the common part is computed once."""
        profile, ordered = query.profile, sorted(self.ranks(query))
        pieces = len(ordered)
        synthesis: dict[str, float] = {}
        diluted: dict[tuple[int, str], float] = {}
        summarised: dict[tuple[str, int], float] = {}
        out = []
        for config in configs:
            method = config.method
            found = bisect_right(ordered, config.num_chunks)
            covered = float(found == pieces) if self.whole and profile.joint else found / pieces
            if method not in synthesis:
                synthesis[method] = self.synthesis(profile, method)
            in_vain, summary = (config.num_chunks - found, method), (method, config.summary_words)
            if in_vain not in diluted:
                diluted[in_vain] = self.diluted(*in_vain)
            if summary not in summarised:
                summarised[summary] = self.summarised(profile, config)
            out.append((self.floor + (1 - self.floor) * covered) * synthesis[method] * diluted[in_vain]
                       * summarised[summary])
        return out

    def synthesis(self, profile: Profile, method: str) -> float:
        """Return the loss of the method on a query of this kind."""
        lost = self.joint_gain if profile.joint and method == "map_rerank" else 1.0
        return 1 / (lost * (self.complex_gain if profile.complex and method != "map_reduce" else 1.0))

    def diluted(self, not_needed: int, method: str) -> float:
        """Return the loss from irrelevant chunks."""
        part = 1.0 if method == "stuff" else self.seen_apart
        return 1 - part * self.dilution * (1 - math.exp(-not_needed / self.dilution_chunks))

    def summarised(self, profile: Profile, config: Configuration) -> float:
        """Return the share of a chunk's content that its summary keeps."""
        if config.method != "map_reduce":
            return 1.0
        scale = self.complex_tokens if profile.complex else self.simple_tokens
        return 1 - math.exp(-summary_tokens(config.summary_words) / scale)


@QUALITY.register("default")
class Default(Formula):
    """The study's model."""

    kind: Literal["default"] = "default"


@QUALITY.register("heavy-tail")
class HeavyTail(Formula):
    """Pieces that are found late or never."""

    kind: Literal["heavy-tail"] = "heavy-tail"
    heavy_tail: bool = True


@QUALITY.register("weak-synthesis")
class WeakSynthesis(Formula):
    """Methods that hardly differ."""

    kind: Literal["weak-synthesis"] = "weak-synthesis"
    joint_gain: Gain = 1.1
    complex_gain: Gain = 1.1


@QUALITY.register("all-or-nothing")
class AllOrNothing(Formula):
    """Joint reasoning that needs all pieces and hardly suffers from irrelevant chunks."""

    kind: Literal["all-or-nothing"] = "all-or-nothing"
    whole: bool = True
    floor: Share = 0.1
    dilution: Share = 0.1


@QUALITY.register("diluted-mappers")
class DilutedMappers(Formula):
    """Irrelevant chunks that cost as much apart as in one prompt."""

    kind: Literal["diluted-mappers"] = "diluted-mappers"
    seen_apart: Share = 1.0


FORMULAS: dict[str, Formula] = {one.kind: one for one in (
    Default(), HeavyTail(), WeakSynthesis(), AllOrNothing(), DilutedMappers())}
"""The study's model, and the alternatives for its conclusions."""
