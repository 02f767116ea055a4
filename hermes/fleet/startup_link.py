"""A link that the starters of a node share: equal rates, of which none exceeds what its flow can take.

Max-min fair: the rate that a slow flow leaves goes to the others. Rates change when a flow starts, ends or is
cancelled.
"""

from __future__ import annotations

from collections.abc import Callable

from hermes.core.clock import MEMBERSHIP, Clock, Tick
from hermes.units import NS_PER_S

__all__ = ["Flow", "StarterLink"]


class Flow:
    """Bytes on their way.

    Attributes:
        left: Bytes still to move, at the link's last change.
        most: Most bytes/s that it takes.
        rate: Bytes/s now.
    """

    __slots__ = ("done", "left", "most", "rate")

    def __init__(self, num_bytes: float, most: float, done: Callable[[], None]) -> None:
        self.left, self.most, self.done, self.rate = num_bytes, most, done, 0.0


class StarterLink:
    """A link of `bandwidth` bytes/s. A flow's `done` is called once, when its last byte has come."""

    def __init__(self, env: Clock, bandwidth: float) -> None:
        self.bandwidth = bandwidth
        self._env, self._flows, self._since, self._version = env, list[Flow](), 0, 0

    def start(self, num_bytes: float, most: float, done: Callable[[], None]) -> Flow:
        """Begin to move bytes, at no more than `most` bytes/s."""
        self._advance()
        flow = Flow(num_bytes, most, done)
        self._flows.append(flow)
        self._share()
        return flow

    def cancel(self, flow: Flow) -> None:
        """Stop a flow, whose `done` is then never called. One that has ended is left as it is."""
        if flow in self._flows:
            self._advance()
            self._flows.remove(flow)
            self._share()

    def _advance(self) -> None:
        """Move the bytes of the time since the last change."""
        elapsed = (self._env._now - self._since) / NS_PER_S
        self._since = self._env._now
        for flow in self._flows:
            flow.left = max(flow.left - flow.rate * elapsed, 0.0)

    def _share(self) -> None:
        """Give each flow its rate, and wait for the first that ends."""
        self._version += 1
        spare, others = self.bandwidth, len(self._flows)
        for flow in sorted(self._flows, key=lambda flow: flow.most):   # the slowest take less than their share
            flow.rate = min(flow.most, spare / others)
            spare, others = spare - flow.rate, others - 1
        if self._flows:
            first = min(round(flow.left / flow.rate * NS_PER_S) for flow in self._flows)
            version = self._version
            self._env.tick_at(self._env._now + first, MEMBERSHIP, lambda tick: self._ends(version, tick))

    def _ends(self, version: int, tick: Tick) -> None:
        if version != self._version:
            return
        soon = [flow for flow in self._flows if round(flow.left / flow.rate * NS_PER_S) <= self._env._now - self._since]
        self._advance()
        self._flows = [flow for flow in self._flows if flow not in soon]
        self._share()
        for flow in soon:
            flow.done()
