"""Topologies: paths, attachments, latency, what a user may get wrong."""

from __future__ import annotations

from itertools import pairwise
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from long_runs import quick_and_full
from simpy.core import Environment

from hermes.core.clock import ARRIVAL, at
from hermes.errors import InputError
from hermes.network import NETWORKS
from hermes.network.topology import Attachment, Topology, TopologyLink, TopologyNetwork


def build(clients: list[str], **fields: Any) -> tuple[Environment, TopologyNetwork]:
    env = Environment()
    network = Topology.model_validate({"kind": "topology", **fields}).build(env, clients)
    assert isinstance(network, TopologyNetwork)
    return env, network


def link(a: str, b: str, bandwidth: Any = "100 B/s", latency: Any = 0, **more: Any) -> dict[str, Any]:
    return {"a": a, "b": b, "bandwidth": bandwidth, "latency": latency, **more}


def test_registered() -> None:
    assert {"ideal", "link", "topology"} <= set(NETWORKS.names())


def test_least_latency_then_fewest_links_then_first_listed() -> None:
    _, network = build(
        ["x", "y"], nodes=["s1", "s2", "s3", "s4"],
        links=[
            link("x", "s1", latency="1 us"), link("s1", "s2", latency="0 us"), link("s2", "y", latency="1 us"),
            link("x", "s4", latency="1 us"), link("s4", "y", latency="1 us"),
            link("x", "s3", latency="1 us"), link("s3", "y", latency="1 us"),
        ],
    )
    assert network.path("x", "y") == ["x", "s4", "y"]
    _, network = build(
        ["x", "y"], nodes=["s"],
        links=[link("x", "y", latency="3 us"), link("x", "s", latency="1 us"), link("s", "y", latency="1 us")],
    )
    assert network.path("x", "y") == ["x", "s", "y"]
    assert network.hops("x", "y") == 2
    assert network.hops("x", "x") == 0


def test_latency_is_paid_once_after_the_bytes() -> None:
    env, network = build(
        ["x", "y"], nodes=["s"], links=[link("x", "s", latency="10 ms"), link("s", "y", "50 B/s", latency="20 ms")],
    )
    assert network.estimate_ns("x", "y", 100) == 2_000_000_000 + 30_000_000
    assert network.estimate_ns("x", "y", 0) == 30_000_000
    log: list[int] = []
    network.transfer("x", "y", 100, lambda: log.append(int(env.now)))
    # asked for when the bytes of the first have left, before they have all arrived: it has the link to itself
    at(env, 2_000_000_001, ARRIVAL, lambda _: network.transfer("x", "y", 100, lambda: log.append(int(env.now))))
    env.run()
    assert log == [2_030_000_000, 4_030_000_001]


@pytest.mark.parametrize(("duplex", "ends"), [("full", [1, 1]), ("half", [2, 2])])
def test_duplex(duplex: str, ends: list[int]) -> None:
    env, network = build(["x", "y"], links=[link("x", "y", duplex=duplex)])
    log: list[int] = []
    network.transfer("x", "y", 100, lambda: log.append(int(env.now)))
    network.transfer("y", "x", 100, lambda: log.append(int(env.now)))
    env.run()
    assert log == [s * 1_000_000_000 for s in ends]
    names = [use.name for use in network.links()]
    assert names == (["x -> y", "y -> x"] if duplex == "full" else ["x -- y"])
    assert all(use.utilisation(ends[0]) == 1.0 for use in network.links())


def test_clients_of_a_group_sit_at_a_node() -> None:
    env, network = build(
        ["decode-0", "decode-1", "prefill"], nodes=["nic0", "nic1"], links=[link("nic0", "nic1")],
        attach={"decode": "nic0", "prefill": "nic1"},
    )
    network.check(["decode-0", "decode-1", "prefill"])
    assert network.path("prefill", "decode-1") == ["nic1", "nic0"]
    assert network.hops("decode-0", "decode-1") == 0
    log: list[int] = []
    for client in ("decode-0", "decode-1"):
        network.transfer("prefill", client, 100, lambda: log.append(int(env.now)))
    env.run()
    assert log == [2_000_000_000] * 2


def test_clients_of_a_group_have_links_of_their_own() -> None:
    clients = [f"decode-{i}" for i in range(5)]
    _, network = build(
        clients, nodes=["r0", "r1", "core"], links=[link("r0", "core"), link("r1", "core")],
        attach={"decode": {"to": ["r0", "r1"], "bandwidth": "1 GB/s", "latency": "1 us"}},
    )
    assert [network.path(client, "decode-0")[1] for client in clients[1:]] == ["r0", "r0", "r1", "r1"]
    assert network.path("decode-4", "decode-0") == ["decode-4", "r1", "core", "r0", "decode-0"]


def test_the_most_exact_key_counts() -> None:
    _, network = build(
        ["decode-0", "decode-1"], nodes=["a", "b"], links=[link("a", "b")], attach={"decode": "a", "decode-1": "b"},
    )
    assert network.path("decode-0", "decode-1") == ["a", "b"]


def test_two_transfers_on_a_shared_link_slow_each_other_and_strangers_do_not() -> None:
    env, network = build(
        ["a", "b", "c", "d", "e"], nodes=["s"],
        links=[link(x, "s") for x in "abcd"] + [link("e", "s", "1000 B/s")],
    )
    log: dict[str, int] = {}
    for src, dst in ("ac", "ad", "be"):
        network.transfer(src, dst, 100, lambda name=src + dst: log.setdefault(name, int(env.now)))
    env.run()
    assert log == {"be": 1_000_000_000, "ac": 2_000_000_000, "ad": 2_000_000_000}


@pytest.mark.parametrize(
    ("fields", "field", "suggestion"),
    [
        ({"links": [link("x", "swich")], "nodes": ["switch"]}, "links.0.b", "switch"),
        ({"links": [link("x", "x")]}, "links.0", None),
        ({"links": [link("x", "y-0"), link("y-0", "x")]}, "links.1", None),
        ({"attach": {"z": "x"}}, "attach.z", None),
        ({"attach": {"prefil": "x"}}, "attach.prefil", "prefill"),
        ({"attach": {"y": "nowhere"}}, "attach.y", None),
        ({"attach": {"y": {"to": "nowhere", "bandwidth": 1.0}}}, "attach.y.to", None),
        ({"attach": {"y": {"to": [], "bandwidth": 1.0}}}, "attach.y.to", None),
        ({"nodes": ["s"], "links": [link("x", "s")], "attach": {"x": "s"}}, "attach.x", None),
        ({"nodes": ["s"], "links": [link("x", "s")], "attach": {"x": {"to": "s", "bandwidth": 1.0}}}, "attach", None),
    ],
)
def test_descriptions_that_do_not_fit(fields: dict[str, Any], field: str, suggestion: str | None) -> None:
    with pytest.raises(InputError) as caught:
        build(["x", "y-0", "y-1", "prefill-0"], **fields)
    assert caught.value.field == field
    assert caught.value.suggestion == suggestion


def test_unconnected_clients_are_named() -> None:
    _, network = build(["x", "y", "z"], links=[link("x", "y")])
    network.check(["x", "y"])
    with pytest.raises(InputError, match="'x' and 'z'"):
        network.check(["x", "y", "z"])
    for call in (network.hops, network.path, lambda a, b: network.transfer(a, b, 1, lambda: None)):
        with pytest.raises(InputError, match="'x' and 'z'"):
            call("x", "z")
        with pytest.raises(InputError, match="'z' and 'y'"):
            call("z", "y")
    assert network.bytes_sent == 0


@pytest.mark.parametrize("bandwidth", [0, -1, 0.5, "fast", float("nan")])
def test_bandwidths_that_are_none(bandwidth: object) -> None:
    with pytest.raises(ValueError):
        TopologyLink.model_validate(link("a", "b", bandwidth))
    with pytest.raises(ValueError):
        Attachment.model_validate({"to": "a", "bandwidth": bandwidth})


@st.composite
def networks(draw: st.DrawFn) -> tuple[list[dict[str, Any]], list[tuple[int, int, int, int]]]:
    """Links of a random connected graph over 2 to 7 clients, and transfers (start, from, to, bytes)."""
    size = draw(st.integers(2, 7))
    pairs = {(draw(st.integers(0, i - 1)), i) for i in range(1, size)}      # a tree
    pairs |= draw(st.sets(st.tuples(st.integers(0, size - 1), st.integers(0, size - 1)).filter(lambda p: p[0] < p[1])))
    links = [
        link(
            f"n{a}", f"n{b}", draw(st.sampled_from(["100 B/s", "1 kB/s", "3 GB/s"])),
            draw(st.sampled_from(["0 s", "1 us", "2 us", "1 s"])), duplex=draw(st.sampled_from(["full", "half"])),
        )
        for a, b in sorted(pairs)
    ]
    node = st.integers(0, size - 1)
    transfer = st.tuples(st.integers(0, 3).map(lambda s: s * 1_000_000_000), node, node, st.integers(0, 2000))
    return links, draw(st.lists(transfer, max_size=20))


@quick_and_full(33, 100)
@given(networks())
def test_bytes_are_conserved_whatever_the_graph(
    case: tuple[list[dict[str, Any]], list[tuple[int, int, int, int]]],
) -> None:
    links, transfers = case
    clients = [f"n{i}" for i in range(7)]
    env, network = build(clients, links=links)
    arrived = [0] * len(transfers)
    expected = {use.name: 0 for use in network.links()}
    for index, (time, a, b, num_bytes) in enumerate(transfers):
        src, dst = f"n{a}", f"n{b}"

        def done(index: int = index, earliest: int = time + network.estimate_ns(src, dst, num_bytes)) -> None:
            arrived[index] += 1
            assert env.now >= earliest - 1

        at(env, time, ARRIVAL, lambda _, args=(src, dst, num_bytes, done): network.transfer(*args))
        path = network.path(src, dst)
        assert len(path) == network.hops(src, dst) + 1
        for x, y in pairwise(path):
            for name in (f"{x} -> {y}", f"{x} -- {y}", f"{y} -- {x}"):
                if name in expected:
                    expected[name] += num_bytes
    while env.peek() < float("inf"):
        env.step()
        assert network.bytes_sent >= network.bytes_received
        use = [0] * len(network.engine.share.capacity)
        for path_links, flows, rate in network.engine.rates():
            for index in path_links:
                use[index] += flows * rate
        assert all(u <= c for u, c in zip(use, network.engine.share.capacity, strict=True))
    assert arrived == [1] * len(transfers)
    assert network.bytes_sent == network.bytes_received == sum(t[3] for t in transfers)
    assert {use.name: use.num_bytes for use in network.links()} == expected
    for link_use in network.links():
        assert 0 <= link_use.full_ns <= link_use.busy_ns <= env.now
        assert not link_use.times_ns or link_use.sent_bytes[-1] == pytest.approx(link_use.num_bytes, abs=1e-6)
        sent = list(zip(link_use.times_ns, link_use.sent_bytes, strict=True))
        for (before, less), (after, more) in pairwise(sent):
            # never above the bandwidth; ends are rounded to a nanosecond, with several flows on the link
            assert -1e-6 <= more - less <= link_use.bandwidth * (after - before + 20) / 1e9 + 1e-6


def test_what_a_link_carried_by_when() -> None:
    # 1 kB/s for both: the first is alone for 1 s, then they share until it has sent 2 kB at 3 s, then the second is
    env, network = build(["x", "y", "z"], links=[link("x", "y", "1 kB/s"), link("y", "z", "4 kB/s")])
    at(env, 1_000_000_000, ARRIVAL, lambda _: network.transfer("x", "z", 2000, lambda: None))
    network.transfer("x", "y", 2000, lambda: None)
    env.run(until=6_000_000_000)
    first, _, second, _ = network.links()
    assert (first.num_bytes, first.busy_ns, first.full_ns) == (4000, 4_000_000_000, 4_000_000_000)
    assert (second.num_bytes, second.busy_ns, second.full_ns) == (2000, 3_000_000_000, 0)
    carried = dict(zip(second.times_ns, second.sent_bytes, strict=True))
    assert carried == {0: 0, 1_000_000_000: 0, 3_000_000_000: 1000, 4_000_000_000: 2000, 6_000_000_000: 2000}
