"""The clients of a simulation, built from their groups."""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from hermes.clients.base import PreparedClient
from hermes.clients.llm import LLMClient
from hermes.core.client import ClientEvents
from hermes.core.clock import Clock
from hermes.core.columns import RowLog
from hermes.core.record import Describe
from hermes.core.request import Stream
from hermes.engine.compatibility import Case, check
from hermes.errors import InputError, Verbatim, inside
from hermes.hardware.descriptions.files import names_in
from hermes.hardware.info import hardware_info
from hermes.network import Site
from hermes.pipelines.base import GENERATIONS, requested_stages
from hermes.pipelines.mixing import WeightedPipeline
from hermes.routing.base import places_both_phases
from hermes.scenario.schema import Scenario

__all__ = ["Built", "build_clients", "check_engines", "name_remarks", "prepare_tiers", "sites"]


class Built(NamedTuple):
    """Clients of all groups, in order.

    Attributes:
        clients: Any, since kinds of clients differ.
        describe: See `hermes.dispatch.simulation.Simulation`.
        warnings, remarks: One line each.
    """

    clients: list[Any]
    describe: list[Describe]
    warnings: list[str]
    remarks: list[str]


def build_clients(scenario: Scenario, base_dir: Path, env: Clock, runs: RowLog, events: ClientEvents) -> Built:
    """Return the clients. runs, events: Those of the simulation."""
    found = Built([], [], [], [])
    clients = found.clients
    disaggregated = any(config.role == "prefill" for config in scenario.clients)
    moves_kv = scenario.kv_transfer if disaggregated or places_both_phases(scenario.router) else ""
    for i, config in enumerate(scenario.clients):
        hardware = scenario.source.hardware.get(i)
        with inside(f"clients.{i}"):
            group = config.build(
                env, len(clients), runs, events, every_step=scenario.stepping == "every_step", base_dir=base_dir,
                moves_kv=moves_kv, seed=scenario.seed, **({} if hardware is None else {"hardware": hardware}),
            )
            clients.extend(group)
            if config.kind == "llm":
                info = hardware_info(group[0].hardware)
                found.warnings.extend(f"{config.name}: {link.text}" for link in info.assumed_links)
                found.remarks.extend(f"{config.name}: {remark}" for remark in info.remarks())
            found.describe.extend(config.describe(group, base_dir))
    names: set[str] = set()
    for client in clients:
        if client.name in names:
            raise InputError(Verbatim(f"two clients are named {client.name!r}; rename one"), field="clients")
        names.add(client.name)
    return found


def name_remarks(clients: Iterable[Any], base_dir: Path | None) -> list[str]:
    """Return a line for each name of a device or model that stands for one of several. clients: Their groups."""
    found: dict[str, None] = {}
    for client in clients:
        for folder, key in (("devices", "device"), ("models", "model")):
            for text in (client.value_of(key), client.hardware.names.get(key) if client.serves_llm else None):
                if isinstance(text, str) and text and text not in (names := names_in(folder)):
                    from hermes.hardware.descriptions.names import remark  # most names are those of files

                    found |= {line: None for line in [remark(folder, text, names, base_dir)] if line}
    return list(found)


def sites(scenario: Scenario, clients: list[Any], base_dir: Path) -> list[Site]:
    """Return the clients as sites, for networks that place them."""
    found: list[Site] = []
    for config in scenario.clients:
        group = clients[len(found):len(found) + len(config.names)]
        engine = group[0].role != "service"
        gpus = config.devices_of(hardware_info(group[0].hardware)) if engine else 0
        found += [Site(client.name, client.platform, gpus) for client in group]
    return found


def prepare_tiers(clients: list[Any], streams: list[Stream]) -> None:
    """Give clients with KV tiers the cost of a prefill, and their initial contexts."""
    populations = {t.population.name: t.population for t in (s.table for s in streams) if t.population}
    for stream in streams:
        own = stream.table.population
        if own and not np.array_equal(own.tokens, populations[own.name].tokens):
            raise InputError(Verbatim(f"population {own.name!r} has different contexts in two workloads; make them "
                                      "equal"), field="workload")
    for client in clients:
        if isinstance(client, PreparedClient):
            client.prepare(clients, populations.values())


def check_engines(scenario: Scenario, pipelines: list[list[WeightedPipeline]],
                  candidates: dict[tuple[str, str], list[Any]]) -> None:
    """Raise `InputError` if an engine cannot serve the adapters, branches or patience of a workload."""
    groups = [i for i, config in enumerate(scenario.clients) for _ in config.names]
    for i, (config, entries) in enumerate(zip(scenario.workload, pipelines, strict=True)):
        engines: dict[int, LLMClient] = {}   # the first of each group, whose others are its equals
        for client in _engines_of(entries, candidates):
            engines.setdefault(groups[client.index], client)
        for group, client in engines.items():
            try:
                check(Case(scenario.clients[group], scheduler=client.scheduler, workload=config))
            except InputError as error:
                whose, _, key = (error.field or "").partition(".")
                error.field = (f"workload.{i}.{key}" if whose == "workload" else f"clients.{group}.{error.field}")
                raise


def _engines_of(entries: list[WeightedPipeline], candidates: dict[tuple[str, str], list[Any]]) -> list[LLMClient]:
    """Return the engines that may serve the generations of these pipelines, in order."""
    asked = {model or entry.model for entry in entries for kind, model in requested_stages(entry.pipeline)
             if kind in GENERATIONS}
    found = {client.index: client for (kind, model), clients in candidates.items() for client in clients
             if model in asked and kind.split()[0] in GENERATIONS and isinstance(client, LLMClient)}
    return [found[index] for index in sorted(found)]
