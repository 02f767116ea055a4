"""The configuration of Dynamo's planner as the autoscaler `dynamo_planner`.

Names and defaults are those of `PlannerConfig` in https://github.com/ai-dynamo/dynamo
(components/src/dynamo/planner/config), with the newer names of some fields. The flags of the older
planner_sla belong to other rules, and are not read.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Annotated, Literal

from pydantic import BeforeValidator, ConfigDict, Field

from hermes.config.yaml_document import Node, parse_yaml
from hermes.deploy.nodes import fields
from hermes.deploy.options import options
from hermes.deploy.typed import Keys, Number, Part, Whole, placing, read, that
from hermes.errors import InputError, Verbatim

__all__ = ["PlannerRead", "planner_of"]

MODES = {"disagg": ("prefill", "decode"), "prefill": ("prefill",), "decode": ("decode",), "agg": ("both",)}
NEWER = {"ttft_ms": "ttft", "itl_ms": "itl", "load_adjustment_interval_seconds": "load_adjustment_interval",
         "throughput_adjustment_interval_seconds": "throughput_adjustment_interval"}
KEYS = {"load_interval", "min_endpoint", "sensitivity", "samples", "buckets", "min_observations", "max_change"}
OF_TRAFFIC = {"throughput_interval", "predictor", "kalman_level", "kalman_trend", "kalman_noise"}
DEVICES = ("prefill_engine_num_gpu", "decode_engine_num_gpu")
# taken where the traffic is predicted with the values that are simulated alone
SAME = {"load_predictor_log1p": False, "load_predictor_warmup_trace": None, "kalman_min_points": 5}


def _only(expected: str, *values: object) -> BeforeValidator:
    return BeforeValidator(that(lambda value: value, lambda value: any(
        value == one and type(value) is type(one) for one in values), f"{expected}, as simulated"))


Off = Annotated[object, _only("false", False)]


class PlannerConfig(Part):
    """Fields that are read, and those that are taken with the values that are simulated alone."""

    model_config = ConfigDict(alias_generator=None)
    beside = options("dynamo.planner", "beside")   # where it runs, what it reports, and how it asks
    mode: Literal["disagg", "prefill", "decode", "agg"] = "disagg"
    optimization_target: Literal["throughput", "latency", "sla"] = "throughput"
    ttft: Number | None = None
    itl: Number | None = None
    max_gpu_budget: int | None = None
    load_interval: Whole | None = Field(default=None, alias="load_adjustment_interval")
    min_endpoint: Whole | None = None
    sensitivity: Whole | None = Field(default=None, alias="load_scaling_down_sensitivity")
    samples: Whole | None = Field(default=None, alias="max_num_fpm_samples")
    buckets: Whole | None = Field(default=None, alias="fpm_sample_bucket_size")
    min_observations: Whole | None = Field(default=None, alias="load_min_observations")
    max_change: Whole | None = Field(default=None, alias="max_throughput_scaling_replicas")
    prefill_engine_num_gpu: Whole | None = None
    decode_engine_num_gpu: Whole | None = None
    enable_load_scaling: bool = False
    enable_throughput_scaling: bool = True
    throughput_interval: Whole | None = Field(default=None, alias="throughput_adjustment_interval")
    predictor: object = Field(default=None, alias="load_predictor")
    load_predictor_log1p: object = False
    load_predictor_warmup_trace: object = None
    kalman_level: Number | None = Field(default=None, alias="kalman_q_level")
    kalman_trend: Number | None = Field(default=None, alias="kalman_q_trend")
    kalman_noise: Number | None = Field(default=None, alias="kalman_r")
    kalman_min_points: object = 5
    pre_deployment_sweeping_mode: object = "rapid"
    advisory: Off = False
    no_operation: Off = False
    enable_power_awareness: Off = False
    min_gpu_budget: Annotated[object, _only("-1", -1)] = -1
    speculative_nextn: Annotated[object, _only("0", 0)] = 0
    load_metric_samples: Annotated[object, _only("10", 10)] = 10
    environment: Annotated[object, _only("kubernetes or virtual", "kubernetes", "virtual")] = "kubernetes"

    def keys(self, names: set[str]) -> Keys:
        """Return keys of the autoscaler."""
        return self.model_dump(include=names, exclude_none=True)

    def of_traffic(self) -> Keys:
        """Return what counts with the target `sla` alone."""
        found = {key: value / 1000 for key, value in self.keys({"ttft", "itl"}).items()} | {
            "load_scaling": self.enable_load_scaling, "throughput_scaling": self.enable_throughput_scaling}
        if not self.enable_throughput_scaling:
            return found
        for name, only in SAME.items():
            if getattr(self, name) != only:
                raise InputError(f"{'null' if only is None else str(only).lower()}, as simulated", getattr(self, name),
                                 field=name)
        if self.predictor is None:
            raise InputError(Verbatim("arima, the default, is not modelled; write constant or kalman"),
                             field="load_predictor")
        if self.predictor not in ("constant", "kalman"):
            raise InputError("one of constant, kalman", self.predictor, field="load_predictor")
        return found | self.keys(OF_TRAFFIC)


@dataclass
class PlannerRead:
    """What a configuration says.

    Attributes:
        roles: Of the groups that it scales.
        autoscaler: Keys of `dynamo_planner`.
        devices: Devices of an engine, by role, where they are given, with their place in the file.
        notes: What to tell the user.
    """

    roles: tuple[str, ...]
    autoscaler: Keys
    devices: dict[str, tuple[int, Node]]
    notes: list[str] = field(default_factory=list)


def planner_of(text: str, file: str | None) -> PlannerRead:
    """Read a PlannerConfig in YAML or JSON. A field that is not modelled is refused with its line."""
    document = parse_yaml(text, file)
    if not isinstance(document.value, dict):
        raise document.mark.error("a PlannerConfig: fields of Dynamo's planner, in YAML or JSON", document.plain())
    document = Node(_one_name(document), document.mark)
    config = read(PlannerConfig, document)
    found: Keys = {"kind": "dynamo_planner", "target": config.optimization_target, **config.keys(KEYS)}
    if config.max_gpu_budget is not None:   # any negative number is no limit
        found["max_gpu_budget"] = None if config.max_gpu_budget < 0 else config.max_gpu_budget
    notes = []
    if config.optimization_target == "sla":   # the others ignore what follows
        with placing(document):
            found |= config.of_traffic()
        if config.enable_throughput_scaling and config.pre_deployment_sweeping_mode not in (None, "none"):
            notes.append("regressions trained before the deployment (pre_deployment_sweeping_mode) are not modelled: "
                         "they begin empty")
    devices = {name.partition("_")[0]: (count, document.value[name]) for name in DEVICES
               if (count := getattr(config, name)) is not None}
    return PlannerRead(MODES[config.mode], found, devices, notes)


def _one_name(document: Node) -> dict[str, Node]:
    """Return the fields by their older names."""
    found: dict[str, Node] = {}
    for name, node in fields(document):
        if NEWER.get(name, name) in found:
            raise (node.key or node.mark).error(Verbatim("is a second name of a field; keep one"), field=name)
        found[NEWER.get(name, name)] = node
    return found
