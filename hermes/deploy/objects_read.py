"""Objects of clusters as parts of a scenario: EndpointPickerConfig, HTTPRoute, HorizontalPodAutoscaler, ScaledObject.

Each object becomes one key: the router `llm_d`, the gateway, or an autoscaler. A field that is not modelled is refused
with its line. Fields without an effect on timing are in the tables below; no other field is passed over.
"""

from __future__ import annotations

import re
from collections.abc import Collection
from typing import Any

from hermes.config.yaml_document import Node, parse_documents
from hermes.errors import InputError, Verbatim
from hermes.routing.llm_d import DEFAULT_CAPACITY, LEAST_BLOCK, MOST_TOKENS

__all__ = ["SCORERS", "parts_of"]

SCORERS = {
    "queue-scorer": "queue", "kv-cache-utilization-scorer": "kv", "prefix-cache-scorer": "prefix",
    "precise-prefix-cache-scorer": "precise_prefix", "load-aware-scorer": "load_aware",
    "session-affinity-scorer": "session", "lora-affinity-scorer": "lora_affinity"}
HANDLERS = ("pd-profile-handler", "disagg-profile-handler")
PHASES = {"decode": "decode-filter", "prefill": "prefill-filter"}   # the filter that a profile of a phase needs
DECIDER = "prefix-based-pd-decider"
# plugins that hermes has by itself: the highest sum wins, and roles filter
BY_ITSELF = {"single-profile-handler", "max-score-picker", "decode-filter", "prefill-filter", "prefill-header-handler",
             "disagg-headers-handler", "approx-prefix-cache-producer"}
# parameters of the approximate prefix cache: the values from and to which the router `llm_d` does the same, and why
BLOCK = (1, LEAST_BLOCK, f"raised to {LEAST_BLOCK} tokens, or to the engine's block where that is longer")
PREFIX = {"blockSize": BLOCK, "blockSizeTokens": BLOCK,
          "lruCapacityPerServer": (DEFAULT_CAPACITY, DEFAULT_CAPACITY, "engines that show their blocks have as many"),
          "maxPrefixBlocksToMatch": (MOST_TOKENS // LEAST_BLOCK, MOST_TOKENS // LEAST_BLOCK,
                                     f"{MOST_TOKENS} tokens in blocks of {LEAST_BLOCK}"),
          "maxPrefixTokensToMatch": (MOST_TOKENS, MOST_TOKENS, "the router's default")}
FLOW_CONTROL = ("flowControl", "saturationDetector")   # fields of what a scenario has as `gateway.flow_control`
VERSIONS = {"EndpointPickerConfig": ("inference.networking.x-k8s.io/v1alpha1", "llm-d.ai/v1alpha1", "llm-d.ai/v1"),
            "HTTPRoute": ("gateway.networking.k8s.io/v1", "gateway.networking.k8s.io/v1beta1"),
            "HorizontalPodAutoscaler": ("autoscaling/v2",), "ScaledObject": ("keda.sh/v1alpha1",)}
BESIDE = ("apiVersion", "kind", "metadata", "status")  # no effect on timing
WHOLE = ("model_name", "namespace", "job", "service")  # labels that all replicas of the clients share
METRICS = {"num_requests_waiting": "waiting", "num_requests_running": "running", "gpu_cache_usage_perc": "kv_use",
           "kv_cache_usage_perc": "kv_use"}
_UNITS = {"h": 3600.0, "m": 60.0, "s": 1.0, "ms": 0.001}


def parts_of(text: str, file: str | None) -> dict[str, Any]:
    """Return the keys that the objects of a file set: `router`, `gateway`, `autoscaler`."""
    readers = {
        "EndpointPickerConfig": ("router", _picker), "HTTPRoute": ("gateway", _route),
        "HorizontalPodAutoscaler": ("autoscaler", _hpa), "ScaledObject": ("autoscaler", _keda)}
    parts: dict[str, Any] = {}
    for document in parse_documents(text, file):
        kind = _at(document, "kind")
        if kind is None or not isinstance(kind.value, str) or kind.value not in readers:
            raise (kind or document).mark.error(f"one of {', '.join(readers)}; remove other objects",
                                                kind.plain() if kind else Verbatim("none"), field="kind")
        _text(_at(document, "apiVersion"), "apiVersion", document, VERSIONS[kind.value])
        key, read = readers[kind.value]
        if key in parts:
            raise kind.mark.error(Verbatim(f"a second object for `{key}`; give one of them"), field="kind")
        parts[key] = read(document)
    if not parts:
        raise InputError(f"one of {', '.join(readers)}", Verbatim("no object"), file=file)
    return parts


def _at(node: Node | None, *keys: str) -> Node | None:
    for key in keys:
        node = None if node is None else node.child(key)
    return node


def _fields(node: Node | None, path: str, known: Collection[str], beside: Collection[str] = ()) -> dict[str, Node]:
    """Return the fields of a mapping; refuse those that are neither known nor without effect."""
    if node is None or node.value is None:
        return {}
    if not isinstance(node.value, dict):
        raise node.mark.error("a mapping", node.plain(), field=path)
    for key, child in node.value.items():
        if key not in known and key not in beside:
            raise (child.key or child.mark).error(
                Verbatim("is not modelled; remove it if the result may do without"), field=f"{path}.{key}".strip("."))
    return {key: child for key, child in node.value.items() if key in known}


def _items(node: Node | None, path: str) -> list[Node]:
    if node is None:
        return []
    if not isinstance(node.value, list):
        raise node.mark.error("a list", node.plain(), field=path)
    return node.value


def _text(node: Node | None, path: str, at: Node, allowed: Collection[str] = ()) -> str:
    if node is None:
        raise at.mark.error(Verbatim("is missing; write it"), field=path)
    if not isinstance(node.value, str) or (allowed and node.value not in allowed):
        raise node.mark.error(f"one of {', '.join(allowed)}" if allowed else "a text", node.plain(), field=path)
    return node.value


def _number(node: Node, path: str) -> float:
    value = node.value
    if isinstance(value, bool) or not isinstance(value, int | float) or not 0 <= value <= 2**40:
        raise node.mark.error("a number from 0 on", node.plain(), field=path)
    return value


def _whole(node: Node, path: str) -> int:
    value = _number(node, path)
    if not isinstance(value, int):
        raise node.mark.error("a whole number", value, field=path)
    return value


def _quantity(node: Node, path: str) -> float:
    """Return a quantity of Kubernetes, such as 10, "10" or 500m."""
    found = re.fullmatch(r"([0-9]{1,12}(?:\.[0-9]{1,9})?)(m?)", str(node.value))
    if found is None or isinstance(node.value, bool):
        raise node.mark.error("a quantity such as 10 or 500m", node.plain(), field=path)
    return float(found[1]) / (1000 if found[2] else 1)


def _duration(node: Node, path: str) -> float | None:
    """Return a duration of the Gateway API; None for 0s, which means none."""
    text = node.value
    if not isinstance(text, str) or not re.fullmatch(r"(?:[0-9]{1,5}(?:h|ms|m|s)){1,4}", text):
        raise node.mark.error("a duration such as 10s or 1m30s", node.plain(), field=path)
    return sum(int(n) * _UNITS[unit] for n, unit in re.findall(r"([0-9]+)(h|ms|m|s)", text)) or None


# -- the endpoint picker ---------------------------------------------------------------------------------------------

def _picker(document: Node) -> dict[str, Any]:
    for name in FLOW_CONTROL:
        node = _at(document, name)
        if node is not None:
            told = Verbatim("is not read from objects; remove it, and write gateway.flow_control into the scenario")
            raise (node.key or node.mark).error(told, field=name)
    fields = _fields(document, "", ("plugins", "schedulingProfiles", "featureGates"), BESIDE)
    for gate in _items(fields.get("featureGates"), "featureGates"):
        if gate.value != "prepareDataPlugins":
            raise gate.mark.error("prepareDataPlugins or no gate", gate.plain(), field="featureGates")
    types: dict[str, str] = {}
    given: dict[str, dict[str, Node]] = {}
    prefix = ("autoTune", *PREFIX)
    known = {**dict.fromkeys(SCORERS, ()), **dict.fromkeys(BY_ITSELF, ()), "load-aware-scorer": ("threshold",),
             "prefix-cache-scorer": prefix, "approx-prefix-cache-producer": prefix, DECIDER: ("nonCachedTokens",),
             HANDLERS[0]: ("deciderPluginName",), HANDLERS[1]: ("deciders",)}
    beside = {HANDLERS[0]: ("primaryPort",), "precise-prefix-cache-scorer": ("kvEventsConfig",)}
    for place, plugin in enumerate(_items(fields.get("plugins"), "plugins")):
        path = f"plugins.{place}"
        own = _fields(plugin, path, ("type", "name", "parameters"))
        kind = _text(own.get("type"), f"{path}.type", plugin)
        if kind not in known:
            raise own["type"].mark.error(Verbatim(f"{kind!r} is not modelled; remove the plugin"), field=f"{path}.type")
        name = _text(own["name"], f"{path}.name", plugin) if "name" in own else kind
        if name in types:
            raise plugin.mark.error(Verbatim(f"a second plugin {name!r}; give it another name"), field=path)
        types[name] = kind
        given[name] = _fields(own.get("parameters"), f"{path}.parameters", known[kind], beside.get(kind, ()))
        tune = given[name].get("autoTune")
        if tune is not None and tune.value is not True:
            raise tune.mark.error("true, as simulated", tune.plain(), field=f"{path}.parameters.autoTune")
        for key in PREFIX.keys() & given[name].keys():
            least, most, why = PREFIX[key]
            if not least <= _whole(given[name][key], f"{path}.parameters.{key}") <= most:
                raise given[name][key].mark.error(
                    f"{most} ({why}), as simulated" if least == most else f"{least} to {most} ({why}), as simulated",
                    given[name][key].plain(), field=f"{path}.parameters.{key}")
    handlers = [name for name, kind in types.items() if kind in (*HANDLERS, "single-profile-handler")]
    if len(handlers) > 1:
        raise fields["plugins"].mark.error("one profile handler", handlers, field="plugins")
    handlers = [name for name in handlers if types[name] in HANDLERS]
    profiles: list[dict[str, float]] = []
    names: list[str] = []
    used: set[str] = set()
    listed = _items(fields.get("schedulingProfiles"), "schedulingProfiles")
    for place, profile in enumerate(listed):
        path = f"schedulingProfiles.{place}"
        own = _fields(profile, path, ("name", "plugins"))
        names.append(_text(own.get("name"), f"{path}.name", profile))
        weights: dict[str, float] = {}
        filters: list[str] = []
        for index, entry in enumerate(_items(own.get("plugins"), f"{path}.plugins")):
            here = f"{path}.plugins.{index}"
            row = _fields(entry, here, ("pluginRef", "weight"))
            name = _text(row.get("pluginRef"), f"{here}.pluginRef", entry, types)
            used.add(name)
            if types[name] in PHASES.values():
                filters.append(types[name])
                if not handlers:
                    raise entry.mark.error(Verbatim(
                        f"{types[name]} without a handler of prefill and decode leaves clients out, which is not "
                        f"modelled; add {HANDLERS[1]}, or remove it"), field=f"{here}.pluginRef")
            if types[name] in SCORERS:
                key = SCORERS[types[name]]
                if key in weights:
                    raise entry.mark.error(Verbatim("a second scorer of this type; keep one"), field=here)
                # 1 is llm-d's DefaultScorerWeight
                weights[key] = float(_number(row["weight"], f"{here}.weight")) if "weight" in row else 1.0
        wanted = PHASES.get(names[-1], "") if handlers else ""
        if wanted and filters != [wanted]:
            raise profile.mark.error(f"the plugin {wanted} and no other filter", filters, field=f"{path}.plugins")
        profiles.append(weights)
    phases = sorted(PHASES) if handlers else names[:1]
    at = fields.get("schedulingProfiles", document)
    if not profiles or sorted(names) != phases:
        raise at.mark.error("profiles prefill and decode" if handlers else "one profile", names,
                            field="schedulingProfiles")
    if any(profile != profiles[0] for profile in profiles):
        raise at.mark.error(Verbatim("prefill and decode have other weights; one set is modelled, so make them equal"),
                            field="schedulingProfiles")
    router: dict[str, Any] = {"kind": "llm_d", "scorers": {
        key: profiles[0].get(key, 0.0) for key in SCORERS.values()}}
    for name, kind in types.items():
        if kind == "load-aware-scorer" and name in used and "threshold" in given[name]:
            router["load_threshold"] = _whole(given[name]["threshold"], "parameters.threshold")
    if handlers:
        own = given[handlers[0]]
        decider = own.get("deciderPluginName") or _fields(
            own.get("deciders"), "parameters.deciders", ("prefill",)).get("prefill")
        choices = [name for name, kind in types.items() if kind == DECIDER]
        tokens = given[_text(decider, "parameters: decider", at, choices or (DECIDER,))].get("nonCachedTokens") \
            if choices else None
        if not choices:
            raise at.mark.error(Verbatim(f"no plugin {DECIDER}; add it with nonCachedTokens"), field="plugins")
        router["disaggregation"] = {"uncached": 0 if tokens is None else _whole(tokens, "parameters.nonCachedTokens")}
    return router


# -- routes ----------------------------------------------------------------------------------------------------------

def _rule(node: Node, path: str) -> dict[str, Node]:
    """Return the fields of a rule; refuse those that send some requests elsewhere."""
    rule = _fields(node, path, ("timeouts", "retry", "matches", "backendRefs"), ("name",))
    matches = _items(rule.get("matches"), f"{path}.matches")
    for place, match in enumerate(matches):
        here = f"{path}.matches.{place}"
        _fields(match, here, ("path", "method"))   # headers and parameters narrow it to requests that have them
        if match.plain() != matches[0].plain():
            raise match.mark.error(Verbatim("differs from the first match; one is modelled, so keep the one of the "
                                            "workload's requests"), field=here)
    backends = _items(rule.get("backendRefs"), f"{path}.backendRefs")
    if len(backends) > 1:
        raise backends[1].mark.error(Verbatim("a second backend gets a share of the requests, which is not modelled; "
                                              "keep one"), field=f"{path}.backendRefs.1")
    for backend in backends:
        here = f"{path}.backendRefs.0"
        weight = _fields(backend, here, ("weight",), ("group", "kind", "name", "namespace", "port")).get("weight")
        if weight is not None and _whole(weight, f"{here}.weight") == 0:
            raise weight.mark.error("a weight from 1 on (0 sends it no request)", 0, field=f"{here}.weight")
    return rule


def _plain(rule: dict[str, Node]) -> dict[str, Any]:
    return {key: node.plain() for key, node in rule.items()}


def _route(document: Node) -> dict[str, Any]:
    spec = _fields(_fields(document, "", ("spec",), BESIDE).get("spec"), "spec", ("rules",),
                   ("parentRefs", "hostnames"))
    rules = _items(spec.get("rules"), "spec.rules")
    if not rules:
        raise document.mark.error("a rule", Verbatim("none"), field="spec.rules")
    path = "spec.rules.0"
    rule = _rule(rules[0], path)
    for place, other in enumerate(rules[1:], start=1):
        own = _rule(other, f"spec.rules.{place}")
        if _plain(own) != _plain(rule):
            raise other.mark.error(Verbatim("differs from the first rule; one rule is modelled, so keep the one of the "
                                            "workload's requests"), field=f"spec.rules.{place}")
    gateway: dict[str, Any] = {}
    times = _fields(rule.get("timeouts"), f"{path}.timeouts", ("request", "backendRequest"))
    retry = _fields(rule.get("retry"), f"{path}.retry", ("attempts", "backoff", "codes"))
    if "retry" in rule and "attempts" not in retry:
        raise rule["retry"].mark.error(Verbatim("is missing; gateways differ in it, so write it"),
                                       field=f"{path}.retry.attempts")
    inner: dict[str, Any] = {}
    if "request" in times and (limit := _duration(times["request"], f"{path}.timeouts.request")):
        gateway["timeout"] = limit
    if "backendRequest" in times and (limit := _duration(times["backendRequest"], f"{path}.timeouts.backendRequest")):
        inner["per_try"] = limit
    if retry:
        inner["retries"] = _whole(retry["attempts"], f"{path}.retry.attempts")
        if "backoff" in retry:
            base = _duration(retry["backoff"], f"{path}.retry.backoff") or 0.0
            inner |= {"backoff": base, "max_backoff": 10 * base}   # Envoy: ten times the base
    codes = [_whole(code, f"{path}.retry.codes") for code in _items(retry.get("codes"), f"{path}.retry.codes")]
    for code in codes:
        if code not in (429, 502, 503, 504, 529):
            raise retry["codes"].mark.error("statuses among 429, 502, 503, 504, 529", code, field=f"{path}.retry.codes")
    if codes and set(codes) != {502, 503, 504}:
        return gateway | {"retry": {"kind": "envoy", **inner, "retry_on": codes}}
    return gateway | inner


# -- autoscalers -----------------------------------------------------------------------------------------------------

def _metric(node: Node, path: str) -> str:
    found = re.fullmatch(r"vllm[:_](\w+)", str(node.value))
    if found is None or found[1] not in METRICS:
        raise node.mark.error(f"one of {', '.join('vllm:' + name for name in METRICS)}", node.plain(), field=path)
    return METRICS[found[1]]


def _behavior(node: Node | None, path: str) -> dict[str, Any]:
    found: dict[str, Any] = {}
    for side, rules in _fields(node, path, ("scaleUp", "scaleDown")).items():
        here = f"{path}.{side}"
        own = _fields(rules, here, ("stabilizationWindowSeconds", "policies", "selectPolicy"))
        if "selectPolicy" in own:
            _text(own["selectPolicy"], f"{here}.selectPolicy", rules, ("Max",))
        result: dict[str, Any] = {}
        if "stabilizationWindowSeconds" in own:
            result["window"] = _whole(own["stabilizationWindowSeconds"], f"{here}.stabilizationWindowSeconds")
        for place, policy in enumerate(_items(own.get("policies"), f"{here}.policies")):
            at = f"{here}.policies.{place}"
            row = _fields(policy, at, ("type", "value", "periodSeconds"))
            key = {"Pods": "pods", "Percent": "percent"}[_text(row.get("type"), f"{at}.type", policy,
                                                               ("Pods", "Percent"))]
            if "value" not in row or "periodSeconds" not in row:
                raise policy.mark.error(Verbatim("needs value and periodSeconds; write them"), field=at)
            period = _whole(row["periodSeconds"], f"{at}.periodSeconds")
            if key in result or result.get("period", period) != period:
                raise policy.mark.error(Verbatim("one policy of each type and one period are modelled; remove it"),
                                        field=at)
            result |= {key: _whole(row["value"], f"{at}.value"), "period": period}
        found["scale_up" if side == "scaleUp" else "scale_down"] = result
    return found


def _hpa(document: Node) -> dict[str, Any]:
    spec = _fields(_fields(document, "", ("spec",), BESIDE).get("spec"), "spec",
                   ("minReplicas", "maxReplicas", "metrics", "behavior"), ("scaleTargetRef",))
    if "maxReplicas" not in spec:
        raise document.mark.error(Verbatim("is missing; write it"), field="spec.maxReplicas")
    metrics = []
    for place, entry in enumerate(_items(spec.get("metrics"), "spec.metrics")):
        path = f"spec.metrics.{place}"
        row = _fields(entry, path, ("type", "pods", "external", "object"))
        kind = _text(row.get("type"), f"{path}.type", entry, ("Pods", "External", "Object")).lower()
        path = f"{path}.{kind}"
        own = _fields(row.get(kind), path, ("metric", "target", *(("describedObject",) if kind == "object" else ())))
        named = _fields(own.get("metric"), f"{path}.metric", ("name",))
        target = _fields(own.get("target"), f"{path}.target", ("type", "averageValue", "value"))
        if "name" not in named or not target:
            raise entry.mark.error(Verbatim("needs metric.name and target; write them"), field=path)
        if kind == "object":
            of = _fields(own.get("describedObject"), f"{path}.describedObject", ("kind",), ("apiVersion", "name"))
            _text(of.get("kind"), f"{path}.describedObject.kind", entry, ("Service", "InferencePool"))
        average = _text(target.get("type"), f"{path}.target.type", entry, (
            ("AverageValue",) if kind == "pods" else ("AverageValue", "Value"))) == "AverageValue"
        if target.keys() != {"type", "averageValue" if average else "value"}:
            raise own["target"].mark.error(f"type and {'averageValue' if average else 'value'}", list(target),
                                           field=f"{path}.target")
        metrics.append({
            "metric": _metric(named["name"], f"{path}.metric.name"), "type": kind, "average": average,
            "target": _quantity(target["averageValue" if average else "value"], f"{path}.target")})
    least = spec.get("minReplicas")
    return {"kind": "hpa", "metrics": metrics, "min": 1 if least is None else _whole(least, "spec.minReplicas"),
            "max": _whole(spec["maxReplicas"], "spec.maxReplicas"),
            **_behavior(spec.get("behavior"), "spec.behavior")}


def _keda(document: Node) -> dict[str, Any]:
    keys = {"minReplicaCount": "min", "maxReplicaCount": "max", "idleReplicaCount": "idle",
            "pollingInterval": "polling", "cooldownPeriod": "cooldown", "initialCooldownPeriod": "initial_cooldown"}
    spec = _fields(_fields(document, "", ("spec",), BESIDE).get("spec"), "spec", (*keys, "triggers", "advanced"),
                   ("scaleTargetRef",))
    if "maxReplicaCount" not in spec:
        raise document.mark.error(Verbatim("is missing; KEDA takes 100, so write it"), field="spec.maxReplicaCount")
    triggers = []
    for place, entry in enumerate(_items(spec.get("triggers"), "spec.triggers")):
        path = f"spec.triggers.{place}"
        row = _fields(entry, path, ("type", "metadata", "metricType"), ("name", "authenticationRef"))
        _text(row.get("type"), f"{path}.type", entry, ("prometheus",))
        if "metricType" in row:
            _text(row["metricType"], f"{path}.metricType", entry, ("AverageValue",))
        own = _fields(row.get("metadata"), f"{path}.metadata", ("query", "threshold", "activationThreshold"),
                      ("serverAddress", "metricName", "namespace", "authModes"))
        query = _text(own.get("query"), f"{path}.metadata.query", entry)
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
        metric = _metric(Node(found[1], own["query"].mark), f"{path}.metadata.query")
        triggers.append({"metric": metric, "target": _quantity(own["threshold"], f"{path}.metadata.threshold"), **(
            {"activation": _quantity(own["activationThreshold"], f"{path}.metadata.activationThreshold")}
            if "activationThreshold" in own else {})})
    advanced = _fields(spec.get("advanced"), "spec.advanced", ("horizontalPodAutoscalerConfig",))
    config = _fields(advanced.get("horizontalPodAutoscalerConfig"), "spec.advanced.horizontalPodAutoscalerConfig",
                     ("behavior",), ("name",))
    return {"kind": "keda", "triggers": triggers,
            **{keys[key]: _whole(node, f"spec.{key}") for key, node in spec.items() if key in keys},
            **_behavior(config.get("behavior"), "spec.advanced.horizontalPodAutoscalerConfig.behavior")}
