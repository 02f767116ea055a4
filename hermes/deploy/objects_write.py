"""Router, gateway and autoscalers of a scenario as objects of a cluster: the opposite of `objects_read`."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from hermes.deploy.manifests import names_of
from hermes.deploy.objects_scale import hpa_of, keda_of
from hermes.deploy.picker_write import picker_of
from hermes.errors import InputError, Verbatim
from hermes.scenario import Scenario
from hermes.units import s_to_ns

__all__ = ["objects_of", "route_of"]

BESIDE_PICKER = ("flow_control", "admission", "classes", "tenants")
SCALERS = {"hpa": hpa_of, "keda": keda_of}
ROUTED = ("timeout", "per_try", "retries", "backoff", "max_backoff")   # keys that an HTTPRoute says


def objects_of(scenario: Scenario) -> tuple[list[dict[str, Any]], list[str]]:
    """Return the objects of a scenario, and notes on what they leave to the reader. Raises `InputError` where it has
    none, or more than objects say."""
    router: Any = scenario.router
    gateway: Any = scenario.gateway
    found, notes = [], list[str]()
    if router.kind == "llm_d":
        found.append(picker_of(router, gateway))
        notes += _notes_of(gateway)
    if gateway is not None and (not found or _says(gateway, ROUTED) or gateway.orders is None):
        found.append(route_of(gateway, beside=BESIDE_PICKER if found else ()))
    elif gateway is not None:
        route_of(gateway, beside=BESIDE_PICKER)   # refuses what it cannot say
    names = names_of([f"{scenario.name}-{group.name}" for group in scenario.clients])
    for place, (group, name) in enumerate(zip(scenario.clients, names, strict=True)):
        fleet: Any = group.value_of("fleet")
        autoscaler = None if fleet is None else fleet.autoscaler
        if autoscaler is None or autoscaler.kind == "static":
            continue
        path = f"clients.{place}.fleet.autoscaler"
        if autoscaler.kind not in SCALERS:
            notes.append(f"{path}: {autoscaler.kind} has no object here")
            continue
        written, more = SCALERS[autoscaler.kind](autoscaler, name, group.count, path)
        found.append(written)
        notes += more
    notes += [f"autoscalers.{place}: {shared.autoscaler.kind} has no object here"
              for place, shared in enumerate(scenario.autoscalers)]
    if not found:
        raise InputError(Verbatim("is not llm_d, and there is neither a gateway nor an autoscaler hpa or keda, so "
                                  "there is no object to write; set router.kind=llm_d"), field="router")
    return found, notes


def _says(config: Any, keys: Sequence[str]) -> bool:
    return any(getattr(config, key) != type(config).model_fields[key].default for key in keys)


def _notes_of(gateway: Any | None) -> list[str]:
    """Return what requests have to say for themselves; refuses what they cannot."""
    notes = []
    for name, own in ({} if gateway is None else gateway.classes).items():
        for key in ("ttl", "ceiling"):
            if getattr(own, key) != type(own).model_fields[key].default:
                raise InputError(Verbatim("has no field in an EndpointPickerConfig; leave it out"),
                                 field=f"gateway.classes.{name}.{key}")
        notes.append(f"gateway.classes.{name}: its requests name an InferenceObjective of priority {own.priority}" + (
            "" if own.ttft is None else f", and have a header with the TTFT, {own.ttft * 1000:g} ms"))
    for name, own in ({} if gateway is None else gateway.tenants).items():
        if own.budget is not None:
            raise InputError(Verbatim("has no field in an EndpointPickerConfig; leave it out"),
                             field=f"gateway.tenants.{name}.budget")
    return notes


def route_of(gateway: Any, beside: Sequence[str] = ()) -> dict[str, Any]:
    """Return an HTTPRoute with the time-outs and retries; the references to gateway and pool are the operator's.

    beside: Keys that another object says.
    """
    for key, field in type(gateway).model_fields.items():
        if key not in ROUTED and key not in beside and getattr(gateway, key) != field.default:
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
