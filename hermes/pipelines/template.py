"""Graph templates: parameterised graphs, written in Python."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from hermes.config import ConfigModel
from hermes.config.validation import validate
from hermes.pipelines.base import Pipeline
from hermes.pipelines.graph import Graph, GraphPipeline
from hermes.pipelines.nodes import GraphNodes

__all__ = ["GraphTemplate", "Stages"]

Stages = dict[str, dict[str, Any]]


class GraphTemplate(ConfigModel):
    """A graph with parameters: subclass it, declare the parameters as fields, and register it in `PIPELINES`."""

    def nodes(self) -> Stages:
        """Return the graph's nodes by name, as in YAML."""
        raise NotImplementedError

    def graph(self) -> Graph:
        """The checked graph. Raises `InputError` for what no graph may have."""
        return Graph(validate(GraphNodes, {"stages": self.nodes()}).stages)

    def build(self, name: str, seed: int) -> Callable[[Any], Pipeline]:
        """Return the pipeline; `name` and `seed` give each request random numbers of its own."""
        return GraphPipeline(name, self.graph(), seed)
