"""Build a simulation from a validated scenario, step by step: each function takes what those before it returned."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING

from hermes.core.client import ClientEvents
from hermes.core.clock import Clock
from hermes.core.columns import RowLog
from hermes.core.record import TRANSFER_FIELDS, Notes, run_log
from hermes.dispatch.coordinator import Coordinator
from hermes.dispatch.inputs import Inputs
from hermes.dispatch.rows import StageRows
from hermes.dispatch.simulation import Simulation
from hermes.errors import InputError, inside
from hermes.network import Network
from hermes.network.base import BaseNetwork, FailingLinks, build_network
from hermes.network.kv_link import KvLink
from hermes.pipelines.base import requested_stages
from hermes.pipelines.mixing import WeightedPipeline
from hermes.scenario.build_clients import (
    Built,
    build_clients,
    check_engines,
    name_remarks,
    prepare_tiers,
    sites,
)
from hermes.scenario.build_operations import build_fleet, build_gateway, build_handoff, fleet_remarks, parts_of
from hermes.scenario.build_routers import GENERATION_STAGES, build_routers
from hermes.scenario.build_workloads import build_pipelines, build_requests, labels_of, requested_of
from hermes.scenario.prefix_start import coarse_hash_warnings, conversation_remarks, fill_prefix_caches
from hermes.scenario.schema import Scenario
from hermes.units import s_to_ns
from hermes.workload.workload import offered

if TYPE_CHECKING:
    from hermes.dispatch.parts import DispatchPart
    from hermes.routing.decisions import Decisions

__all__ = ["build", "build_with_pipelines"]


def build(scenario: Scenario, decisions: Decisions | None = None, listeners: Sequence[DispatchPart] = ()
          ) -> Simulation:
    """Build the simulation of a scenario: clients, request tables, network and routers on a clock.

    Args:
        decisions: Keeps what routers decide about one request.
        listeners: Parts of the dispatch that no option of the scenario asks for, after those that one does.

    Raises `InputError` that points at the wrong field in the scenario's file.
    """
    return build_with_pipelines(scenario, decisions, listeners)[0]


def build_with_pipelines(
    scenario: Scenario, decisions: Decisions | None = None, listeners: Sequence[DispatchPart] = (),
) -> tuple[Simulation, list[list[WeightedPipeline]]]:
    """Build as `build` does; also return, per workload, the pipelines of its requests with the models they ask for."""
    try:
        return _build(scenario, scenario.source.base_dir, decisions, listeners)
    except InputError as error:
        raise scenario.source.located(error) from None


def _build(scenario: Scenario, base_dir: Path, decisions: Decisions | None, listeners: Sequence[DispatchPart],
           ) -> tuple[Simulation, list[list[WeightedPipeline]]]:
    env, events, notes = Clock(), ClientEvents(), Notes()
    runs, transfers = run_log(), RowLog(TRANSFER_FIELDS)
    made = build_clients(scenario, base_dir, env, runs, events)
    clients = made.clients
    pipelines = build_pipelines(scenario, base_dir, clients)
    horizon_ns = None if scenario.horizon is None else s_to_ns(scenario.horizon)
    period = offered(scenario.workload, horizon_ns)
    used = [entry for entries in pipelines for entry in entries]
    scenario.slo.check_names([entry.label for entry in used], [w.name for w in scenario.workload])
    kinds = [kind for entry in used for kind, _ in requested_stages(entry.pipeline)]
    stage_kinds = list(dict.fromkeys([*GENERATION_STAGES, *kinds]))
    requests = build_requests(scenario, base_dir, pipelines, clients)
    streams, requested = requests.streams, requested_of(requests.streams)
    warnings = [*made.warnings, *requests.warnings, *coarse_hash_warnings(clients, streams)]
    fill_prefix_caches(scenario.clients, clients, streams, [{entry.model for entry in mine} for mine in pipelines])
    prepare_tiers(clients, streams)
    network = _network(scenario, base_dir, env, made)

    @cache
    def kv_network() -> Network:
        """The network of the KV between prefill and decode clients; one of its own is built when KV first needs it."""
        config = scenario.network
        return config.build_for_kv(env, [c.name for c in clients]) if isinstance(config, KvLink) else network

    def goes_on() -> int:
        """The requests that have not ended, at least 1 until the last `duration` ends: replicas come and go so long."""
        return events.left() or int(env._now < period.until_ns)

    _fail_links(scenario, env, network, kv_network, goes_on)
    handoff = build_handoff(scenario, env, clients, kv_network, transfers, events)
    built = build_routers(scenario, env, clients, pipelines, notes, decisions, network, kv_network)
    moving = [*handoff, *build_gateway(scenario, env, built, requested)]
    fleet = build_fleet(scenario, base_dir, env, clients, built, [network, *(kv_network() for _ in handoff)], moving,
                        goes_on)
    parts = [*parts_of(scenario, env, built.routers.values(), streams), *fleet, *moving, *listeners]
    coordinator = Coordinator(
        env, clients, events, built.routers, built.candidates, built.cells, streams,
        StageRows(env, stage_kinds, attempts=any(part.attempts for part in parts)), notes,
        Inputs(env, network, transfers), prefill_gives=int(not handoff or scenario.first_token == "prefill"),
        parts=parts,
    )
    check_engines(scenario, pipelines, built.candidates)
    return Simulation(
        env, clients, streams, network, coordinator, stage_kinds=stage_kinds, runs=runs, describe=made.describe,
        labels=labels_of(scenario, pipelines, requests.drawn, requested), horizon_ns=horizon_ns, offered=period,
        warnings=warnings,
        remarks=[*name_remarks(scenario.clients, scenario.source.base_dir), *made.remarks,
                 *fleet_remarks(scenario, clients, base_dir),
                 *conversation_remarks(scenario.workload, streams)],
    ), pipelines


def _fail_links(scenario: Scenario, env: Clock, network: Network, kv_network: Callable[[], Network],
                goes_on: Callable[[], int]) -> None:
    """Let links fail, if the scenario's do."""
    config = scenario.network
    if isinstance(config, FailingLinks) and config.failures:
        from hermes.scenario.build_links import fail_links  # most do not

        made = kv_network() if isinstance(config, KvLink) else network
        assert isinstance(made, BaseNetwork)
        with inside("network"):
            fail_links(env, made, config.failures, scenario.seed, goes_on)


def _network(scenario: Scenario, base_dir: Path, env: Clock, made: Built) -> Network:
    with inside("network"):
        network = build_network(scenario.network, env, lambda: sites(scenario, made.clients, base_dir))
        if any(c.role == "prefill" for c in made.clients):
            network.check([c.name for c in made.clients])
    return network
