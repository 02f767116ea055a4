"""What an autoscaler would have done in a finished run (`hermes advise`).

The record of a run has no KV use of each step, so the run is simulated again from its resolved scenario. The autoscaler
runs beside the run's own on scrapers of its own period, which change nothing (`hermes.fleet.advice`), and the new
record has to equal the one on disk. A group without a `fleet` gets one with all of its clients ready throughout.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping, Sequence
from typing import Annotated, Any, cast

import numpy as np
import numpy.typing as npt

from hermes.config import Component, ConfigModel
from hermes.config.own_code import code_of_run
from hermes.config.validation import validate
from hermes.config.yaml_document import Node
from hermes.core.record import RunRecord
from hermes.dispatch.simulation import Simulation
from hermes.errors import InputError, Verbatim, inside, suggest, warn_all
from hermes.fleet.advice import NO_LIMIT, Advice, Shadow, act, advice
from hermes.fleet.autoscalers import AUTOSCALERS, Autoscaler
from hermes.fleet.fleet import Fleet
from hermes.results.files.stored import StoredResults, open_run
from hermes.scenario.build import build
from hermes.scenario.document import load_scenario
from hermes.scenario.schema import Scenario

__all__ = ["advise_run", "autoscaler_of", "beside"]


class _Advised(ConfigModel):
    """What stands in a file with an autoscaler, under one key."""

    autoscaler: Annotated[Any, Component(AUTOSCALERS)]
    """What decides how many replicas there are."""


def autoscaler_of(document: Node | Mapping[str, Any]) -> Autoscaler:
    """Return the autoscaler of a document `{kind: ...}`, or of one that has it under `autoscaler`."""
    node = document if isinstance(document, Node) else None
    whole: Any = document if node is None else node.value
    if not isinstance(whole, Mapping):
        raise InputError("an autoscaler: a mapping with its `kind`", node.plain() if node else document,
                         field="--autoscaler")
    if "autoscaler" not in whole or "kind" in whole:
        whole = {"autoscaler": document}
        document = Node(whole, node.mark) if node is not None else whole
    return cast(Autoscaler, validate(_Advised, document).autoscaler)


def advise_run(folder: str | os.PathLike[str], document: Node | Mapping[str, Any], groups: Sequence[str] = (),
               progress: Callable[[int, int, float], None] | None = None, *, plugins: bool = False) -> list[Advice]:
    """Return what an autoscaler would have done with these groups of a run; without names, with the only one.

    plugins: Whether code that the run's scenario names may run.

    Raises `InputError` for a run that does not come out again as it was.
    """
    results = open_run(folder)
    if results.meta.get("interrupted"):
        raise InputError(Verbatim("the run was interrupted, and cannot be simulated again; run its scenario to the "
                                  "end"), file=str(folder))
    with code_of_run(plugins=plugins):
        return _advised(results, document, groups, progress)


def _advised(results: StoredResults, document: Node | Mapping[str, Any], groups: Sequence[str],
             progress: Callable[[int, int, float], None] | None) -> list[Advice]:
    path = results.scenario_file()
    scenario = load_scenario(path)
    autoscaler = autoscaler_of(document)   # plug-ins of the scenario are there now
    chosen = _chosen(scenario, groups)
    whole = {key: value for number in chosen for key, value in _whole(scenario, number).items()}
    try:
        if whole:
            scenario = load_scenario(path, whole)
        simulation = build(scenario)
    except InputError as error:
        if not whole:
            raise
        raise InputError(Verbatim(f"its clients serve throughout, and as replicas they are refused: {error}"),
                         field="--group") from None
    warn_all(simulation.warnings)
    gateway = scenario.gateway
    queued = gateway is not None and (gateway.queue is not None or gateway.flow_control is not None)
    found, record = beside(simulation, autoscaler, [scenario.clients[number].name for number in chosen],
                           queued=queued, progress=progress)
    _check_same(results, record, membership=not whole)
    return found


def beside(simulation: Simulation, autoscaler: Autoscaler, groups: Sequence[str], *, queued: bool = False,
           progress: Callable[[int, int, float], None] | None = None) -> tuple[list[Advice], RunRecord]:
    """Run a simulation that was not run yet with an autoscaler beside those that act on these groups.

    queued: Whether requests can wait at the gateway.
    """
    fleet = next(part for part in simulation.coordinator.parts if isinstance(part, Fleet))
    members = [fleet.replicas[name] for name in groups]
    if autoscaler.to_zero() and not queued:
        raise InputError(Verbatim("without a replica no request of this run could wait (it has no `gateway.queue`); "
                                  "keep one replica"), field=f"autoscaler.{autoscaler.to_zero()}")
    begun, own = [], fleet.autoscalers
    for replicas in members:
        with inside("autoscaler"):
            autoscaler.check(NO_LIMIT)
        replicas.decided = []
        begun.append(replicas.wanted)
    shadows = [Shadow(replicas) for replicas in members]
    for shadow in shadows if autoscaler in own else ():   # it asked for what the group has, and does so again
        shadow.most = shadow.slots
    act(simulation.env, autoscaler, shadows)
    record = simulation.run(progress)
    found = []
    for shadow, replicas, start in zip(shadows, members, begun, strict=True):
        shadow.end_look()
        changes = [(0, start), *((time, after) for time, _, after, _ in replicas.decided or ())]
        found.append(advice(shadow, changes, record.end_ns, shadow.slots))
    return found, record


def _chosen(scenario: Scenario, names: Sequence[str]) -> list[int]:
    """Return the numbers of the groups with these names."""
    there = [config.name for config in scenario.clients]
    if names:
        for name in names:
            if name not in there:
                raise InputError(f"a group of clients: {', '.join(there)}", name, field="--group",
                                 suggestion=suggest(name, there))
        return [there.index(name) for name in dict.fromkeys(names)]
    fleets = [number for number, config in enumerate(scenario.clients) if config.value_of("fleet") is not None]
    found = fleets or [number for number, config in enumerate(scenario.clients) if config.serves_llm]
    if len(found) != 1:
        raise InputError(f"one or more groups of clients: {', '.join(there)}", field="--group")
    return found


def _whole(scenario: Scenario, number: int) -> dict[str, Any]:
    """Return the settings that make all clients of a group replicas that are ready throughout, if it has no fleet."""
    config = scenario.clients[number]
    if config.value_of("fleet") is not None:
        return {}
    key = f"clients.{number}.fleet"
    return {f"{key}.start": len(config.names), f"{key}.start_up.total": 0}


def _check_same(results: StoredResults, record: RunRecord, *, membership: bool) -> None:
    def columns(one: RunRecord) -> list[npt.NDArray[Any]]:
        return [one.finish_ns, one.status, one.arrival_ns, *one.step_ends, *([one.membership] if membership else [])]

    old, new = columns(results.record), columns(record)
    if results.record.end_ns != record.end_ns or len(old) != len(new) or not all(map(np.array_equal, old, new)):
        raise InputError(Verbatim(
            f"simulated again, it comes out differently (it was made by hermes {results.meta.get('version')}, or files "
            "of its scenario have changed); run its scenario again"), file=str(results.folder))
