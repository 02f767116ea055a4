"""An EndpointPickerConfig and its plugins: which parameters each takes, which are not modelled and why; and the router
`llm_d` as one.

Names and parameters are those of https://github.com/llm-d/llm-d-router (pkg/epp/framework/plugins, read, not run),
older names included. Parameters without an effect on placements are in the second column of `KINDS`.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from typing import Literal

from hermes.deploy.objects_flow import (
    FLOW_PLUGINS,
    NO_FIELD,
    FlowControl,
    Plugin,
    SaturationDetector,
    flow_of,
    parameters,
)
from hermes.deploy.options import options, pairs
from hermes.deploy.typed import Keys, Number, Object, Part, refuse_set
from hermes.errors import InputError, Verbatim
from hermes.gateway.config import GatewayConfig
from hermes.routing.llm_d import LlmDConfig, ScorersConfig

SCORERS, PICKERS, RENAMED = (pairs("llm-d", use) for use in ("scorers", "pickers", "renamed"))
HANDLERS = ("pd-profile-handler", "disagg-profile-handler")
SINGLE = ("single-profile-handler", "data-parallel-profile-handler")
PHASES = {"decode": "decode-filter", "prefill": "prefill-filter"}   # the filter that a profile of a phase needs
APPROXIMATE, PRECISE = "approx-prefix-cache-producer", "precise-prefix-cache-producer"
DECIDER = "prefix-based-pd-decider"
PIN = "session-affinity-filter"
DECIDERS = (DECIDER, "always-disagg-pd-decider")

KINDS = FLOW_PLUGINS | parameters("parameters")
"""Plugin -> parameters that are read, and those without an effect."""

BESIDE = frozenset(options("llm-d", "beside"))
"""Plugins without an effect on placements, whatever their parameters."""

REFUSED = pairs("llm-d", "refused")
"""Plugins that change placements and are not modelled -> how."""


# -- the object ------------------------------------------------------------------------------------------------------

class Entry(Part):
    type: str
    name: str | None = None
    parameters: Keys | None = None


class Row(Part):
    plugin_ref: str
    weight: Number = 1.0   # llm-d's DefaultScorerWeight


class Profile(Part):
    name: str
    plugins: list[Row] = []


class EndpointPickerConfig(Object):
    beside = ("metadata", "status", "dataLayer", "requestHandler", "parser")
    api_version: Literal["inference.networking.x-k8s.io/v1alpha1", "llm-d.ai/v1alpha1", "llm-d.ai/v1"]
    kind: Literal["EndpointPickerConfig"]
    feature_gates: list[str] = []
    plugins: list[Entry] = []
    scheduling_profiles: list[Profile] = []
    saturation_detector: SaturationDetector | None = None
    flow_control: FlowControl | None = None

    @classmethod
    def of(cls, router: LlmDConfig, gateway: GatewayConfig | None = None) -> EndpointPickerConfig:
        """Return the router. Keys without a field here have to be at their defaults.

        gateway: Whose flow control or admission is part of it.
        """
        refuse_set(router, ("view", "caches"), "router", NO_FIELD)
        split = router.disaggregation
        prefill = router.scorers if split is None or split.prefill is None else split.prefill
        plugins = _scorers(router, prefill)
        picker = next(kind for kind, key in PICKERS.items() if key == router.picker)
        plugins.append({"type": picker})
        if split is None:
            plugins.append({"type": SINGLE[0]})
            pins = [{"pluginRef": "pin-decode"}] if router.session_pins else []
            profiles = [_profile("default", router.scorers, pins, picker)]
        else:
            refuse_set(split, ("prompt",), "router.disaggregation", NO_FIELD)
            decider = DECIDERS[split.always]
            plugins += [{"type": "prefill-filter"}, {"type": "decode-filter"},
                        {"type": decider} if split.always else
                        {"type": decider, "parameters": {"nonCachedTokens": split.uncached}},
                        {"type": HANDLERS[1], "parameters": {"deciders": {"prefill": decider}}}]
            profiles = [_profile(name, scorers, [{"pluginRef": f"{name}-filter"}, *(
                            {"pluginRef": f"pin-{phase}"} for phase in router.session_pins if phase == name)], picker)
                        for name, scorers in (("prefill", prefill), ("decode", router.scorers))]
        version, more, fields = "inference.networking.x-k8s.io/v1alpha1", list[Keys](), Keys()
        if gateway is not None and gateway.orders is not None:   # fields of llm-d's own version
            version, (more, fields) = "llm-d.ai/v1alpha1", flow_of(gateway)
        return cls.model_validate({
            "apiVersion": version, "kind": "EndpointPickerConfig", "plugins": plugins + more,
            "schedulingProfiles": profiles, **fields})


def plugins_of(config: EndpointPickerConfig) -> dict[str, Plugin]:
    """Return the plugins of a file by name, in its order. Raises `InputError` for one that changes placements and is
    not modelled."""
    found: dict[str, Plugin] = {}
    for place, entry in enumerate(config.plugins):
        path, name = f"plugins.{place}", entry.type if entry.name is None else entry.name
        kind = RENAMED.get(entry.type, entry.type)
        if kind not in KINDS and kind not in BESIDE:
            why = f": {REFUSED[kind]}" if kind in REFUSED else ""
            raise InputError(Verbatim(f"{kind!r} is not modelled{why}; remove the plugin"), field=f"{path}.type")
        if name in found:
            raise InputError(Verbatim(f"a second plugin {name!r}; give it another name"), field=path)
        plugin = Plugin(name, kind, path, f"{path}.parameters", entry.parameters or {})
        found[name] = plugin._replace(given={}) if kind in BESIDE else plugin.among(*KINDS[kind])
    return found


def only(plugins: Mapping[str, Plugin], kinds: Collection[str]) -> list[Plugin]:
    """Return the plugins of some types."""
    return [plugin for plugin in plugins.values() if plugin.kind in kinds]


# -- the way back ------------------------------------------------------------------------------------------------------

def _profile(name: str, scorers: ScorersConfig, filters: list[Keys], picker: str) -> Keys:
    rows = [{"pluginRef": kind, "weight": getattr(scorers, key)} for kind, key in SCORERS.items()
            if getattr(scorers, key) and picker != "random-picker"]
    return {"name": name, "plugins": [*filters, *rows, {"pluginRef": picker}]}


def _scorers(router: LlmDConfig, prefill: ScorersConfig) -> list[Keys]:
    """Return the plugins of the scorers that either phase uses, with their parameters."""
    sessions = {"algorithm": router.session_algorithm} | (
        {"evictionTtlSeconds": router.session_ttl} if router.session_algorithm == "session_id_header" else {})
    parameters = {
        "load-aware-scorer": {"threshold": router.load_threshold},
        "active-request-scorer": {"idleThreshold": router.idle_requests, "maxBusyScore": router.busy_score},
        "precise-prefix-cache-scorer": _blocks(router.precise_block),
        "session-affinity-scorer": sessions,
        "no-hit-lru-scorer": {"prefixMatchInfoProducerName": PRECISE} if router.no_hit_by == "caches" else {}}
    found: list[Keys] = []
    for kind, key in SCORERS.items():
        if router.picker != "random" and (getattr(router.scorers, key) or getattr(prefill, key)):
            found.append({"type": kind} | ({"parameters": parameters[kind]} if parameters.get(kind) else {}))
    for phase in router.session_pins:
        own = sessions | ({"profileName": phase} if router.disaggregation is not None else {})
        found.append({"type": PIN, "name": f"pin-{phase}", "parameters": own})
    index = router.prefix_index
    if index != type(router).model_fields["prefix_index"].default:
        limits: Keys = {"maxPrefixTokensToMatch": index.most_tokens or 0}
        if index.most_tokens is None:
            limits["maxPrefixBlocksToMatch"] = 0
        if (index.block is None) != (index.capacity is None):
            raise InputError(Verbatim("`block` and `capacity` are one switch in an EndpointPickerConfig; write both "
                                      "or none"), field="router.prefix_index")
        if index.block is not None:
            limits |= {"autoTune": False, "blockSizeTokens": index.block, "lruCapacityPerServer": index.capacity}
        found.append({"type": APPROXIMATE, "parameters": limits})
    if router.no_hit_by == "caches" and not router.scorers.precise_prefix:
        blocks = _blocks(router.precise_block)
        found.append({"type": PRECISE, "parameters": blocks} if blocks else {"type": PRECISE})
    return found


def _blocks(tokens: int | None) -> Keys:
    return {} if tokens is None else {"tokenProcessorConfig": {"blockSizeTokens": tokens}}
