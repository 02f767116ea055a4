"""A graph written out as YAML, to be changed into one of one's own."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from hermes.config import field_docs
from hermes.config.yaml_writer import to_yaml
from hermes.pipelines.graph import Graph, Node

__all__ = ["as_yaml", "parameter_lines"]


def as_data(graph: Graph) -> dict[str, Any]:
    """The graph as plain data, without what is as by default."""
    return {name: _node(node) for name, node in graph.nodes.items()}


def _node(node: Node) -> dict[str, Any]:
    data: dict[str, Any] = node.model_dump(exclude_defaults=True)
    if node.stages:
        data["stages"] = {name: _node(inner) for name, inner in node.stages.items()}
    if len(node.after) == 1:
        data["after"] = node.after[0]
    return data


def as_yaml(name: str, graph: Graph) -> str:
    """What a scenario would say under `pipelines:`; reads back to the same graph."""
    return to_yaml({"pipelines": {name: {"stages": as_data(graph)}}})


def parameter_lines(entry: Any) -> Iterator[str]:
    """What may be set of a registered pipeline, one line each; nothing for a function, which has no parameters."""
    fields = getattr(entry, "model_fields", None)
    if fields is None:
        from hermes.pipelines.tracing import OUTPUT, PROMPT

        yield f"A hand-written pipeline, as it goes for a prompt of {PROMPT} and an output of {OUTPUT} tokens."
        return
    docs = field_docs(entry)
    for key, field in fields.items():
        yield f"{key}: {field.get_default(call_default_factory=True)!r}. {' '.join(docs.get(key, '').split())}"
