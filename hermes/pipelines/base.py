"""The registry of pipelines, the stages that a pipeline declares, and the `plain` pipeline."""

from __future__ import annotations

from typing import Any

from hermes.config.registry import Registry
from hermes.core.branches import branch_into
from hermes.core.generation import Generation as Generate
from hermes.core.request import Pipeline, Request

__all__ = ["GENERATIONS", "PIPELINES", "Generate", "Pipeline", "branch_into", "plain", "requested_stages"]

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
    """Prefill and decode, with the workload's number of branches."""
    yield _generation(request)


def _generation(request: Request) -> Generate:
    stage = Generate(request.prompt_tokens, request.output_tokens, request.priority, request)
    return branch_into(stage, request.branch_outputs) if request.branch_outputs else stage


plain.stages = ("generate",)  # type: ignore[attr-defined]
plain.only_stage = _generation  # type: ignore[attr-defined]


def requested_stages(pipeline: Any) -> list[tuple[str, str]]:
    """Return (kind, model) of the stages that a pipeline may request; model "" stands for the request's model."""
    stages = getattr(pipeline, "stages", ("generate",))
    return [(stage, "") if isinstance(stage, str) else stage for stage in stages]
