"""All groups of a simulation whose replicas come and go, and the routers that see who is ready."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any, NamedTuple

from hermes.config.streams import stream as random_stream
from hermes.core.client import Client
from hermes.core.clock import MEMBERSHIP, Acting, Clock
from hermes.core.gateway import Gateway
from hermes.core.router import Router
from hermes.core.stage import Stage
from hermes.errors import InputError, Verbatim
from hermes.fleet.config import FleetConfig, Probe
from hermes.fleet.replicas import Replicas
from hermes.units import s_to_ns

__all__ = ["Fleet"]


class _Seen(NamedTuple):
    """Candidates as the coordinator sees them (a list that changes), all that there are, and their router."""

    members: list[Client]
    candidates: list[Client]
    router: Router


class Fleet:
    """Starts the autoscalers, and tells routers and coordinator when the ready clients of a group have changed.

    Args:
        groups: Configuration and clients of each group whose replicas come and go.
        holds: Whether KV of a client is still to move.
        left: Returns the number of requests that have not ended.
        gateway: Makes attempts at what they serve; None if nothing can go wrong.
        seed: Of the scenario.

    Attributes:
        log: Rows of the record's table `membership`.
    """

    def __init__(self, env: Clock, groups: Iterable[tuple[FleetConfig, list[Any]]], holds: Callable[[Client], bool],
                 left: Callable[[], int], gateway: Gateway | None, seed: int) -> None:   # Any: clients, each a replica
        self._env, self._gateway, self._seed = env, gateway, seed
        self.log: list[tuple[int, int, int, int, str]] = []
        self._seen: list[_Seen] = []
        self._of: dict[int, Replicas] = {}
        self._acting: list[tuple[Any, Replicas]] = []   # Any: an autoscaler, of a plug-in, too
        for config, clients in groups:
            replicas = Replicas(env, clients, config.start, s_to_ns(config.start_up.total), self._changed, holds, left,
                                self.log, seed, self._down)
            if gateway is not None:
                gateway.covered |= {client.index for client in clients if client.role == "service"}
            for crash in config.crashes:
                notice = self._notice(config.probe, clients[crash.replica].name)
                replicas.crash_at(crash.replica, s_to_ns(crash.at), notice)
            self._of |= {client.index: replicas for client in clients}
            self._acting.append((config.autoscaler, replicas))

    def watch(self, members: list[Client], router: Router) -> None:
        """Keep a list of candidates, and a router over them, at the clients that are ready. Raises `InputError` for a
        router that cannot follow."""
        if not any(client.index in self._of for client in members):
            return
        if not hasattr(router, "changed"):
            raise InputError(Verbatim("it cannot follow clients that come and go (no `changed(members)`); take "
                                      "another, or leave out `fleet`"), field="router")
        self._seen.append(_Seen(members, list(members), router))

    def start(self) -> None:
        """Show the routers who is ready, and start the autoscalers. Called once, before the first request."""
        self._changed()
        for autoscaler, replicas in self._acting:
            Acting(self._env, autoscaler.run(replicas))

    def observe(self, event: str, client: Client, stage: Stage) -> None:
        """Note that a stage has ended at a client, or moved away. Called as routers' `observe` is."""
        replicas = self._of.get(client.index)
        if replicas is not None:
            replicas.check(client)

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
        if self._gateway is not None:
            self._gateway.members_changed()

    def _down(self, client: Client, down: bool) -> None:
        if self._gateway is None:
            return
        if down:
            self._gateway.lost(client)
        else:
            self._gateway.back(client)

    def _notice(self, probe: Probe, name: str) -> Callable[[int, Callable[[], None]], None]:
        """Return what calls a function when a crash of a client is noticed."""
        period_ns = s_to_ns(probe.period)
        offset_ns = int(random_stream(self._seed, f"views/probe/{name}").random() * period_ns)
        if probe.offset is not None:
            offset_ns = s_to_ns(probe.offset)
        last = (probe.failures - 1) * period_ns + s_to_ns(probe.delay)

        def notice(crashed_ns: int, then: Callable[[], None]) -> None:
            first = offset_ns + max(-(-(crashed_ns - offset_ns) // period_ns), 0) * period_ns
            self._env.tick_at(first + last, MEMBERSHIP, lambda tick: then())

        return notice
