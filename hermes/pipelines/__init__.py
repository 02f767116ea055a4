"""What a request does: generators that yield stages.

A pipeline is a generator function of one argument, the request. It yields a stage and gets it back once it is served
(`request` and the stage carry what happened), or yields a tuple of stages that are served side by side and gets the
tuple back when all are done. When it returns, the request is complete.

    @PIPELINES.register("draft_then_answer")
    def draft_then_answer(request):
        draft = yield Generate(request.prompt_tokens, 64)
        yield Generate(request.prompt_tokens + draft.output_tokens, request.output_tokens)
"""

from __future__ import annotations

from collections.abc import Generator
from typing import Any

from hermes.registry import Registry
from hermes.schedulers.sequence import Sequence as Generate

__all__ = ["PIPELINES", "Generate", "Pipeline", "plain"]

Pipeline = Generator[Any, Any, None]

PIPELINES: Registry[Any] = Registry("pipelines", "a pipeline")


@PIPELINES.register("plain")  # type: ignore[type-var]  # pipelines are functions, which register like classes
def plain(request: Any) -> Pipeline:
    """Prefill and decode, nothing else."""
    yield Generate(request.prompt_tokens, request.output_tokens, request.priority, request)


plain.stages = ("generate",)  # type: ignore[attr-defined]
