"""The hop through a gateway: which of several gateways passes a call, its queue for capacity, and its delay.

Each gateway serves calls first come first served, each for 1 / capacity. Then the delay passes, and the router chooses
a client with what it knows at that instant. The gateway's own retries start behind the hop. A call whose client has
given up while it waits still takes its turn, as bytes in a socket do.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING

from hermes.core.clock import Clock
from hermes.core.record import GATEWAY_WAIT
from hermes.core.request import Request
from hermes.gateway.parts import GatewayPart
from hermes.units import NS_PER_S

if TYPE_CHECKING:
    from hermes.gateway.calls import Call
    from hermes.gateway.gateway import Gateway

__all__ = ["Hop", "HopPolicy"]


@dataclass(frozen=True)
class HopPolicy:
    """What a call meets on its way through a gateway.

    Attributes:
        delay_ns: Time through the gateway to the engine, without waiting and service.
        service_ns: Time in which one gateway serves a call; 0 for no limit.
        replicas: Gateways.
        backlog: Most calls that wait for the service of one gateway; None for no limit.
    """

    delay_ns: int = 0
    service_ns: int = 0
    replicas: int = 1
    backlog: int | None = None

    @property
    def acts(self) -> bool:
        """Whether it changes anything."""
        return bool(self.delay_ns or self.service_ns) or self.replicas > 1


class Hop(GatewayPart):
    """Sends calls through the gateways.

    Args:
        pick: Returns the gateway of the next call; None: in turn.
    """

    def __init__(self, gateway: Gateway, env: Clock, policy: HopPolicy, pick: Callable[[], int] | None = None) -> None:
        self._gateway, self.env, self._policy, self._pick = gateway, env, policy, pick
        self._free_ns = [0] * policy.replicas
        self._names = [f"gateway-{number}" for number in range(policy.replicas)]
        self._next = 0
        self._waits_ns: dict[int, int] = {}   # request -> time that its calls waited for the capacity of gateways

    def picks(self, call: Call) -> None:
        if self._pick is not None:
            call.stage.gateway = self._pick()
        else:
            call.stage.gateway, self._next = self._next, (self._next + 1) % self._policy.replicas
        if self._policy.replicas > 1:
            call.request.note("gateway", call.stage.gateway, self._names)

    def enters(self, call: Call) -> bool:
        """Send a call through its gateway; return whether that takes time, or ends the call."""
        policy, now, number = self._policy, self.env._now, call.stage.gateway
        begins = max(self._free_ns[number], now)
        waiting = -(-(begins - now) // policy.service_ns) - 1 if policy.service_ns else -1   # behind the one in service
        full = policy.backlog is not None and begins > now and waiting >= policy.backlog
        self._waited(call.request, 0 if full else begins - now)
        way = self._gateway.calls.columns
        way["gateway"][call.number] = number
        if full:
            way["served_ns"][call.number] = way["passed_ns"][call.number] = -1
            self._gateway.refuse(call, f"{policy.backlog} requests wait for the gateway", "limited")
            return True
        self._free_ns[number] = begins + policy.service_ns
        passed = begins + policy.service_ns + policy.delay_ns
        way["served_ns"][call.number], way["passed_ns"][call.number] = begins, passed
        if passed > now:
            self._gateway.retry_at(call, passed)
        return passed > now

    def _waited(self, request: Request, wait_ns: int) -> None:
        """Note how long the calls of a request have waited for the capacity of gateways."""
        if self._policy.service_ns:
            waits = self._waits_ns
            waits[request.id] = waits.get(request.id, 0) + wait_ns
            request.note(GATEWAY_WAIT, waits[request.id] / NS_PER_S)
