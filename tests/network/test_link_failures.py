"""Links that get slower, or are gone: flows under way are re-timed, by hand and as the exact fluid model says."""

from __future__ import annotations

from fractions import Fraction
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from long_runs import quick_and_full
from simpy.core import Environment
from test_flow_engine import Change, Flow, S, exact_ends
from test_max_min import assert_max_min, histories

from hermes import simulate
from hermes.config.validation import validate
from hermes.config.yaml_document import as_node
from hermes.core.clock import ARRIVAL, FAILURE, at
from hermes.errors import InputError
from hermes.network.base import BaseNetwork
from hermes.network.components import Link
from hermes.network.flows import FlowEngine, capacity_of
from hermes.network.sharing import RATE_UNIT, MaxMin, Stream
from hermes.network.topology import Topology
from hermes.scenario import load_scenario
from hermes.scenario.build import build


def ends(bandwidths: list[float], flows: list[Flow], changes: list[Change]) -> tuple[list[int], FlowEngine]:
    """Each flow's end in ns."""
    env = Environment()
    engine = FlowEngine(env, bandwidths)
    end = [-1] * len(flows)

    def start(index: int) -> None:
        engine.start(flows[index][1], flows[index][2], lambda: end.__setitem__(index, int(env.now)))

    for index, flow in enumerate(flows):
        at(env, flow[0], ARRIVAL, lambda _, index=index: start(index))
    for time, link, bandwidth in changes:
        at(env, time, FAILURE, lambda _, link=link, bandwidth=bandwidth: engine.resize(link, capacity_of(bandwidth)))
    env.run()
    return end, engine


@st.composite
def traffic(draw: st.DrawFn) -> tuple[list[float], list[Flow], list[Change]]:
    num_links = draw(st.integers(1, 5))
    bandwidth = st.sampled_from([1.0, 7.0, 100.0, 1e3])
    bandwidths = draw(st.lists(bandwidth, min_size=num_links, max_size=num_links))
    time = st.integers(0, 200).map(lambda tenth: tenth * S // 10)
    links = st.integers(0, num_links - 1)
    flow = st.tuples(time, st.lists(links, min_size=1, max_size=num_links, unique=True).map(tuple),
                     st.integers(1, 1000))
    change = st.tuples(time, links, st.sampled_from([0.0, 0.5, 3.0, 100.0]))
    changes = draw(st.lists(change, max_size=8, unique_by=lambda one: one[:2]))
    last = [(25 * S, link, 10.0) for link in range(num_links)]   # no link is gone for ever
    return bandwidths, draw(st.lists(flow, min_size=1, max_size=15)), changes + last


@quick_and_full(60, 300)
@given(traffic())
def test_ends_are_those_of_the_exact_fluid_model(case: tuple[list[float], list[Flow], list[Change]]) -> None:
    bandwidths, flows, changes = case
    end, engine = ends(bandwidths, flows, changes)
    for index, (got, want) in enumerate(zip(end, exact_ends(*case), strict=True)):
        # as without changes; and a link that is gone lets one rate unit pass
        tolerance = len(flows) + want * S * (len(flows) + 1) ** 2 / (RATE_UNIT * Fraction(1, 2))
        assert abs(got - want * S) <= tolerance, index
    carried = [0] * len(bandwidths)
    for _, links, num_bytes in flows:
        for link in links:
            carried[link] += num_bytes
    assert engine.bytes_on() == carried
    assert not engine.rates()


@quick_and_full(40, 200)
@given(histories(), st.lists(st.tuples(st.integers(0, 7), st.sampled_from([10**3, 10**6, 3 * 10**8])), max_size=20))
def test_rates_are_max_min_after_every_resize(history: Any, resized: list[tuple[int, int]]) -> None:
    capacities, paths, rounds = history
    share, streams = MaxMin(capacities), [Stream(path) for path in paths]
    for number, changes in enumerate(rounds):
        for index, flows in changes:
            share.change(streams[index], flows)
        for link, capacity in resized[number:number + 1]:
            share.resize(link % len(capacities), capacity)
        share.settle()
        assert_max_min(share, streams)


def test_a_flow_on_a_link_that_slows_down() -> None:
    """100 B/s: 200 of 300 bytes in 2 s; then 20 B/s: 5 s more. A second flow from 2 s on has the other half of what is
    left: 10 B/s each for 10 s; gone from 4 s to 9 s, both end 5 s later."""
    assert ends([100.0], [(0, (0,), 300)], [(2 * S, 0, 20.0)])[0] == [7 * S]
    two: list[Flow] = [(0, (0,), 300), (2 * S, (0,), 100)]
    assert ends([100.0], two, [(2 * S, 0, 20.0)])[0] == [12 * S, 12 * S]
    gone: list[Change] = [(2 * S, 0, 20.0), (4 * S, 0, 0.0), (9 * S, 0, 20.0)]
    assert ends([100.0], two, gone)[0] == [17 * S, 17 * S]


# -- networks ----------------------------------------------------------------------------------------------------------


def arrivals(network: BaseNetwork, env: Environment, sends: list[tuple[int, str, str, int]],
             changes: list[tuple[int, Any, float]], over_ns: int = 0) -> list[int]:
    """When each transfer has arrived, or each stream has left, in ns."""
    done = [-1] * len(sends)

    def send(index: int) -> None:
        _, src, dst, num_bytes = sends[index]

        def note() -> None:
            done[index] = int(env.now)

        if over_ns:
            network.stream(src, dst, num_bytes, over_ns, note)
        else:
            network.transfer(src, dst, num_bytes, note)

    for index, one in enumerate(sends):
        at(env, one[0], ARRIVAL, lambda _, index=index: send(index))
    for time, between, factor in changes:
        at(env, time, FAILURE, lambda _, between=between, factor=factor: network.set_link(between, factor))
    env.run()
    return done


GONE = float("inf")


def test_transfers_of_other_pairs_go_on() -> None:
    """A byte a ns, latency 50. Two transfers between a and b at once do not wait for each other; the way back is slow,
    too. c is not concerned."""
    config = Link.model_validate({"bandwidth": 1e9, "latency": 50e-9, "failures": [{"at": 0, "factor": 2}]})
    env = Environment()
    network = config.build(env, ["a", "b", "c"])
    assert isinstance(network, BaseNetwork)
    sends = [(0, "a", "b", 1000), (0, "a", "b", 1000), (100, "b", "a", 1000), (0, "a", "c", 1000), (700, "a", "b", 200)]
    found = arrivals(network, env, sends, [(500, ("a", "b"), 4.0), (900, ("b", "a"), 1.0)])
    # 500 of 1,000 bytes by 500, 100 by 900, 400 more by 1,300; the third 400 + 100 + 500; the last 50 + 150
    assert found == [1350, 1350, 1450, 1050, 1100]
    assert network.bytes_received == network.bytes_sent == 4200


def test_streams_are_limited_by_their_bytes_and_the_link() -> None:
    """1,000 bytes become ready over 2,000 ns, half the link's rate. From 1,000 to 1,400 the link is gone: they leave
    400 later; a link of half its rate does not matter."""
    config = Link.model_validate({"bandwidth": 1e9, "failures": [{"at": 0, "factor": 2}]})
    for changes, left in (([], 2000), ([(1000, None, GONE), (1400, None, 1.0)], 2400), ([(500, None, 2.0)], 2000)):
        env = Environment()
        network = config.build(env, ["a", "b"])
        assert isinstance(network, BaseNetwork)
        assert arrivals(network, env, [(0, "a", "b", 1000)], changes, over_ns=2000) == [left]


def test_a_cancelled_transfer_has_sent_what_the_slow_link_let_pass() -> None:
    config = Link.model_validate({"bandwidth": 1e9, "failures": [{"at": 0, "factor": 2}]})
    env = Environment()
    network = config.build(env, ["a", "b"])
    assert isinstance(network, BaseNetwork)
    flow, sent = network.transfer("a", "b", 1000, lambda: None), []
    at(env, 500, FAILURE, lambda _: network.set_link(("a", "b"), 4.0))
    at(env, 900, ARRIVAL, lambda _: sent.append(network.cancel(flow)))
    env.run()
    assert sent == [600]
    assert network.bytes_cancelled == 1000


TOPOLOGY: dict[str, Any] = {"kind": "topology", "nodes": ["switch"], "links": [
    {"a": "a", "b": "switch", "bandwidth": 1e9}, {"a": "b", "b": "switch", "bandwidth": 1e9}],
    "attach": {"c": "switch"}}


def test_one_link_of_a_path_is_slow() -> None:
    """a and b send to c, which sits at the switch: each has a link of its own."""
    env = Environment()
    network = validate(Topology, as_node(TOPOLOGY)).build(env, ["a", "b", "c"])
    assert isinstance(network, BaseNetwork)
    network.check_link(("c", "a"))
    found = arrivals(network, env, [(0, "a", "c", 1000), (0, "b", "c", 1000)], [(500, ("c", "a"), 4.0)])
    assert found == [2500, 1000]


# -- scenarios ---------------------------------------------------------------------------------------------------------


def scenario(network: dict[str, Any]) -> dict[str, Any]:
    half = {"memory": {"num_blocks": 500}, "hardware": {"kind": "roofline", "model": "llama-3.1-8b",
                                                        "device": "h100-sxm"}}
    pair = [half | {"name": role[0], "role": role} for role in ("prefill", "decode")]
    return {"network": network, "clients": pair,
            "workload": {"requests": 30, "arrivals": {"kind": "poisson", "rate": 5.0},
                         "lengths": {"kind": "fixed", "prompt": 512, "output": 8}}}


@pytest.mark.parametrize("kv_transfer", ["full", "layerwise"])
@pytest.mark.parametrize("kind", ["link", "kv_link", "topology", "rack"])
def test_random_failures_are_the_same_with_the_same_seed_and_lose_nothing(kind: str, kv_transfer: str) -> None:
    network: dict[str, Any] = {"kind": kind, "bandwidth": 2e9}
    if kind == "topology":
        network = {"kind": kind, "links": [{"a": "p", "b": "d", "bandwidth": 2e9}]}
    elif kind == "rack":
        network = {"kind": kind, "gpus_per_box": 1, "nic": 2e9}
    failures = [{"every": {"mean": 0.3}, "lasts": 0.1, "factor": 3}, {"every": {"mean": 0.7}, "lasts": 0.2},
                {"at": 1.0, "factor": 2, "between": ["p", "rack" if kind == "rack" else "d"]}]
    data = scenario(network | {"failures": failures}) | {"kv_transfer": kv_transfer}
    first, again, steps, other, without = (simulate(one).record for one in (
        data, data, data | {"stepping": "every_step"}, data | {"seed": 1}, scenario(network) | {
            "kv_transfer": kv_transfer}))
    assert (first.status == 1).all()
    assert first.finish_ns.tolist() == again.finish_ns.tolist() == steps.finish_ns.tolist()
    assert first.finish_ns.tolist() != other.finish_ns.tolist()
    assert first.finish_ns.sum() > without.finish_ns.sum()


@pytest.mark.parametrize(("network", "said"), [
    ({"kind": "link", "bandwidth": 1e9, "failures": [{"factor": 2}]}, r"network\.failures\.0.*at: give one of"),
    ({"kind": "link", "bandwidth": 1e9, "failures": [{"at": 1}]}, r"network\.failures\.0.*lasts: missing: transfers"),
    ({"kind": "link", "bandwidth": 1e9, "failures": [{"every": {"mean": 1}, "factor": 2}]}, r"lasts: missing: at rand"),
    ({"kind": "link", "bandwidth": 1e9, "failures": [{"at": 1, "factor": 2, "between": ["p", "e"]}]},
     r"network\.failures\.0\.between: expected a node of the network"),
    ({"kind": "link", "bandwidth": 1e9, "shared": True, "failures": [{"at": 1, "factor": 2, "between": ["p", "d"]}]},
     r"network\.failures\.0\.between: there is one link for all clients"),
    ({"kind": "rack", "failures": [{"at": 1, "factor": 2, "between": ["p", "spine"]}]},
     r"network\.failures\.0\.between: expected the ends of a link, such as "),
])
def test_what_is_refused(network: dict[str, Any], said: str) -> None:
    with pytest.raises(InputError, match=said):
        build(load_scenario(scenario(network)))
