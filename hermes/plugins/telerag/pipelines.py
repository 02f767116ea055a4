"""The six pipelines of the paper, with lookahead where it has it.

A request is a batch of `batch` queries that go through the pipeline in step: their generations run side by side, and
each retrieval is one for all of them. What a query draws (lengths, whether it is confident, how often it goes round)
depends on its request's number and the pipeline alone.
"""

from __future__ import annotations

import math
import random
from collections.abc import Callable, Generator, Iterator, Sequence
from typing import Annotated, Any, Literal

from pydantic import Field, model_validator

from hermes.config import Bandwidth, Bytes, ConfigModel, request_stream
from hermes.errors import InputError
from hermes.pipelines import PIPELINES, Generate
from hermes.plugins.telerag.budget import Budget
from hermes.plugins.telerag.retrieval import KINDS, Mode, Retriever

__all__ = [
    "PIPELINE_NAMES", "Flare", "Hyde", "IterRetGen", "Iterative", "LookaheadPipeline", "SelfRag", "SubQuestion",
]

Count = Annotated[int, Field(ge=1, le=2**31)]
Share = Annotated[float, Field(ge=0, le=1)]
Steps = Generator[Any, Any, None]


class LookaheadPipeline(ConfigModel):
    """What the pipelines have in common."""

    retrieval: Mode = "lookahead"
    """`offload` (CPU), `resident` (all on the GPU), `on_demand` (copied when the query is known), `lookahead`."""
    late: Literal["wait", "give_up"] = "wait"
    """What becomes of a copy that outlasts the generation beside it."""
    budget: Bytes | Literal["profiled"] = 3 * 10**9
    """Bytes of one prefetch at most; `profiled`: what `link` moves in the mean window of the first `profile_queries`
    queries, which search on the CPU meanwhile."""
    link: Bandwidth | None = None
    """Measured bandwidth from the host to the GPU: for `budget: profiled`, which needs it."""
    profile_queries: Count = 64
    """Queries of that profiling pass."""
    chunk: Bytes = 64 * 2**20
    """Bytes of a copy that are given up or waited for together."""
    keep: bool = False
    """Whether clusters stay on the GPU until the request is done."""
    strength: Annotated[float, Field(ge=0, le=100)] = 0.1
    """How far a rewrite moves the query: of the index's family (`hermes.plugins.telerag.overlap.families`)."""
    nprobe: Count = 256
    """Clusters of a search."""
    top_k: Count = 3
    """Passages of a search."""
    passage_tokens: Count = 100
    """Tokens of a passage."""
    batch: Annotated[int, Field(ge=1, le=1024)] = 1
    """Queries of a request."""
    window: Count = 32
    """Mean tokens of the generation before a retrieval."""
    window_sigma: Annotated[float, Field(ge=0, le=3)] = 0.0
    """Log-normal sigma of that length from query to query."""
    embed: bool = True
    """Whether queries are embedded (a stage `embed` at the GPU)."""

    @model_validator(mode="after")
    def _link_known(self) -> LookaheadPipeline:
        if self.budget == "profiled" and self.link is None:
            raise InputError("a bandwidth, for the budget is profiled", None, field="link")
        return self

    def build(self, name: str, seed: int) -> Callable[[Any], Iterator[Any]]:
        """The pipeline; `name` and `seed` give each request its own random numbers."""
        return _Built(self, name, seed)

    def steps(self, run: Run) -> Steps:
        """What a request does."""
        raise NotImplementedError


class _Built:
    """A pipeline with its parameters: calling it with a request gives the generator."""

    def __init__(self, config: LookaheadPipeline, name: str, seed: int) -> None:
        self.config, self.name, self.seed = config, name, seed
        self.stages = ("generate", *KINDS[config.retrieval], *(("embed",) if config.embed else ()))
        given = None if config.budget == "profiled" else config.budget
        self.budget = Budget(given, link=config.link or 0.0, queries=config.profile_queries, batch=config.batch)
        self.stage_options = {kind: {"scan_bytes": None} for kind in self.stages if kind.endswith("_search")}

    def __call__(self, request: Any) -> Iterator[Any]:
        timed = self.budget.enter()
        try:
            run = Run(self.config, request, request_stream(self.seed, f"{self.name}/{request.id}"), self.budget, timed)
            yield from self.config.steps(run)
            yield from run.retriever.finish()
        finally:   # a rejected request closes its generator
            if timed:
                self.budget.leave()


class Run:
    """A request on its way: its queries, and the generations of those still active."""

    def __init__(
        self, config: LookaheadPipeline, request: Any, rng: random.Random, budget: Budget, timed: bool,
    ) -> None:
        self.config, self.request, self.rng = config, request, rng
        self.budget, self.timed = budget, timed
        self.everybody = tuple(range(config.batch))
        num_bytes = budget.num_bytes
        ahead = config.retrieval == "lookahead"
        self.retriever = Retriever(
            request, "offload" if ahead and num_bytes is None else config.retrieval, late=config.late,
            budget=num_bytes or 0, nprobe=config.nprobe,
            chunk=config.chunk, keep=config.keep, embed_tokens=request.prompt_tokens if config.embed else 0,
        )

    def tokens(self, mean: int) -> int:
        """A length around the mean."""
        sigma = self.config.window_sigma
        if not sigma:
            return mean
        return max(1, round(mean * math.exp(self.rng.gauss(0.0, sigma) - sigma**2 / 2)))

    def passages(self, searches: int = 1) -> int:
        """Tokens of what was found."""
        return searches * self.config.top_k * self.config.passage_tokens

    def generations(self, queries: Sequence[int], read: int, mean: int | None) -> list[Any]:
        """One for each query: the question and `read` tokens more; of about `mean` tokens (the request's, if None)."""
        request = self.request
        return [
            Generate(request.prompt_tokens + read, request.output_tokens if mean is None else self.tokens(mean),
                     request.priority, request)
            for _ in queries
        ]

    def generate(self, queries: Sequence[int], read: int, mean: int | None) -> Steps:
        """Generate for these queries side by side, with nothing beside it."""
        if queries:
            yield tuple(self.generations(queries, read, mean))

    def look_ahead(self, queries: Sequence[int], read: int = 0) -> Steps:
        """Generate what the next retrieval asks with, and prefetch meanwhile."""
        yield from self.retriever.window(self.generations(queries, read, self.config.window), queries)
        if self.timed:
            self.budget.timed(self.retriever.window_ns)

    def drawn(self, queries: Sequence[int], share: float) -> list[int]:
        """Those of the queries to which something happens that has this probability."""
        return [query for query in queries if self.rng.random() < share]


@PIPELINES.register("telerag-hyde")
class Hyde(LookaheadPipeline):
    """HyDE: a hypothetical passage, retrieval with it, the answer."""

    def steps(self, run: Run) -> Steps:
        yield from run.look_ahead(run.everybody)
        yield from run.retriever.retrieve(run.everybody, self.strength)
        yield from run.generate(run.everybody, run.passages(), None)


@PIPELINES.register("telerag-subquestion")
class SubQuestion(LookaheadPipeline):
    """Sub-questions, retrieval for all of them in one batch, the answer."""

    questions: Annotated[int, Field(ge=1, le=64)] = 3
    """Sub-questions of a query, at least."""
    one_more: Share = 0.5
    """Share of the batches with one more."""

    def steps(self, run: Run) -> Steps:
        asked = self.questions + bool(run.drawn([0], self.one_more))
        yield from run.look_ahead(run.everybody)
        yield from run.retriever.retrieve(run.everybody, self.strength, asked)
        yield from run.generate(run.everybody, run.passages(asked), None)


@PIPELINES.register("telerag-iterative")
class Iterative(LookaheadPipeline):
    """A narrower question, retrieval, an answer, a judgement; again until it is good."""

    again: Share = 0.5
    """Probability that an answer is not good enough."""
    max_rounds: Annotated[int, Field(ge=1, le=100)] = 3
    """Rounds at most."""
    judgement: Count = 4
    """Tokens of a judgement."""

    def steps(self, run: Run) -> Steps:
        active: Sequence[int] = run.everybody
        for number in range(self.max_rounds):
            yield from run.look_ahead(active)
            yield from run.retriever.retrieve(active, self.strength)
            yield from run.generate(active, run.passages(), None)
            yield from run.generate(active, run.passages() + run.request.output_tokens, self.judgement)
            active = run.drawn(active, self.again)
            if not active or number + 1 == self.max_rounds:
                return


@PIPELINES.register("telerag-iter-retgen")
class IterRetGen(LookaheadPipeline):
    """(Retrieve, generate) several times; each generation is the next retrieval's window. The first has none."""

    rounds: Annotated[int, Field(ge=1, le=100)] = 3
    """Rounds."""

    def steps(self, run: Run) -> Steps:
        for number in range(self.rounds):
            yield from run.retriever.retrieve(run.everybody, self.strength if number else 0.0)
            if number + 1 < self.rounds:
                yield from run.look_ahead(run.everybody, run.passages())
        yield from run.generate(run.everybody, run.passages(), None)


@PIPELINES.register("telerag-flare")
class Flare(LookaheadPipeline):
    """A sentence at a time; one that the model is not sure of is written again with what was found for it."""

    unsure: Share = 0.5
    """Share of the sentences that are looked up."""
    max_sentences: Annotated[int, Field(ge=1, le=1000)] = 100
    """Sentences of an answer at most."""

    def steps(self, run: Run) -> Steps:
        sentences = min(self.max_sentences, max(1, round(run.request.output_tokens / self.window)))
        for number in range(sentences):
            written = number * self.window
            yield from run.look_ahead(run.everybody, written)
            unsure = run.drawn(run.everybody, self.unsure)
            if unsure:
                yield from run.retriever.retrieve(unsure, self.strength)
                yield from run.generate(unsure, written + run.passages(), self.window)


@PIPELINES.register("telerag-self-rag")
class SelfRag(LookaheadPipeline):
    """A judgement whether to retrieve, retrieval with the query as it is, the answer, a critique."""

    needed: Share = 1.0
    """Share of the queries that retrieval is needed for."""
    critique: Count = 6
    """Tokens of the critique."""

    def steps(self, run: Run) -> Steps:
        yield from run.look_ahead(run.everybody)
        asking = run.drawn(run.everybody, self.needed)
        if asking:
            yield from run.retriever.retrieve(asking, 0.0)
        yield from run.generate(asking, run.passages(), None)
        yield from run.generate([q for q in run.everybody if q not in asking], 0, None)
        yield from run.generate(run.everybody, run.passages() + run.request.output_tokens, self.critique)


PIPELINE_NAMES = {
    "HyDE": "telerag-hyde", "SubQ": "telerag-subquestion", "Iter": "telerag-iterative", "IRG": "telerag-iter-retgen",
    "FLARE": "telerag-flare", "Self-RAG": "telerag-self-rag",
}
"""The names that tables use, and those of the registry."""
