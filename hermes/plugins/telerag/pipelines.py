"""The six pipelines of the TeleRAG paper, with lookahead where the paper has it.

A request is a batch of `batch` queries that go through the pipeline in step: their generations run side by side, and
each retrieval serves all of them. The random draws of a query (lengths, whether it is confident, number of rounds)
depend only on its request's number and the pipeline.
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
    """Common parameters of the pipelines."""

    retrieval: Mode = "lookahead"
    """`offload` (CPU), `resident` (all on the GPU), `on_demand` (copied when the query is known), `lookahead`."""
    late: Literal["wait", "give_up"] = "wait"
    """Treatment of a copy that outlasts the generation in parallel: wait for it, or give up the rest."""
    budget: Bytes | Literal["profiled"] = 3 * 10**9
    """Most bytes of one prefetch; `profiled`: bytes that `link` moves in the mean window of the first `profile_queries`
    queries, which search on the CPU meanwhile."""
    link: Bandwidth | None = None
    """Measured bandwidth from the host to the GPU; required for `budget: profiled`."""
    profile_queries: Count = 64
    """Queries of the profiling pass."""
    chunk: Bytes = 64 * 2**20
    """Bytes of a copy that are given up or waited for together."""
    keep: bool = False
    """Whether clusters stay on the GPU until the request is done."""
    strength: Annotated[float, Field(ge=0, le=100)] = 0.1
    """Strength of a rewrite's perturbation, in the index's family (`hermes.plugins.telerag.overlap.families`)."""
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
        """Run a request's stages."""
        raise NotImplementedError


class _Built:
    """A pipeline with its parameters: call it with a request to get the generator."""

    def __init__(self, config: LookaheadPipeline, name: str, seed: int) -> None:
        self.config, self.name, self.seed = config, name, seed
        profiling = ("cpu_search",) if config.retrieval == "lookahead" and config.budget == "profiled" else ()
        self.stages = ("generate", *KINDS[config.retrieval], *profiling, *(("embed",) if config.embed else ()))
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
    """A request in progress: its queries, and the generations of those still active."""

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
            batch=config.batch,
        )

    def tokens(self, mean: int) -> int:
        """Return a length around the mean."""
        sigma = self.config.window_sigma
        if not sigma:
            return mean
        return max(1, round(mean * math.exp(self.rng.gauss(0.0, sigma) - sigma**2 / 2)))

    def passages(self, searches: int = 1) -> int:
        """Return the tokens of the passages found."""
        return searches * self.config.top_k * self.config.passage_tokens

    def generations(self, queries: Sequence[int], read: int, mean: int | None) -> list[Any]:
        """Return one generation per query: the question and `read` more tokens as prompt; an output of about `mean`
        tokens (the request's, if None)."""
        request = self.request
        return [
            Generate(request.prompt_tokens + read, request.output_tokens if mean is None else self.tokens(mean),
                     request.priority, request)
            for _ in queries
        ]

    def generate(self, queries: Sequence[int], read: int, mean: int | None) -> Steps:
        """Generate for these queries side by side, without a prefetch."""
        if queries:
            yield tuple(self.generations(queries, read, mean))

    def look_ahead(self, queries: Sequence[int], read: int = 0) -> Steps:
        """Generate the text of the next retrieval, and prefetch meanwhile."""
        yield from self.retriever.window(self.generations(queries, read, self.config.window), queries)
        if self.timed:
            self.budget.timed(self.retriever.window_ns)

    def drawn(self, queries: Sequence[int], share: float) -> list[int]:
        """Return the queries for which an event of this probability happens."""
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
    """A narrower question, retrieval, an answer, a judgement; repeated until the answer is good."""

    again: Share = 0.5
    """Probability that an answer is not good enough."""
    max_rounds: Annotated[int, Field(ge=1, le=100)] = 3
    """Most rounds."""
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
    """One sentence at a time; a sentence that the model is unsure of is looked up and written again."""

    unsure: Share = 0.5
    """Share of the sentences that are looked up."""
    max_sentences: Annotated[int, Field(ge=1, le=1000)] = 100
    """Most sentences of an answer."""

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
    """A judgement whether to retrieve, retrieval with the original query, the answer, a critique."""

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
"""Names in tables, and in the registry."""
