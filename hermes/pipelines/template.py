"""Graph templates: parameterised graphs, written in Python."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from hermes.config import ConfigModel
from hermes.config.validation import validate
from hermes.pipelines.base import Pipeline
from hermes.pipelines.checks import check_fields
from hermes.pipelines.graph import Graph, GraphPipeline, Node

__all__ = ["GraphTemplate", "Stages"]

Stages = dict[str, dict[str, Any]]


class GraphTemplate(ConfigModel):
    """A graph with parameters: subclass it, declare the parameters as fields, and register it in `PIPELINES`."""

    def nodes(self) -> Stages:
        """Return the graph's nodes by name, as in YAML."""
        raise NotImplementedError

    def graph(self) -> Graph:
        """Return the checked graph. Raises `InputError` for an invalid graph."""
        graph = Graph({name: validate(Node, node) for name, node in self.nodes().items()})
        check_fields(graph)
        return graph

    def build(self, name: str, seed: int) -> Callable[[Any], Pipeline]:
        """Return the pipeline; `name` and `seed` give each request random numbers of its own."""
        return GraphPipeline(name, self.graph(), seed)
