"""A scenario with the keys that objects of a cluster describe, and the objects of a scenario."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from hermes.clients.config import LLMClientConfig
from hermes.config.yaml_document import Node, as_node
from hermes.deploy.manifests import names_of
from hermes.deploy.nodes import at
from hermes.deploy.objects_flow import NO_FIELD
from hermes.deploy.objects_route import ROUTED, HTTPRoute
from hermes.deploy.objects_scale import HorizontalPodAutoscaler, ScaledObject
from hermes.deploy.picker import Check, Group
from hermes.deploy.picker_config import EndpointPickerConfig
from hermes.deploy.planner import PlannerRead
from hermes.deploy.typed import Keys, Object, refuse_set
from hermes.deploy.vllm import launches_of
from hermes.errors import InputError, Verbatim, warn_all
from hermes.fleet.config import FleetConfig
from hermes.fleet.hpa import Hpa
from hermes.fleet.keda import Keda
from hermes.gateway.config import GatewayConfig
from hermes.routing.llm_d import LlmDConfig
from hermes.scenario import Scenario, scenario_of
from hermes.scenario.loading import find_scenario, load_document, moved, set_value

__all__ = ["objects_of", "with_parts", "with_planner"]

BESIDE_PICKER = ("flow_control", "admission", "classes", "tenants")
FLOW = {"flow_control", "admission"}
EXCLUDED = {"flow_control": ("queue", "admission"), "admission": ("flow_control",)}
"""Keys of a gateway -> those that it takes the place of."""


def with_parts(scenario: str, parts: Keys, output: Path | None,
               checks: Sequence[Check] = ()) -> Keys:
    """Return a scenario's document with `router`, `gateway` and `autoscaler` replaced, as it is written to `output`.

    The gateway keeps its other keys. Raises `InputError` where the scenario does not take them.

    checks: Of the scenario's clients, before anything is replaced.
    """
    root, home = load_document(scenario), find_scenario(scenario).parent
    if checks:
        groups = _groups(scenario_of(as_node(root.plain()), home))
        for check in checks:
            check(groups)
    if "router" in parts and parts["router"]["kind"] == "llm_d" and not FLOW & parts.get("gateway", {}).keys() \
            and at(root, "gateway", "flow_control") is not None:   # a picker without the gate refuses instead
        parts = parts | {"gateway": parts.get("gateway", {}) | {"flow_control": None, "admission": {}}}
    there = Path() if output is None else output.parent
    parts, replaced = _without_excluded(root, parts)
    warn_all(replaced)
    for key, value in parts.items():
        path = key
        if key == "autoscaler":
            clients = root.child("clients")
            if clients is None or not isinstance(clients.value, list) or len(clients.value) != 1:
                raise InputError(Verbatim("an autoscaler needs a scenario of one group of clients; give such a one"),
                                 field="clients", file=scenario)
            path = "clients.0.fleet.autoscaler"
            if clients.value[0].child("fleet") is None:
                raise _without_fleet(clients.value[0], 0, value, scenario)
        for name, own in value.items() if key == "gateway" else [("", value)]:
            whole = f"gateway.{name}" if name else path
            if own is not None or at(root, *whole.split(".")) is not None:
                root = _replaced(root, whole, own, home)
    scenario_of(as_node(root.plain()), home)
    document: Keys = moved(root, home, there).plain()
    return document


def _without_fleet(group: Node, place: int, autoscaler: Keys, file: str) -> InputError:
    """Return the refusal of a group without `fleet`, with the entry that would do."""
    count = int(_word(group, "count", "1")) if _word(group, "count", "1").isdecimal() else 1
    most, least = autoscaler.get("max") or count, max(autoscaler.get("min") or 0, 1)
    entry = f"`fleet: {{start: {least}, start_up: {{kind: phases}}}}`" + (
        f" and `count: {most}`, its most replicas," if most > count else "")
    return InputError(Verbatim(f"an autoscaler needs `fleet`; write {entry} into clients.{place}"),
                      field=f"clients.{place}.fleet", file=file)


def _groups(scenario: Scenario) -> list[Group]:
    """Return the groups of clients that run an engine."""
    return [Group(group.name, group.role, group.count, group.parallel.dp) for group in scenario.clients
            if isinstance(group, LLMClientConfig)]


def _without_excluded(root: Node, parts: Keys) -> tuple[Keys, list[str]]:
    """Return the parts with null for keys of the scenario's gateway that theirs exclude, and a line for each."""
    gateway = {key for key, value in parts.get("gateway", {}).items() if value is not None}
    nulls: dict[str, None] = {}
    said: list[str] = []
    for key, others in EXCLUDED.items():
        for other in others if key in gateway else ():
            if other not in parts["gateway"] and (old := at(root, "gateway", other)) is not None \
                    and old.value is not None:
                nulls[other] = None
                said.append(f"gateway.{other}: left out of the scenario, since the objects' {key} takes its place")
    return (parts | {"gateway": parts["gateway"] | nulls} if nulls else parts), said


def with_planner(scenario: str, read: PlannerRead, output: Path | None) -> Keys:
    """Return a scenario's document in which Dynamo's planner scales the groups of its roles.

    Of one group it stands in its `fleet`, of two in `autoscalers`, in place of what is there.
    """
    root, home = load_document(scenario), find_scenario(scenario).parent
    clients = root.child("clients")
    groups = clients.value if clients is not None and isinstance(clients.value, list) else []
    places = []
    for role in read.roles:
        found = [place for place, group in enumerate(groups) if _word(group, "kind", "llm") == "llm"
                 and _word(group, "role", "both") == role]
        if len(found) != 1:
            raise InputError(f"one group of clients with `role: {role}`, as the planner's mode says", len(found),
                             field="clients", file=scenario)
        if groups[found[0]].child("fleet") is None:
            raise _without_fleet(groups[found[0]], found[0], read.autoscaler, scenario)
        places += found
    if len(places) == 1:
        root = _replaced(root, f"clients.{places[0]}.fleet.autoscaler", read.autoscaler, home)
    else:
        for place in places:
            if at(root, "clients", str(place), "fleet", "autoscaler") is not None:
                root = _replaced(root, f"clients.{place}.fleet.autoscaler", {"kind": "static"}, home)
        names = [_word(groups[place], "name", "") for place in places]
        if "" in names:
            raise InputError(Verbatim("the planner's groups need names; give them"), field="clients", file=scenario)
        root = _replaced(root, "autoscalers", [{"groups": names, "autoscaler": read.autoscaler}], home)
    checked = scenario_of(as_node(root.plain()), home)
    if read.devices:
        devices = {launch.name: launch.devices for launch in launches_of(checked)}
        for role, (count, node) in read.devices.items():
            # a planner of engines that do both counts them as decode engines
            name = next((checked.clients[place].name for own, place in zip(read.roles, places, strict=True)
                         if own == role or (own == "both" and role == "decode")), None)
            if name is not None and count != devices.get(name, count):
                raise node.mark.error(f"{devices[name]}, the devices of {name!r}", count,
                                      field=f"{role}_engine_num_gpu")
    document: Keys = moved(root, home, Path() if output is None else output.parent).plain()
    return document


def _word(group: Node, key: str, default: str) -> str:
    node = group.child(key)
    return default if node is None else str(node.value)


def _replaced(root: Node, path: str, value: object, home: Path) -> Node:
    """Return a document with a value in place of what is there, whose keys do not stay."""
    old = at(root, *path.split("."))
    if old is not None and isinstance(old.value, dict | list):
        old.value.clear()
    return set_value(root, path, as_node(value), home, home)


# -- the way back ------------------------------------------------------------------------------------------------------

def objects_of(scenario: Scenario) -> tuple[list[Keys], list[str]]:
    """Return the objects of a scenario, and notes on what they leave to the reader. Raises `InputError` where it has
    none, or more than objects say."""
    router, gateway = scenario.router, scenario.gateway
    found, notes = list[Object](), list[str]()
    if isinstance(router, LlmDConfig):
        found.append(EndpointPickerConfig.of(router, gateway))
        notes += _notes_of(gateway)
    if gateway is not None:
        route = HTTPRoute.of(gateway, BESIDE_PICKER if found else ())   # refuses what it cannot say
        if not found or gateway.orders is None or any(
                getattr(gateway, key) != GatewayConfig.model_fields[key].default for key in ROUTED):
            found.append(route)
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


def _notes_of(gateway: GatewayConfig | None) -> list[str]:
    """Return what requests have to say for themselves; refuses what they cannot."""
    notes: list[str] = []
    if gateway is None:
        return notes
    for name, own in gateway.classes.items():
        refuse_set(own, ("ttl", "ceiling"), f"gateway.classes.{name}", NO_FIELD)
        notes.append(f"gateway.classes.{name}: its requests name an InferenceObjective of priority {own.priority}" + (
            "" if own.ttft is None else f", and have a header with the TTFT, {own.ttft * 1000:g} ms"))
    for name, tenant in gateway.tenants.items():
        refuse_set(tenant, ("budget",), f"gateway.tenants.{name}", NO_FIELD)
    return notes
