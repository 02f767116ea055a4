"""The registry of pipelines, what they say of themselves, and the plainest of them."""

from __future__ import annotations

from typing import Any

from hermes.config.registry import Registry
from hermes.core.branches import branch_into
from hermes.core.request import Pipeline
from hermes.core.sequence import Sequence as Generate

__all__ = ["GENERATIONS", "PIPELINES", "Generate", "Pipeline", "asked", "branch_into", "plain"]

GENERATIONS = frozenset(("generate", "prefill", "decode"))
"""Kinds of stage that LLM clients serve."""

PIPELINES: Registry[Any] = Registry("pipelines", "a pipeline", {
    "embedding": "hermes.pipelines.embedding:embedding",
    "guarded": "hermes.pipelines.builtin:Guarded",
    "kv-retrieval": "hermes.pipelines.builtin:KvRetrieval",
    "rag": "hermes.pipelines.builtin:Rag",
    "rag-disaggregated": "hermes.pipelines.builtin:RagDisaggregated",
    "rag-reasoning": "hermes.pipelines.builtin:RagReasoning",
    "reward-ranked": "hermes.pipelines.builtin:RewardRanked",
})


@PIPELINES.register("plain")  # type: ignore[type-var]  # pipelines are functions, which register like classes
def plain(request: Any) -> Pipeline:
    """Prefill and decode, nothing else; with as many branches as the workload says."""
    stage = Generate(request.prompt_tokens, request.output_tokens, request.priority, request)
    yield branch_into(stage, request.branch_outputs) if request.branch_outputs else stage


plain.stages = ("generate",)  # type: ignore[attr-defined]


def asked(pipeline: Any) -> list[tuple[str, str]]:
    """(kind, model) of the stages a pipeline may ask for; model "" for the request's own."""
    stages = getattr(pipeline, "stages", ("generate",))
    return [(stage, "") if isinstance(stage, str) else stage for stage in stages]
