"""The configuration of Dynamo's planner as the autoscaler `dynamo_planner`.

Names and defaults are those of `PlannerConfig` in https://github.com/ai-dynamo/dynamo
(components/src/dynamo/planner/config), with the newer names of some fields. The flags of the older
planner_sla belong to other rules, and are not read.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from hermes.config.yaml_document import Node, parse_yaml
from hermes.deploy.objects_fields import fields_of, number_of, text_of, whole_of
from hermes.errors import Verbatim

__all__ = ["PlannerRead", "planner_of"]

TARGETS = ("throughput", "latency", "sla")
MODES = {"disagg": ("prefill", "decode"), "prefill": ("prefill",), "decode": ("decode",), "agg": ("both",)}
NEWER = {"ttft_ms": "ttft", "itl_ms": "itl", "load_adjustment_interval_seconds": "load_adjustment_interval",
         "throughput_adjustment_interval_seconds": "throughput_adjustment_interval"}
WHOLE = {"load_adjustment_interval": "load_interval", "min_endpoint": "min_endpoint",
         "load_scaling_down_sensitivity": "sensitivity", "max_num_fpm_samples": "samples",
         "fpm_sample_bucket_size": "buckets", "load_min_observations": "min_observations",
         "max_throughput_scaling_replicas": "max_change"}
NOISE = {"kalman_q_level": "kalman_level", "kalman_q_trend": "kalman_trend", "kalman_r": "kalman_noise"}
SWITCHES = ("enable_load_scaling", "enable_throughput_scaling")
SAME: dict[str, tuple[Any, ...]] = {   # taken with the values that are simulated alone
    "advisory": (False,), "no_operation": (False,), "enable_power_awareness": (False,), "min_gpu_budget": (-1,),
    "speculative_nextn": (0,), "environment": ("kubernetes", "virtual"), "load_metric_samples": (10,)}
OF_TRAFFIC: dict[str, tuple[Any, ...]] = {   # the same, where the traffic is predicted
    "load_predictor_log1p": (False,), "load_predictor_warmup_trace": (None,), "kalman_min_points": (5,)}
DEVICES = ("prefill_engine_num_gpu", "decode_engine_num_gpu")
# where it runs, what it reports, and how it asks; prophet is not modelled
BESIDE = (
    "namespace", "backend", "model_name", "log_dir", "profile_results_dir", "prophet_window_size",
    "throughput_metrics_source", "report_interval_hours", "report_output_dir", "report_filename",
    "report_write_gzip_log", "live_dashboard_port", "control_api_port", "metric_reporting_prometheus_port",
    *(f"metric_pulling_prometheus_{name}" for name in (
        "endpoint", "token", "token_file", "ssl_verify", "extra_query_params", "ca_bundle", "request_timeout_seconds")))


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
    autoscaler: dict[str, Any]
    devices: dict[str, tuple[int, Node]]
    notes: list[str] = field(default_factory=list)


def planner_of(text: str, file: str | None) -> PlannerRead:
    """Read a PlannerConfig in YAML or JSON. A field that is not modelled is refused with its line."""
    document = parse_yaml(text, file)
    if not isinstance(document.value, dict):
        raise document.mark.error("a PlannerConfig: fields of Dynamo's planner, in YAML or JSON", document.plain())
    known = ("mode", "optimization_target", "pre_deployment_sweeping_mode", "load_predictor", "max_gpu_budget", "ttft",
             "itl", "throughput_adjustment_interval", *NEWER, *WHOLE, *NOISE, *SWITCHES, *SAME, *OF_TRAFFIC, *DEVICES)
    own = _one_name(fields_of(document, "", known, BESIDE))
    for name, allowed in SAME.items():
        _same(own, name, allowed)
    mode = text_of(own["mode"], "mode", document, MODES) if "mode" in own else "disagg"
    target = text_of(own["optimization_target"], "optimization_target", document, TARGETS) \
        if "optimization_target" in own else "throughput"
    found: dict[str, Any] = {"kind": "dynamo_planner", "target": target}
    read = PlannerRead(MODES[mode], found, {})
    for name, key in WHOLE.items():
        if name in own:
            found[key] = whole_of(own[name], name)
    if "max_gpu_budget" in own:   # any negative number is no limit
        budget = own["max_gpu_budget"].value
        if isinstance(budget, bool) or not isinstance(budget, int):
            raise own["max_gpu_budget"].mark.error("a whole number", budget, field="max_gpu_budget")
        found["max_gpu_budget"] = None if budget < 0 else budget
    for name in DEVICES:
        if name in own and own[name].value is not None:
            read.devices[name.partition("_")[0]] = whole_of(own[name], name), own[name]
    switches = {name: _switch(own[name], name) for name in SWITCHES if name in own}
    if target == "sla":   # the others ignore what follows
        _sla(own, document, found, read, switches)
    return read


def _one_name(own: Mapping[str, Node]) -> dict[str, Node]:
    """Return the fields by their older names."""
    found: dict[str, Node] = {}
    for name, node in own.items():
        if NEWER.get(name, name) in found:
            raise (node.key or node.mark).error(Verbatim("is a second name of a field; keep one"), field=name)
        found[NEWER.get(name, name)] = node
    return found


def _sla(own: Mapping[str, Node], document: Node, found: dict[str, Any], read: PlannerRead,
         switches: Mapping[str, bool]) -> None:
    for name in ("ttft", "itl"):
        if name in own:
            found[name] = number_of(own[name], name) / 1000
    found["load_scaling"] = switches.get("enable_load_scaling", False)
    found["throughput_scaling"] = switches.get("enable_throughput_scaling", True)
    if not found["throughput_scaling"]:
        return
    if "throughput_adjustment_interval" in own:
        found["throughput_interval"] = whole_of(own["throughput_adjustment_interval"], "throughput_adjustment_interval")
    for name, allowed in OF_TRAFFIC.items():
        _same(own, name, allowed)
    predictor = own.get("load_predictor")
    if predictor is None:
        raise document.mark.error(Verbatim("arima, the default, is not modelled; write constant or kalman"),
                                  field="load_predictor")
    found["predictor"] = text_of(predictor, "load_predictor", document, ("constant", "kalman"))
    for name, key in NOISE.items():
        if name in own:
            found[key] = number_of(own[name], name)
    sweep = own.get("pre_deployment_sweeping_mode")
    if sweep is None or sweep.value not in (None, "none"):
        read.notes.append("regressions trained before the deployment (pre_deployment_sweeping_mode) are not modelled: "
                          "they begin empty")


def _switch(node: Node, name: str) -> bool:
    if not isinstance(node.value, bool):
        raise node.mark.error("true or false", node.plain(), field=name)
    return node.value


def _same(own: Mapping[str, Node], name: str, allowed: tuple[Any, ...]) -> None:
    node = own.get(name)
    if node is not None and not any(node.value == one and type(node.value) is type(one) for one in allowed):
        texts = ["null" if one is None else str(one).lower() for one in allowed]
        raise node.mark.error(f"{' or '.join(texts)}, as simulated", node.plain(), field=name)
