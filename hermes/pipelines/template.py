"""Graphs with parameters, written in Python."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from hermes.config import ConfigModel
from hermes.config.validation import validate
from hermes.pipelines.base import Pipeline
from hermes.pipelines.graph import Graph, GraphPipeline, Node
from hermes.pipelines.needs import check_fields

__all__ = ["GraphTemplate", "Stages"]

Stages = dict[str, dict[str, Any]]


class GraphTemplate(ConfigModel):
    """A graph with parameters: subclass it, make its fields the parameters, and register it in `PIPELINES`."""

    def nodes(self) -> Stages:
        """The graph's nodes, by name, as in YAML."""
        raise NotImplementedError

    def graph(self) -> Graph:
        """The checked graph. Raises `InputError` for what no graph may have."""
        graph = Graph({name: validate(Node, node) for name, node in self.nodes().items()})
        check_fields(graph)
        return graph

    def build(self, name: str, seed: int) -> Callable[[Any], Pipeline]:
        """The pipeline; `name` and `seed` give each request its own random numbers."""
        return GraphPipeline(name, self.graph(), seed)
