"""Networks without a graph: a link for each pair of nodes, or one link for all."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from functools import partial
from typing import Annotated, Literal

from pydantic import Field
from simpy.core import Environment

from hermes.config import Bandwidth, Duration
from hermes.core.clock import TRANSFER, at
from hermes.core.network import LinkUse, Network, nothing
from hermes.errors import InputError, Verbatim
from hermes.network.base import BaseNetwork, FailingLinks
from hermes.network.flows import WORK_PER_BYTE, Flow, FlowEngine, capacity_of, serial_ns
from hermes.units import s_to_ns

__all__ = ["Link", "LinkBandwidth", "LinkNetwork", "SharedLinkNetwork"]

def changed_capacity(bandwidth: float, factor: float) -> int:
    """Return the rate units of a link whose bytes take a multiple of their time; 0 for an infinite one."""
    return 0 if math.isinf(factor) else capacity_of(bandwidth / factor)


LinkBandwidth = Annotated[Bandwidth, Field(ge=1)]    # below one byte/s, integer rates would be too coarse


class LinkNetwork(BaseNetwork):
    """A network with a link for each pair of nodes; transfers do not wait for each other."""

    cancels = True

    def __init__(self, env: Environment, nodes: Sequence[str], bandwidth: float, latency_s: float) -> None:
        super().__init__(env, nodes)
        self.bandwidth, self.latency_ns = bandwidth, s_to_ns(latency_s)
        self._capacity = capacity_of(bandwidth)

    def transfer(self, src: str, dst: str, num_bytes: int, done: Callable[[], None]) -> object:
        delay_ns = self.estimate_ns(src, dst, num_bytes)
        self.bytes_sent += num_bytes
        return self.deliver(delay_ns, num_bytes, done, 0, delay_ns - self.latency_ns)

    def stream(self, src: str, dst: str, num_bytes: int, over_ns: int, out: Callable[[], None]) -> object:
        alone = self.estimate_ns(src, dst, num_bytes)
        leaves = max(over_ns, alone - (self.latency_ns if alone else 0))
        self.bytes_sent += num_bytes
        end = at(self.env, int(self.env.now) + leaves, TRANSFER, lambda _: out())
        return self.deliver(leaves + (self.latency_ns if alone else 0), num_bytes, nothing, 0, leaves), end, num_bytes

    def estimate_ns(self, src: str, dst: str, num_bytes: int) -> int:
        if not self.hops(src, dst):
            return 0
        return serial_ns(num_bytes * WORK_PER_BYTE, self._capacity) + self.latency_ns

    def hops(self, src: str, dst: str) -> int:
        return int(self.known(src) != self.known(dst))


class OverFlows(BaseNetwork):
    """Base of networks whose transfers share links: what its flow engine sends.

    Attributes:
        engine: Its flows; a subclass sets it.
    """

    engine: FlowEngine

    def send_stream(self, links: tuple[int, ...], latency_ns: int, num_bytes: int, over_ns: int,
                    out: Callable[[], None]) -> Flow:
        """Send bytes over links as they become ready; see `Network.stream`."""
        def left() -> object:
            flow.after = self.deliver(latency_ns, num_bytes, nothing)
            out()
            return flow.after

        self.bytes_sent += num_bytes
        flow = self.engine.start(links, num_bytes, left, over_ns)
        return flow

    def cancel(self, flow: object) -> int:
        if not isinstance(flow, Flow):
            return super().cancel(flow)
        if flow.path is None:
            return super().cancel(flow.after) if flow.after is not None else 0
        self.bytes_cancelled += flow.num_bytes
        return self.engine.cancel(flow)


class FailingLinkNetwork(OverFlows, LinkNetwork):
    """A link for each pair of nodes, which may get slower, or be gone; transfers do not wait for each other."""

    def __init__(self, env: Environment, nodes: Sequence[str], bandwidth: float, latency_s: float) -> None:
        super().__init__(env, nodes, bandwidth, latency_s)
        self.engine = FlowEngine(env, [])
        self._under_way: dict[frozenset[str], list[tuple[Flow, int]]] = {}   # by pair, with the limit of each rate
        self._now: dict[frozenset[str], int] = {}    # capacities of failing links
        self._all: int | None = None

    def _start(self, src: str, dst: str, num_bytes: int, most: int, ended: Callable[[], object]) -> Flow:
        pair = frozenset((src, dst))
        capacity = self._now.get(pair, self._capacity if self._all is None else self._all)
        flow = self.engine.start((), num_bytes, ended, rate=max(1, min(most, capacity)))
        under_way = self._under_way.setdefault(pair, [])
        under_way[:] = [item for item in under_way if item[0].path is not None]
        under_way.append((flow, most))
        return flow

    def transfer(self, src: str, dst: str, num_bytes: int, done: Callable[[], None]) -> object:
        if num_bytes == 0 or not self.hops(src, dst):
            return super().transfer(src, dst, num_bytes, done)
        self.bytes_sent += num_bytes
        return self._start(src, dst, num_bytes, self._capacity, partial(
            self.deliver, self.latency_ns, num_bytes, done))

    def stream(self, src: str, dst: str, num_bytes: int, over_ns: int, out: Callable[[], None]) -> object:
        if num_bytes == 0 or not self.hops(src, dst):
            return super().stream(src, dst, num_bytes, over_ns, out)

        def left() -> object:
            flow.after = self.deliver(self.latency_ns, num_bytes, nothing)
            out()
            return flow.after

        self.bytes_sent += num_bytes
        most = num_bytes * WORK_PER_BYTE // over_ns if over_ns > 0 else self._capacity
        flow = self._start(src, dst, num_bytes, min(most, self._capacity), left)
        return flow

    def set_link(self, between: tuple[str, str] | None, factor: float) -> None:
        if between is None:
            self._all, self._now = changed_capacity(self.bandwidth, factor), {}
        else:
            self._now[frozenset(between)] = changed_capacity(self.bandwidth, factor)
        for pair, under_way in self._under_way.items():
            if between is None or pair == frozenset(between):
                capacity = self._now.get(pair, self._all if self._all is not None else self._capacity)
                for flow, most in under_way:
                    if flow.path is not None:
                        self.engine.resize(self.engine.limit_of(flow), min(most, capacity))

    def check_link(self, between: tuple[str, str] | None) -> None:
        for node in between or ():
            self.known(node)


class SharedLinkNetwork(OverFlows, LinkNetwork):
    """One link for all transfers; concurrent ones have equal shares of it."""

    def __init__(self, env: Environment, nodes: Sequence[str], bandwidth: float, latency_s: float) -> None:
        super().__init__(env, nodes, bandwidth, latency_s)
        self.engine = FlowEngine(env, [bandwidth])

    def transfer(self, src: str, dst: str, num_bytes: int, done: Callable[[], None]) -> object:
        if num_bytes == 0 or not self.hops(src, dst):
            return super().transfer(src, dst, num_bytes, done)
        self.bytes_sent += num_bytes
        return self.engine.start((0,), num_bytes, lambda: self.deliver(self.latency_ns, num_bytes, done))

    def stream(self, src: str, dst: str, num_bytes: int, over_ns: int, out: Callable[[], None]) -> object:
        if num_bytes == 0 or not self.hops(src, dst):
            return super().stream(src, dst, num_bytes, over_ns, out)
        return self.send_stream((0,), self.latency_ns, num_bytes, over_ns, out)

    def links(self) -> list[LinkUse]:
        return self.engine.uses(["link"], [self.bandwidth])

    def set_link(self, between: tuple[str, str] | None, factor: float) -> None:
        self.engine.resize(0, changed_capacity(self.bandwidth, factor))

    def check_link(self, between: tuple[str, str] | None) -> None:
        if between is not None:
            raise InputError(Verbatim("there is one link for all clients; leave it out"))


class Link(FailingLinks):
    """A network in which a transfer between any two clients takes bytes / bandwidth + latency."""

    kind: Literal["link"] = "link"
    bandwidth: LinkBandwidth
    """Bytes/s of a link, e.g. `50 GB/s`."""
    latency: Duration = 0.0
    """Time until the first byte arrives, e.g. `10 us`."""
    shared: bool = False
    """One link for all clients, shared fairly by concurrent transfers, instead of a link for each pair of clients."""

    def build(self, env: Environment, nodes: Sequence[str]) -> Network:
        cls = SharedLinkNetwork if self.shared else FailingLinkNetwork if self.failures else LinkNetwork
        return cls(env, nodes, self.bandwidth, self.latency)
