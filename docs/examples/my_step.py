from dataclasses import replace
from typing import ClassVar, Literal

from hermes.pipelines import Pipeline, ServiceStage
from hermes.plugins.metis import STEPS, Step, Underway


@STEPS.register("rerank")
class Rerank(Step):
    """Score all candidates with the question; the needed pieces among them move to the top."""

    kind: Literal["rerank"] = "rerank"
    stages: ClassVar[tuple[str, ...]] = ("rerank",)

    def run(self, underway: Underway) -> Pipeline:
        found, lengths = underway.candidates, underway.lengths
        yield ServiceStage("rerank", items=found, tokens=found * (lengths.chunk + lengths.question))
        place, ranks = 0, []
        for rank in underway.query.ranks:
            place += rank <= found
            ranks.append(place if rank <= found else rank)
        underway.query = replace(underway.query, ranks=tuple(ranks))
        underway.candidates = underway.configuration.num_chunks
