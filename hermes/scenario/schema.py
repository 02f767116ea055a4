"""The scenario: one model of all options of a simulation."""

from __future__ import annotations

from collections import Counter
from pathlib import Path
from typing import Annotated, Any, Literal, Self

from pydantic import BeforeValidator, Field, PrivateAttr, model_validator

from hermes.clients import CLIENTS
from hermes.config import Component, ConfigModel, Duration, Name, quantity
from hermes.config.yaml_document import Node
from hermes.engine.compatibility import OF_GATEWAYS, Case, check
from hermes.errors import InputError, Verbatim
from hermes.fleet.config import SharedAutoscaler
from hermes.gateway.config import GatewayConfig
from hermes.hardware.base import HardwareModel
from hermes.network import NETWORKS
from hermes.pipelines.nodes import Node as GraphNode
from hermes.results.measure import MeasureConfig
from hermes.results.slo import SloConfig
from hermes.routing import ROUTERS
from hermes.units import parse_duration
from hermes.workload import WorkloadConfig

__all__ = ["Scenario", "Source"]

MAX_SEED = 2**128 - 1


class Source:
    """Origin of a scenario. It does not affect equality: equal scenarios from different places are equal."""

    def __init__(self, node: Node | None = None, base_dir: Path = Path(), defaults: tuple[str, ...] = ()) -> None:
        """defaults: Keys of the document that hold defaults, as a resolved scenario names them."""
        self.node, self.base_dir, self.defaults = node, base_dir, defaults
        self.hardware: dict[int, HardwareModel] = {}   # of each group of LLM clients, built when it was completed

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Source)

    __hash__ = None  # type: ignore[assignment]

    def chosen(self, path: str) -> bool:
        """Whether the document has a value at a dotted path, which is no default written out."""
        node = self.node
        for key in path.split("."):
            node = None if node is None else node.child(int(key) if key.isdecimal() else key)
        written = node is not None and node.value is not None
        return written and not any(f"{path}.".startswith(f"{default}.") for default in self.defaults)

    def located(self, error: InputError) -> InputError:
        """Return an error found while building the simulation, with the position of its field."""
        if self.node is None or error.file is not None:
            return error
        node, field = self.node.nearest(error.field)
        return node.mark.error(error.expected, error.found, field=field, suggestion=error.suggestion)


def _as_list(value: object) -> object:
    return [value] if isinstance(value, dict) else value


def _llm_unless_said(value: object) -> object:
    return {"kind": "llm", **value} if isinstance(value, dict) else value


class PipelineConfig(ConfigModel):
    """A graph of stages that requests pass through."""

    description: str = ""
    """Purpose of the pipeline."""
    stages: dict[str, GraphNode] = Field(min_length=1)
    """Its stages, by name."""


class Scenario(ConfigModel):
    """One simulation: workload, clients, routing and service-level objectives."""

    name: Name = "scenario"
    """Name of the scenario, shown with its results."""
    description: str = ""
    """Purpose of the scenario."""
    plugins: list[Annotated[str, Field(min_length=1, max_length=4096)]] = []
    """Python files, relative to this one, that register components of your own. Reading the scenario runs their
    code; `--no-plugins` refuses them."""
    seed: Annotated[int, Field(ge=0, le=MAX_SEED)] = 0
    """Seed of every random number; the same seed gives the same results, byte for byte."""
    stepping: Literal["runs", "every_step"] = "runs"
    """`runs` computes equal steps of a client together; `every_step` makes an event of each. Requests, tokens and mean
    KV memory are equal in both; the table of runs has one row per run."""
    horizon: Duration | None = None
    """Latest end of the simulation. Left out, it ends when every request has been served."""
    workload: Annotated[list[WorkloadConfig], BeforeValidator(_as_list), Field(min_length=1, max_length=10_000)]
    """Workload, or a list of workloads: arrivals and lengths of requests."""
    clients: Annotated[
        list[Annotated[Any, Component(CLIENTS), BeforeValidator(_llm_unless_said)]],
        Field(min_length=1, max_length=100_000),
    ]
    """Clients, or groups of equal clients: the serving instances. `kind` left out is `llm`."""
    pipelines: dict[str, PipelineConfig] = Field(default_factory=dict)
    """Graphs of stages that workloads may name as their `pipeline`."""
    router: Annotated[Any, Component(ROUTERS), Field(default={"kind": "round_robin"}, validate_default=True)]
    """Router: the choice of a client for each stage."""
    routers: dict[str, Annotated[Any, Component(ROUTERS)]] = Field(default_factory=dict)
    """Other routers for some kinds of stage, e.g. `retrieve: {kind: least_loaded}`."""
    network: Annotated[Any, Component(NETWORKS), Field(default={"kind": "kv_link"}, validate_default=True)]
    """Network: the time to move data between clients. Left out, the KV of a disaggregated request moves at 50 GB/s, and
    all other transfers take no time; `{kind: ideal}` moves everything in no time."""
    kv_transfer: Literal["full", "layerwise"] = "full"
    """Transfer of a disaggregated request's KV: after the prefill, or layer by layer during it."""
    first_token: Literal["decode", "prefill"] = "decode"
    """Client that gives the user the first token of a disaggregated request. `decode`: the prefill's token is thrown
    away, and the decode client computes the prompt's last token again (llm-d's sidecar, vLLM's proxy). `prefill`: the
    prefill's token goes to the user at once (Splitwise, DistServe). The TTFT is that of this token."""
    kv_transfer_scope: Literal["global", "local"] = "global"
    """Decode clients that may take a request over: any, or only those on the prefill client's `platform`."""
    kv_transfer_retry: Annotated[
        float, BeforeValidator(parse_duration), Field(gt=0, le=1e9),
        quantity(parse_duration, "duration above 0, e.g. '1 s'; bare number: seconds"),
    ] | None = None
    """Time after which a KV transfer that finds its destination full tries again. Left out, transfers wait first come
    first served, and try as memory becomes free."""
    gateway: GatewayConfig | None = None
    """What stands before the engines: a hop with a capacity, attempts, time-outs, a queue while no replica is ready.
    Left out, requests go to the engines at once, once each."""
    autoscalers: list[SharedAutoscaler] = []
    """Autoscalers that scale several groups of clients together. One that scales a single group stands in the group's
    `fleet`."""
    slo: SloConfig = SloConfig()
    """Service-level objectives."""
    measure: MeasureConfig | None = None
    """Measured window after a warm-up, whose rates, latencies and utilisation are `measured` in the summary."""

    _source: Source = PrivateAttr(default_factory=Source)

    @property
    def title(self) -> str:
        """The name; of a file without one, that of the file."""
        node = self.source.node
        file = None if node is None else node.mark.file
        return self.name if file is None or self.source.chosen("name") else Path(file).name.partition(".")[0]

    @property
    def source(self) -> Source:
        """The document that this scenario was read from."""
        return self._source

    @model_validator(mode="after")
    def _check_gateway(self) -> Self:
        check(Case(self, gateway=self.gateway), OF_GATEWAYS)
        return self

    @model_validator(mode="after")
    def _check_names(self) -> Self:
        counts = Counter(workload.name for workload in self.workload)
        for i, workload in enumerate(self.workload):
            if counts[workload.name] > 1:
                raise InputError(Verbatim(f"two workloads are named {workload.name!r}; rename one"),
                                 field=f"workload.{i}.name")
        return self
