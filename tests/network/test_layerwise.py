"""Layer-wise transfer: the formula against a simulation of the layers."""

from __future__ import annotations

from functools import partial

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from simpy.core import Environment

from hermes.api import simulate
from hermes.core.clock import ARRIVAL, at
from hermes.network import LayerStream, exposed_bytes
from hermes.network.topology import Topology, TopologyLink, TopologyNetwork
from hermes.results import Results


def test_fast_link_exposes_the_last_layer() -> None:
    assert exposed_bytes(80, layers=80, compute_s=1.0, bandwidth=1e9) == 1
    assert exposed_bytes(81, layers=80, compute_s=1.0, bandwidth=1e9) == 2


def test_slow_link_exposes_what_it_could_not_move() -> None:
    # layers are ready at 0.25, 0.5, 0.75 and 1 s: 0.75 s at 40 bytes/s
    assert exposed_bytes(100, layers=4, compute_s=1.0, bandwidth=40.0) == 70


def test_one_layer_or_no_time_hides_nothing() -> None:
    assert exposed_bytes(100, layers=1, compute_s=1.0, bandwidth=1e9) == 100
    assert exposed_bytes(100, layers=10, compute_s=0.0, bandwidth=1e9) == 100
    assert exposed_bytes(0, layers=10, compute_s=1.0, bandwidth=1e9) == 0


def test_infinite_bandwidth() -> None:
    assert exposed_bytes(100, layers=10, compute_s=1.0, bandwidth=float("inf")) == 10


@pytest.mark.parametrize(
    "bad", [{"num_bytes": -1}, {"layers": 0}, {"compute_s": -1.0}, {"bandwidth": 0.0}, {"bandwidth": float("nan")}],
)
def test_nonsense(bad: dict[str, float]) -> None:
    with pytest.raises(ValueError):
        exposed_bytes(**{"num_bytes": 1, "layers": 1, "compute_s": 1.0, "bandwidth": 1.0} | bad)  # type: ignore[arg-type]


@given(st.integers(0, 10**6), st.integers(1, 100), st.floats(0, 10), st.floats(1, 1e7))
def test_is_what_a_queue_of_layers_leaves(num_bytes: int, layers: int, compute_s: float, bandwidth: float) -> None:
    free_s = 0.0     # when the link has moved all layers before
    for layer in range(1, layers + 1):
        free_s = max(free_s, compute_s * layer / layers) + num_bytes / layers / bandwidth
    left = (free_s - compute_s) * bandwidth
    assert exposed_bytes(num_bytes, layers, compute_s, bandwidth) == pytest.approx(left, abs=1 + 1e-6 * left)


def ends(bandwidth: float, layers: int, steps: list[tuple[int, int]], *, latency_s: float = 0.0,
         beside: tuple[int, int] | None = None) -> tuple[int, int | None, TopologyNetwork]:
    """When the KV of a prefill in `steps` (ns, bytes) is at the other end of a link; the same of a transfer `beside` it
    (start in ns, bytes)."""
    env = Environment()
    link = TopologyLink(a="x", b="y", bandwidth=bandwidth, latency=latency_s)
    network = Topology(links=[link]).build(env, ["x", "y"])
    assert isinstance(network, TopologyNetwork)
    stream = LayerStream(env, network, "x", "y", layers)
    done: dict[str, int] = {}
    begin = total = 0
    for length, num_bytes in steps:
        args = total, total + num_bytes, begin, begin + length
        at(env, begin, ARRIVAL, lambda _, args=args: stream.step(*args))
        begin, total = begin + length, total + num_bytes
    finished = partial(done.setdefault, "stream")
    at(env, begin, ARRIVAL, lambda _: stream.finish(total, lambda: finished(int(env.now))))
    if beside is not None:
        other = partial(done.setdefault, "beside")
        at(env, beside[0], ARRIVAL, lambda _: network.transfer("x", "y", beside[1], lambda: other(int(env.now))))
    env.run()
    assert network.bytes_sent == network.bytes_received == total + (beside[1] if beside else 0)
    assert network.links()[0].num_bytes == network.bytes_sent     # all of it was on the link
    return done["stream"], done.get("beside"), network


@settings(max_examples=100, deadline=None)
@given(st.integers(1, 10**7), st.integers(1, 100), st.integers(1000, 10**9), st.floats(1e5, 1e12), st.floats(0, 0.1))
def test_alone_on_a_link_the_rest_is_that_of_the_formula(
    num_bytes: int, layers: int, step_ns: int, bandwidth: float, latency_s: float,
) -> None:
    end, _, _ = ends(bandwidth, layers, [(step_ns, num_bytes)], latency_s=latency_s)
    left = exposed_bytes(num_bytes, layers, step_ns / 1e9, bandwidth)
    # bytes are whole, and so are the nanoseconds at which flows end
    assert end - step_ns == pytest.approx(left / bandwidth * 1e9 + latency_s * 1e9, abs=3 + 2e9 / bandwidth, rel=1e-6)


def test_chunks_of_a_prefill_follow_each_other() -> None:
    # two steps of 1 s and 1000 bytes, 10 layers, 1000 bytes/s: from 0.1 s on the link is never idle
    assert ends(1000.0, 10, [(10**9, 1000), (10**9, 1000)])[0] == 2_100_000_000
    assert ends(1e9, 10, [(10**9, 1000), (10**9, 1000)])[0] == 2_000_000_100     # the last layer alone
    assert ends(100.0, 10, [(10**9, 1000), (10**9, 1000)])[0] == 20_100_000_000  # all of it, from the first layer on


def test_kv_that_moves_beside_its_prefill_slows_others() -> None:
    # 1000 bytes/s; KV comes at 500 bytes/s from 0.5 s to 1 s, 250 bytes, and at most half of the link to the other
    _, other, network = ends(1000.0, 2, [(10**9, 500)], beside=(0, 1000))
    # alone 0.5 s; to 1 s half the link each; then 250 bytes of the last layer beside 250 of its own
    assert other == 1_500_000_000
    assert network.links()[0].busy_ns == 1_500_000_000
    assert ends(1000.0, 2, [(10**9, 500)])[0] == 1_250_000_000


def disaggregated(count: int, kv_transfer: str, bandwidth: str = "40 GB/s") -> Results:
    """Prompts of 1000 tokens, 2 GB each, prefilled on clients of their own; one link to those that decode."""
    group = {"model": "llama-2-70b",
             "hardware": {"kind": "polynomial", "profile": "splitwise-2023-llama-2-70b-h100-tp8"},
             "count": count, "memory": {"num_blocks": 4000, "kv_bytes_per_token": 2_000_000}}
    return simulate({
        "workload": {"requests": count, "arrivals": {"kind": "at_once"},
                     "lengths": {"kind": "fixed", "prompt": 1000, "output": 3}},
        "clients": [{"name": role, "role": role, **group} for role in ("prefill", "decode")],
        "network": {"kind": "topology", "nodes": ["l", "r"], "links": [{"a": "l", "b": "r", "bandwidth": bandwidth}],
                    "attach": {"prefill": "l", "decode": "r"}},
        "kv_transfer": kv_transfer,
    })


def test_a_hand_over_waits_for_what_the_formula_leaves_and_loads_the_link_with_all() -> None:
    results = disaggregated(1, "layerwise")
    prefill_s = (results.stages["end_s"] - results.stages["start_s"]).iloc[0]
    left = exposed_bytes(2 * 10**9, 80, prefill_s, 40e9)
    assert left < 10**9
    took = (results.transfers["end_s"] - results.transfers["start_s"]).iloc[0]
    assert took == pytest.approx(left / 40e9, rel=1e-4)
    assert results.links["bytes"].sum() == pytest.approx(2e9)
    full = disaggregated(1, "full")
    assert (full.transfers["end_s"] - full.transfers["start_s"]).iloc[0] == pytest.approx(2 / 40)


def test_prefills_side_by_side_share_the_link_while_they_run() -> None:
    # the link is the limit: all KV goes over it from the first layer on
    results = disaggregated(4, "layerwise")
    started, ended = results.stages["start_s"].min(), results.transfers["end_s"].max()
    prefill_s = (results.stages["end_s"] - results.stages["start_s"]).iloc[0]
    assert ended - started == pytest.approx(4 * 2 / 40 + prefill_s / 80, rel=0.01)
    assert ended - started < disaggregated(4, "full").transfers["end_s"].max() - started - 0.8 * prefill_s
