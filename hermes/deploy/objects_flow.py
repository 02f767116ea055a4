"""Flow control and saturation detectors of an EndpointPickerConfig as `gateway.flow_control` or `gateway.admission`,
and back.

Names and defaults of fields and plugins are those of https://github.com/llm-d/llm-d-router (apix/config,
pkg/epp/flowcontrol and pkg/epp/framework/plugins/flowcontrol). `flowControl` counts there with the feature gate alone;
without it requests of a negative priority are refused while the pool is saturated.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from hermes.config.yaml_document import Node
from hermes.deploy.objects_fields import fields_of, go_duration_of, items_of, number_of, quantity_of, text_of, whole_of
from hermes.errors import InputError, Verbatim
from hermes.units import s_to_ns

__all__ = ["FLOW_PLUGINS", "GATE", "flow_of", "read_flow"]

GATE = "flowControl"
UTILIZATION, CONCURRENCY = "utilization-detector", "concurrency-detector"
LEAST_SERVICE, CEILING = "program-aware-fairness", "static-usage-limit-policy"
PRODUCER = "inflight-load-producer"
ORDERINGS = {"fcfs-ordering-policy": "fcfs", "edf-ordering-policy": "edf",
             "slo-deadline-ordering-policy": "slo_deadline"}
FAIRNESS = {"global-strict-fairness-policy": "global_strict", "round-robin-fairness-policy": "round_robin",
            LEAST_SERVICE: "least_attained_service"}
# plugins of flow control, which are no scorers, filters or pickers here -> parameters that are read, and those without
# an effect: `headroom` is of the detector as a filter of endpoints
FLOW_PLUGINS: dict[str, tuple[tuple[str, ...], tuple[str, ...]]] = {
    **dict.fromkeys((*ORDERINGS, *FAIRNESS, PRODUCER), ((), ())),
    UTILIZATION: (("queueDepthThreshold", "kvCacheUtilThreshold", "metricsStalenessThreshold"), ("headroom",)),
    CONCURRENCY: (("maxConcurrency", "concurrencyMode"), ("headroom", "maxTokenConcurrency")),
    LEAST_SERVICE: (("strategy", "lasWeightService", "lasWeightHeadWait", "lasHalfLifeSeconds", "evictionTtlSeconds"),
                    ("lasDecayFactor", "evictionSweepSeconds")),
    CEILING: (("threshold",), ())}
# those that llm-d makes where the file has none
THERE = ("fcfs-ordering-policy", "global-strict-fairness-policy", CEILING, UTILIZATION)
BAND = ("priority", "maxRequests", "maxBytes", "orderingPolicyRef", "fairnessPolicyRef")
MOST, MOST_BYTES, TTL_S = 5000, 10**9, 60.0   # of a band, and of a wait
SCRAPE_S, IDLE_S = 0.05, 3600.0
REVOKE: dict[str, dict[str, float]] = {UTILIZATION: {}, CONCURRENCY: {"grace": 0.01}}   # by detector


class _Plugins:
    """The plugins of a file, by their names, and how `gateway.flow_control` says them.

    Args:
        types, given: Types and parameters of the plugins, by their names, in the order of the file.
    """

    def __init__(self, types: Mapping[str, str], given: Mapping[str, Mapping[str, Node]]) -> None:
        self._types, self._given = types, given

    def _of(self, name: str) -> tuple[Mapping[str, Node], str]:
        """Return the parameters of a plugin, and their path."""
        return self._given.get(name, {}), f"plugins.{[*self._types, name].index(name)}.parameters"

    def named(self, node: Node, path: str, kinds: Mapping[str, Any] | tuple[str, ...]) -> tuple[str, str]:
        """Return name and type of the plugin that a reference names; refuse other types than these."""
        name = text_of(node, path, node)
        kind = self._types.get(name) or (name if name in THERE else None)
        if kind is None:
            raise node.mark.error(Verbatim(f"no plugin {name!r}; add it to `plugins`"), field=path)
        if kind not in kinds:
            raise node.mark.error(f"a plugin of the types {', '.join(kinds)}", kind, field=path)
        return name, kind

    def detector(self, node: Node | None, path: str) -> tuple[str, dict[str, Any]]:
        """Return the type of the detector that a field names, and its configuration."""
        name, kind = (UTILIZATION, UTILIZATION) if node is None else self.named(node, path, (UTILIZATION, CONCURRENCY))
        own, at = self._of(name)
        if kind == UTILIZATION:
            return kind, _utilization(own, at)
        found: dict[str, Any] = {"kind": "concurrency"}
        if "concurrencyMode" in own:
            text_of(own["concurrencyMode"], f"{at}.concurrencyMode", own["concurrencyMode"], ("requests",))
        if "maxConcurrency" in own:
            found["limit"] = _from_one(own["maxConcurrency"], f"{at}.maxConcurrency")
        return kind, found

    def fairness(self, node: Node, path: str) -> dict[str, Any]:
        """Return the policy that a field names."""
        name, kind = self.named(node, path, FAIRNESS)
        own, at = self._of(name)
        found: dict[str, Any] = {"kind": FAIRNESS[kind]}
        if "strategy" in own:
            text_of(own["strategy"], f"{at}.strategy", own["strategy"], ("las",))
        for field, key in (("lasWeightService", "service_weight"), ("lasWeightHeadWait", "wait_weight"),
                           ("lasHalfLifeSeconds", "half_life")):
            if field in own:
                found[key] = float(number_of(own[field], f"{at}.{field}"))
        if found.get("half_life") == 0:
            raise own["lasHalfLifeSeconds"].mark.error(
                Verbatim("0 takes lasDecayFactor, which is not modelled; write a half-life"),
                field=f"{at}.lasHalfLifeSeconds")
        if "evictionTtlSeconds" in own and number_of(own["evictionTtlSeconds"], f"{at}.evictionTtlSeconds") < IDLE_S:
            raise own["evictionTtlSeconds"].mark.error(
                f"{IDLE_S:g} or more: that idle tenants are forgotten is not modelled", own["evictionTtlSeconds"].value,
                field=f"{at}.evictionTtlSeconds")
        return found

    def check_producers(self, listed: list[Node]) -> None:
        """Refuse a producer of the load in flight, by which `utilization-detector` is corrected.

        listed: The plugins of the file.
        """
        for place, kind in enumerate(self._types.values()):
            if kind == PRODUCER:
                raise listed[place].mark.error(
                    Verbatim(f"{PRODUCER} corrects {UTILIZATION} by what is in flight, which is not modelled; remove "
                             f"it, or take {CONCURRENCY}"), field=f"plugins.{place}")

    def check_ceiling(self, node: Node, path: str) -> None:
        """Refuse a ceiling other than 1."""
        own, at = self._of(self.named(node, path, (CEILING,))[0])
        threshold = own.get("threshold")
        if threshold is not None and threshold.value != 1:
            raise threshold.mark.error(
                Verbatim("a ceiling other than 1 is a key of the scenario's classes; leave it out, and write "
                         "gateway.classes.NAME.ceiling"), field=f"{at}.threshold")


def _utilization(own: Mapping[str, Node], path: str) -> dict[str, Any]:
    found: dict[str, Any] = {"kind": "utilization"}
    if "queueDepthThreshold" in own:
        found["queue"] = _from_one(own["queueDepthThreshold"], f"{path}.queueDepthThreshold")
    if "kvCacheUtilThreshold" in own:
        node = own["kvCacheUtilThreshold"]
        found["kv"] = number_of(node, f"{path}.kvCacheUtilThreshold")
        if not 0 < found["kv"] <= 1:
            raise node.mark.error("above 0, and at most 1", node.plain(), field=f"{path}.kvCacheUtilThreshold")
    if "metricsStalenessThreshold" in own:
        node = own["metricsStalenessThreshold"]
        found["stale"] = go_duration_of(node, f"{path}.metricsStalenessThreshold")
        if found["stale"] < SCRAPE_S:
            raise node.mark.error(f"at least {SCRAPE_S:g} s, the time between two scrapes", node.plain(),
                                  field=f"{path}.metricsStalenessThreshold")
    return found


def _from_one(node: Node, path: str) -> int:
    value = whole_of(node, path)
    if not 1 <= value <= 10**6:
        raise node.mark.error("a whole number from 1 to 1000000", value, field=path)
    return value


def _limit(node: Node | None, path: str, most: float) -> int | None:
    """Return a limit; None where there is none, or 0, which means the same."""
    if node is None:
        return None
    value = quantity_of(node, path)
    if value != int(value) or value > most:
        raise node.mark.error(f"a whole number up to {most:g}", node.plain(), field=path)
    return int(value) or None


def read_flow(document: Node, types: Mapping[str, str], given: Mapping[str, Mapping[str, Node]], *,
              gate: bool) -> dict[str, Any]:
    """Return the keys of `gateway` that the fields of a picker set, None for one that they exclude; no key if they say
    nothing.

    Args:
        types, given: Types and parameters of the plugins, by their names.
        gate: Whether the feature gate `flowControl` is on.
    """
    plugins = _Plugins(types, given)
    top, section = document.child("saturationDetector"), document.child("flowControl")
    own = fields_of(section, "flowControl", ("maxRequests", "maxBytes", "defaultRequestTTL", "noEndpointRequestTTL",
                                             "defaultPriorityBand", "defaultNegativePriorityBand", "priorityBands",
                                             "usageLimitPolicyPluginRef", "saturationDetector", "enableEviction"))
    nested = own.pop("saturationDetector", None)
    path = "saturationDetector" if nested is None else "flowControl.saturationDetector"
    named = top if nested is None else nested   # llm-d takes the nested one of two
    found = fields_of(named, path, ("pluginRef", *(FLOW_PLUGINS[UTILIZATION][0] if nested is None else ())))
    # thresholds in place of a plugin: the Gateway API inference extension up to 1.2
    if found.keys() - {"pluginRef"}:
        if "pluginRef" in found:
            raise found["pluginRef"].mark.error(Verbatim("excludes thresholds; leave one of them out"),
                                                field=f"{path}.pluginRef")
        kind, detector = UTILIZATION, _utilization(found, path)
    else:
        kind, detector = plugins.detector(found.get("pluginRef"), f"{path}.pluginRef")
    if not gate:
        for name, node in own.items():
            raise (node.key or node.mark).error(
                Verbatim(f"counts with the feature gate alone; add {GATE} to featureGates, or remove it"),
                field=f"flowControl.{name}")
        return {} if named is None else {"admission": {"detector": detector}, "flow_control": None}
    if kind == UTILIZATION:
        plugins.check_producers(items_of(document.child("plugins"), "plugins"))
    return {"admission": None, "flow_control": {"detector": detector, **_queue(own, plugins, kind)}}


def _queue(own: Mapping[str, Node], plugins: _Plugins, detector: str) -> dict[str, Any]:
    found: dict[str, Any] = {}
    for name, key, most in (("maxRequests", "total", 1e9), ("maxBytes", "total_bytes", 2.0**60)):
        if (limit := _limit(own.get(name), f"flowControl.{name}", most)) is not None:
            found[key] = limit
    ttls = {name: go_duration_of(own[name], f"flowControl.{name}") if name in own else TTL_S
            for name in ("defaultRequestTTL", "noEndpointRequestTTL")}
    found["ttl"] = ttls["defaultRequestTTL"]
    if not found["ttl"]:
        raise own["defaultRequestTTL"].mark.error(Verbatim("0s is no limit, which is not modelled; write a long time"),
                                                  field="flowControl.defaultRequestTTL")
    if "noEndpointRequestTTL" in own and ttls["noEndpointRequestTTL"] != found["ttl"]:
        raise own["noEndpointRequestTTL"].mark.error(f"{found['ttl']:g} s, as defaultRequestTTL: one time is modelled",
                                                     own["noEndpointRequestTTL"].plain(),
                                                     field="flowControl.noEndpointRequestTTL")
    if "usageLimitPolicyPluginRef" in own:
        plugins.check_ceiling(own["usageLimitPolicyPluginRef"], "flowControl.usageLimitPolicyPluginRef")
    rules = _band(own.get("defaultPriorityBand"), "flowControl.defaultPriorityBand", plugins)
    if "defaultNegativePriorityBand" in own:
        path = "flowControl.defaultNegativePriorityBand"
        if _band(own["defaultNegativePriorityBand"], path, plugins) != rules:
            raise own["defaultNegativePriorityBand"].mark.error(
                Verbatim("differs from defaultPriorityBand, which is not modelled; write the priorities into "
                         "priorityBands"), field=path)
    found |= rules
    bands: list[dict[str, Any]] = []
    for place, node in enumerate(items_of(own.get("priorityBands"), "flowControl.priorityBands")):
        path = f"flowControl.priorityBands.{place}"
        priority = fields_of(node, path, BAND).get("priority")
        value = 0 if priority is None else priority.value   # of Go: what is left out is 0
        if isinstance(value, bool) or not isinstance(value, int) or abs(value) > 2**31 - 1:
            raise (priority or node).mark.error("a whole number", value, field=f"{path}.priority")
        if any(band["priority"] == value for band in bands):
            raise node.mark.error(Verbatim("a second band of this priority; keep one"), field=f"{path}.priority")
        # a band takes llm-d's defaults, and not those of defaultPriorityBand
        bands.append({"priority": value} | {
            key: rule for key, rule in _band(node, path, plugins).items() if rule != rules[key]})
    if any(len(band) > 1 for band in bands):
        found["bands"] = [band for band in bands if len(band) > 1]
    if "enableEviction" in own:
        if not isinstance(own["enableEviction"].value, bool):
            raise own["enableEviction"].mark.error("true or false", own["enableEviction"].plain(),
                                                   field="flowControl.enableEviction")
        if own["enableEviction"].value:
            found["revoke"] = REVOKE[detector]
    return found


def _band(node: Node | None, path: str, plugins: _Plugins) -> dict[str, Any]:
    """Return the rules of a band, none left out."""
    own = fields_of(node, path, BAND)
    ordering = own.get("orderingPolicyRef")
    fairness = own.get("fairnessPolicyRef")
    return {
        "max": _limit(own.get("maxRequests"), f"{path}.maxRequests", 1e9) or MOST,
        "max_bytes": _limit(own.get("maxBytes"), f"{path}.maxBytes", 2.0**60) or MOST_BYTES,
        "ordering": "fcfs" if ordering is None else
        ORDERINGS[plugins.named(ordering, f"{path}.orderingPolicyRef", ORDERINGS)[1]],
        "fairness": {"kind": "global_strict"} if fairness is None else
        plugins.fairness(fairness, f"{path}.fairnessPolicyRef")}


# -- the way back ------------------------------------------------------------------------------------------------------

def flow_of(gateway: Any) -> tuple[list[dict[str, Any]], dict[str, Any]]:
    """Return the plugins, and the fields of a picker, for flow control or admission of a gateway. Raises `InputError`
    for keys that have no field there."""
    rule, key = (gateway.flow_control, "flow_control") if gateway.flow_control else (gateway.admission, "admission")
    path = f"gateway.{key}"
    detector = _detector_plugin(rule.detector, f"{path}.detector")
    section: dict[str, Any] = {"saturationDetector": {"pluginRef": detector["type"]}}
    if key == "admission":
        return [detector], {"flowControl": section}
    plugins = {detector["type"]: detector}
    _defaults_only(rule, path, ("cycle", "scan", "token_bytes"))
    for name, value in (("maxRequests", rule.total), ("maxBytes", rule.total_bytes)):
        if value is not None:
            section[name] = value
    section["defaultRequestTTL"] = _text_of_s(rule.ttl)
    section["defaultPriorityBand"] = _band_of(rule, path, plugins)
    if rule.bands:
        section["priorityBands"] = [
            {"priority": band.priority, **_band_of(rule.rules_of(band.priority), f"{path}.bands.{place}", plugins)}
            for place, band in enumerate(rule.bands)]
    if rule.revoke is not None:
        if rule.revoke != type(rule.revoke).model_validate(REVOKE[detector["type"]]):
            raise InputError(Verbatim("has no fields in an EndpointPickerConfig, where `most` is 2, `below` is 0, and "
                                      "`grace` 500 ms (10 ms with the detector concurrency); write that"),
                             field=f"{path}.revoke")
        section["enableEviction"] = True
    return [*plugins.values()], {"featureGates": [GATE], "flowControl": section}


def _defaults_only(config: Any, path: str, keys: tuple[str, ...]) -> None:
    for key in keys:
        if getattr(config, key) != type(config).model_fields[key].default:
            raise InputError(Verbatim("has no field in an EndpointPickerConfig; leave it out"), field=f"{path}.{key}")


def _detector_plugin(detector: Any, path: str) -> dict[str, Any]:
    if detector.kind == "concurrency":
        return {"type": CONCURRENCY, "parameters": {"maxConcurrency": detector.limit, "concurrencyMode": "requests"}}
    _defaults_only(detector, path, ("scrape",))
    if detector.queue != int(detector.queue) or not detector.queue:
        raise InputError("a whole number, as queueDepthThreshold is", detector.queue, field=f"{path}.queue")
    return {"type": UTILIZATION, "parameters": {
        "queueDepthThreshold": int(detector.queue), "kvCacheUtilThreshold": detector.kv,
        "metricsStalenessThreshold": _text_of_s(detector.stale)}}


def _band_of(rule: Any, path: str, plugins: dict[str, dict[str, Any]]) -> dict[str, Any]:
    kinds = {ours: theirs for theirs, ours in FAIRNESS.items()}
    fairness = rule.fairness
    if fairness.kind not in kinds:
        raise InputError(f"one of {', '.join(kinds)}: llm-d has no other", fairness.kind, field=f"{path}.fairness.kind")
    ordering = next(theirs for theirs, ours in ORDERINGS.items() if ours == rule.ordering)
    plugins[ordering] = {"type": ordering}
    plugins[kinds[fairness.kind]] = {"type": kinds[fairness.kind]}
    if fairness.kind == "least_attained_service":
        _defaults_only(fairness, f"{path}.fairness", ("output_weight",))
        plugins[LEAST_SERVICE]["parameters"] = {
            "strategy": "las", "lasWeightService": fairness.service_weight, "lasWeightHeadWait": fairness.wait_weight,
            "lasHalfLifeSeconds": int(fairness.half_life) if fairness.half_life.is_integer() else fairness.half_life}
    return {"maxRequests": rule.max, "maxBytes": rule.max_bytes, "orderingPolicyRef": ordering,
            "fairnessPolicyRef": kinds[fairness.kind]}


def _text_of_s(seconds: float) -> str:
    whole, rest = divmod(s_to_ns(seconds), 10**9)
    return f"{whole}.{rest:09d}".rstrip("0").rstrip(".") + "s"
