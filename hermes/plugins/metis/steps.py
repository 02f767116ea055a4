"""Steps of a query after its choice: by default retrieval, then synthesis. This is their extension point.

A step is a class registered in `STEPS`; the pipeline's `steps` lists them. A reranker, for example, stands between the
two: `steps: [{kind: retrieve, per_chunk: 4}, rerank, synthesise]`.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated, Any, ClassVar, Literal

from pydantic import Field

from hermes.config import ConfigModel, Registry
from hermes.pipelines import Generate, Pipeline, Request, ServiceStage
from hermes.plugins.metis.datasets import Query
from hermes.plugins.metis.decision import Configuration, Lengths

__all__ = ["STEPS", "Retrieve", "Step", "Synthesise", "Underway"]


@dataclass
class Underway:
    """A query between its choice and its answer. A step may change what it has.

    Attributes:
        request: The request: its tokens, `note`, `view`.
        query: The true query. Where a step changes it, as a reranker changes `ranks`, F1 is that of the new one.
        configuration: The chosen one.
        lengths: Tokens of a chunk, of the question and of the answer.
        priority: Priority of the query's calls.
        candidates: Passages at hand, the best first; synthesis reads the first `configuration.num_chunks`.
    """

    request: Request
    query: Query
    configuration: Configuration
    lengths: Lengths
    priority: int
    candidates: int = 0

    def call(self, prompt_tokens: int, output_tokens: int) -> Generate:
        """Return a call of the serving model."""
        return Generate(prompt_tokens, output_tokens, self.priority)


class Step(ConfigModel):
    """Base of steps. Derive from it, give `kind` and fields, write `run`, and register the class in `STEPS`."""

    stages: ClassVar[tuple[str, ...]]
    """Kinds of stage that it yields."""

    def run(self, underway: Underway) -> Pipeline:
        """Yield stages as a pipeline does. Called once for each request, when the step before has ended. What it keeps
        belongs to `underway`, not to the step."""
        raise NotImplementedError


STEPS: Registry[Any] = Registry("metis_steps", "a step of METIS", base=Step)


@STEPS.register("retrieve")
class Retrieve(Step):
    """Look up passages."""

    kind: Literal["retrieve"] = "retrieve"
    stages: ClassVar[tuple[str, ...]] = ("retrieve",)
    per_chunk: Annotated[int, Field(ge=1, le=1000)] = 1
    """Passages looked up for each chunk that is read; more than one for a later step to choose from."""

    def run(self, underway: Underway) -> Pipeline:
        underway.candidates = underway.configuration.num_chunks * self.per_chunk
        yield ServiceStage("retrieve", options={"top_k": underway.candidates})


@STEPS.register("synthesise")
class Synthesise(Step):
    """Call the model: mappers side by side, then one call that waits for all of them."""

    kind: Literal["synthesise"] = "synthesise"
    stages: ClassVar[tuple[str, ...]] = ("generate",)

    def run(self, underway: Underway) -> Pipeline:
        chosen, lengths = underway.configuration, underway.lengths
        if chosen.method != "stuff":
            prompt, output = lengths.mapper(chosen)
            yield tuple(underway.call(prompt, output) for _ in range(chosen.num_chunks))
        if chosen.method != "map_rerank":
            yield underway.call(*lengths.last(chosen))
