"""Build a simulation from a validated scenario."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from functools import cached_property, partial
from importlib import import_module
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from hermes.clients.base import PreparedClient
from hermes.clients.llm import LLMClient
from hermes.config.streams import stream as random_stream
from hermes.core.client import ClientEvents
from hermes.core.clock import Clock
from hermes.core.columns import RowLog
from hermes.core.notes import Notes
from hermes.core.record import RUN_FIELDS, RUN_NARROW, TRANSFER_FIELDS, Describe, Labels
from hermes.core.request import Stream
from hermes.core.request_table import NamedColumn, RequestTable
from hermes.core.router import LoadCell, Router, RouterContext
from hermes.dispatch.coordinator import Coordinator
from hermes.dispatch.inputs import Inputs
from hermes.dispatch.rows import StageRows
from hermes.dispatch.simulation import Simulation
from hermes.engine.compatibility import Case, check
from hermes.errors import InputError, Verbatim, inside, suggest
from hermes.gateway.config import GatewayConfig, draws
from hermes.gateway.flow_config import Requested
from hermes.hardware.descriptions.files import names_in
from hermes.hardware.info import hardware_info
from hermes.network import Network, Site, can_cancel
from hermes.network.base import build_network
from hermes.network.kv_link import KvLink
from hermes.pipelines.base import GENERATIONS, requested_stages
from hermes.pipelines.checks import check_options, check_past, no_client_error
from hermes.pipelines.graph import GraphPipeline
from hermes.pipelines.length_check import check_lengths
from hermes.pipelines.mixing import MODEL_STAGES, PipelineFinder, PipelineMix, WeightedPipeline, draw_pipelines
from hermes.routing.base import places_both_phases
from hermes.scenario.prefix_start import coarse_hash_warnings, conversation_remarks, fill_prefix_caches
from hermes.scenario.schema import Scenario
from hermes.units import NS_PER_S, s_to_ns
from hermes.workload.pipelines import fields_of
from hermes.workload.workload import offered

if TYPE_CHECKING:
    from hermes.dispatch.handoff import Handoff
    from hermes.dispatch.parts import DispatchPart
    from hermes.fleet.autoscalers import GroupsAutoscaler
    from hermes.fleet.fleet import Fleet, Group
    from hermes.fleet.observations import GroupFacts
    from hermes.gateway.gateway import Gateway
    from hermes.routing.decisions import Decisions

__all__ = ["build", "build_with_pipelines"]

NO_NAME = [""]
PARTS = {   # of the coordinator, in the order of their hooks: what asks for each, and its class, imported then
    "observe": "hermes.dispatch.parts:Observers",   # a method of routers or the fleet
    "workload.patience": "hermes.dispatch.patience:Patience",
    "workload.retry": "hermes.gateway.client_retries:ClientRetries",
}
GENERATION_STAGES = ["generate", "prefill", "decode"]   # GENERATIONS, in the order in which results number them


def build(scenario: Scenario, decisions: Decisions | None = None) -> Simulation:
    """Build the simulation of a scenario: clients, request tables, network and routers on a clock.

    decisions: Keeps what routers decide about one request. Raises `InputError` that points at the wrong field in the
    scenario's file.
    """
    return build_with_pipelines(scenario, decisions)[0]


def build_with_pipelines(
    scenario: Scenario, decisions: Decisions | None = None,
) -> tuple[Simulation, list[list[WeightedPipeline]]]:
    """Build as `build` does; also return, per workload, the pipelines of its requests with the models they ask for."""
    try:
        builder = _Builder(scenario, scenario.source.base_dir, decisions)
        return builder.simulation(), builder.pipelines
    except InputError as error:
        raise scenario.source.located(error) from None


def _name_remarks(clients: Iterable[Any], base_dir: Path | None) -> list[str]:
    """Return a line for each name of a device or model that stands for one of several."""
    found: dict[str, None] = {}
    for client in clients:
        for folder, key in (("devices", "device"), ("models", "model")):
            for text in (client.value_of(key), client.hardware.names.get(key) if client.serves_llm else None):
                if isinstance(text, str) and text and text not in (names := names_in(folder)):
                    from hermes.hardware.descriptions.names import remark  # most names are those of files

                    found |= {line: None for line in [remark(folder, text, names, base_dir)] if line}
    return list(found)


def _crash_remarks(scenario: Scenario) -> list[str]:
    """Return what decides how much a crash costs, for each group with crashes."""
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
            ends = (f"{(probe.failures - 1) * probe.period + probe.delay + end(waits):g}" for end in (min, max))
            lines.append(f"{config.name}: routers notice a crash {' to '.join(dict.fromkeys(ends))} s later "
                         f"(`fleet.probe`), and choose the replica until then{rest}")
    return lines


def _joined(columns: list[NamedColumn | None], lengths: list[int]) -> tuple[list[int], list[str]]:
    """Return columns of names, one of each workload, as one: codes and names in alphabetical order. The requests of
    workloads without one have an empty name."""
    names = sorted({name for one in columns for name in (NO_NAME if one is None else one.names)})
    codes: list[int] = []
    for one, length in zip(columns, lengths, strict=True):
        places = [names.index(name) for name in (NO_NAME if one is None else one.names)]
        codes += [places[0]] * length if one is None else np.array(places, dtype=np.int64)[one.codes].tolist()
    return codes, names


def _need_queue(queued: bool, field: str) -> None:
    """Raise `InputError` where a group may have no replica (at `field`, unless it is empty) and no request can wait."""
    if field and not queued:
        raise InputError(Verbatim("without a replica no request could wait; give `gateway.queue`, or keep one replica"),
                         field=field)


def _group_facts(config: Any, client: Any, base_dir: Path) -> GroupFacts:   # Any: of a group of LLM clients
    from hermes.fleet.observations import GroupFacts

    resources = config.resources(client.hardware, base_dir)
    return GroupFacts(resources.devices, resources.devices * resources.dollars_per_hour)


class _Builder:
    """Builder of one simulation's parts, in order: each part uses those before it."""

    def __init__(self, scenario: Scenario, base_dir: Path, decisions: Decisions | None) -> None:
        self.scenario, self.base_dir, self._decisions = scenario, base_dir, decisions
        self.env = Clock()
        self._events, self._notes = ClientEvents(), Notes()
        self.warnings: list[str] = []
        self._compared: list[str] = []   # remarks on times that were never compared with a server's
        self._guarded: list[Any] = []   # routers from which clients can be kept
        self._drawn: list[np.ndarray] = []   # per workload: the pipeline that each request takes
        self._runs, self._transfers = RowLog(RUN_FIELDS, RUN_NARROW), RowLog(TRANSFER_FIELDS)
        self._describe: list[Describe] = []
        self.clients = self._build_clients()
        self.pipelines = self._build_pipelines()

    def simulation(self) -> Simulation:
        scenario = self.scenario
        horizon_ns = None if scenario.horizon is None else s_to_ns(scenario.horizon)
        self._offered = offered(scenario.workload, horizon_ns)
        used = [entry for entries in self.pipelines for entry in entries]
        scenario.slo.check_names([entry.label for entry in used], [w.name for w in scenario.workload])
        kinds = [kind for entry in used for kind, _ in requested_stages(entry.pipeline)]
        self.stage_kinds = list(dict.fromkeys([*GENERATION_STAGES, *kinds]))
        self.streams = self._build_streams()
        if any(stream.table.hash_ids is not None for stream in self.streams):
            from hermes.core.joined_hashes import join_hashes  # most workloads have no hashes

            join_hashes([stream.table for stream in self.streams])
        self.warnings += coarse_hash_warnings(self.clients, self.streams)
        models = [{entry.model for entry in entries} for entries in self.pipelines]
        fill_prefix_caches(scenario.clients, self.clients, self.streams, models)
        self._prepare_tiers()
        self.network = self._build_network()
        handoff = self._build_handoff()
        self._candidates: dict[tuple[str, str], list[Any]] = {}
        self._cells: list[list[tuple[LoadCell, int]]] = [[] for _ in self.clients]
        routers = self._build_routers()
        requested = self._requested()
        moving = [part for part in (handoff, self._build_gateway(requested)) if part is not None]
        fleet = self._build_fleet(routers, handoff, moving)
        coordinator = Coordinator(
            self.env, self.clients, self._events, routers, self._candidates, self._cells, self.streams,
            StageRows(self.env, self.stage_kinds, attempts=any(part.attempts for part in moving)), self._notes,
            Inputs(self.env, self.network, self._transfers),
            prefill_gives=int(handoff is None or scenario.first_token == "prefill"),
            parts=[*self._parts([*routers.values(), fleet]), *moving],
        )
        self._check_engines()
        return Simulation(
            self.env, self.clients, self.streams, self.network, coordinator, stage_kinds=self.stage_kinds,
            runs=self._runs, describe=self._describe, labels=self._labels() | self._labels_at_gateway(requested),
            horizon_ns=horizon_ns, offered=self._offered, warnings=self.warnings, fleet=fleet,
            remarks=[*_name_remarks(scenario.clients, scenario.source.base_dir), *self._compared,
                     *_crash_remarks(scenario), *conversation_remarks(scenario.workload, self.streams)],
        )

    def _build_handoff(self) -> Handoff | None:
        """Return the KV transfer between clients, or None if no KV moves."""
        scenario = self.scenario
        places_both = places_both_phases(scenario.router)
        if places_both and scenario.kv_transfer_scope == "local":
            raise InputError(Verbatim("the router places both phases on any client; write global"),
                             field="kv_transfer_scope")
        if not places_both and all(c.role != "prefill" for c in self.clients):
            return None
        if not any(c.role in ("decode", "both") for c in self.clients):
            raise InputError(Verbatim("all clients only prefill; add one that decodes"), field="clients")
        from hermes.dispatch.handoff import Handoff  # most scenarios have no roles

        return Handoff(self.env, self.clients, self._kv_network, self._transfers, self._events, scenario.kv_transfer,
                       scenario.kv_transfer_retry, prefill_gives=int(scenario.first_token == "prefill"),
                       local=scenario.kv_transfer_scope == "local")

    def _build_gateway(self, requested: Requested) -> Gateway | None:
        """Return what makes attempts, None where none can fail."""
        config = self.scenario.gateway
        fleets = [client.value_of("fleet") for client in self.scenario.clients]
        again = any(workload.retry is not None for workload in self.scenario.workload)
        if config is None and not again and not any(fleet is not None and fleet.crashes for fleet in fleets):
            return None
        groups: dict[str, list[list[Any]]] = {}
        for (kind, model), members in self._candidates.items():   # of all slots, before the fleet starts
            if members and all(client.role != "service" for client in members):
                generation = kind.split()[0] in GENERATIONS
                groups.setdefault(model if generation else f"{kind}/{model}", []).append(members)
        with inside("gateway"):
            return (config or GatewayConfig()).build(self.env, self.scenario.seed, [*groups.values()], requested,
                                                     self._guarded)

    def _parts(self, hearing: Iterable[object]) -> list[DispatchPart]:
        """Return the parts of the coordinator that something asks for. hearing: Routers and the fleet."""
        heard = {id(one): one.observe for one in hearing if hasattr(one, "observe")}
        each = [*zip(self.streams, self.scenario.workload, strict=True)]
        asked = {
            "observe": [*heard.values()],
            "workload.patience": {stream: config.patience.ns for stream, config in each if config.patience is not None},
            "workload.retry": {stream: (config.retry, draws(self.scenario.seed, "client-backoff"))
                               for stream, config in each if config.retry is not None},
        }
        made = [(place.split(":"), asked[key]) for key, place in PARTS.items() if asked[key]]
        return [vars(import_module(module))[name](self.env, value) for (module, name), value in made]

    def _requested(self) -> Requested:
        """Return tenants and classes of all requests."""
        tables = [stream.table for stream in self.streams]
        return Requested(*_joined([table.tenant for table in tables], [*map(len, tables)]),
                         *_joined([table.service_class for table in tables], [*map(len, tables)]))

    def _labels_at_gateway(self, requested: Requested) -> Labels:
        """Return every request's tenant, class and band, those of them that there are, as codes with their names."""
        config, found = self.scenario.gateway, requested
        labels: Labels = {}
        if any(found.tenants):
            labels["tenant"] = np.array(found.tenant, dtype=np.int64), found.tenants
        if any(found.kinds):
            labels["class"] = np.array(found.kind, dtype=np.int64), found.kinds
        if config is not None and config.orders is not None and config.classes:
            bands = [config.band_of(name) for name in found.kinds]
            names = sorted(set(bands), reverse=True)
            codes = np.array([names.index(band) for band in bands], dtype=np.int64)
            labels["band"] = codes[np.array(found.kind, dtype=np.int64)], [*map(str, names)]
        return labels

    def _build_fleet(self, routers: dict[tuple[str, str], Router], handoff: Handoff | None,
                     parts: Sequence[DispatchPart]) -> Fleet | None:
        """Return what lets clients come and go, None if all serve throughout."""
        if not self.scenario.autoscalers and all(config.value_of("fleet") is None for config in self.scenario.clients):
            return None
        from hermes.clients.start_up import engine_start, slow_first  # most scenarios have none
        from hermes.fleet.fleet import Fleet, Group

        queued = any(part.queues for part in parts)
        groups, first = [], 0
        for i, config in enumerate(self.scenario.clients):
            clients = self.clients[first:first + len(config.names)]
            first += len(clients)
            own = config.value_of("fleet")
            if own is not None:
                with inside(f"clients.{i}.fleet"):
                    if own.start > len(clients):
                        raise InputError(f"at most {len(clients)} replicas, the group's count", own.start,
                                         field="start")
                    if own.spares is not None and own.start + own.spares.count > len(clients):
                        raise InputError(f"at most {len(clients) - own.start}, the group's count less `start`",
                                         own.spares.count, field="spares.count")
                    if not own.start:
                        _need_queue(queued, "start")
                    slots, why = self._slots_in_use(config.name, own, len(clients))
                    for place, crash in enumerate(own.crashes):
                        if crash.replica >= slots:
                            raise InputError(f"a slot below {slots}, {why}", crash.replica,
                                             field=f"crashes.{place}.replica")
                    with inside("autoscaler"):
                        own.autoscaler.check(len(clients))
                        _need_queue(queued, own.autoscaler.to_zero())
                facts = partial(_group_facts, config, clients[0], self.base_dir)
                engine = partial(engine_start, config, clients[0], self.base_dir)
                groups.append(Group(config.name, f"clients.{i}", own, clients, facts, engine,
                                    slow_first if config.serves_llm else None))
        shared = self._shared_autoscalers({group.name: group for group in groups}, queued=queued)
        if any(group.config.crashes for group in groups):
            used = [self.network, *([] if handoff is None else [handoff.network])]
            if not all(can_cancel(network) for network in used):
                raise InputError(Verbatim("clients crash, and it cannot cancel a transfer (no `cancel`); take another, "
                                          "or leave out `crashes`"), field="network")
        fleet = Fleet(self.env, groups, shared, self._goes_on, parts, self.scenario.seed)
        for key, router in routers.items():
            fleet.watch(self._candidates[key], router)
        return fleet

    def _slots_in_use(self, name: str, fleet: Any, count: int) -> tuple[int, str]:   # Any: a field of a client's kind
        """Return how many slots of a group, from the first on, may ever have a replica, and why."""
        comes = fleet.updates or fleet.autoscaler.value_of("kind") != "static" or any(
            name in shared.groups for shared in self.scenario.autoscalers)
        held = fleet.start + (0 if fleet.spares is None else fleet.spares.count)
        return (count, "the group's count") if comes else (held, "the replicas that there are: no other slot is used")

    def _shared_autoscalers(self, groups: Mapping[str, Group], *, queued: bool,
                            ) -> list[tuple[GroupsAutoscaler, list[str]]]:
        """Return the autoscalers of several groups, each with their names."""
        from hermes.fleet.autoscalers import GroupsAutoscaler

        found: list[tuple[GroupsAutoscaler, list[str]]] = []
        taken: set[str] = set()
        for number, shared in enumerate(self.scenario.autoscalers):
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
                        raise InputError(Verbatim(f"{name!r} has an autoscaler in its `fleet`; leave one of the two "
                                                  "out"), field=field)
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

    def _goes_on(self) -> int:
        """Return the requests that have not ended, at least 1 until the last `duration` ends: replicas come and go
        until then."""
        return self._events.left() or int(self.env._now < self._offered.until_ns)

    def _build_clients(self) -> list[Any]:
        clients: list[Any] = []
        disaggregated = any(config.role == "prefill" for config in self.scenario.clients)
        places_both = places_both_phases(self.scenario.router)
        moves_kv = self.scenario.kv_transfer if disaggregated or places_both else ""
        for i, config in enumerate(self.scenario.clients):
            built = self.scenario.source.hardware.get(i)
            with inside(f"clients.{i}"):
                group = config.build(
                    self.env, len(clients), self._runs, self._events, every_step=self.scenario.stepping == "every_step",
                    base_dir=self.base_dir, moves_kv=moves_kv, seed=self.scenario.seed,
                    **({} if built is None else {"hardware": built}),
                )
                clients += group
                if config.kind == "llm":
                    info = hardware_info(group[0].hardware)
                    self.warnings += [f"{config.name}: {link.text}" for link in info.assumed_links]
                    self._compared += [f"{config.name}: {remark}" for remark in info.remarks()]
                self._describe += config.describe(group, self.base_dir)
        names: set[str] = set()
        for client in clients:
            if client.name in names:
                raise InputError(Verbatim(f"two clients are named {client.name!r}; rename one"), field="clients")
            names.add(client.name)
        return clients

    def _check_engines(self) -> None:
        """Raise `InputError` if an engine cannot serve the adapters, branches or patience of a workload."""
        groups = [i for i, config in enumerate(self.scenario.clients) for _ in config.names]
        for i, (config, entries) in enumerate(zip(self.scenario.workload, self.pipelines, strict=True)):
            engines: dict[int, LLMClient] = {}   # the first of each group, whose others are its equals
            for client in self._engines_of(entries):
                engines.setdefault(groups[client.index], client)
            for group, client in engines.items():
                try:
                    check(Case(self.scenario.clients[group], scheduler=client.scheduler, workload=config))
                except InputError as error:
                    whose, _, key = (error.field or "").partition(".")
                    error.field = (f"workload.{i}.{key}" if whose == "workload" else f"clients.{group}.{error.field}")
                    raise

    def _engines_of(self, entries: list[WeightedPipeline]) -> list[LLMClient]:
        """Return the engines that may serve the generations of these pipelines, in order."""
        asked = {model or entry.model for entry in entries for kind, model in requested_stages(entry.pipeline)
                 if kind in GENERATIONS}
        found = {client.index: client for (kind, model), clients in self._candidates.items() for client in clients
                 if model in asked and kind.split()[0] in GENERATIONS and isinstance(client, LLMClient)}
        return [found[index] for index in sorted(found)]

    def _build_pipelines(self) -> list[list[WeightedPipeline]]:
        """Return, per workload, the pipelines of its requests with the models they ask for."""
        finder = PipelineFinder(self.scenario.pipelines, self.scenario.seed, self.base_dir)
        found = []
        for i, config in enumerate(self.scenario.workload):
            entries = []
            for choice, field in zip(config.pipelines, fields_of(config.pipeline), strict=True):
                pipeline = finder.find(choice, f"workload.{i}.{field}")
                with inside(f"workload.{i}" if choice.model is None else f"workload.{i}.{field}"):
                    model = self._model_of(choice.model or config.model)
                entries.append(WeightedPipeline(choice.name, pipeline, model, choice.weight))
            found.append(entries)
        return finder.labelled(found)

    def _build_streams(self) -> list[Stream]:
        streams: list[Stream] = []
        first_id = first_number = 0
        seed = self.scenario.seed
        for i, (config, entries) in enumerate(zip(self.scenario.workload, self.pipelines, strict=True)):
            with inside(f"workload.{i}"):
                table: RequestTable = config.draw(seed, self.base_dir)
                for column in (table.session, table.prefix_group):   # each workload numbers its own from zero
                    column[column >= 0] += first_number
                first_number = max(first_number, 1 + int(table.session.max(initial=-1)),
                                   1 + int(table.prefix_group.max(initial=-1)))
                if config.branches > 1 and any(isinstance(entry.pipeline, GraphPipeline) for entry in entries):
                    raise InputError(Verbatim("a graph has `branches` at its `generate` node; move the option there"),
                                     field="branches")
                for entry in entries if table.population is None else ():
                    if isinstance(entry.pipeline, GraphPipeline):
                        check_past(entry.pipeline)
                drawn = draw_pipelines([entry.weight for entry in entries], len(table), seed, config.name)
                self.warnings += check_lengths(table, entries, drawn, self.clients, config.name)
                pipeline = entries[0].pipeline if len(entries) == 1 else PipelineMix(entries, drawn, first_id)
                streams.append(Stream(config.name, table, pipeline, entries[0].model, first_id))
                self._drawn.append(drawn)
                first_id += len(table)
        return streams

    def _prepare_tiers(self) -> None:
        """Give clients with KV tiers the cost of a prefill, and their initial contexts."""
        populations = {t.population.name: t.population for t in (s.table for s in self.streams) if t.population}
        for stream in self.streams:
            own = stream.table.population
            if own and not np.array_equal(own.tokens, populations[own.name].tokens):
                raise InputError(Verbatim(f"population {own.name!r} has different contexts in two workloads; make them "
                                          "equal"), field="workload")
        for client in self.clients:
            if isinstance(client, PreparedClient):
                client.prepare(self.clients, populations.values())

    def _model_of(self, wanted: str | None) -> str:
        """Return the model that a workload asks for; left open, the clients' model if they have only one."""
        engines = [c for c in self.clients if GENERATIONS & c.stages] or self.clients
        served = list(dict.fromkeys(c.model for c in engines if c.model))
        if wanted is None:
            if len(served) > 1:
                raise InputError(f"one of the models served: {', '.join(served)}", None, field="model")
            return served[0] if served else ""
        if wanted not in served and all(c.model for c in engines):
            raise InputError(f"a model that a client serves: {', '.join(served)}", wanted, field="model",
                             suggestion=suggest(wanted, served))
        return wanted

    def _build_network(self) -> Network:
        with inside("network"):
            config = self.scenario.network
            network = build_network(config, self.env, self._sites)
            if any(c.role == "prefill" for c in self.clients):
                network.check([c.name for c in self.clients])
        return network

    @cached_property
    def _kv_network(self) -> Network:
        """The network of the KV between prefill and decode clients; the default one is built when KV first needs it."""
        config = self.scenario.network
        if isinstance(config, KvLink):
            return config.build_for_kv(self.env, [c.name for c in self.clients])
        return self.network

    def _sites(self) -> list[Site]:
        """Return the clients as sites, for networks that place them."""
        sites: list[Site] = []
        for config in self.scenario.clients:
            group = self.clients[len(sites) : len(sites) + len(config.names)]
            engine = group[0].role != "service"
            gpus = config.resources(group[0].hardware, self.base_dir).devices if engine else 0
            sites += [Site(client.name, client.platform, gpus) for client in group]
        return sites

    def _build_routers(self) -> dict[tuple[str, str], Router]:
        """Return one router for every (stage kind, model) that the workload can ask for."""
        routers: dict[tuple[str, str], Router] = {}
        for entry in (entry for entries in self.pipelines for entry in entries):
            for kind, model in requested_stages(entry.pipeline):
                wanted = model or (entry.model if kind in MODEL_STAGES else "")
                self._add_router(routers, kind, wanted, required=True)
                if kind in GENERATION_STAGES:
                    self._add_decode_routers(routers, wanted)
            check_options(entry.pipeline, entry.label, partial(self._serving, entry.model))
        return routers

    def _serving(self, default: str, kind: str, model: str) -> list[Any]:
        """Return the clients that may serve a stage of a request that asks for the model `default`."""
        model = model or (default if kind in MODEL_STAGES else "")
        return self._candidates.get((kind, model)) or self._candidates.get((kind, ""), [])

    def _add_decode_routers(self, routers: dict[tuple[str, str], Router], model: str) -> None:
        """Add routers of KV transfers: to any decode client of the model, or only within the prefill's platform."""
        prefilling = [c for c in self.clients if c.role == "prefill" and c.model in ("", model)]
        if self.scenario.kv_transfer_scope == "global":
            self._add_router(routers, "decode", model, required=bool(prefilling))
            return
        for platform in dict.fromkeys(c.platform for c in prefilling):
            self._add_router(routers, "decode", model, required=True, platform=platform)

    def _add_router(self, routers: dict[tuple[str, str], Router], kind: str, model: str, *, required: bool,
                    platform: str | None = None) -> None:
        candidates = [c for c in self.clients if kind in c.stages and (c.model in ("", model) or not model)]
        if kind == "decode":
            candidates = [c for c in candidates if c.takes_over_kv and platform in (None, c.platform)]
            candidates = [c for c in candidates if c.role == "decode"] or candidates
        stage = kind
        if platform is not None:
            kind = f"decode near {platform}"
        if (kind, model) in routers:
            return
        if not candidates:
            if not required:
                return
            raise no_client_error(self.clients, stage, model, platform)
        self._candidates[kind, model] = list(candidates)
        both = places_both_phases(self.scenario.router)
        if both and stage in GENERATION_STAGES:   # one router for both phases
            if ("generate", model) in routers:
                routers[kind, model] = routers["generate", model]
                return
            candidates = [c for c in self.clients if {kind, "decode"} & c.stages and c.model in ("", model)]
        config = self.scenario.routers.get(stage, self.scenario.router)
        gateway = self.scenario.gateway
        count, breaks = (1, False) if gateway is None else (gateway.replicas, gateway.breaker is not None)
        built = [self._router(config, f"router-{number}" if number else "router", f"{kind}/{model}", candidates)
                 for number in range(count)]
        if breaks and (both or not hasattr(built[0], "changed")):
            why = "it places both phases at once" if both else "it cannot follow (no `changed(members)`)"
            raise InputError(Verbatim(f"the gateway's retries keep failing replicas out, and {why}; take another, or "
                                      "write null for the `breaker` or `cooldown`"), field="router")
        if count > 1 or breaks:
            from hermes.routing.gateways import RouterPerGateway  # most scenarios have one

            several = RouterPerGateway(built, candidates)
            built = [several]
            self._guarded.append(several)
        routers[kind, model] = built[0]

    def _router(self, config: Any, name: str, of: str, candidates: list[Any]) -> Router:
        """Return a router over candidates. config: Of `ROUTERS`. name, of: Begin and end of its stream's name."""
        context = RouterContext(
            candidates, random_stream(self.scenario.seed, f"{name}/{of}"), self._transfer_ns,
            lambda: self.env._now, seed=self.scenario.seed, believed=self._notes.believed, name=name,
            decisions=self._decisions,
        )
        with inside("router"):
            router: Router = config.build(context)
        if self._decisions is not None:
            router = self._decisions.watched(router, context)
        for cell in context.cells:
            for pos, client in enumerate(candidates):
                self._cells[client.index].append((cell, pos))
        return router

    def _transfer_ns(self, stage: Any, client: Any) -> int:
        """Return the time to move the KV of `stage` and its inputs to `client`, uncontended, one after the other."""
        source, total = stage.source if stage.kind == "generate" else None, 0
        if source is not None and source is not client:
            num_bytes = round(stage.prompt_tokens * source.kv_bytes_per_token)
            total = self._kv_network.estimate_ns(source.name, client.name, num_bytes)
        for before, num_bytes in stage.inputs:
            if before.client is not client:
                total += self.network.estimate_ns(before.client.name, client.name, num_bytes)
        return total

    def _labels(self) -> Labels:
        """Return every request's workload, pipeline and model as codes, with the names of the codes."""
        owners = zip(self.scenario.workload, self.pipelines, strict=True)
        each = [(config.name, entry) for config, entries in owners for entry in entries]
        firsts = np.cumsum([0, *(len(entries) for entries in self.pipelines)])
        row = np.concatenate([first + drawn for first, drawn in zip(firsts, self._drawn, strict=False)])
        texts = {"workload": [name for name, _ in each], "pipeline": [entry.label for _, entry in each],
                 "model": [entry.model for _, entry in each]}
        labels: Labels = {}
        for column, names in texts.items():
            distinct = list(dict.fromkeys(names))
            labels[column] = np.array([distinct.index(name) for name in names], dtype=np.int64)[row], distinct
        return labels
