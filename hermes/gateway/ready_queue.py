"""The queue of a gateway for requests for which no client is ready: first come first served, with a time to live."""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING, Any

from hermes.core.client import Client
from hermes.core.clock import DISPATCH, EXPIRY, Clock, Tick
from hermes.core.record import QUEUED_FIELDS
from hermes.dispatch.rows import Table
from hermes.gateway.parts import GatewayPart

if TYPE_CHECKING:
    from hermes.gateway.calls import Call
    from hermes.gateway.gateway import Gateway

__all__ = ["ReadyQueue"]


class ReadyQueue(GatewayPart):
    """Keeps calls until one of their clients is ready.

    Args:
        ttl_ns: Longest wait.
        most: Most calls that wait.
    """

    queues = True

    def __init__(self, gateway: Gateway, env: Clock, ttl_ns: int, most: int) -> None:
        self.env, self._gateway, self._ttl_ns, self._most = env, gateway, ttl_ns, most
        self._rows = Table(QUEUED_FIELDS)
        self._row_of: dict[Call, int] = {}
        self._calls: dict[Call, list[Client]] = {}   # those that wait, and the clients that may serve them
        self._dispatching = False

    def holds(self, call: Call, members: list[Client]) -> bool:
        if members and all(queue is not members for queue in self._calls.values()):
            return False
        if len(self._calls) >= self._most:
            self._gateway.refuse(call, f"the gateway's queue is full ({self._most} requests)", "unavailable")
            return True
        call.waits, self._row_of[call] = True, self._rows.add(call.number, self.env._now, -1)
        self._calls[call] = members
        self.env.tick_at(self.env._now + self._ttl_ns, EXPIRY, partial(self._expire, call, call.tries))
        if members:
            self.members_changed()
        return True

    def released(self, call: Call) -> None:
        self._calls.pop(call, None)   # it may be on its way out
        row = self._row_of.pop(call, None)
        if row is not None:
            self._rows.columns["left_ns"][row] = self.env._now

    def _expire(self, call: Call, tries: int, tick: Tick) -> None:
        """End a call that has waited for too long."""
        if call.waits and call.tries == tries and not call.over:
            self._gateway.refuse(call, f"no replica was ready within {self._ttl_ns / 1e9:g} s", "expired")

    def members_changed(self) -> None:
        """Send out what waits for clients, once all other events of this instant but step starts have passed."""
        if self._calls and not self._dispatching:
            self._dispatching = True
            self.env.tick_at(self.env._now, DISPATCH, self._send_out)

    def _send_out(self, tick: Tick) -> None:
        self._dispatching = False
        calls, self._calls = self._calls, {}
        for call, members in calls.items():
            if call.over or call.request.over:
                self._gateway.forget(call)
            elif members:
                self._gateway.send(call)
            else:
                self._calls[call] = members

    def num_waiting(self, lists: list[list[Client]]) -> int:
        return sum(any(members is one for one in lists) for members in self._calls.values())

    def record(self) -> dict[str, Any]:   # Any: fields of the record
        return {"queued": self._rows.arrays()} if len(self._rows) else {}

    def idle(self) -> bool:
        return not self._calls
