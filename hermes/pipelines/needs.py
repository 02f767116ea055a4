"""What a graph asks of the clients and of the workload around it, checked before the run."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

from hermes.errors import InputError, inside, suggest
from hermes.pipelines.graph import Graph, GraphPipeline, Node
from hermes.services import check_count

__all__ = ["check_options", "check_past"]


def check_options(pipeline: GraphPipeline, serving: Callable[[str, str], list[Any]]) -> None:
    """Raise `InputError` for an option that nobody reads who may serve its node, and for a value that is none.

    serving: (kind of stage, model that the node names) -> the clients that may serve it
    """
    for where, node in _stages(pipeline.graph):
        if not node.options:
            continue
        clients = serving(node.kind, node.model)
        known: dict[str, int | None] = {}
        for client in clients:
            known |= getattr(client, "stage_options", {}).get(node.kind, {})
        with inside(f"pipelines.{pipeline.name}.stages.{where}"):
            for name, value in node.options.items():
                if name not in known:
                    read = f"one of {', '.join(sorted(known))}" if known else "no options"
                    raise InputError(f"{read}: what {clients[0].name!r} reads of {node.kind!r}", name,
                                     field=f"options.{name}", suggestion=suggest(name, known))
                least = known[name]
                if least is not None:
                    check_count(name, value, least)


def check_past(pipeline: GraphPipeline) -> None:
    """Raise `InputError` for a graph that reads `past`; for workloads that bring no contexts along."""
    for where, node in _stages(pipeline.graph):
        for name, amount in node.amounts.items():
            if "past" in amount.names:
                raise InputError(
                    f"contexts, whose tokens {where}.{name} of pipeline {pipeline.name!r} reads (`past`)", None,
                    field="contexts",
                )


def _stages(graph: Graph) -> Iterator[tuple[str, Node]]:
    """Every stage with where it stands, those of loops included."""
    for name, node in graph.nodes.items():
        if node.kind == "loop":
            yield from _stages(graph.loops[name])
        else:
            yield f"{graph.path}{name}", node
