"""Pipelines of a workload: look up by name, build with parameters, and mix by weight."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from hermes.arrays import IntArray
from hermes.config.streams import stream
from hermes.config.validation import validate
from hermes.errors import InputError, inside, suggest
from hermes.pipelines import PIPELINES
from hermes.pipelines.base import GENERATIONS, Pipeline
from hermes.pipelines.graph import Graph, GraphPipeline
from hermes.workload.pipelines import PipelineChoice

__all__ = [
    "MODEL_STAGES", "PipelineFinder", "PipelineMix", "WeightedPipeline", "draw_pipelines", "graph_of", "pipeline_from",
]

MODEL_STAGES = GENERATIONS | {"fetch_kv", "store_kv"}
"""Kinds of stage that the workload's model serves unless they name another model: only that model can use its KV."""


class WeightedPipeline(NamedTuple):
    """One of the pipelines of a workload's requests.

    Attributes:
        label: Its name in results.
        pipeline: Generator function of a request.
        model: Model of its requests.
        weight: Its share of the requests, relative to the workload's other pipelines.
    """

    label: str
    pipeline: Callable[[Any], Pipeline]
    model: str
    weight: float = 1.0


def pipeline_from(
    entry: Any, name: str, parameters: Mapping[str, Any], seed: int, base_dir: Path | None = None,
) -> Callable[[Any], Pipeline]:
    """Build the pipeline registered as `entry`: a generator function is returned unchanged, a class gets its
    parameters. Paths of files in them are relative to `base_dir`.

    Raises `InputError` for unknown parameters and for values that they do not allow.
    """
    if not isinstance(entry, type):
        if parameters:
            raise InputError(f"no parameters: pipeline {name!r} has none", next(iter(parameters)))
        return entry  # type: ignore[no-any-return]
    built: Callable[[Any], Pipeline] = validate(entry, dict(parameters), base_dir=base_dir).build(name, seed)
    return built


def graph_of(pipeline: Callable[[Any], Pipeline]) -> Graph:
    """Return the graph of a pipeline. A hand-written pipeline is run once, and its stages form the graph."""
    from hermes.pipelines.tracing import trace

    return pipeline.graph if isinstance(pipeline, GraphPipeline) else trace(pipeline)


class PipelineFinder:
    """The pipelines of one scenario. Each is built once, even if several workloads name it.

    Args:
        graphs: The scenario's own pipelines, name -> nodes. They hide registered ones of the same name.
        seed: The scenario's seed.
        base_dir: The scenario's folder.
    """

    def __init__(self, graphs: Mapping[str, Any], seed: int, base_dir: Path) -> None:
        self.graphs, self.seed, self.base_dir = graphs, seed, base_dir
        self._built: dict[tuple[str, str], Any] = {}   # by name, and parameters as text

    def find(self, choice: PipelineChoice, field: str) -> Any:
        """Return the pipeline that a workload names at `field`."""
        name, parameters = choice.name, choice.parameters
        key = name, ", ".join(f"{key}={_text(value)}" for key, value in sorted(parameters.items()))
        if key not in self._built:
            self._built[key] = self._build(name, parameters, field)
        return self._built[key]

    def labelled(self, found: list[list[WeightedPipeline]]) -> list[list[WeightedPipeline]]:
        """Give the pipelines of all workloads labels; those that differ only in parameters get the parameters in the
        label."""
        texts = {}
        for key, pipeline in self._built.items():
            alone = sum(other[0] == key[0] for other in self._built) == 1
            texts[id(pipeline)] = key[0] if alone or not key[1] else f"{key[0]} ({key[1]})"
        return [[entry._replace(label=texts[id(entry.pipeline)]) for entry in entries] for entries in found]

    def _build(self, name: str, parameters: Mapping[str, Any], field: str) -> Any:
        if name in self.graphs:
            if parameters:
                raise InputError("no parameters: a graph of the scenario has none", next(iter(parameters)),
                                 field=f"{field}.{next(iter(parameters))}")
            with inside(f"pipelines.{name}.stages"):
                return GraphPipeline(name, Graph(self.graphs[name].stages), self.seed)
        if name not in PIPELINES:
            known = [*self.graphs, *PIPELINES]
            raise InputError(f"a pipeline: one of {', '.join(known)}", name, field=field,
                             suggestion=suggest(name, known))
        with inside(field):
            return pipeline_from(PIPELINES.get(name), name, parameters, self.seed, self.base_dir)


def _text(value: Any) -> str:
    """Return a parameter as in YAML's short form: `{kind: mine, share: 0.2}`."""
    if isinstance(value, Mapping):
        return "{" + ", ".join(f"{key}: {_text(part)}" for key, part in value.items()) + "}"
    return f"[{', '.join(map(_text, value))}]" if isinstance(value, list) else str(value)


def draw_pipelines(weights: Sequence[float], n: int, seed: int, workload: str) -> IntArray:
    """Draw the pipeline of each request of a workload, as an index into `weights`, shape (n,).

    The numbers come from a random stream of the workload's own, one per request, so that the first requests keep their
    pipeline when `n` grows.
    """
    if len(weights) == 1:
        return np.zeros(n, dtype=np.int64)
    shares = np.cumsum(np.asarray(weights, dtype=np.float64))
    drawn = np.searchsorted(shares / shares[-1], stream(seed, f"pipelines/{workload}").random(n), side="right")
    return np.minimum(drawn, len(weights) - 1).astype(np.int64)


class PipelineMix:
    """Several pipelines as one: each request runs the pipeline drawn for it, with that pipeline's model."""

    def __init__(self, entries: Sequence[WeightedPipeline], drawn: IntArray, first_id: int) -> None:
        self.entries, self.drawn, self.first_id = list(entries), drawn, first_id
        self._index = memoryview(drawn)  # type: ignore[arg-type]  # faster than numpy's indexing of single elements

    def __call__(self, request: Any) -> Pipeline:
        entry: WeightedPipeline = self.entries[self._index[request.id - self.first_id]]
        request.model = entry.model
        return entry.pipeline(request)
