"""Every network that ships with hermes passes the contract."""

from __future__ import annotations

import pytest
from simpy.core import Environment

from hermes.network import NetworkComponent
from hermes.network.components import Link
from hermes.network.ideal import Ideal
from hermes.network.topology import Attachment, Topology, TopologyLink
from hermes.testing.network import NetworkContract


class TestIdeal(NetworkContract):
    def make(self) -> NetworkComponent:
        return Ideal()


class TestLink(NetworkContract):
    def make(self) -> NetworkComponent:
        return Link(bandwidth=50e9, latency=10e-6)


class TestSharedLink(NetworkContract):
    def make(self) -> NetworkComponent:
        return Link(bandwidth=50e9, latency=10e-6, shared=True)


class TestLine(NetworkContract):
    nodes = ("x", "y", "z")

    def make(self) -> NetworkComponent:
        return Topology(links=[
            TopologyLink(a="x", b="y", bandwidth=7e9, latency=1e-6),
            TopologyLink(a="y", b="z", bandwidth=3e9, latency=2e-6, duplex="half"),
        ])


class TestRacks(NetworkContract):
    nodes = tuple(f"client-{i}" for i in range(8))

    def make(self) -> NetworkComponent:
        return Topology(
            nodes=["r0", "r1"], links=[TopologyLink(a="r0", b="r1", bandwidth=60e9, latency=20e-3)],
            attach={"client": Attachment(to=["r0", "r1"], bandwidth=50e9, latency=2e-6)},
        )


def ends(component: NetworkComponent) -> list[int]:
    env = Environment()
    network = component.build(env, ["a", "b", "c"])
    log: list[int] = []
    for dst in ("b", "c"):
        network.transfer("a", dst, 10**9, lambda: log.append(int(env.now)))
    env.run()
    return log


def test_link_takes_bytes_over_bandwidth_plus_latency_whoever_else_sends() -> None:
    assert ends(Link(bandwidth=1e9, latency=0.25)) == [1_250_000_000] * 2


def test_shared_link_is_shared() -> None:
    assert ends(Link(bandwidth=1e9, latency=0.25, shared=True)) == [2_250_000_000] * 2


def test_ideal_takes_no_time() -> None:
    assert ends(Ideal()) == [0, 0]


def test_only_a_shared_link_can_be_a_bottleneck() -> None:
    env = Environment()
    assert Link(bandwidth=1e9).build(env, ["a"]).links() == []
    network = Link(bandwidth=1e9, shared=True).build(env, ["a", "b"])
    network.transfer("a", "b", 10**9, lambda: None)
    env.run()
    (use,) = network.links()
    assert (use.num_bytes, use.utilisation(2.0), use.utilisation(0.0)) == (10**9, 0.5, 0.0)


def test_fields_are_checked() -> None:
    with pytest.raises(ValueError):
        Link.model_validate({"kind": "link"})
    with pytest.raises(ValueError):
        Link.model_validate({"kind": "link", "bandwidth": "0 GB/s"})
    assert Link.model_validate({"kind": "link", "bandwidth": "400 Gbit/s", "latency": "5 us"}).bandwidth == 50e9
