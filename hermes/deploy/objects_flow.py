"""Flow control and saturation detectors of an EndpointPickerConfig as `gateway.flow_control` or `gateway.admission`,
and back.

Names and defaults of fields and plugins are those of https://github.com/llm-d/llm-d-router (apix/config,
pkg/epp/flowcontrol and pkg/epp/framework/plugins/flowcontrol). `flowControl` counts there with the feature gate alone;
without it requests of a negative priority are refused while the pool is saturated.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping
from typing import Literal, NamedTuple, TypeVar

from hermes.deploy import typed
from hermes.deploy.options import pairs
from hermes.deploy.typed import Keys, Part, refuse_set
from hermes.errors import InputError, Verbatim, inside
from hermes.gateway.config import GatewayConfig
from hermes.gateway.flow_config import (
    AdmissionConfig,
    BandConfig,
    ConcurrencyDetector,
    Detector,
    FlowControlConfig,
    LeastServiceFairness,
    RevokeConfig,
)

__all__ = ["FLOW_PLUGINS", "GATE", "NO_FIELD", "FlowControl", "Plugin", "SaturationDetector", "flow_of",
           "parameters", "read_flow"]

GATE = "flowControl"
UTILIZATION, CONCURRENCY = "utilization-detector", "concurrency-detector"
LEAST_SERVICE, CEILING = "program-aware-fairness", "static-usage-limit-policy"
PRODUCER = "inflight-load-producer"
ORDERINGS, FAIRNESS = pairs("llm-d", "orderings"), pairs("llm-d", "fairness")


def parameters(use: str) -> dict[str, tuple[list[str], list[str]]]:
    """Return plugins with the names of parameters that are read, and of those without an effect."""
    found = {name: text.partition("|") for name, text in pairs("llm-d", use).items()}
    return {name: (read.split(), beside.split()) for name, (read, _, beside) in found.items()}


FLOW_PLUGINS = parameters("flow")
"""Plugins of flow control, which are no scorers, filters or pickers here: `headroom` is of a detector as a filter."""
# those that llm-d makes where the file has none
THERE = ("fcfs-ordering-policy", "global-strict-fairness-policy", CEILING, UTILIZATION)
MOST, MOST_BYTES, TTL_S = 5000, 10**9, 60.0   # of a band, and of a wait
SCRAPE_S, IDLE_S = 0.05, 3600.0
V = TypeVar("V")
REVOKE: dict[str, dict[str, float]] = {UTILIZATION: {}, CONCURRENCY: {"grace": 0.01}}   # by detector
NO_FIELD = "an EndpointPickerConfig"

from_one = typed.that(typed.as_whole, lambda number: 1 <= number <= 10**6, "a whole number from 1 to 1000000")
share = typed.that(typed.as_number, lambda number: 0 < number <= 1, "above 0, and at most 1")
staleness = typed.that(typed.as_go_duration, lambda text: typed.seconds_of(text) >= SCRAPE_S,
                 f"at least {SCRAPE_S:g} s, the time between two scrapes")
half_life = typed.that(typed.as_number, bool, Verbatim(
    "0 takes lasDecayFactor, which is not modelled; write a half-life"))
idle = typed.that(typed.as_number, lambda seconds: seconds >= IDLE_S,
            f"{IDLE_S:g} or more: that idle tenants are forgotten is not modelled")
one = typed.that(typed.as_number, lambda number: number == 1, Verbatim(
    "a ceiling other than 1 is a key of the scenario's classes; leave it out, and write gateway.classes.NAME.ceiling"))


# -- fields ------------------------------------------------------------------------------------------------------------

class Band(Part):
    priority: int = 0   # of Go: what is left out is 0
    max_requests: typed.Quantity | None = None
    max_bytes: typed.Quantity | None = None
    ordering_policy_ref: str | None = None
    fairness_policy_ref: str | None = None


class SaturationDetector(Part):
    """Thresholds in place of a plugin: the Gateway API inference extension up to 1.2."""

    plugin_ref: str | None = None
    queue_depth_threshold: object = None
    kv_cache_util_threshold: object = None
    metrics_staleness_threshold: object = None


class FlowControl(Part):
    max_requests: typed.Quantity | None = None
    max_bytes: typed.Quantity | None = None
    default_request_ttl: typed.GoDuration | None = None
    no_endpoint_request_ttl: typed.GoDuration | None = None
    default_priority_band: Band = Band()
    default_negative_priority_band: Band | None = None
    priority_bands: list[Band] = []
    usage_limit_policy_plugin_ref: str | None = None
    saturation_detector: dict[Literal["pluginRef"], str] | None = None
    enable_eviction: bool = False


class Plugin(NamedTuple):
    """A plugin of a file.

    Attributes:
        name: By which profiles name it.
        kind: Its type; names of older releases as they are now.
        place, path: Where it and its parameters stand in the file.
        given: Its parameters.
    """

    name: str
    kind: str
    place: str
    path: str
    given: Keys

    def get(self, name: str, check: Callable[[object], V]) -> V | None:
        """Return a parameter as a function reads it, None where it is left out."""
        if name not in self.given:
            return None
        with inside(f"{self.path}.{name}"):
            return check(self.given[name])

    def below(self, name: str, known: Collection[str], beside: Collection[str] = ()) -> Plugin:
        """Return the same with the parameters under a name alone. Raises `InputError` for one that is not known."""
        given = self.given.get(name) or {}
        if not isinstance(given, dict):
            raise InputError("a mapping", given, field=f"{self.path}.{name}")
        return self._replace(path=f"{self.path}.{name}", given=given).among(known, beside)

    def among(self, known: Collection[str], beside: Collection[str]) -> Plugin:
        """Return the same without the parameters that have no effect. Raises `InputError` for one that is not known."""
        for name in self.given:
            if name not in known and name not in beside:
                raise InputError(typed.NOT_MODELLED, field=f"{self.path}.{name}")
        return self._replace(given={name: own for name, own in self.given.items() if name in known})


def _utilization(own: Plugin) -> Keys:
    found = {"queue": own.get("queueDepthThreshold", from_one), "kv": own.get("kvCacheUtilThreshold", share),
             "stale": own.get("metricsStalenessThreshold", lambda value: typed.seconds_of(staleness(value)))}
    return {"kind": "utilization"} | {key: value for key, value in found.items() if value is not None}


class _Plugins:
    """The plugins of a file, by their names, and how `gateway.flow_control` says them."""

    def __init__(self, plugins: Mapping[str, Plugin]) -> None:
        self._plugins = plugins

    def named(self, name: str, path: str, kinds: Collection[str]) -> str:
        """Return the type of the plugin that a reference names; refuse other types than these."""
        kind = self._plugins[name].kind if name in self._plugins else name if name in THERE else None
        if kind is None:
            raise InputError(Verbatim(f"no plugin {name!r}; add it to `plugins`"), field=path)
        if kind not in kinds:
            raise InputError(f"a plugin of the types {', '.join(kinds)}", kind, field=path)
        return kind

    def given(self, name: str) -> Plugin:
        """Return a plugin; one that llm-d makes has no parameters."""
        return self._plugins.get(name, Plugin(name, name, "", "", {}))

    def detector(self, name: str | None, path: str) -> tuple[str, Keys]:
        """Return the type of the detector that a field names, and its configuration."""
        kind = UTILIZATION if name is None else self.named(name, path, (UTILIZATION, CONCURRENCY))
        own = self.given(name or kind)
        if kind == UTILIZATION:
            return kind, _utilization(own)
        own.get("concurrencyMode", typed.one_of("requests"))
        limit = own.get("maxConcurrency", from_one)
        return kind, {"kind": "concurrency"} | ({} if limit is None else {"limit": limit})

    def fairness(self, name: str | None, path: str) -> Keys:
        """Return the policy that a field names."""
        if name is None:
            return {"kind": "global_strict"}
        kind, own = self.named(name, path, FAIRNESS), self.given(name)
        own.get("strategy", typed.one_of("las"))
        own.get("evictionTtlSeconds", idle)
        found = {"service_weight": own.get("lasWeightService", typed.as_number),
                 "wait_weight": own.get("lasWeightHeadWait", typed.as_number),
                 "half_life": own.get("lasHalfLifeSeconds", half_life)}
        return {"kind": FAIRNESS[kind]} | {key: float(value) for key, value in found.items() if value is not None}

    def band(self, band: Band, path: str) -> Keys:
        """Return the rules of a band, none left out."""
        ordering = band.ordering_policy_ref
        return {
            "max": _limit(band.max_requests, f"{path}.maxRequests", 1e9) or MOST,
            "max_bytes": _limit(band.max_bytes, f"{path}.maxBytes", 2.0**60) or MOST_BYTES,
            "ordering": "fcfs" if ordering is None else
            ORDERINGS[self.named(ordering, f"{path}.orderingPolicyRef", ORDERINGS)],
            "fairness": self.fairness(band.fairness_policy_ref, f"{path}.fairnessPolicyRef")}

    def check_producers(self) -> None:
        """Refuse a producer of the load in flight, by which `utilization-detector` is corrected."""
        for plugin in self._plugins.values():
            if plugin.kind == PRODUCER:
                raise InputError(Verbatim(f"{PRODUCER} corrects {UTILIZATION} by what is in flight, which is not "
                                          f"modelled; remove it, or take {CONCURRENCY}"), field=plugin.place)


def _limit(text: str | None, path: str, most: float) -> int | None:
    """Return a limit; None where there is none, or 0, which means the same."""
    if text is None:
        return None
    value = typed.amount_of(text)
    if value != int(value) or value > most:
        raise InputError(f"a whole number up to {most:g}", text, field=path)
    return int(value) or None


def read_flow(flow: FlowControl | None, top: SaturationDetector | None, listed: Mapping[str, Plugin], *,
              gate: bool) -> Keys:
    """Return the keys of `gateway` that the fields of a picker set, None for one that they exclude; no key if they say
    nothing.

    Args:
        top: The detector outside of `flowControl`.
        listed: Plugins, by their names.
        gate: Whether the feature gate `flowControl` is on.
    """
    plugins, own = _Plugins(listed), flow or FlowControl()
    nested = own.saturation_detector   # llm-d takes the nested one of two
    path = "saturationDetector" if nested is None else "flowControl.saturationDetector"
    given = {} if nested is not None or top is None else top.written()
    name = given.pop("pluginRef", None) if nested is None else nested.get("pluginRef")
    if given:
        if name is not None:
            raise InputError(Verbatim("excludes thresholds; leave one of them out"), field=f"{path}.pluginRef")
        kind, detector = UTILIZATION, _utilization(Plugin("", UTILIZATION, path, path, given))
    else:
        kind, detector = plugins.detector(name, f"{path}.pluginRef")
    if not gate:
        return {} if top is None and nested is None else {"admission": {"detector": detector}, "flow_control": None}
    if kind == UTILIZATION:
        plugins.check_producers()
    return {"admission": None, "flow_control": {"detector": detector, **_queue(own, plugins, kind)}}


def _queue(own: FlowControl, plugins: _Plugins, detector: str) -> Keys:
    limits = {"total": _limit(own.max_requests, "flowControl.maxRequests", 1e9),
              "total_bytes": _limit(own.max_bytes, "flowControl.maxBytes", 2.0**60)}
    found: Keys = {key: limit for key, limit in limits.items() if limit is not None}
    found["ttl"] = TTL_S if own.default_request_ttl is None else typed.seconds_of(own.default_request_ttl)
    if not found["ttl"]:
        raise InputError(Verbatim("0s is no limit, which is not modelled; write a long time"),
                         field="flowControl.defaultRequestTTL")
    if own.no_endpoint_request_ttl is not None and typed.seconds_of(own.no_endpoint_request_ttl) != found["ttl"]:
        raise InputError(f"{found['ttl']:g} s, as defaultRequestTTL: one time is modelled", own.no_endpoint_request_ttl,
                         field="flowControl.noEndpointRequestTTL")
    if own.usage_limit_policy_plugin_ref is not None:
        plugins.named(own.usage_limit_policy_plugin_ref, "flowControl.usageLimitPolicyPluginRef", (CEILING,))
        plugins.given(own.usage_limit_policy_plugin_ref).get("threshold", one)
    rules = plugins.band(own.default_priority_band, "flowControl.defaultPriorityBand")
    negative, path = own.default_negative_priority_band, "flowControl.defaultNegativePriorityBand"
    if negative is not None and plugins.band(negative, path) != rules:
        raise InputError(Verbatim("differs from defaultPriorityBand, which is not modelled; write the priorities into "
                                  "priorityBands"), field=path)
    found |= rules
    bands: list[Keys] = []
    for place, band in enumerate(own.priority_bands):
        path = f"flowControl.priorityBands.{place}"
        if abs(band.priority) > 2**31 - 1:
            raise InputError("a whole number", band.priority, field=f"{path}.priority")
        if any(other["priority"] == band.priority for other in bands):
            raise InputError(Verbatim("a second band of this priority; keep one"), field=f"{path}.priority")
        # a band takes llm-d's defaults, and not those of defaultPriorityBand
        bands.append({"priority": band.priority} | {
            key: rule for key, rule in plugins.band(band, path).items() if rule != rules[key]})
    if any(len(band) > 1 for band in bands):
        found["bands"] = [band for band in bands if len(band) > 1]
    return found | ({"revoke": REVOKE[detector]} if own.enable_eviction else {})


# -- the way back ------------------------------------------------------------------------------------------------------

def flow_of(gateway: GatewayConfig) -> tuple[list[Keys], Keys]:
    """Return the plugins, and the fields of a picker, for flow control or admission of a gateway. Raises `InputError`
    for keys that have no field there."""
    rule = gateway.flow_control
    if rule is None:
        detector = _detector_plugin((gateway.admission or AdmissionConfig()).detector, "gateway.admission.detector")
        return [detector], {"flowControl": {"saturationDetector": {"pluginRef": detector["type"]}}}
    path = "gateway.flow_control"
    detector = _detector_plugin(rule.detector, f"{path}.detector")
    plugins = {detector["type"]: detector}
    refuse_set(rule, ("cycle", "scan", "token_bytes"), path, NO_FIELD)
    if rule.revoke not in (None, RevokeConfig(**REVOKE[detector["type"]])):   # type: ignore[arg-type]
        raise InputError(Verbatim("has no fields in an EndpointPickerConfig, where `most` is 2, `below` is 0, and "
                                  "`grace` 500 ms (10 ms with the detector concurrency); write that"),
                         field=f"{path}.revoke")
    limits = {"maxRequests": rule.total, "maxBytes": rule.total_bytes}
    section: Keys = {"saturationDetector": {"pluginRef": detector["type"]},
                     **{name: value for name, value in limits.items() if value is not None},
                     "defaultRequestTTL": typed.go_duration_of(rule.ttl),
                     "defaultPriorityBand": _band_of(rule, path, plugins)}
    if rule.bands:
        section["priorityBands"] = [
            {"priority": band.priority, **_band_of(rule.rules_of(band.priority), f"{path}.bands.{place}", plugins)}
            for place, band in enumerate(rule.bands)]
    if rule.revoke is not None:
        section["enableEviction"] = True
    return [*plugins.values()], {"featureGates": [GATE], "flowControl": section}


def _detector_plugin(detector: Detector, path: str) -> Keys:
    if isinstance(detector, ConcurrencyDetector):
        return {"type": CONCURRENCY, "parameters": {"maxConcurrency": detector.limit, "concurrencyMode": "requests"}}
    refuse_set(detector, ("scrape",), path, NO_FIELD)
    if detector.queue != int(detector.queue) or not detector.queue:
        raise InputError("a whole number, as queueDepthThreshold is", detector.queue, field=f"{path}.queue")
    return {"type": UTILIZATION, "parameters": {
        "queueDepthThreshold": int(detector.queue), "kvCacheUtilThreshold": detector.kv,
        "metricsStalenessThreshold": typed.go_duration_of(detector.stale)}}


def _band_of(rule: FlowControlConfig | BandConfig, path: str, plugins: dict[str, Keys]) -> Keys:
    kinds, fairness = {ours: theirs for theirs, ours in FAIRNESS.items()}, rule.fairness
    if fairness is None or fairness.kind not in kinds:
        raise InputError(f"one of {', '.join(kinds)}: llm-d has no other", fairness and fairness.kind,
                         field=f"{path}.fairness.kind")
    ordering = next(theirs for theirs, ours in ORDERINGS.items() if ours == rule.ordering)
    plugins[ordering], plugins[kinds[fairness.kind]] = {"type": ordering}, {"type": kinds[fairness.kind]}
    if isinstance(fairness, LeastServiceFairness):
        refuse_set(fairness, ("output_weight",), f"{path}.fairness", NO_FIELD)
        plugins[LEAST_SERVICE]["parameters"] = {
            "strategy": "las", "lasWeightService": fairness.service_weight, "lasWeightHeadWait": fairness.wait_weight,
            "lasHalfLifeSeconds": int(fairness.half_life) if fairness.half_life.is_integer() else fairness.half_life}
    return {"maxRequests": rule.max, "maxBytes": rule.max_bytes, "orderingPolicyRef": ordering,
            "fairnessPolicyRef": kinds[fairness.kind]}
