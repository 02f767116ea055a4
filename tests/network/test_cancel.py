"""Cancelled transfers by hand, to the nanosecond: on shared links, in latency, as streams, layer by layer."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial
from typing import Any
from unittest import SkipTest

import pytest
from simpy.core import Environment

from hermes.core.clock import ARRIVAL, STEP_END, Clock, at
from hermes.network import BaseNetwork, LayerStream, Network, NetworkComponent, can_cancel
from hermes.network.components import Link
from hermes.network.ideal import Ideal
from hermes.network.kv_link import KvLink
from hermes.network.topology import Topology, TopologyLink, TopologyNetwork
from hermes.testing.network import NetworkContract

S = 1_000_000_000
MS = S // 1000


class Case:
    """A network, and the times at which its transfers and streams (by name) ended."""

    def __init__(self, component: Any, nodes: Sequence[str] = ("a", "b", "c")) -> None:
        self.env = Environment()
        self.network: Network = component.build(self.env, nodes)
        self.ends: dict[str, int] = {}
        self.flows: dict[str, object] = {}
        self.left: dict[str, int] = {}

    def _done(self, name: str) -> None:
        assert name not in self.ends
        self.ends[name] = int(self.env.now)

    def transfer(self, name: str, num_bytes: int, dst: str = "b") -> None:
        self.flows[name] = self.network.transfer("a", dst, num_bytes, partial(self._done, name))

    def stream(self, name: str, num_bytes: int, over_ns: int) -> None:
        self.flows[name] = self.network.stream("a", "b", num_bytes, over_ns, partial(self._done, name))

    def cancel(self, name: str) -> int:
        self.left[name] = self.network.cancel(self.flows[name])
        return self.left[name]

    def at(self, time_ns: int, act: Callable[..., Any], *args: Any, priority: int = ARRIVAL) -> None:
        at(self.env, time_ns, priority, lambda _: act(*args))

    def run(self) -> dict[str, int]:
        self.env.run()
        assert self.network.bytes_sent == self.network.bytes_received + self.network.bytes_cancelled
        return self.ends


def shared(latency_s: float = 0.0) -> Link:
    return Link(bandwidth=100.0, latency=latency_s, shared=True)


def line(latency_s: float = 0.0) -> Topology:
    """a - b - c, 100 B/s and 50 B/s."""
    return Topology(links=[TopologyLink(a="a", b="b", bandwidth=100.0, latency=latency_s),
                           TopologyLink(a="b", b="c", bandwidth=50.0, latency=latency_s)])


@pytest.mark.parametrize("component", [shared(), line()])
def test_the_other_flow_gets_the_share_at_once(component: Any) -> None:
    case = Case(component)
    case.transfer("stays", 300)
    case.transfer("goes", 300)
    case.at(2 * S, case.cancel, "goes")
    # 50 B/s each for 2 s; then 200 bytes at 100 B/s
    assert case.run() == {"stays": 4 * S}
    assert case.left == {"goes": 100}
    assert (case.network.bytes_sent, case.network.bytes_received, case.network.bytes_cancelled) == (600, 300, 300)
    use = case.network.links()[0]
    assert (use.num_bytes, use.busy_ns, use.full_ns) == (400, 4 * S, 4 * S)
    assert dict(zip(use.times_ns, use.sent_bytes, strict=True))[2 * S] == 200
    assert use.sent_bytes[-1] == 400


def test_a_flow_that_is_alone() -> None:
    case = Case(shared())
    case.transfer("one", 300)
    case.at(S + 3, case.cancel, "one")
    case.at(S + 5, case.transfer, "two", 100)
    assert case.run() == {"two": 2 * S + 5}
    assert case.left == {"one": 100}    # 100.0000003 bytes, rounded down
    (use,) = case.network.links()
    assert (use.num_bytes, use.busy_ns, use.full_ns) == (200, 2 * S + 3, 2 * S + 3)
    assert use.sent_bytes[-1] == pytest.approx(200.0000003, abs=1e-9)


def test_a_flow_that_starts_where_another_is_cancelled() -> None:
    case = Case(shared())
    case.transfer("one", 300)

    def replace() -> None:
        case.cancel("one")
        case.transfer("two", 100)

    case.at(S, replace)
    assert case.run() == {"two": 2 * S}
    (use,) = case.network.links()
    assert (use.num_bytes, use.busy_ns, use.full_ns) == (200, 2 * S, 2 * S)


@pytest.mark.parametrize("alone", [True, False])
def test_a_flow_cancelled_where_it_starts(alone: bool) -> None:
    case = Case(shared())
    if not alone:
        case.transfer("stays", 300)

    def start_and_cancel() -> None:
        case.transfer("goes", 100)
        assert case.cancel("goes") == 0

    case.at(S, start_and_cancel)
    assert case.run() == ({} if alone else {"stays": 3 * S})


def test_before_and_after_its_end_in_the_same_nanosecond() -> None:
    case = Case(shared())
    case.transfer("one", 100)
    case.at(S, case.cancel, "one", priority=STEP_END)
    assert case.run() == {}
    assert case.left == {"one": 100}    # all bytes have left, the arrival was to come
    case = Case(shared())
    case.transfer("one", 100)
    case.at(S, case.cancel, "one")
    assert case.run() == {"one": S}
    assert case.left == {"one": 0}
    assert case.network.bytes_cancelled == 0


def test_of_two_that_end_together_the_first_cancels_the_second() -> None:
    # without latency the arrivals are events of their own; as streams both ends come from one event of the engine
    for streams in (False, True):
        case = Case(shared(1e-3))

        def first(case: Case = case) -> None:
            case.cancel("second")

        if streams:
            case.network.stream("a", "b", 100, 2 * S, first)
            case.stream("second", 100, 2 * S)
        else:
            case.network.transfer("a", "b", 100, first)
            case.transfer("second", 100)
        assert case.run() == {}
        assert case.left == {"second": 100}
        assert case.network.bytes_cancelled == 100
        assert case.network.links()[0].num_bytes == 200    # its bytes had left


def test_the_next_of_its_path_ends_in_the_nanosecond_of_the_cancel() -> None:
    # 100 bytes each at 50 B/s; the first is cancelled in the nanosecond of both ends, before the second's event
    case = Case(shared())
    case.transfer("goes", 100)
    case.transfer("stays", 100)
    case.at(2 * S, case.cancel, "goes", priority=STEP_END)
    order: list[str] = []
    case.at(2 * S, lambda: order.append("after" if "stays" in case.ends else "before"))
    assert case.run() == {"stays": 2 * S}
    assert order == ["after"], "the end keeps its place in the instant"
    assert case.left == {"goes": 100}


@pytest.mark.parametrize(("component", "dst", "left_ns"), [
    (shared(0.5), "b", S), (Link(bandwidth=100.0, latency=0.5), "b", S), (line(0.25), "c", 2 * S),
])
def test_in_latency_all_bytes_have_left(component: Any, dst: str, left_ns: int) -> None:
    for time, left in ((0, 0), (left_ns // 2 + 1, 50), (left_ns - 1, 99), (left_ns, 100), (left_ns + S // 2 - 1, 100)):
        case = Case(component)
        case.transfer("one", 100, dst)
        case.at(time, case.cancel, "one")
        assert case.run() == {}
        assert case.left == {"one": left}
        assert case.network.bytes_cancelled == 100
        assert case.cancel("one") == 0, "cancelled twice"
        assert case.network.bytes_cancelled == 100
    case = Case(component)
    case.transfer("one", 100, dst)
    case.at(left_ns + S // 2, case.cancel, "one")
    assert case.run() == {"one": left_ns + S // 2}
    assert case.left == {"one": 0}


def test_a_flow_over_two_links_frees_both() -> None:
    case = Case(line())
    case.transfer("goes", 400, "c")     # stopped at 50 B/s by b - c
    case.transfer("near", 300)          # the rest of a - b: 50 B/s
    case.at(2 * S, case.cancel, "goes")
    assert case.run() == {"near": 4 * S}
    first, _, second, _ = case.network.links()
    assert (first.num_bytes, second.num_bytes) == (400, 100)
    assert (second.busy_ns, second.full_ns) == (2 * S, 2 * S)


@pytest.mark.parametrize("component", [shared(), line()])
def test_a_limited_stream(component: Any) -> None:
    # 200 bytes over 10 s: 20 B/s, which leaves 80 B/s to the transfer; from 4 s on it has 100 B/s
    case = Case(component)
    case.stream("stream", 200, 10 * S)
    case.transfer("stays", 520)
    case.at(4 * S, case.cancel, "stream")
    case.at(20 * S, case.stream, "again", 100, 2 * S)     # its limit is free for others
    assert case.run() == {"stays": 6 * S, "again": 22 * S}
    assert case.left == {"stream": 80}
    use = case.network.links()[0]
    assert (use.num_bytes, use.busy_ns) == (700, 8 * S)


@pytest.mark.parametrize("component", [shared(), line(), Link(bandwidth=100.0)])
def test_a_stream_that_is_alone(component: Any) -> None:
    for over_ns, left in ((10 * S, 80), (0, 200)):
        case = Case(component)
        case.stream("stream", 200, over_ns)
        case.at(4 * S, case.cancel, "stream")
        if over_ns:
            assert case.run() == {}
            assert case.left == {"stream": left}
        else:
            assert case.run() == {"stream": 2 * S}
            assert case.left == {"stream": 0}


@pytest.mark.parametrize("component", [shared(1.0), line(1.0), Link(bandwidth=100.0, latency=1.0)])
def test_a_stream_whose_bytes_have_left_but_not_arrived(component: Any) -> None:
    case = Case(component)
    case.stream("stream", 200, 2 * S)
    case.at(2 * S + S // 2, case.cancel, "stream")
    case.at(2 * S + S // 2, lambda: case.cancel("stream") == 0 or pytest.fail("cancelled twice"))
    assert case.run() == {"stream": 2 * S}
    assert (case.network.bytes_received, case.network.bytes_cancelled) == (0, 200)


def test_ideal_networks_have_sent_all_at_once() -> None:
    for component in (Ideal(), KvLink()):
        case = Case(component)
        case.transfer("one", 100)
        assert case.cancel("one") == 100
        assert case.cancel("one") == 0
        case.stream("stream", 100, 10 * S)
        case.at(4 * S, case.cancel, "stream")
        assert case.run() == {}
        assert case.left == {"one": 0, "stream": 100}
        assert (case.network.bytes_received, case.network.bytes_cancelled) == (100, 100)


def test_the_default_link_of_kv() -> None:
    env = Environment()
    network = KvLink(bandwidth=100.0).build_for_kv(env, ["a", "b"])
    assert can_cancel(network)
    left: list[int] = []
    flow = network.transfer("a", "b", 300, lambda: pytest.fail("cancelled"))
    at(env, S, ARRIVAL, lambda _: left.append(network.cancel(flow)))
    env.run()
    assert (left, network.bytes_cancelled) == ([100], 300)


class LayerCase:
    """A layer-wise transfer of a prefill of 1 s, 1000 bytes in 10 layers, over a link of 1000 bytes/s."""

    def __init__(self, latency_s: float = 0.0) -> None:
        self.env = Clock()
        link = TopologyLink(a="x", b="y", bandwidth=1000.0, latency=latency_s)
        network = Topology(links=[link]).build(self.env, ["x", "y"])
        assert isinstance(network, TopologyNetwork)
        self.network = network
        self.stream = LayerStream(self.env, network, "x", "y", 10)
        self.done: list[int] = []
        self.left: list[int] = []
        at(self.env, 0, ARRIVAL, lambda _: self.stream.step(0, 1000, 0, S))
        at(self.env, S, ARRIVAL, lambda _: self.stream.finish(1000, lambda: self.done.append(int(self.env.now))))

    def cancel_at(self, *times_ns: int) -> tuple[list[int], list[int]]:
        for time in times_ns:
            at(self.env, time, ARRIVAL, lambda _: self.left.append(self.stream.cancel()))
        self.env.run()
        network = self.network
        assert network.bytes_sent == network.bytes_received + network.bytes_cancelled
        assert not any(network.engine._active)
        return self.left, self.done


def test_layer_by_layer() -> None:
    # the first layer is ready at 0.1 s; from then on 900 bytes leave in 0.9 s; the last layer leaves from 1 s on
    assert LayerCase().cancel_at(50 * MS) == ([0], [])
    assert LayerCase().cancel_at(600 * MS) == ([500], [])
    assert LayerCase().cancel_at(600 * MS, 700 * MS) == ([500, 500], [])
    assert LayerCase().cancel_at(1050 * MS) == ([950], [])
    assert LayerCase().cancel_at(1200 * MS) == ([1000], [1100 * MS])


def test_layer_by_layer_with_bytes_in_latency() -> None:
    case = LayerCase(latency_s=1.0)
    # at 1.05 s nothing has arrived: 900 bytes are in latency, and 50 of the last layer
    assert case.cancel_at(1050 * MS) == ([950], [])
    assert (case.network.bytes_received, case.network.bytes_cancelled) == (0, 1000)
    assert case.network.links()[0].num_bytes == 950


def test_layer_by_layer_before_the_rest() -> None:
    case = LayerCase()
    case.network.transfer("x", "y", 10_000, lambda: None)    # half the link: the stream is late
    assert case.cancel_at(1100 * MS) == ([500], [])          # the rest waits behind the stream, and is never sent
    assert case.network.bytes_sent == 10_900


class Old(BaseNetwork):
    """A network written before there were handles."""

    def transfer(self, src: str, dst: str, num_bytes: int, done: Callable[[], None]) -> None:
        self.hops(src, dst)
        self.bytes_sent += num_bytes
        self.deliver(5, num_bytes, done)

    def estimate_ns(self, src: str, dst: str, num_bytes: int) -> int:
        return 5 * self.hops(src, dst)

    def hops(self, src: str, dst: str) -> int:
        return int(self.known(src) != self.known(dst))


def test_a_network_without_handles_cannot_cancel() -> None:
    env = Environment()
    network = Old(env, ["a", "b"])
    assert not can_cancel(network)
    flow = network.transfer("a", "b", 1, lambda: None)  # type: ignore[func-returns-value]
    with pytest.raises(TypeError, match="Old gave no handle"):
        network.cancel(flow)
    with pytest.raises(SkipTest, match="cannot cancel"):
        OldContract().test_cancelled_transfers_never_arrive()
    OldContract().test_everything_arrives_once()


class OldContract(NetworkContract):
    __test__ = False
    nodes = ("a", "b", "c")

    def make(self) -> NetworkComponent:
        raise NotImplementedError

    def build(self) -> tuple[Environment, Network]:
        env = Environment()
        return env, Old(env, self.nodes)
