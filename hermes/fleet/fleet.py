"""All groups of a simulation whose replicas come and go, and the routers that see who is ready."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from functools import partial
from typing import Any, NamedTuple

import numpy as np

from hermes.config.streams import stream as random_stream
from hermes.core.client import Client
from hermes.core.clock import FAILURE, Acting, Clock, Tick
from hermes.core.router import Router
from hermes.core.stage import Stage
from hermes.dispatch.parts import DispatchPart
from hermes.errors import InputError, Verbatim, inside
from hermes.fleet.autoscalers import GroupsAutoscaler
from hermes.fleet.config import FleetConfig
from hermes.fleet.failure_times import FailureClock
from hermes.fleet.failures import Engines, FailureConfig, ZoneFails
from hermes.fleet.incidents import IncidentLog
from hermes.fleet.observations import GroupFacts
from hermes.fleet.places import Places
from hermes.fleet.probing import Probing
from hermes.fleet.replicas import Replicas
from hermes.fleet.start_ups import FindsStart, Place
from hermes.fleet.struck import StruckSlot
from hermes.units import s_to_ns

__all__ = ["Fleet", "Group"]


class Group(NamedTuple):
    """A group whose replicas come and go.

    Attributes:
        name: Its name.
        field: Key of the scenario at which it stands.
        config: Its `fleet`.
        clients: Its clients by slot: those of one engine.
        facts: Finds its facts (`hermes.fleet.observations`), when they are asked for.
        engine: Returns what its engine needs to start, by the name of the times.
        slow_first: Makes the first step of an engine longer by so many ns, by its clients; None as `engines`.
        places: Where its replicas are.
        engines: What can go wrong within its engines; None for clients that are no LLM engines.
    """

    name: str
    field: str
    config: FleetConfig
    clients: list[list[Any]]   # Any: each a `Replica` that is a `Client`
    facts: Callable[[], GroupFacts]
    engine: FindsStart
    slow_first: Callable[[list[Any], int], None] | None
    engines: Engines | None
    places: Places


class _Seen(NamedTuple):
    """Candidates as the coordinator sees them (a list that changes), all that there are, and their router."""

    members: list[Client]
    candidates: list[Client]
    router: Router


class Fleet(DispatchPart):
    """Starts the autoscalers, and tells routers and coordinator when the ready clients of a group have changed.

    Args:
        groups: Those whose replicas come and go.
        shared: Autoscalers of several groups, and the groups' names.
        left: Returns whether the run goes on: the requests that have not ended, or 1 before the last `duration` ends.
        parts: Of the dispatch that hear of clients that come and go.
        seed: Of the scenario.

    Attributes:
        replicas: Those of each group, by its name.
    """

    def __init__(self, env: Clock, groups: Iterable[Group], shared: Iterable[tuple[GroupsAutoscaler, Sequence[str]]],
                 left: Callable[[], int], parts: Sequence[DispatchPart], seed: int) -> None:
        self._env, self._parts, self._seed = env, parts, seed
        self._log: list[tuple[int, int, int, int, str]] = []
        self._seen: list[_Seen] = []
        self._of: dict[int, Replicas] = {}
        self._acting: list[tuple[Any, Replicas]] = []   # Any: an autoscaler, of a plug-in, too
        self._struck: list[StruckSlot] = []
        self._of_zones: list[FailureClock] = []   # clocks of zones, which run all the time
        self._incidents = IncidentLog(env)
        self.replicas: dict[str, Replicas] = {}
        for group in groups:
            config, clients = group.config, group.clients
            probing = Probing(config.probe, config.liveness, seed)
            with inside(f"{group.field}.fleet.start_up"):
                starter = config.start_up.build(Place(
                    env, [mine[0] for mine in clients], group.engine, _slows_first(group), probing.ready_ns, seed,
                    group.places.shares))
            with inside(f"{group.field}.fleet"):
                replicas = Replicas(env, clients, config.start, starter, self._changed, self._keeps, left, self._log,
                                    seed, self._down, config.drain, config.restarts)
            if config.spares is not None:
                with inside(f"{group.field}.fleet.spares"):
                    replicas.keep_spares(config.spares.waker(group.engine, seed))
            for part in parts:
                part.covers([client for mine in clients for client in mine if client.role == "service"])
            replicas.name, replicas.role, replicas.facts = group.name, clients[0][0].role, group.facts
            replicas.kv_waits, replicas.recreates = self._kv_waits, group.places.recreates
            self.replicas[group.name] = replicas
            if any(part.queues for part in parts):
                replicas.least = 0
                replicas.waiting = partial(self._queued, replicas)
            struck = [StruckSlot(env, replicas, number, probing, group.engines, place, self._struck, self._incidents)
                      for number, place in enumerate(group.places.slots)]
            self._struck += struck
            self._fail(config, struck)
            for update in config.updates:
                replicas.update_at(update)
            self._of |= {client.index: replicas for mine in clients for client in mine}
            self._acting.append((config.autoscaler, replicas))
            if isinstance(config.autoscaler, GroupsAutoscaler):
                with inside(f"{group.field}.fleet.autoscaler"):
                    _check_groups(config.autoscaler, [replicas])
        self._shared = [(autoscaler, [self.replicas[name] for name in names]) for autoscaler, names in shared]
        for number, (several, views) in enumerate(self._shared):
            with inside(f"autoscalers.{number}.autoscaler"):
                _check_groups(several, views)

    def _fail(self, config: FleetConfig, struck: list[StruckSlot]) -> None:
        """Let the failures of a group happen."""
        at: list[tuple[int, float, str, Callable[[StruckSlot], None]]] = [
            (crash.replica, crash.at, "crash", StruckSlot.crash) for crash in config.crashes]
        at += [(number, failure.at, failure.kind, failure.strikes) for failure in config.failures
               if failure.at is not None for number in _slots_of(failure, struck)]
        for number, time, kind, strikes in sorted(at, key=lambda one: one[0]):   # the order at equal times
            self._env.tick_at(s_to_ns(time), FAILURE, partial(self._strike, kind, partial(strikes, struck[number])))
        for failure in config.failures:
            if failure.every is not None:
                for number in _slots_of(failure, struck):
                    slot = struck[number]
                    of_zone = isinstance(failure, ZoneFails)
                    clock = slot.clock(failure, 1 if of_zone else None, random_stream(
                        self._seed, f"failure/{slot.place.zone if of_zone else slot.client.name}/{failure.kind}"))
                    if of_zone:
                        self._of_zones.append(clock)
                    else:
                        slot.hears(clock)

    def _strike(self, kind: str, strikes: Callable[[], None], tick: Tick) -> None:
        self._incidents.strike(kind, strikes)

    def _keeps(self, client: Client) -> bool:
        return any(part.keeps(client) for part in self._parts)

    def _kv_waits(self, client: Client) -> int:
        return sum(part.waiting_tokens(client) for part in self._parts)

    def _queued(self, replicas: Replicas) -> int:
        lists = [seen.members for seen in self._seen
                 if any(replicas is self._of.get(client.index) for client in seen.candidates)]
        return sum(part.num_waiting(lists) for part in self._parts)

    def watch(self, members: list[Client], router: Router) -> None:
        """Keep a list of candidates, and a router over them, at the clients that are ready. Raises `InputError` for a
        router that cannot follow."""
        if not any(client.index in self._of for client in members):
            return
        if not hasattr(router, "changed"):
            raise InputError(Verbatim("it cannot follow clients that come and go (no `changed(members)`); take "
                                      "another, or leave out `fleet`"), field="router")
        self._seen.append(_Seen(members, list(members), router))

    @property
    def autoscalers(self) -> list[Any]:   # Any: see above
        """Those that act, of one group and of several."""
        return [autoscaler for autoscaler, _ in (*self._acting, *self._shared)]

    def starts(self) -> None:
        """Show the routers who is ready, and start the autoscalers."""
        self._changed()
        for replicas in self.replicas.values():
            replicas.begin_clocks()
        for clock in self._of_zones:
            clock.hold(True)
        for autoscaler, replicas in self._acting:
            Acting(self._env, autoscaler.run(replicas))
        for several, views in self._shared:
            Acting(self._env, several.run_groups(views))

    def observed(self, event: str, client: Client, stage: Stage) -> None:
        """Note that a stage has ended at a client, or moved away."""
        replicas = self._of.get(client.index)
        if replicas is not None:
            if event == "done":
                replicas.count(stage)
            replicas.check(client)

    def record(self, end_ns: int) -> dict[str, Any]:   # Any: fields of the record
        rows = [row for row in self._log if row[2] <= end_ns]
        return {"membership": np.array([row[:4] for row in rows], dtype=np.int64).reshape(-1, 4),
                "membership_reasons": [row[4] for row in rows], **self._incidents.record(end_ns)}

    def _changed(self) -> None:
        changed: list[Router] = []
        for seen in self._seen:
            ready = [client for client in seen.candidates
                     if client.index not in self._of or self._of[client.index].is_ready(client)]
            if ready != seen.members:
                seen.members[:] = ready
                if all(router is not seen.router for router in changed):
                    changed.append(seen.router)
        for router in changed:   # one for prefill and decode clients has two lists
            members = {client.index: client for seen in self._seen if seen.router is router for client in seen.members}
            if members:   # a router is not asked before there are some
                router.changed([members[index] for index in sorted(members)])  # type: ignore[attr-defined]  # checked
        for part in self._parts:
            part.members_changed()

    def _down(self, client: Client, why: str) -> None:
        for part in self._parts if why else ():
            part.goes_down(client)
        for part in self._parts:
            if why:
                part.lost(client, why)
            else:
                part.back(client)


def _slots_of(failure: FailureConfig, struck: list[StruckSlot]) -> Iterable[int]:
    """Return the numbers of the slots that a failure may strike: of a zone the first, which takes the others down."""
    if not isinstance(failure, ZoneFails):   # then it is a `ReplicaFailure`
        return failure.slots(len(struck))
    first: dict[str, int] = {}
    for number, slot in enumerate(struck):
        first.setdefault(slot.place.zone, number)
    return first.values() if failure.zone is None else [first[failure.zone]]


def _check_groups(autoscaler: GroupsAutoscaler, views: list[Replicas]) -> None:
    """Raise `InputError` for groups that an autoscaler cannot scale together."""
    for view in views:
        if autoscaler.reads_steps and len(view.slot(0).clients) > 1:
            raise InputError(Verbatim(f"it reads the steps of each rank and batch of an engine, which is not modelled "
                                      f"({view.name} has several); take another"), field="kind")
    autoscaler.check_groups(views)


def _slows_first(group: Group) -> Callable[[Client, int], None] | None:
    """Return what makes the first step of a replica longer, by its first client."""
    slow = group.slow_first
    if slow is None:
        return None
    of = {mine[0].index: mine for mine in group.clients}
    return lambda client, more_ns: slow(of[client.index], more_ns)
