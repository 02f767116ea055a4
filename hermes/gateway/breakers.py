"""Circuit breakers: what each gateway knows of failures at each client, and which clients get no requests for it."""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial
from typing import TYPE_CHECKING, Any, Protocol

import numpy as np

from hermes.core.client import Client
from hermes.core.clock import MEMBERSHIP, Clock, Tick
from hermes.core.record import CIRCUIT_FIELDS
from hermes.gateway.parts import GatewayPart
from hermes.gateway.retries import BreakerPolicy

if TYPE_CHECKING:
    from hermes.gateway.calls import Call
    from hermes.gateway.gateway import Gateway

__all__ = ["Breakers", "Circuits", "Guarded"]


class Guarded(Protocol):
    """Routers of several gateways, from which single clients can be kept."""

    def keep_from(self, gateway: int, client: int, *, away: bool) -> None:
        """Let a client, by its index, get no stages through a gateway, or get them again."""
        ...


class _Count:
    """How often something was counted; it begins at 0 again once the first time is too long ago."""

    __slots__ = ("number", "since_ns")

    def __init__(self) -> None:
        self.number = self.since_ns = 0

    def within(self, now_ns: int, memory_ns: int) -> int:
        """Return the number, 0 once the first is too long ago."""
        if now_ns - self.since_ns > memory_ns:
            self.number = 0
        return self.number

    def add(self, now_ns: int, memory_ns: int) -> None:
        """Count one more."""
        if not self.within(now_ns, memory_ns):
            self.since_ns = now_ns
        self.number += 1


class _Circuit:
    """State of one client at one gateway. testing: It was open, and has not had its successes yet. answers: The good
    and the bad ones, where a share of bad ones opens it."""

    __slots__ = ("answers", "failures", "latest_ns", "open", "successes", "testing")

    def __init__(self) -> None:
        self.failures = self.successes = self.latest_ns = 0
        self.open = self.testing = False
        self.answers = _Count(), _Count()


class Breakers:
    """The circuits of all clients at all gateways.

    Args:
        routers: From which it keeps clients.

    Attributes:
        opened: How often a circuit was opened.
    """

    def __init__(self, env: Clock, policy: BreakerPolicy, routers: Sequence[Guarded] = ()) -> None:
        self._env, self._policy, self._routers = env, policy, routers
        self._circuits: dict[tuple[int, int], _Circuit] = {}
        self.opened = 0
        self._log: list[tuple[int, int, int, int]] = []

    def is_open(self, gateway: int, client: int) -> bool:
        """Whether a client gets no stages through a gateway."""
        circuit = self._circuits.get((gateway, client))
        return circuit is not None and circuit.open

    def failed(self, gateway: int, client: int, status: int, *, alone: bool) -> None:
        """Count a failure of a client that a gateway has seen. alone: Whether no other client is there."""
        policy, now = self._policy, self._env._now
        circuit = self._circuits.setdefault((gateway, client), _Circuit())
        if policy.share:
            self._note(circuit, good=False)
        if circuit.open or (alone and not policy.lone):   # open: of an attempt that was sent before
            return
        if policy.share:
            if status in policy.at_once or self._mostly_bad(circuit):
                self._open(gateway, client, circuit)
            return
        if policy.memory_ns is not None and now - circuit.latest_ns >= policy.memory_ns:
            circuit.failures = 0
        circuit.failures += 1
        circuit.latest_ns, circuit.successes = now, 0
        if circuit.failures >= policy.failures or circuit.testing:
            self._open(gateway, client, circuit)

    def _open(self, gateway: int, client: int, circuit: _Circuit) -> None:
        circuit.open, circuit.testing, circuit.failures = True, False, 0
        self.opened += 1
        self._keep(gateway, client, away=True)
        self._env.tick_at(self._env._now + self._policy.open_ns, MEMBERSHIP, partial(self._close, gateway, client))

    def _note(self, circuit: _Circuit, *, good: bool) -> None:
        assert self._policy.memory_ns is not None
        circuit.answers[0 if good else 1].add(self._env._now, self._policy.memory_ns)

    def _mostly_bad(self, circuit: _Circuit) -> bool:
        memory_ns = self._policy.memory_ns
        assert memory_ns is not None
        good, bad = (count.within(self._env._now, memory_ns) for count in circuit.answers)
        return good + bad >= self._policy.failures and bad > self._policy.share * (good + bad)

    def succeeded(self, gateway: int, client: int) -> None:
        """Count an answer of a client that a gateway has passed on."""
        if self._policy.share:
            self._note(self._circuits.setdefault((gateway, client), _Circuit()), good=True)
        circuit = self._circuits.get((gateway, client))
        if circuit is None or circuit.open:
            return
        if circuit.testing:
            circuit.successes += 1
            circuit.testing = circuit.successes < self._policy.successes
        if self._policy.memory_ns is None:
            circuit.failures = 0

    def _close(self, gateway: int, client: int, tick: Tick) -> None:
        circuit = self._circuits[gateway, client]
        circuit.open, circuit.successes, circuit.testing = False, 0, self._policy.successes > 0
        self._keep(gateway, client, away=False)

    def _keep(self, gateway: int, client: int, *, away: bool) -> None:
        self._log.append((gateway, client, self._env._now, int(away)))
        for router in self._routers:
            router.keep_from(gateway, client, away=away)

    def record(self) -> dict[str, Any]:   # Any: fields of the record
        """Return when circuits were opened and closed; nothing if none was."""
        if not self._log:
            return {}
        return {"circuits": dict(zip(CIRCUIT_FIELDS, np.array(self._log, dtype=np.int64).T.copy(), strict=True))}


class Circuits(GatewayPart):
    """Lets a gateway count failures, and send nothing where all circuits are open."""

    counts_refusals = True

    def __init__(self, gateway: Gateway, breakers: Breakers) -> None:
        self._gateway, self.breakers = gateway, breakers

    def holds(self, call: Call, members: list[Client]) -> bool:
        if not members or any(self.allows(call, client) for client in members):
            return False
        self._gateway.fail(call, "the circuits of all replicas are open", "unavailable")
        return True

    def allows(self, call: Call, client: Client) -> bool:
        return not self.breakers.is_open(call.stage.gateway, client.index)

    def failed(self, call: Call, client: Client, status: int) -> None:
        self.breakers.failed(call.stage.gateway, client.index, status, alone=len(call.members) < 2)

    def answered(self, call: Call, client: Client) -> None:
        self.breakers.succeeded(call.stage.gateway, client.index)

    def record(self) -> dict[str, Any]:   # Any: see above
        return self.breakers.record()
