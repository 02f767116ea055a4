"""Static checks of a pipeline before a run: unknown fields, unknown options, missing clients and contexts."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from typing import Any

from hermes.core.stage import check_count
from hermes.errors import InputError, Verbatim, inside, suggest
from hermes.pipelines.base import GENERATIONS, requested_stages
from hermes.pipelines.graph import Graph, GraphPipeline
from hermes.pipelines.nodes import LoopNode, StageNode

__all__ = ["check_options", "check_past", "no_client_error", "stages_of"]

def check_options(pipeline: Any, name: str, serving: Callable[[str, str], list[Any]]) -> None:
    """Raise `InputError` for an option that no client of its stage reads, and for an invalid value.

    The nodes of a graph carry their options. A hand-written pipeline declares the options that clients must read as
    `stage_options`: kind of stage -> name -> value, None for a value that depends on the request. Its stages may carry
    further options.

    Args:
        pipeline: The pipeline.
        name: Its label in results.
        serving: (kind of stage, model that the stage names) -> the clients that may serve it.
    """
    if isinstance(pipeline, GraphPipeline):
        for where, node in stages_of(pipeline.graph):
            if node.options:
                with inside(f"pipelines.{pipeline.name}.stages.{where}"):
                    _check_given(node.kind, node.options, serving(node.kind, node.model))
        return
    needed = getattr(pipeline, "stage_options", {})
    for kind, model in requested_stages(pipeline):
        clients = serving(kind, model)
        known = _read_by(clients, kind)
        for option, value in needed.get(kind, {}).items():
            if option not in known:
                found = Verbatim(f"{clients[0].name!r}, which reads {', '.join(sorted(known)) or 'no options'}")
                raise InputError(
                    f"a client that reads option {option!r} of {kind!r} stages, which pipeline {name!r} gives", found,
                    field="clients",
                )
            least = known[option]
            if value is not None and least is not None:
                with inside(f"{name}.{kind}"):
                    check_count(option, value, least)


def _read_by(clients: list[Any], kind: str) -> dict[str, int | None]:
    """Return the options that any of these clients reads for a kind of stage, and the least integer of each."""
    known: dict[str, int | None] = {}
    for client in clients:
        known |= getattr(client, "stage_options", {}).get(kind, {})
    return known


def _check_given(kind: str, options: Mapping[str, Any], clients: list[Any]) -> None:
    """Check the options at one node of a graph."""
    known = _read_by(clients, kind)
    for name, value in options.items():
        if name not in known:
            read = f"one of {', '.join(sorted(known))}" if known else "no options"
            raise InputError(f"{read} that {clients[0].name!r} reads for {kind!r}", name, field=f"options.{name}",
                             suggestion=suggest(name, known))
        least = known[name]
        if least is not None:
            check_count(name, value, least)


def check_past(pipeline: GraphPipeline) -> None:
    """Raise `InputError` for a graph that reads `past`, if the workload brings no contexts."""
    for where, node in stages_of(pipeline.graph):
        for name, amount in node.amounts.items():
            if "past" in amount.names:
                raise InputError(
                    f"contexts, whose tokens {where}.{name} of pipeline {pipeline.name!r} reads (`past`)", None,
                    field="contexts",
                )


def no_client_error(clients: list[Any], kind: str, model: str, platform: str | None = None) -> InputError:
    """Return the error for a kind of stage (of a model, on a platform) that no client serves; it lists the served
    ones."""
    where = "" if platform is None else f" on platform {platform!r}"
    of = f" of model {model!r}" if model or kind in GENERATIONS else ""
    same = [client for client in clients if kind in client.stages]
    if same:
        found = f"{kind!r} on " + ", ".join(dict.fromkeys(f"{c.name!r} ({c.model or 'any model'})" for c in same))
    else:
        found = "clients for " + ", ".join(sorted({served for client in clients for served in client.stages}))
    suggestion = None if same else suggest(kind, {served for client in clients for served in client.stages})
    return InputError(f"a client that serves stage {kind!r}{of}{where}", Verbatim(found), field="clients",
                      suggestion=suggestion)


def stages_of(graph: Graph) -> Iterator[tuple[str, StageNode]]:
    """Yield every stage with its path, stages of loops included."""
    for name, node in graph.nodes.items():
        if isinstance(node, LoopNode):
            yield from stages_of(graph.loops[name])
        else:
            yield f"{graph.path}{name}", node
