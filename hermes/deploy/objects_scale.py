"""HorizontalPodAutoscaler and ScaledObject as the autoscalers `hpa` and `keda`, and back."""

from __future__ import annotations

import re
from typing import Annotated, Literal, Self

from pydantic import AfterValidator, Field, model_validator

from hermes.deploy.typed import Keys, Object, Part, Quantity, Whole, amount_of, quantity_of, whole_of
from hermes.errors import InputError, Verbatim
from hermes.fleet.hpa import Hpa, Ruled
from hermes.fleet.hpa import Metric as HpaMetric
from hermes.fleet.keda import Keda

__all__ = ["HorizontalPodAutoscaler", "ScaledObject"]

WHOLE = ("model_name", "namespace", "job", "service")  # labels that all replicas of the clients share
METRICS = {"num_requests_waiting": "waiting", "num_requests_running": "running", "gpu_cache_usage_perc": "kv_use",
           "kv_cache_usage_perc": "kv_use"}
NEWEST = {ours: theirs for theirs, ours in METRICS.items()}
# what waits in llm-d's flow control, for a ScaledObject: by llm-d, and by the Gateway API inference extension
QUEUES = ("llm_d_epp_flow_control_queue_size", "inference_extension_flow_control_queue_size")
PROMETHEUS = "http://prometheus:9090"
KEDA = {"min_replica_count": "min", "max_replica_count": "max", "idle_replica_count": "idle",
        "polling_interval": "polling", "cooldown_period": "cooldown", "initial_cooldown_period": "initial_cooldown"}
ELSEWHERE = {"period": "kube-controller-manager --horizontal-pod-autoscaler-sync-period",
             "sync": "kube-controller-manager --horizontal-pod-autoscaler-sync-period",
             "tolerance": "kube-controller-manager --horizontal-pod-autoscaler-tolerance",
             "scrape": "the scrape interval of Prometheus"}   # keys that other components have, with a default there


def _metric(name: str) -> str:
    """Return the key of a metric of vLLM."""
    found = re.fullmatch(r"vllm[:_](\w+)", name)
    if found is None or found[1] not in METRICS:
        raise InputError(f"one of {', '.join('vllm:' + name for name in METRICS)}", name)
    return METRICS[found[1]]


def _summed(query: str) -> str:
    """Return the key of the metric of which a query is the sum over all replicas."""
    found = re.fullmatch(r"\s*sum\(\s*([\w:]+)\s*(?:\{([^{}]*)\})?\s*\)\s*", query)
    if found is None:
        raise InputError("sum(METRIC{...}); other queries are not modelled", query)
    labels = re.findall(r'(\w+)="', found[2] or "")
    if not re.fullmatch(r'(?:(\w+)="[^"]*",?)*', re.sub(r"\s", "", found[2] or "")) or not set(labels) <= set(WHOLE):
        raise InputError(f"a sum over all replicas, by labels {', '.join(WHOLE)} with =", query)
    return "queue" if found[1] in QUEUES else _metric(found[1])


def _elsewhere(autoscaler: Ruled, path: str) -> list[str]:
    fields = type(autoscaler).model_fields
    return [f"{path}.{key}: {getattr(autoscaler, key):g} is set elsewhere: {where}" for key, where in ELSEWHERE.items()
            if key in fields and getattr(autoscaler, key) != fields[key].default]


MetricName = Annotated[str, AfterValidator(lambda name: _metric(name) and name)]
Query = Annotated[str, AfterValidator(lambda query: _summed(query) and query)]


# -- how fast ----------------------------------------------------------------------------------------------------------

class Policy(Part):
    type: Literal["Pods", "Percent"]
    value: Whole
    period_seconds: Whole


class Rules(Part):
    """One side of a `behavior`."""

    stabilization_window_seconds: Whole | None = None
    select_policy: Literal["Max"] = "Max"
    policies: list[Policy] = []

    @model_validator(mode="after")
    def _one_of_each(self) -> Self:
        for place, policy in enumerate(self.policies):
            if any(policy.type == other.type or policy.period_seconds != other.period_seconds
                   for other in self.policies[:place]):
                raise InputError(Verbatim("one policy of each type and one period are modelled; remove it"),
                                 field=f"policies.{place}")
        return self

    @property
    def keys(self) -> Keys:
        window = self.stabilization_window_seconds
        found: Keys = {} if window is None else {"window": window}
        for policy in self.policies:
            found |= {policy.type.lower(): policy.value, "period": policy.period_seconds}
        return found


class Behavior(Part):
    scale_up: Rules = Rules()
    scale_down: Rules = Rules()

    @property
    def keys(self) -> Keys:
        return {"scale_up": self.scale_up.keys, "scale_down": self.scale_down.keys}


def _behavior_of(autoscaler: Ruled, path: str) -> Keys:
    """Return both sides as they were simulated; nothing where no `behavior` was."""
    return {field: {
        "stabilizationWindowSeconds": whole_of(side.window, f"{path}.{key}.window"), "selectPolicy": "Max",
        "policies": [{"type": name.capitalize(), "value": whole_of(value, f"{path}.{key}.{name}"),
                      "periodSeconds": whole_of(side.period, f"{path}.{key}.period")}
                     for name, value in (("pods", side.pods), ("percent", side.percent)) if value is not None]}
        for field, key, side in (("scaleUp", "scale_up", autoscaler.scale_up),
                                 ("scaleDown", "scale_down", autoscaler.scale_down)) if side is not None}


# -- HorizontalPodAutoscaler -------------------------------------------------------------------------------------------

class Target(Part):
    type: Literal["AverageValue", "Value"]
    average_value: Quantity | None = None
    value: Quantity | None = None

    @model_validator(mode="after")
    def _the_one_of_its_type(self) -> Self:
        average = self.type == "AverageValue"
        if (self.average_value is not None, self.value is not None) != (average, not average):
            raise InputError(f"type and {'averageValue' if average else 'value'}", [*self.written()])
        return self


class Source(Part):
    metric: Annotated[dict[Literal["name"], MetricName], Field(min_length=1)]
    target: Target


class Described(Part):
    beside = ("apiVersion", "name")
    kind: Literal["Service", "InferencePool"]


class OfObject(Source):
    described_object: Described


class Metric(Part):
    type: Literal["Pods", "External", "Object"]
    pods: Source | None = None
    external: Source | None = None
    object: OfObject | None = None

    @property
    def source(self) -> Source | None:
        return {"Pods": self.pods, "External": self.external, "Object": self.object}[self.type]

    @model_validator(mode="after")
    def _fits_its_type(self) -> Self:
        if self.source is None:
            raise InputError(Verbatim("needs metric.name and target; write them"), field=self.type.lower())
        if self.type == "Pods" and self.source.target.type == "Value":
            raise InputError("one of AverageValue", "Value", field="pods.target.type")
        return self

    @property
    def keys(self) -> Keys:
        assert self.source is not None   # by its validator
        target = self.source.target
        return {"metric": _metric(self.source.metric["name"]), "type": self.type.lower(),
                "average": target.value is None, "target": amount_of(target.value or target.average_value or "")}


def _metric_of(metric: HpaMetric, service: str, path: str) -> Keys:
    own: Keys = {"metric": {"name": f"vllm_{NEWEST[metric.metric]}"}}
    if metric.type == "object":
        own["describedObject"] = {"apiVersion": "v1", "kind": "Service", "name": service}
    own["target"] = {"type": "AverageValue" if metric.average else "Value",
                     "averageValue" if metric.average else "value": quantity_of(metric.target, f"{path}.target")}
    return {"type": metric.type.capitalize(), metric.type: own}


class HpaSpec(Part):
    scale_target_ref: object = None
    min_replicas: Whole = 1
    max_replicas: Whole
    metrics: list[Metric] = []
    behavior: Behavior | None = None


class HorizontalPodAutoscaler(Object):
    api_version: Literal["autoscaling/v2"]
    kind: Literal["HorizontalPodAutoscaler"]
    spec: HpaSpec

    @property
    def keys(self) -> Keys:
        """The autoscaler of a scenario."""
        return {"kind": "hpa", "metrics": [metric.keys for metric in self.spec.metrics], "min": self.spec.min_replicas,
                "max": self.spec.max_replicas, **(self.spec.behavior.keys if self.spec.behavior else {})}

    @classmethod
    def of(cls, autoscaler: Hpa, name: str, most: int, path: str) -> tuple[HorizontalPodAutoscaler, list[str]]:
        """Return the object, and what has to be set elsewhere. Raises `InputError` for what it cannot say.

        Args:
            name: Of the Deployment.
            most: Clients of the group.
            path: Of the autoscaler in the scenario.
        """
        spec = {"scaleTargetRef": {"apiVersion": "apps/v1", "kind": "Deployment", "name": name},
                "minReplicas": autoscaler.min, "maxReplicas": autoscaler.max or most,
                "metrics": [_metric_of(metric, name, f"{path}.metrics.{place}")
                            for place, metric in enumerate(autoscaler.metrics)],
                "behavior": _behavior_of(autoscaler, path) or None}
        notes = [f"{path}: the Service of metrics of type Object is yours to name"] \
            if any(metric.type == "object" for metric in autoscaler.metrics) else []
        return cls.model_validate({"apiVersion": "autoscaling/v2", "kind": "HorizontalPodAutoscaler",
                                   "metadata": {"name": name}, "spec": spec}), notes + _elsewhere(autoscaler, path)


# -- ScaledObject ------------------------------------------------------------------------------------------------------

class TriggerMetadata(Part):
    beside = ("metricName", "namespace", "authModes")
    server_address: str | None = None
    query: Query
    threshold: Quantity
    activation_threshold: Quantity | None = None


class Trigger(Part):
    beside = ("name", "authenticationRef")
    type: Literal["prometheus"]
    metric_type: Literal["AverageValue"] = "AverageValue"
    metadata: TriggerMetadata

    @property
    def keys(self) -> Keys:
        own = self.metadata
        return {"metric": _summed(own.query), "target": amount_of(own.threshold), **(
            {} if own.activation_threshold is None else {"activation": amount_of(own.activation_threshold)})}


class HpaConfig(Part):
    beside = ("name",)
    behavior: Behavior | None = None


class KedaSpec(Part):
    scale_target_ref: object = None
    min_replica_count: Whole | None = None
    max_replica_count: Whole   # KEDA: 100
    idle_replica_count: Whole | None = None
    polling_interval: Whole | None = None
    cooldown_period: Whole | None = None
    initial_cooldown_period: Whole | None = None
    triggers: list[Trigger] = []
    advanced: dict[Literal["horizontalPodAutoscalerConfig"], HpaConfig] = {}


class ScaledObject(Object):
    api_version: Literal["keda.sh/v1alpha1"]
    kind: Literal["ScaledObject"]
    spec: KedaSpec

    @property
    def keys(self) -> Keys:
        """The autoscaler of a scenario."""
        behavior = self.spec.advanced.get("horizontalPodAutoscalerConfig", HpaConfig()).behavior
        return {"kind": "keda", "triggers": [trigger.keys for trigger in self.spec.triggers],
                **{key: value for name, key in KEDA.items() if (value := getattr(self.spec, name)) is not None},
                **(behavior.keys if behavior else {})}

    @classmethod
    def of(cls, autoscaler: Keda, name: str, most: int, path: str) -> tuple[ScaledObject, list[str]]:
        """Return the object, and what has to be set elsewhere. See `HorizontalPodAutoscaler.of`."""
        triggers = [{"type": "prometheus", "metricType": "AverageValue", "metadata": {
            "serverAddress": PROMETHEUS,
            "query": f"sum({QUEUES[0] if trigger.metric == 'queue' else f'vllm:{NEWEST[trigger.metric]}'})",
            "threshold": quantity_of(trigger.target, f"{path}.triggers.{place}.target", unit=False),
            "activationThreshold": quantity_of(trigger.activation, f"{path}.triggers.{place}.activation", unit=False)}}
            for place, trigger in enumerate(autoscaler.triggers)]
        numbers = {key: most if key == "max" and autoscaler.max is None else getattr(autoscaler, key)
                   for key in KEDA.values()}
        behavior = _behavior_of(autoscaler, path)
        spec = {"scaleTargetRef": {"name": name}, "triggers": triggers,
                **{field: whole_of(numbers[key], f"{path}.{key}") for field, key in KEDA.items()
                   if numbers[key] is not None},
                **({"advanced": {"horizontalPodAutoscalerConfig": {"behavior": behavior}}} if behavior else {})}
        return cls.model_validate({"apiVersion": "keda.sh/v1alpha1", "kind": "ScaledObject",
                                   "metadata": {"name": name}, "spec": spec}), [
            f"{path}: serverAddress of the triggers is yours to write", *_elsewhere(autoscaler, path)]
