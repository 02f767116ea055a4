"""The scenario: everything a user says about one simulation, as one model."""

from __future__ import annotations

from collections import Counter
from pathlib import Path
from typing import Annotated, Any, Literal, Self

from pydantic import BeforeValidator, Field, PrivateAttr, model_validator

from hermes.clients import CLIENTS
from hermes.config import Component, ConfigModel, Duration, quantity
from hermes.config.yaml_document import Node
from hermes.errors import InputError
from hermes.hardware.base import HardwareModel
from hermes.network import NETWORKS
from hermes.pipelines.graph import Node as Stage
from hermes.results.measure import MeasureConfig
from hermes.results.slo import SloConfig
from hermes.routing import ROUTERS
from hermes.units import parse_duration
from hermes.workload import WorkloadConfig

__all__ = ["Scenario", "Source"]

MAX_SEED = 2**128 - 1


class Source:
    """Where a scenario was written; two scenarios that say the same are equal wherever they stand."""

    def __init__(self, node: Node | None = None, base_dir: Path = Path()) -> None:
        self.node, self.base_dir = node, base_dir
        self.hardware: dict[int, HardwareModel] = {}   # of each group of LLM clients, built while it was completed

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Source)

    __hash__ = None  # type: ignore[assignment]

    def located(self, error: InputError) -> InputError:
        """An error found while building the simulation, with the position its field was written at."""
        if self.node is None or error.file is not None:
            return error
        node, field = self.node.nearest(error.field)
        return node.mark.error(error.expected, error.found, field=field, suggestion=error.suggestion)


def _as_list(value: object) -> object:
    return [value] if isinstance(value, dict) else value


def _llm_unless_said(value: object) -> object:
    return {"kind": "llm", **value} if isinstance(value, dict) else value


class PipelineConfig(ConfigModel):
    """What a request does, as a graph of stages."""

    description: str = ""
    """What the pipeline is for."""
    stages: dict[str, Stage] = Field(min_length=1)
    """Its stages, by name."""


class Scenario(ConfigModel):
    """One simulation: who asks for what, who serves it, and what counts as served well."""

    name: Annotated[str, Field(min_length=1, max_length=200)] = "scenario"
    """Name of the scenario, shown with its results."""
    description: str = ""
    """What the scenario is for."""
    plugins: list[Annotated[str, Field(min_length=1, max_length=4096)]] = []
    """Python files, relative to this one, that register components of your own. Reading the scenario runs their
    code."""
    seed: Annotated[int, Field(ge=0, le=MAX_SEED)] = 0
    """Seed of every random number; the same seed gives the same results, byte for byte."""
    stepping: Literal["runs", "every_step"] = "runs"
    """`runs` prices equal steps of a client together; `every_step` makes an event of each. Every request and every
    token fares the same, and KV memory has the same mean; the table of runs is as fine as the runs."""
    horizon: Duration | None = None
    """The simulation ends here at the latest; without it, when every request has been served."""
    workload: Annotated[list[WorkloadConfig], BeforeValidator(_as_list), Field(min_length=1, max_length=10_000)]
    """Who arrives when, how long: one workload, or a list of them."""
    clients: Annotated[
        list[Annotated[Any, Component(CLIENTS), BeforeValidator(_llm_unless_said)]],
        Field(min_length=1, max_length=100_000),
    ]
    """Who serves: clients or groups of equal clients. `kind` is `llm` where left out."""
    pipelines: dict[str, PipelineConfig] = Field(default_factory=dict)
    """Graphs of stages that workloads may name as their `pipeline`."""
    router: Annotated[Any, Component(ROUTERS), Field(default={"kind": "round_robin"}, validate_default=True)]
    """Which client serves a stage."""
    routers: dict[str, Annotated[Any, Component(ROUTERS)]] = Field(default_factory=dict)
    """Other routers for single kinds of stage, e.g. `retrieve: {kind: least_loaded}`."""
    network: Annotated[Any, Component(NETWORKS), Field(default={"kind": "ideal"}, validate_default=True)]
    """What moving data between clients costs."""
    kv_transfer: Literal["full", "layerwise"] = "full"
    """How the KV of a disaggregated request moves: after the prefill, or layer by layer while it computes."""
    kv_transfer_scope: Literal["global", "local"] = "global"
    """Which decode clients may take a request over: any, or only those on the prefill client's `platform`."""
    kv_transfer_retry: Annotated[
        float, BeforeValidator(parse_duration), Field(gt=0, le=1e9),
        quantity(parse_duration, "duration above 0, e.g. '1 s'; bare number: seconds"),
    ] | None = None
    """A KV transfer that finds its destination full tries again after this long; first come first served, as memory
    frees, where left out."""
    slo: SloConfig = SloConfig()
    """What counts as served well."""
    measure: MeasureConfig | None = None
    """A window after a warm-up whose rates, latencies and utilisation are wanted; `measured` in the summary."""

    _source: Source = PrivateAttr(default_factory=Source)

    @property
    def source(self) -> Source:
        """The document this was read from."""
        return self._source

    @model_validator(mode="after")
    def _check_names(self) -> Self:
        counts = Counter(workload.name for workload in self.workload)
        for i, workload in enumerate(self.workload):
            if counts[workload.name] > 1:
                raise InputError("a different name for each workload", workload.name, field=f"workload.{i}.name")
        return self
