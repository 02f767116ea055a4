"""Trace a hand-written pipeline into a graph, by running it for one request whose stages complete at once."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from types import SimpleNamespace
from typing import Any

from hermes.core.client import ClientView
from hermes.core.stage import AnyOf
from hermes.errors import InputError
from hermes.pipelines.graph import Graph
from hermes.pipelines.nodes import GenerateNode, Node, ServiceNode

__all__ = ["IDLE", "OUTPUT", "PROMPT", "trace"]

PROMPT, OUTPUT = 512, 128
"""Tokens of the request that a pipeline is traced with."""
IDLE = ClientView("client", "", 2**20, 2**20, 2**20, 16, 0, 0, 256, 8192)
"""The clients that a traced pipeline sees: idle ones."""
_CLIENT = SimpleNamespace(kv_bytes_per_token=0.0, name="", platform="")
_MOST = 500


def trace(pipeline: Callable[[Any], Any]) -> Graph:
    """Return the stages that `pipeline` requests, each after those that it had waited for by then.

    Raises `InputError` for a pipeline with more than 500 stages, too many to draw.
    """
    run = _Trace()
    running = pipeline(run.request)
    result = None
    while True:
        try:
            wanted = running.send(result)
        except StopIteration:
            return Graph(run.nodes)
        waited = wanted.stages if type(wanted) is AnyOf else wanted if type(wanted) is tuple else (wanted,)
        for stage in waited:
            run.ask(stage)
        if type(wanted) is AnyOf:
            result = waited[0]
            run.serve([result])
        else:
            run.serve(waited)
            result = wanted


class _Trace:
    def __init__(self) -> None:
        self.nodes: dict[str, Node] = {}
        self.request = SimpleNamespace(
            id=0, prompt_tokens=PROMPT, output_tokens=OUTPUT, priority=0, session=-1, content=None, arrival_ns=0,
            now=0.0, model="", client=None, past_tokens=0, context=None, start=self.ask,
            note=lambda name, value, names=(): None, branch_outputs=(), view=lambda kind, model="": (IDLE,),
            beside=lambda pipeline: pipeline.close(),   # a pipeline beside it has a graph of its own
        )
        self._names: dict[int, str] = {}
        self._stages: list[Any] = []       # kept alive, since names go by identity
        self._before: dict[str, set[str]] = {}
        self._served: set[str] = set()

    def ask(self, stage: Any) -> Any:
        if id(stage) in self._names:
            return stage
        if len(self.nodes) >= _MOST:
            raise InputError(f"a pipeline of at most {_MOST} stages, to draw it", f"more, for a prompt of {PROMPT}")
        same = sum(node.kind == stage.kind for node in self.nodes.values())
        name = stage.kind if not same else f"{stage.kind} {same + 1}"
        # only the latest: their own edges lead to the earlier ones
        after = [one for one in self._served if not any(one in self._before[other] for other in self._served)]
        self._before[name] = set(self._served)
        edges = sorted(after, key=list(self.nodes).index)
        self.nodes[name] = GenerateNode(
            kind="generate", model=stage.model, after=edges, prompt=stage.prompt_tokens, output=stage.output_tokens,
        ) if stage.kind == "generate" else ServiceNode(
            kind=stage.kind, model=stage.model, after=edges, tokens=stage.prompt_tokens, items=stage.items,
            options={key: _shown(value) for key, value in stage.options.items()},
        )
        self._names[id(stage)] = name
        self._stages.append(stage)
        return stage

    def serve(self, stages: Iterable[Any]) -> None:
        for stage in stages:
            if stage.kind == "generate":
                stage.num_tokens = stage.prompt_tokens + stage.output_tokens
            stage.client, stage.done = _CLIENT, True
            self._served.add(self._names[id(stage)])


def _shown(value: object) -> bool | int | float | str:
    """Return an option's value as a graph may have it: lists, which only plug-ins pass to their clients, as text."""
    if isinstance(value, bool | int | float | str):
        return value
    return ", ".join(map(str, value)) if isinstance(value, list | tuple) else type(value).__name__
