"""YAML export of a pipeline's graph, as a template for a scenario."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from hermes.config import field_docs
from hermes.config.yaml_writer import to_yaml
from hermes.pipelines.graph import Graph
from hermes.pipelines.nodes import LoopNode, Node

__all__ = ["as_yaml", "parameter_lines"]


def as_data(graph: Graph) -> dict[str, Any]:
    """Return the graph as plain data, without fields at their defaults."""
    return {name: _node(node) for name, node in graph.nodes.items()}


def _node(node: Node) -> dict[str, Any]:
    data: dict[str, Any] = node.model_dump(exclude_defaults=True)
    if isinstance(node, LoopNode):
        data["stages"] = {name: _node(inner) for name, inner in node.stages.items()}
    if len(node.after) == 1:
        data["after"] = node.after[0]
    return data


def as_yaml(name: str, graph: Graph) -> str:
    """Return the YAML for a scenario's `pipelines:`; it reads back to the same graph."""
    return to_yaml({"pipelines": {name: {"stages": as_data(graph)}}})


def parameter_lines(entry: Any) -> Iterator[str]:
    """Yield one line per parameter of a registered pipeline; one line about the request for a function."""
    fields = getattr(entry, "model_fields", None)
    if fields is None:
        from hermes.pipelines.tracing import OUTPUT, PROMPT

        yield f"A hand-written pipeline, as it goes for a prompt of {PROMPT} and an output of {OUTPUT} tokens."
        return
    docs = field_docs(entry)
    for key, field in fields.items():
        yield f"{key}: {field.get_default(call_default_factory=True)!r}. {' '.join(docs.get(key, '').split())}"
