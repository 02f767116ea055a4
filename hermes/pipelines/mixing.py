"""Which pipeline a request takes: found by name, with its parameters, and mixed by weight within a workload."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

from hermes.config.streams import stream
from hermes.config.validation import validate
from hermes.errors import InputError, inside, suggest
from hermes.pipelines import PIPELINES
from hermes.pipelines.base import GENERATIONS, Pipeline
from hermes.pipelines.graph import Graph, GraphPipeline
from hermes.pipelines.needs import check_fields
from hermes.workload.pipelines import PipelineChoice

__all__ = ["OF_THE_MODEL", "Mix", "PipelineFinder", "Way", "draw_ways", "graph_of", "pipeline_from"]

OF_THE_MODEL = GENERATIONS | {"fetch_kv", "store_kv"}
"""Kinds of stage that the workload's model serves unless they name another: KV is of no use to any other."""


class Way(NamedTuple):
    """One of the pipelines that a workload's requests may take, and the model they then ask for."""

    label: str
    pipeline: Callable[[Any], Pipeline]
    model: str
    weight: float = 1.0


def pipeline_from(entry: Any, name: str, parameters: Mapping[str, Any], seed: int) -> Callable[[Any], Pipeline]:
    """What is registered under `name`, made ready: a generator function as it is, a class with its parameters.

    Raises `InputError` for parameters that it does not have or that are not what they have to be.
    """
    if not isinstance(entry, type):
        if parameters:
            raise InputError(f"no parameters: pipeline {name!r} has none", next(iter(parameters)))
        return entry  # type: ignore[no-any-return]
    built: Callable[[Any], Pipeline] = validate(entry, dict(parameters)).build(name, seed)
    return built


def graph_of(pipeline: Callable[[Any], Pipeline]) -> Graph:
    """The graph of a pipeline; of a hand-written one, that of what it asks for when it runs once."""
    from hermes.pipelines.tracing import trace

    return pipeline.graph if isinstance(pipeline, GraphPipeline) else trace(pipeline)


class PipelineFinder:
    """The pipelines of one scenario; each is built once, however many workloads name it.

    graphs: the scenario's own, name -> its nodes. They come before registered ones of the same name.
    """

    def __init__(self, graphs: Mapping[str, Any], seed: int) -> None:
        self.graphs, self.seed = graphs, seed
        self._built: dict[tuple[Any, ...], Any] = {}

    def find(self, choice: PipelineChoice, field: str) -> Any:
        """The pipeline that a workload names at `field`."""
        name, parameters = choice.name, choice.parameters
        key = (name, *sorted(parameters.items()))
        if key not in self._built:
            self._built[key] = self._build(name, parameters, field)
        return self._built[key]

    def labelled(self, found: list[list[Way]]) -> list[list[Way]]:
        """The ways of all workloads with labels that tell pipelines apart that differ in parameters only."""
        texts = {}
        for key, pipeline in self._built.items():
            alone = sum(other[0] == key[0] for other in self._built) == 1
            given = ", ".join(f"{name}={value}" for name, value in key[1:])
            texts[id(pipeline)] = key[0] if alone or not given else f"{key[0]} ({given})"
        return [[way._replace(label=texts[id(way.pipeline)]) for way in ways] for ways in found]

    def _build(self, name: str, parameters: Mapping[str, Any], field: str) -> Any:
        if name in self.graphs:
            if parameters:
                raise InputError("no parameters: a graph of the scenario has none", next(iter(parameters)),
                                 field=f"{field}.{next(iter(parameters))}")
            with inside(f"pipelines.{name}.stages"):
                graph = Graph(self.graphs[name].stages)
                check_fields(graph)
                return GraphPipeline(name, graph, self.seed)
        if name not in PIPELINES:
            known = [*self.graphs, *PIPELINES]
            raise InputError(f"a pipeline: one of {', '.join(known)}", name, field=field,
                             suggestion=suggest(name, known))
        with inside(field):
            return pipeline_from(PIPELINES.get(name), name, parameters, self.seed)


def draw_ways(weights: Sequence[float], n: int, seed: int, workload: str) -> npt.NDArray[np.int64]:
    """Which of its pipelines each request of a workload takes, shape (n,).

    From a random stream of its own, one number a request: more requests leave those before as they are.
    """
    if len(weights) == 1:
        return np.zeros(n, dtype=np.int64)
    shares = np.cumsum(np.asarray(weights, dtype=np.float64))
    drawn = np.searchsorted(shares / shares[-1], stream(seed, f"pipelines/{workload}").random(n), side="right")
    return np.minimum(drawn, len(weights) - 1).astype(np.int64)


class Mix:
    """Several pipelines as one: each request takes the one drawn for it, and asks for that one's model."""

    def __init__(self, ways: Sequence[Way], drawn: npt.NDArray[np.int64], first_id: int) -> None:
        self.ways, self.drawn, self.first_id = list(ways), drawn, first_id
        self._way = memoryview(drawn)  # type: ignore[arg-type]  # faster than numpy's indexing of single elements

    def __call__(self, request: Any) -> Pipeline:
        way: Way = self.ways[self._way[request.id - self.first_id]]
        request.model = way.model
        return way.pipeline(request)
