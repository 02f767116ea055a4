"""What acts on the way of a request and on its clients: the parts of the dispatch, fleets with their autoscalers."""

from __future__ import annotations

from collections.abc import Callable, Container, Iterable, Mapping, Sequence
from functools import partial
from importlib import import_module
from pathlib import Path
from typing import TYPE_CHECKING, Any

from hermes.core.client import Client, ClientEvents
from hermes.core.clock import Clock
from hermes.core.columns import RowLog
from hermes.core.request import Stream
from hermes.errors import InputError, Verbatim, inside, suggest
from hermes.fleet.failures import ELSEWHERE, WITHIN_ENGINES
from hermes.gateway.config import GatewayConfig, draws
from hermes.gateway.flow_config import Requested
from hermes.network import Network, can_cancel
from hermes.pipelines.base import GENERATIONS
from hermes.routing.base import places_both_phases
from hermes.scenario.build_routers import Routers
from hermes.scenario.schema import Scenario
from hermes.units import NS_PER_S, s_to_ns

if TYPE_CHECKING:
    from hermes.dispatch.parts import DispatchPart
    from hermes.fleet.autoscalers import GroupsAutoscaler
    from hermes.fleet.fleet import Fleet, Group
    from hermes.fleet.observations import GroupFacts

__all__ = ["build_fleet", "build_gateway", "build_handoff", "fleet_remarks", "parts_of"]

PARTS = {   # of the dispatch, in the order of their hooks: what asks for each, and its class, imported then
    "observe": "hermes.dispatch.parts:Observers",   # a method of routers
    "workload.patience": "hermes.dispatch.patience:Patience",
    "workload.retry": "hermes.gateway.client_retries:ClientRetries",
}   # then the fleet, the hand-over and the gateway, which the functions here make


def parts_of(scenario: Scenario, env: Clock, routers: Iterable[object], streams: list[Stream]) -> list[DispatchPart]:
    """Return the parts of `PARTS` that something asks for."""
    heard = {id(one): one.observe for one in routers if hasattr(one, "observe")}
    each = [*zip(streams, scenario.workload, strict=True)]
    asked = {
        "observe": [*heard.values()],
        "workload.patience": {stream: config.patience.ns for stream, config in each if config.patience is not None},
        "workload.retry": {stream: (config.retry, draws(scenario.seed, "client-backoff"))
                           for stream, config in each if config.retry is not None},
    }
    made = [(place.split(":"), asked[key]) for key, place in PARTS.items() if asked[key]]
    return [vars(import_module(module))[name](env, value) for (module, name), value in made]


def build_handoff(scenario: Scenario, env: Clock, clients: list[Any], network: Callable[[], Network],
                  transfers: RowLog, events: ClientEvents) -> list[DispatchPart]:
    """Return what moves KV between clients; nothing if no KV moves. network: Returns the network of that KV."""
    places_both = places_both_phases(scenario.router)
    if places_both and scenario.kv_transfer_scope == "local":
        raise InputError(Verbatim("the router places both phases on any client; write global"),
                         field="kv_transfer_scope")
    if not places_both and all(c.role != "prefill" for c in clients):
        return []
    if not any(c.role in ("decode", "both") for c in clients):
        raise InputError(Verbatim("all clients only prefill; add one that decodes"), field="clients")
    from hermes.dispatch.handoff import Handoff  # most scenarios have no roles

    return [Handoff(env, clients, network(), transfers, events, scenario.kv_transfer, scenario.kv_transfer_retry,
                    prefill_gives=int(scenario.first_token == "prefill"),
                    local=scenario.kv_transfer_scope == "local")]


def build_gateway(scenario: Scenario, env: Clock, built: Routers, requested: Requested) -> list[DispatchPart]:
    """Return what makes attempts; nothing where none can fail."""
    config = scenario.gateway
    again = any(workload.retry is not None for workload in scenario.workload)
    if config is None and not again and not any(_loses(scenario, client) for client in scenario.clients):
        return []
    groups: dict[str, list[list[Any]]] = {}
    for (kind, model), members in built.candidates.items():   # of all slots, before the fleet starts
        if members and all(client.role != "service" for client in members):
            generation = kind.split()[0] in GENERATIONS
            groups.setdefault(model if generation else f"{kind}/{model}", []).append(members)
    with inside("gateway"):
        return [(config or GatewayConfig()).build(env, scenario.seed, [*groups.values()], requested, built.guarded)]


def build_fleet(scenario: Scenario, base_dir: Path, env: Clock, clients: list[Any], built: Routers,
                networks: Sequence[Network], parts: Sequence[DispatchPart], goes_on: Callable[[], int]) -> list[Fleet]:
    """Return what lets clients come and go; nothing if all serve throughout.

    networks: Those that a crash has to cut. parts: They hear of clients that come and go. goes_on: Returns whether the
    run does.
    """
    if not scenario.autoscalers and all(config.value_of("fleet") is None for config in scenario.clients):
        return []
    from hermes.clients.faults import LLMEngines
    from hermes.clients.start_up import engine_start, slow_first  # most scenarios have none
    from hermes.fleet.fleet import Fleet, Group
    from hermes.scenario.build_places import check_places, places_of

    queued = any(part.queues for part in parts)
    groups, first = [], 0
    for i, config in enumerate(scenario.clients):
        mine = clients[first:first + len(config.names)]
        first += len(mine)
        if config.value_of("fleet") is not None:
            with inside(f"clients.{i}.fleet"):
                _check_fleet(scenario, config, config.count, queued=queued)
            per = len(mine) // config.count
            groups.append(Group(config.name, f"clients.{i}", config.fleet,
                                [mine[one:one + per] for one in range(0, len(mine), per)],
                                partial(_group_facts, config, mine[:per], base_dir),
                                partial(engine_start, config, mine[0], base_dir),
                                slow_first if config.serves_llm else None,
                                LLMEngines(mine) if config.serves_llm else None, places_of(config, mine, base_dir)))
    check_places(groups, clients)
    shared = _shared_autoscalers(scenario, {group.name: group for group in groups}, queued=queued)
    if any(_loses(scenario, client) for client in scenario.clients) and not all(map(can_cancel, networks)):
        raise InputError(Verbatim("replicas go down, and it cannot cancel a transfer (no `cancel`); take another, or "
                                  "leave out `crashes` and `failures`, and write `drain: {grace: null}`"),
                         field="network")
    fleet = Fleet(env, groups, shared, goes_on, parts, scenario.seed)
    for key, router in built.routers.items():
        fleet.watch(built.candidates[key], router)
    return [fleet]


def _loses(scenario: Scenario, config: Any) -> bool:   # Any: a kind of client
    """Whether requests may fail since a replica of a group goes down."""
    fleet = config.value_of("fleet")
    return fleet is not None and fleet.loses(shared=any(config.name in one.groups for one in scenario.autoscalers))


def _check_fleet(scenario: Scenario, config: Any, count: int, *, queued: bool) -> None:   # Any: a kind of client
    """Raise `InputError` for a fleet that its group's `count` slots cannot hold. queued: Whether requests can wait."""
    own = config.fleet
    if own.start > count:
        raise InputError(f"at most {count} replicas, the group's count", own.start, field="start")
    if own.spares is not None and own.start + own.spares.count > count:
        raise InputError(f"at most {count - own.start}, the group's count less `start`", own.spares.count,
                         field="spares.count")
    if own.drain.end == "migrate" and (scenario.gateway is None or scenario.gateway.migration is None):
        raise InputError(Verbatim("needs `gateway.migration`: nothing else migrates; give it, or leave this out"),
                         field="drain.end")
    if not own.start:
        _need_queue(queued, "start")
    slots, why = _slots_in_use(scenario, config.name, own, count)
    for place, crash in enumerate(own.crashes):
        if crash.replica >= slots:
            raise InputError(f"a slot below {slots}, {why}", crash.replica, field=f"crashes.{place}.replica")
    for place, failure in enumerate(own.failures):
        with inside(f"failures.{place}"):
            number = failure.value_of("replica")
            if number is not None and number >= slots:
                raise InputError(f"a slot below {slots}, {why}", number, field="replica")
            if failure.kind in WITHIN_ENGINES and not config.serves_llm:
                raise InputError(Verbatim(f"`{failure.kind}` happens within LLM engines, which these clients are not; "
                                          "take `crash`"), field="kind")
    with inside("autoscaler"):
        own.autoscaler.check(count)
        _need_queue(queued, own.autoscaler.to_zero())


def _slots_in_use(scenario: Scenario, name: str, fleet: Any, count: int) -> tuple[int, str]:
    """Return how many slots of a group, from the first on, may ever have a replica, and why."""
    moves = any(failure.kind in ELSEWHERE for failure in fleet.failures)
    comes = moves or fleet.updates or fleet.autoscaler.value_of("kind") != "static" or any(
        name in shared.groups for shared in scenario.autoscalers)
    held = fleet.start + (0 if fleet.spares is None else fleet.spares.count)
    return (count, "the group's count") if comes else (held, "the replicas that there are: no other slot is used")


def _need_queue(queued: bool, field: str) -> None:
    """Raise `InputError` where a group may have no replica (at `field`, unless it is empty) and no request can wait."""
    if field and not queued:
        raise InputError(Verbatim("without a replica no request could wait; give `gateway.queue`, or keep one replica"),
                         field=field)


def _group_facts(config: Any, clients: list[Any], base_dir: Path) -> GroupFacts:   # Any: LLM clients of one engine
    from hermes.fleet.observations import GroupFacts

    resources = config.resources(clients[0].hardware, base_dir)
    devices = resources.devices * len(clients)
    return GroupFacts(devices, devices * resources.dollars_per_hour)


def _shared_autoscalers(scenario: Scenario, groups: Mapping[str, Group], *, queued: bool,
                        ) -> list[tuple[GroupsAutoscaler, list[str]]]:
    """Return the autoscalers of several groups, each with their names."""
    from hermes.fleet.autoscalers import GroupsAutoscaler

    found: list[tuple[GroupsAutoscaler, list[str]]] = []
    taken: set[str] = set()
    for number, shared in enumerate(scenario.autoscalers):
        with inside(f"autoscalers.{number}"):
            for place, name in enumerate(shared.groups):
                field = f"groups.{place}"
                if name not in groups:
                    there = ", ".join(groups) or "none has one"
                    raise InputError(f"a group of clients that has a `fleet`: {there}", name, field=field,
                                     suggestion=suggest(name, list(groups)))
                if name in taken:
                    raise InputError(Verbatim(f"{name!r} has an autoscaler already"), field=field)
                if groups[name].config.autoscaler.kind != "static":
                    raise InputError(Verbatim(f"{name!r} has an autoscaler in its `fleet`; leave one of the two out"),
                                     field=field)
                taken.add(name)
                with inside("autoscaler"):
                    shared.autoscaler.check(len(groups[name].clients))
            with inside("autoscaler"):
                if not isinstance(shared.autoscaler, GroupsAutoscaler):
                    raise InputError(Verbatim(f"`{shared.autoscaler.kind}` scales one group; write it under the "
                                              "group's `fleet`"), field="kind")
                _need_queue(queued, shared.autoscaler.to_zero())
            found.append((shared.autoscaler, shared.groups))
    return found


def fleet_remarks(scenario: Scenario, clients: Sequence[Client], base_dir: Path) -> list[str]:
    """Return what decides how much a failure costs."""
    if all(config.value_of("fleet") is None for config in scenario.clients):
        return []
    from hermes.scenario.build_places import place_remarks

    several, remarks = place_remarks(scenario.clients, clients, base_dir)
    return [*_crash_remarks(scenario, several), *remarks]


def _crash_remarks(scenario: Scenario, recreated: Container[str]) -> list[str]:
    """Return what decides how much a crash costs, for each group with crashes. recreated: Groups whose pods are made
    anew."""
    lines, gateway = [], scenario.gateway
    rest = "; without `gateway` each failed attempt ends its request" if gateway is None else (
        "" if gateway.breaker is None else ", or until a breaker keeps it away")
    for config in scenario.clients:
        fleet = config.value_of("fleet")
        if fleet is not None and fleet.crashes:
            probe = fleet.probe
            waits = [0.0, probe.period] if probe.offset is None else [
                max(ahead, ahead % s_to_ns(probe.period)) / NS_PER_S for crash in fleet.crashes   # to the next probe
                for ahead in [s_to_ns(probe.offset - crash.at)]]
            if config.name in recreated:
                waits, ends = [], iter([f"{probe.delay:g}"])
            else:
                ends = (f"{(probe.failures - 1) * probe.period + probe.delay + end(waits):g}" for end in (min, max))
            lines.append(f"{config.name}: routers notice a crash {' to '.join(dict.fromkeys(ends))} s later "
                         f"(`fleet.probe`), and choose the replica until then{rest}")
    return lines
