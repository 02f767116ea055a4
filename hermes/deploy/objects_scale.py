"""HorizontalPodAutoscaler and ScaledObject as the autoscalers `hpa` and `keda`, and back."""

from __future__ import annotations

import re
from typing import Any

from hermes.config.yaml_document import Node
from hermes.deploy.objects_fields import BESIDE, fields_of, items_of, quantity_of, text_of, whole_of
from hermes.errors import InputError, Verbatim

__all__ = ["hpa_of", "keda_of", "read_hpa", "read_keda"]

WHOLE = ("model_name", "namespace", "job", "service")  # labels that all replicas of the clients share
METRICS = {"num_requests_waiting": "waiting", "num_requests_running": "running", "gpu_cache_usage_perc": "kv_use",
           "kv_cache_usage_perc": "kv_use"}
# what waits in llm-d's flow control, for a ScaledObject: by llm-d, and by the Gateway API inference extension
QUEUES = ("llm_d_epp_flow_control_queue_size", "inference_extension_flow_control_queue_size")
PROMETHEUS = "http://prometheus:9090"
KEDA = {"minReplicaCount": "min", "maxReplicaCount": "max", "idleReplicaCount": "idle", "pollingInterval": "polling",
        "cooldownPeriod": "cooldown", "initialCooldownPeriod": "initial_cooldown"}
ELSEWHERE = {"period": "kube-controller-manager --horizontal-pod-autoscaler-sync-period",
             "sync": "kube-controller-manager --horizontal-pod-autoscaler-sync-period",
             "tolerance": "kube-controller-manager --horizontal-pod-autoscaler-tolerance",
             "scrape": "the scrape interval of Prometheus"}   # keys that other components have, with a default there


def _metric(node: Node, path: str) -> str:
    found = re.fullmatch(r"vllm[:_](\w+)", str(node.value))
    if found is None or found[1] not in METRICS:
        raise node.mark.error(f"one of {', '.join('vllm:' + name for name in METRICS)}", node.plain(), field=path)
    return METRICS[found[1]]


def _behavior(node: Node | None, path: str) -> dict[str, Any]:
    """Return both sides, if there is a `behavior`: without one there are other rules."""
    if node is None:
        return {}
    found: dict[str, Any] = {"scale_up": {}, "scale_down": {}}
    for side, rules in fields_of(node, path, ("scaleUp", "scaleDown")).items():
        here = f"{path}.{side}"
        own = fields_of(rules, here, ("stabilizationWindowSeconds", "policies", "selectPolicy"))
        if "selectPolicy" in own:
            text_of(own["selectPolicy"], f"{here}.selectPolicy", rules, ("Max",))
        result: dict[str, Any] = {}
        if "stabilizationWindowSeconds" in own:
            result["window"] = whole_of(own["stabilizationWindowSeconds"], f"{here}.stabilizationWindowSeconds")
        for place, policy in enumerate(items_of(own.get("policies"), f"{here}.policies")):
            at = f"{here}.policies.{place}"
            row = fields_of(policy, at, ("type", "value", "periodSeconds"))
            key = {"Pods": "pods", "Percent": "percent"}[text_of(row.get("type"), f"{at}.type", policy,
                                                               ("Pods", "Percent"))]
            if "value" not in row or "periodSeconds" not in row:
                raise policy.mark.error(Verbatim("needs value and periodSeconds; write them"), field=at)
            period = whole_of(row["periodSeconds"], f"{at}.periodSeconds")
            if key in result or result.get("period", period) != period:
                raise policy.mark.error(Verbatim("one policy of each type and one period are modelled; remove it"),
                                        field=at)
            result |= {key: whole_of(row["value"], f"{at}.value"), "period": period}
        found["scale_up" if side == "scaleUp" else "scale_down"] = result
    return found


def read_hpa(document: Node) -> dict[str, Any]:
    spec = fields_of(fields_of(document, "", ("spec",), BESIDE).get("spec"), "spec",
                   ("minReplicas", "maxReplicas", "metrics", "behavior"), ("scaleTargetRef",))
    if "maxReplicas" not in spec:
        raise document.mark.error(Verbatim("is missing; write it"), field="spec.maxReplicas")
    metrics = []
    for place, entry in enumerate(items_of(spec.get("metrics"), "spec.metrics")):
        path = f"spec.metrics.{place}"
        row = fields_of(entry, path, ("type", "pods", "external", "object"))
        kind = text_of(row.get("type"), f"{path}.type", entry, ("Pods", "External", "Object")).lower()
        path = f"{path}.{kind}"
        own = fields_of(row.get(kind), path, ("metric", "target", *(("describedObject",) if kind == "object" else ())))
        named = fields_of(own.get("metric"), f"{path}.metric", ("name",))
        target = fields_of(own.get("target"), f"{path}.target", ("type", "averageValue", "value"))
        if "name" not in named or not target:
            raise entry.mark.error(Verbatim("needs metric.name and target; write them"), field=path)
        if kind == "object":
            of = fields_of(own.get("describedObject"), f"{path}.describedObject", ("kind",), ("apiVersion", "name"))
            text_of(of.get("kind"), f"{path}.describedObject.kind", entry, ("Service", "InferencePool"))
        average = text_of(target.get("type"), f"{path}.target.type", entry, (
            ("AverageValue",) if kind == "pods" else ("AverageValue", "Value"))) == "AverageValue"
        if target.keys() != {"type", "averageValue" if average else "value"}:
            raise own["target"].mark.error(f"type and {'averageValue' if average else 'value'}", list(target),
                                           field=f"{path}.target")
        metrics.append({
            "metric": _metric(named["name"], f"{path}.metric.name"), "type": kind, "average": average,
            "target": quantity_of(target["averageValue" if average else "value"], f"{path}.target")})
    least = spec.get("minReplicas")
    return {"kind": "hpa", "metrics": metrics, "min": 1 if least is None else whole_of(least, "spec.minReplicas"),
            "max": whole_of(spec["maxReplicas"], "spec.maxReplicas"),
            **_behavior(spec.get("behavior"), "spec.behavior")}


def read_keda(document: Node) -> dict[str, Any]:
    spec = fields_of(fields_of(document, "", ("spec",), BESIDE).get("spec"), "spec", (*KEDA, "triggers", "advanced"),
                   ("scaleTargetRef",))
    if "maxReplicaCount" not in spec:
        raise document.mark.error(Verbatim("is missing; KEDA takes 100, so write it"), field="spec.maxReplicaCount")
    triggers = []
    for place, entry in enumerate(items_of(spec.get("triggers"), "spec.triggers")):
        path = f"spec.triggers.{place}"
        row = fields_of(entry, path, ("type", "metadata", "metricType"), ("name", "authenticationRef"))
        text_of(row.get("type"), f"{path}.type", entry, ("prometheus",))
        if "metricType" in row:
            text_of(row["metricType"], f"{path}.metricType", entry, ("AverageValue",))
        own = fields_of(row.get("metadata"), f"{path}.metadata", ("query", "threshold", "activationThreshold"),
                      ("serverAddress", "metricName", "namespace", "authModes"))
        query = text_of(own.get("query"), f"{path}.metadata.query", entry)
        found = re.fullmatch(r"\s*sum\(\s*([\w:]+)\s*(?:\{([^{}]*)\})?\s*\)\s*", query)
        matchers = re.fullmatch(r'(?:(\w+)="[^"]*",?)*', re.sub(r"\s", "", found[2] or "")) if found else None
        labels = re.findall(r'(\w+)="', found[2] or "") if found and matchers else ["?"]
        if found and not set(labels) <= set(WHOLE):
            raise own["query"].mark.error(f"a sum over all replicas, by labels {', '.join(WHOLE)} with =", query,
                                          field=f"{path}.metadata.query")
        if found is None:
            raise own["query"].mark.error("sum(METRIC{...}); other queries are not modelled", query,
                                          field=f"{path}.metadata.query")
        if "threshold" not in own:
            raise entry.mark.error(Verbatim("is missing; write it"), field=f"{path}.metadata.threshold")
        metric = "queue" if found[1] in QUEUES else _metric(Node(found[1], own["query"].mark), f"{path}.metadata.query")
        triggers.append({"metric": metric, "target": quantity_of(own["threshold"], f"{path}.metadata.threshold"), **(
            {"activation": quantity_of(own["activationThreshold"], f"{path}.metadata.activationThreshold")}
            if "activationThreshold" in own else {})})
    advanced = fields_of(spec.get("advanced"), "spec.advanced", ("horizontalPodAutoscalerConfig",))
    config = fields_of(advanced.get("horizontalPodAutoscalerConfig"), "spec.advanced.horizontalPodAutoscalerConfig",
                     ("behavior",), ("name",))
    return {"kind": "keda", "triggers": triggers,
            **{KEDA[key]: whole_of(node, f"spec.{key}") for key, node in spec.items() if key in KEDA},
            **_behavior(config.get("behavior"), "spec.advanced.horizontalPodAutoscalerConfig.behavior")}


# -- the way back ------------------------------------------------------------------------------------------------------

def hpa_of(autoscaler: Any, name: str, most: int, path: str) -> tuple[dict[str, Any], list[str]]:
    """Return a HorizontalPodAutoscaler, and what has to be set elsewhere. Raises `InputError` for what it cannot say.

    Args:
        autoscaler: Of kind `hpa`.
        name: Of the Deployment.
        most: Clients of the group.
        path: Of the autoscaler in the scenario.
    """
    metrics = []
    for place, metric in enumerate(autoscaler.metrics):
        value = _quantity_text(metric.target, f"{path}.metrics.{place}.target")
        own: dict[str, Any] = {"metric": {"name": f"vllm_{_name_of(metric.metric)}"}}
        if metric.type == "object":
            own["describedObject"] = {"apiVersion": "v1", "kind": "Service", "name": name}
        own["target"] = {"type": "AverageValue", "averageValue": value} if metric.average else {
            "type": "Value", "value": value}
        metrics.append({"type": metric.type.capitalize(), metric.type: own})
    spec: dict[str, Any] = {
        "scaleTargetRef": {"apiVersion": "apps/v1", "kind": "Deployment", "name": name},
        "minReplicas": autoscaler.min, "maxReplicas": autoscaler.max or most, "metrics": metrics}
    if behavior := _behavior_of(autoscaler, path):
        spec["behavior"] = behavior
    document = {"apiVersion": "autoscaling/v2", "kind": "HorizontalPodAutoscaler", "metadata": {"name": name},
                "spec": spec}
    notes = [f"{path}: the Service of metrics of type Object is yours to name"] \
        if any(metric.type == "object" for metric in autoscaler.metrics) else []
    return document, notes + _elsewhere(autoscaler, path)


def keda_of(autoscaler: Any, name: str, most: int, path: str) -> tuple[dict[str, Any], list[str]]:
    """Return a ScaledObject, and what has to be set elsewhere. See `hpa_of`."""
    triggers = []
    for place, trigger in enumerate(autoscaler.triggers):
        at = f"{path}.triggers.{place}"
        metric = QUEUES[0] if trigger.metric == "queue" else f"vllm:{_name_of(trigger.metric)}"
        triggers.append({"type": "prometheus", "metricType": "AverageValue", "metadata": {
            "serverAddress": PROMETHEUS, "query": f"sum({metric})",
            "threshold": _quantity_text(trigger.target, f"{at}.target", unit=False),
            "activationThreshold": _quantity_text(trigger.activation, f"{at}.activation", unit=False)}})
    spec: dict[str, Any] = {"scaleTargetRef": {"name": name}}
    for field, key in KEDA.items():
        value = getattr(autoscaler, key)
        value = most if value is None and key == "max" else value
        if value is not None:
            spec[field] = _whole_text(value, f"{path}.{key}")
    spec["triggers"] = triggers
    if behavior := _behavior_of(autoscaler, path):
        spec["advanced"] = {"horizontalPodAutoscalerConfig": {"behavior": behavior}}
    return ({"apiVersion": "keda.sh/v1alpha1", "kind": "ScaledObject", "metadata": {"name": name}, "spec": spec},
            [f"{path}: serverAddress of the triggers is yours to write", *_elsewhere(autoscaler, path)])


def _name_of(metric: str) -> str:
    return [theirs for theirs, ours in METRICS.items() if ours == metric][-1]   # the newest name


def _elsewhere(autoscaler: Any, path: str) -> list[str]:
    fields = type(autoscaler).model_fields
    return [f"{path}.{key}: {getattr(autoscaler, key):g} is set elsewhere: {where}" for key, where in ELSEWHERE.items()
            if key in fields and getattr(autoscaler, key) != fields[key].default]


def _behavior_of(autoscaler: Any, path: str) -> dict[str, Any]:
    """Return both sides as they were simulated; nothing where no `behavior` was."""
    found: dict[str, Any] = {}
    for field, key in (("scaleUp", "scale_up"), ("scaleDown", "scale_down")):
        side = getattr(autoscaler, key)
        if side is None:
            continue
        at = f"{path}.{key}"
        found[field] = {
            "stabilizationWindowSeconds": _whole_text(side.window, f"{at}.window"), "selectPolicy": "Max",
            "policies": [{"type": kind, "value": _whole_text(value, f"{at}.{name}"),
                          "periodSeconds": _whole_text(side.period, f"{at}.period")}
                         for kind, name, value in (("Pods", "pods", side.pods), ("Percent", "percent", side.percent))
                         if value is not None]}
    return found


def _whole_text(value: float, path: str) -> int:
    if value != int(value):
        raise InputError("a whole number, as objects of Kubernetes have", value, field=path)
    return int(value)


def _quantity_text(value: float, path: str, *, unit: bool = True) -> str:
    """Return a number with three decimals, or in thousandths with their unit."""
    thousandths = round(value * 1000)
    if abs(thousandths - value * 1000) > 1e-6:
        raise InputError("whole thousandths, as quantities of Kubernetes have", value, field=path)
    if thousandths % 1000 == 0:
        return str(thousandths // 1000)
    return f"{thousandths}m" if unit else f"{thousandths / 1000:.3f}".rstrip("0")
