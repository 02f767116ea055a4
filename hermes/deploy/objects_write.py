"""Router, gateway and autoscalers of a scenario as objects of a cluster: the opposite of `objects_read`."""

from __future__ import annotations

from collections.abc import Sequence

from hermes.config import ConfigModel
from hermes.deploy.manifests import names_of
from hermes.deploy.objects_flow import NO_FIELD
from hermes.deploy.objects_route import ROUTED, HTTPRoute
from hermes.deploy.objects_scale import HorizontalPodAutoscaler, ScaledObject
from hermes.deploy.picker_write import picker_of
from hermes.deploy.typed import Keys, Object, refuse_set
from hermes.errors import InputError, Verbatim
from hermes.fleet.config import FleetConfig
from hermes.fleet.hpa import Hpa
from hermes.fleet.keda import Keda
from hermes.gateway.config import GatewayConfig
from hermes.routing.llm_d import LlmDConfig
from hermes.scenario import Scenario

__all__ = ["objects_of"]

BESIDE_PICKER = ("flow_control", "admission", "classes", "tenants")


def objects_of(scenario: Scenario) -> tuple[list[Keys], list[str]]:
    """Return the objects of a scenario, and notes on what they leave to the reader. Raises `InputError` where it has
    none, or more than objects say."""
    router, gateway = scenario.router, scenario.gateway
    found, notes = list[Object](), list[str]()
    if isinstance(router, LlmDConfig):
        found.append(picker_of(router, gateway))
        notes += _notes_of(gateway)
    if gateway is not None and (not found or _says(gateway, ROUTED) or gateway.orders is None):
        found.append(HTTPRoute.of(gateway, BESIDE_PICKER if found else ()))
    elif gateway is not None:
        HTTPRoute.of(gateway, BESIDE_PICKER)   # refuses what it cannot say
    names = names_of([f"{scenario.name}-{group.name}" for group in scenario.clients])
    for place, (group, name) in enumerate(zip(scenario.clients, names, strict=True)):
        fleet = group.value_of("fleet")
        if not isinstance(fleet, FleetConfig) or fleet.autoscaler.kind == "static":
            continue
        autoscaler, path = fleet.autoscaler, f"clients.{place}.fleet.autoscaler"
        if not isinstance(autoscaler, Hpa | Keda):
            notes.append(f"{path}: {autoscaler.kind} has no object here")
            continue
        written, more = HorizontalPodAutoscaler.of(autoscaler, name, group.count, path) if isinstance(
            autoscaler, Hpa) else ScaledObject.of(autoscaler, name, group.count, path)
        found.append(written)
        notes += more
    notes += [f"autoscalers.{place}: {shared.autoscaler.kind} has no object here"
              for place, shared in enumerate(scenario.autoscalers)]
    if not found:
        raise InputError(Verbatim("is not llm_d, and there is neither a gateway nor an autoscaler hpa or keda, so "
                                  "there is no object to write; set router.kind=llm_d"), field="router")
    return [one.written() for one in found], notes


def _says(config: ConfigModel, keys: Sequence[str]) -> bool:
    return any(getattr(config, key) != type(config).model_fields[key].default for key in keys)


def _notes_of(gateway: GatewayConfig | None) -> list[str]:
    """Return what requests have to say for themselves; refuses what they cannot."""
    notes = []
    for name, own in ({} if gateway is None else gateway.classes).items():
        refuse_set(own, ("ttl", "ceiling"), f"gateway.classes.{name}", NO_FIELD)
        notes.append(f"gateway.classes.{name}: its requests name an InferenceObjective of priority {own.priority}" + (
            "" if own.ttft is None else f", and have a header with the TTFT, {own.ttft * 1000:g} ms"))
    for name, tenant in ({} if gateway is None else gateway.tenants).items():
        refuse_set(tenant, ("budget",), f"gateway.tenants.{name}", NO_FIELD)
    return notes
