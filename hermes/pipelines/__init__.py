"""Pipelines: generators that yield the stages of a request. This is their extension point.

A pipeline is a generator function of one argument, the request. It yields a stage and gets it back once it is served
(`request` and the stage carry the results), or yields a tuple of stages, which are served side by side, and gets the
tuple back when all are done. When it returns, the request is complete.

    @PIPELINES.register("draft_then_answer")
    def draft_then_answer(request):
        draft = yield Generate(request.prompt_tokens, 64)
        yield Generate(request.prompt_tokens + draft.output_tokens, request.output_tokens)

`branch_into(stage, (300, 500, 400))` gives a generation several answers that share their prompt's KV.

A pipeline with parameters is a class with the parameters as fields: a `GraphTemplate`, or any `ConfigModel` with
`build(name, seed)`.
"""

from hermes.core.client import ClientView
from hermes.core.request import Request
from hermes.core.stage import AnyOf, ServiceStage
from hermes.pipelines.base import PIPELINES, Generate, Pipeline, branch_into, plain
from hermes.pipelines.template import GraphTemplate

__all__ = [
    "PIPELINES", "AnyOf", "ClientView", "Generate", "GraphTemplate", "Pipeline", "Request", "ServiceStage",
    "branch_into", "plain",
]
