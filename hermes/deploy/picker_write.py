"""The router `llm_d` of a scenario as an EndpointPickerConfig: the opposite of `picker`."""

from __future__ import annotations

from typing import Any

from hermes.deploy.objects_flow import flow_of
from hermes.deploy.picker_plugins import APPROXIMATE, DECIDERS, HANDLERS, PICKERS, PIN, PRECISE, SCORERS, SINGLE
from hermes.errors import InputError, Verbatim

__all__ = ["picker_of"]

_PREFIX = "prefix-cache-scorer"


def picker_of(router: Any, gateway: Any | None = None) -> dict[str, Any]:
    """Return an EndpointPickerConfig. Keys without a field there have to be at their defaults.

    gateway: Whose flow control or admission is part of it.
    """
    for key in ("view", "caches"):
        if getattr(router, key) != type(router).model_fields[key].default:
            raise InputError(Verbatim("has no field in an EndpointPickerConfig; leave it out"), field=f"router.{key}")
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
        if split.prompt:
            raise InputError(Verbatim("has no field in an EndpointPickerConfig; leave it out"),
                             field="router.disaggregation.prompt")
        decider = DECIDERS[split.always]
        plugins += [{"type": "prefill-filter"}, {"type": "decode-filter"},
                    {"type": decider} if split.always else
                    {"type": decider, "parameters": {"nonCachedTokens": split.uncached}},
                    {"type": HANDLERS[1], "parameters": {"deciders": {"prefill": decider}}}]
        profiles = [_profile(name, scorers, [{"pluginRef": f"{name}-filter"}, *(
                        {"pluginRef": f"pin-{phase}"} for phase in router.session_pins if phase == name)], picker)
                    for name, scorers in (("prefill", prefill), ("decode", router.scorers))]
    if gateway is None or gateway.orders is None:
        version = "inference.networking.x-k8s.io/v1alpha1"
        return {"apiVersion": version, "kind": "EndpointPickerConfig", "plugins": plugins,
                "schedulingProfiles": profiles}
    more, fields = flow_of(gateway)   # fields of llm-d's own version
    return {"apiVersion": "llm-d.ai/v1alpha1", "kind": "EndpointPickerConfig", "plugins": plugins + more,
            "schedulingProfiles": profiles, **fields}


def _profile(name: str, scorers: Any, filters: list[dict[str, Any]], picker: str) -> dict[str, Any]:
    rows = [{"pluginRef": kind, "weight": getattr(scorers, key)} for kind, key in SCORERS.items()
            if getattr(scorers, key) and picker != "random-picker"]
    return {"name": name, "plugins": [*filters, *rows, {"pluginRef": picker}]}


def _scorers(router: Any, prefill: Any) -> list[dict[str, Any]]:
    """Return the plugins of the scorers that either phase uses, with their parameters."""
    sessions = {"algorithm": router.session_algorithm} | (
        {"evictionTtlSeconds": router.session_ttl} if router.session_algorithm == "session_id_header" else {})
    parameters = {
        "load-aware-scorer": {"threshold": router.load_threshold},
        "active-request-scorer": {"idleThreshold": router.idle_requests, "maxBusyScore": router.busy_score},
        "precise-prefix-cache-scorer": _blocks(router.precise_block),
        "session-affinity-scorer": sessions,
        "no-hit-lru-scorer": {"prefixMatchInfoProducerName": PRECISE} if router.no_hit_by == "caches" else {}}
    found: list[dict[str, Any]] = []
    for kind, key in SCORERS.items():
        if router.picker != "random" and (getattr(router.scorers, key) or getattr(prefill, key)):
            found.append({"type": kind} | ({"parameters": parameters[kind]} if parameters.get(kind) else {}))
    for phase in router.session_pins:
        own = sessions | ({"profileName": phase} if router.disaggregation is not None else {})
        found.append({"type": PIN, "name": f"pin-{phase}", "parameters": own})
    index = router.prefix_index
    if index != type(router).model_fields["prefix_index"].default:
        limits: dict[str, Any] = {"maxPrefixTokensToMatch": index.most_tokens or 0}
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


def _blocks(tokens: int | None) -> dict[str, Any]:
    return {} if tokens is None else {"tokenProcessorConfig": {"blockSizeTokens": tokens}}
