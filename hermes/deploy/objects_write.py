"""The router and the gateway of a scenario as objects of a cluster: the opposite of `hermes.deploy.objects_read`."""

from __future__ import annotations

from typing import Any

from hermes.deploy.objects_read import DECIDER, HANDLERS, SCORERS
from hermes.errors import InputError, Verbatim
from hermes.units import s_to_ns

__all__ = ["objects_of", "picker_of", "route_of"]

ROUTED = ("timeout", "per_try", "retries", "backoff", "max_backoff")   # keys that an HTTPRoute says


def objects_of(router: Any, gateway: Any | None) -> list[dict[str, Any]]:
    """Return the objects of a scenario. Raises `InputError` where it has none, or more than objects say.

    Args:
        router: The scenario's router, of any kind.
        gateway: The scenario's gateway, None without.
    """
    found = [picker_of(router)] if router.kind == "llm_d" else []
    if gateway is not None:
        found.append(route_of(gateway))
    if not found:
        raise InputError(Verbatim("is not llm_d and there is no gateway, so there is no object to write; "
                                  "set router.kind=llm_d"), field="router")
    return found


def picker_of(router: Any) -> dict[str, Any]:
    """Return an EndpointPickerConfig. Keys without a field there have to be at their defaults."""
    for key in ("view", "caches", "session_ttl"):
        if getattr(router, key) != type(router).model_fields[key].default:
            raise InputError(Verbatim("has no field in an EndpointPickerConfig; leave it out"), field=f"router.{key}")
    weights = {kind: getattr(router.scorers, key) for kind, key in SCORERS.items() if getattr(router.scorers, key)}
    plugins: list[dict[str, Any]] = [{"type": kind} for kind in weights]
    for plugin in plugins:
        if plugin["type"] == "load-aware-scorer":
            plugin["parameters"] = {"threshold": router.load_threshold}
    plugins.append({"type": "max-score-picker"})
    rows: list[dict[str, Any]] = [{"pluginRef": kind, "weight": weight} for kind, weight in weights.items()]
    rows.append({"pluginRef": "max-score-picker"})
    split = router.disaggregation
    if split is None:
        plugins.append({"type": "single-profile-handler"})
        profiles = [{"name": "default", "plugins": rows}]
    else:
        if split.prompt:
            raise InputError(Verbatim("has no field in an EndpointPickerConfig; leave it out"),
                             field="router.disaggregation.prompt")
        plugins += [{"type": "prefill-filter"}, {"type": "decode-filter"},
                    {"type": DECIDER, "parameters": {"nonCachedTokens": split.uncached}},
                    {"type": HANDLERS[1], "parameters": {"deciders": {"prefill": DECIDER}}}]
        profiles = [{"name": name, "plugins": [{"pluginRef": f"{name}-filter"}, *rows]}
                    for name in ("prefill", "decode")]
    return {"apiVersion": "inference.networking.x-k8s.io/v1alpha1", "kind": "EndpointPickerConfig",
            "plugins": plugins, "schedulingProfiles": profiles}


def route_of(gateway: Any) -> dict[str, Any]:
    """Return an HTTPRoute with the time-outs and retries; the references to gateway and pool are the operator's."""
    for key, field in type(gateway).model_fields.items():
        if key not in ROUTED and getattr(gateway, key) != field.default:
            raise InputError(Verbatim("has no field in an HTTPRoute; leave it out"), field=f"gateway.{key}")
    rule: dict[str, Any] = {}
    times = {name: _duration(value, key) for name, key, value in (
        ("request", "timeout", gateway.timeout), ("backendRequest", "per_try", gateway.per_try)) if value is not None}
    if times:
        rule["timeouts"] = times
    if gateway.retries:
        if s_to_ns(gateway.max_backoff) != 10 * s_to_ns(gateway.backoff):
            raise InputError(Verbatim("is 10 times `backoff` behind an HTTPRoute; write that"),
                             field="gateway.max_backoff")
        rule["retry"] = {"attempts": gateway.retries, "backoff": _duration(gateway.backoff, "backoff"),
                         "codes": [502, 503, 504]}
    return {"apiVersion": "gateway.networking.k8s.io/v1", "kind": "HTTPRoute", "metadata": {"name": "hermes"},
            "spec": {"rules": [rule]}}


def _duration(seconds: float, key: str) -> str:
    ms, rest = divmod(s_to_ns(seconds), 1_000_000)
    if rest or ms >= 99_999_000:
        raise InputError(Verbatim("is written in whole milliseconds below a day in an HTTPRoute; round it"),
                         field=f"gateway.{key}")
    return f"{ms // 1000}s{ms % 1000}ms" if ms % 1000 and ms > 1000 else f"{ms}ms" if ms % 1000 else f"{ms // 1000}s"
