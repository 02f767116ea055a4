"""Time-outs of a gateway: of calls with all their attempts, and of the tries of each place that decides on retries."""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial
from typing import TYPE_CHECKING

from hermes.core.client import Client
from hermes.core.clock import EXPIRY, Clock, Tick
from hermes.gateway.parts import GatewayPart

if TYPE_CHECKING:
    from hermes.gateway.calls import Call
    from hermes.gateway.gateway import Gateway

__all__ = ["CallTimeOut", "TryTimeOuts"]


class CallTimeOut(GatewayPart):
    """Ends calls that have no answer in full within `limit_ns`, waits included."""

    def __init__(self, gateway: Gateway, env: Clock, limit_ns: int) -> None:
        self._gateway, self.env, self._limit_ns = gateway, env, limit_ns
        self._ticks: dict[Call, Tick] = {}

    def asked(self, call: Call) -> None:
        self._ticks[call] = self.env.tick_at(self.env._now + self._limit_ns, EXPIRY, partial(self._late, call))

    def forgets(self, call: Call) -> None:
        tick = self._ticks.pop(call, None)
        if tick is not None:
            tick.callbacks = []   # it may come long after, and would keep the call in memory

    def _late(self, call: Call, tick: Tick) -> None:
        if call.over:
            return
        if self._gateway.stop(call):
            call.request.begun = True
        self._gateway.refuse(call, f"no answer within {self._limit_ns / 1e9:g} s", "timed out")


class TryTimeOuts(GatewayPart):
    """Ends tries that take too long.

    Args:
        limits_ns: Of each place that decides about retries, the innermost first; None for no limit.
    """

    def __init__(self, gateway: Gateway, env: Clock, limits_ns: Sequence[int | None]) -> None:
        self._gateway, self.env = gateway, env
        self._limits = [(place, limit_ns) for place, limit_ns in enumerate(limits_ns) if limit_ns is not None]

    def began(self, call: Call, client: Client) -> None:
        """Limit the tries of each place that begin with this attempt."""
        for place, limit_ns in self._limits:
            tries = tuple(call.used[place:])
            if call.timed[place] != tries:
                call.timed[place] = tries
                self.env.tick_at(self.env._now + limit_ns, EXPIRY, partial(self._late, call, place, limit_ns, tries))

    def _late(self, call: Call, place: int, limit_ns: int, tries: tuple[int, ...], tick: Tick) -> None:
        if call.over or tuple(call.used[place:]) != tries:
            return
        begun = self._gateway.stop(call)
        if call.waits:
            self._gateway.release(call)
        self._gateway.again(call, f"no answer within {limit_ns / 1e9:g} s", "timed out", begun=begun, since=place)
