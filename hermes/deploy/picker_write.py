"""The router `llm_d` of a scenario as an EndpointPickerConfig: the opposite of `picker`."""

from __future__ import annotations

from hermes.deploy.objects_flow import NO_FIELD, flow_of
from hermes.deploy.picker_plugins import (
    APPROXIMATE,
    DECIDERS,
    HANDLERS,
    PICKERS,
    PIN,
    PRECISE,
    SCORERS,
    SINGLE,
    EndpointPickerConfig,
)
from hermes.deploy.typed import Keys, refuse_set
from hermes.errors import InputError, Verbatim
from hermes.gateway.config import GatewayConfig
from hermes.routing.llm_d import LlmDConfig, ScorersConfig

__all__ = ["picker_of"]

_PREFIX = "prefix-cache-scorer"


def picker_of(router: LlmDConfig, gateway: GatewayConfig | None = None) -> EndpointPickerConfig:
    """Return an EndpointPickerConfig. Keys without a field there have to be at their defaults.

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
        profiles = [_profile("default", router.scorers, [{"pluginRef": "pin-decode"}] if router.session_pins else [],
                             picker)]
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
    return EndpointPickerConfig.model_validate({
        "apiVersion": version, "kind": "EndpointPickerConfig", "plugins": plugins + more,
        "schedulingProfiles": profiles, **fields})


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
