"""Start-up by phases, by hand: caches and links of nodes, pools, draws of each start, and what the engine derives."""

from __future__ import annotations

import json
import math
from itertools import pairwise
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from long_runs import quick_and_full

from hermes import simulate
from hermes.cli import main
from hermes.core.clock import Clock
from hermes.core.record import GONE
from hermes.errors import InputError
from hermes.fleet.startup_link import StarterLink
from hermes.fleet.startup_phases import OF_ENGINE
from hermes.fleet.startup_times import ExponentialTime, LognormalTime, SampleTime, UniformTime
from hermes.hardware.start_up import Started, load_start_up
from hermes.results.results import Results

S = 1_000_000_000
CLIENT: dict[str, Any] = {
    "name": "llm", "count": 4, "memory": {"num_blocks": 400}, "platform": "rack",
    "hardware": {"kind": "roofline", "model": "llama-3.1-8b", "device": "h100-sxm"},
}
NOTHING = dict.fromkeys((*OF_ENGINE, "probe"), 0.0)
"""No phase takes time."""


def run(start_up: dict[str, Any], *changes: tuple[float, int], start: int = 1, client: dict[str, Any] | None = None,
        until: float = 60.0, **keys: Any) -> Results:
    """A run of `until` seconds in which the number of replicas changes."""
    schedule = {"kind": "schedule", "changes": [{"at": at, "replicas": n} for at, n in changes]}
    own = {"start": start, "start_up": start_up, "autoscaler": schedule} | keys.pop("fleet", {})
    return simulate({
        "workload": {"requests": int(until), "arrivals": {"kind": "uniform", "rate": 1.0, "spread": 0.0},
                     "lengths": {"kind": "fixed", "prompt": 64, "output": 4}},
        "clients": [CLIENT | {"fleet": own} | (client or {})]} | keys)


def acts(results: Results, client: int) -> list[tuple[float, str]]:
    """What a slot's replicas do: (time in s, reason), the state it begins in left out."""
    rows = zip(results.record.membership.tolist(), results.record.membership_reasons, strict=True)
    return [(time / S, reason) for (index, _, time, _), reason in rows if index == client][1:]


# -- links -------------------------------------------------------------------------------------------------------------


def moved(bandwidth: float, *flows: tuple[float, float, float],
          cancels: tuple[int, float] | None = None) -> list[float]:
    """When each flow ends that begins at a time with some bytes and takes at most a rate; inf if it never does."""
    env, ends, started = Clock(), [math.inf] * len(flows), {}
    link = StarterLink(env, bandwidth)

    def done(number: int) -> None:
        ends[number] = env.now / S

    for number, (at, num_bytes, most) in enumerate(flows):
        def begin(tick: Any, number: int = number, num_bytes: float = num_bytes, most: float = most) -> None:
            started[number] = link.start(num_bytes, most, lambda: done(number))
        env.tick_at(round(at * S), 1, begin)
    if cancels is not None:
        env.tick_at(round(cancels[1] * S), 2, lambda tick: link.cancel(started[cancels[0]]))
    env.drain()
    return ends


def test_a_link_is_shared_by_hand():
    assert moved(10.0, (0.0, 100.0, 50.0)) == [10.0]
    assert moved(10.0, (0.0, 100.0, 4.0)) == [25.0]                               # its own rate limits it
    assert moved(10.0, (0.0, 100.0, 50.0), (0.0, 100.0, 50.0)) == [20.0, 20.0]
    # 40 bytes alone, then 5 bytes/s each: the second has its 30 at 10 s, and the first goes on with 10
    assert moved(10.0, (0.0, 100.0, 50.0), (4.0, 30.0, 50.0)) == [13.0, 10.0]
    assert moved(10.0, (0.0, 80.0, 50.0), (0.0, 20.0, 2.0)) == [10.0, 10.0]      # what a slow one leaves
    assert moved(10.0, (0.0, 100.0, 50.0), (0.0, 100.0, 50.0), cancels=(1, 4.0)) == [12.0, math.inf]


@given(st.lists(st.tuples(st.integers(0, 20), st.integers(0, 100), st.sampled_from([1.0, 3.0, 50.0])), min_size=1,
                max_size=6))
@quick_and_full(30, 300)
def test_no_byte_is_lost_and_no_rate_exceeded(flows):
    ends = moved(10.0, *flows)
    for (at, num_bytes, most), end in zip(flows, ends, strict=True):
        assert end + 1e-6 >= at + num_bytes / min(most, 10.0)
    busy = max(ends) - min(at for at, _, _ in flows)
    assert sum(num_bytes for _, num_bytes, _ in flows) <= 10.0 * busy + 1e-6


# -- nodes -------------------------------------------------------------------------------------------------------------


@pytest.mark.feature("Plug-ins of research", (
    "Start-up of replicas: `fixed`, `phases` (caches and links of nodes, pools, `hermes.start_ups`), shown by "
    "`hermes explain`"))
def test_the_first_start_on_a_node_is_cold_and_the_next_one_warm():
    phases = {"image": "3 s", "process": 2, "tokenizer": 0.5, "weights": {"cold": 6, "warm": 1},
              "compile": {"cold": 8, "warm": 2}, "profiling": {"cold": 1, "warm": 0.5},
              "capture": {"cold": 2, "warm": 1}, "probe": 0.25}
    # llm-0 is ready at the start on another node
    results = run(phases, (10.0, 3), (40.0, 4), client={"platform": "{i//3}"}, until=80)
    other = run(phases, (10.0, 2), (40.0, 3), client={"platform": "{i}"}, until=80)
    cold = [(10.0, "schedule"), (10.0, "image"), (13.0, "process"), (15.0, "tokenizer"), (15.5, "weights (cold)"),
            (21.5, "compile (cold)"), (29.5, "profiling (cold)"), (30.5, "capture (cold)"), (32.5, "probe"),
            (32.75, "started")]
    assert acts(other, 1) == cold
    assert acts(other, 2) == [(time + 30.0, reason) for time, reason in cold]     # a node of its own
    warm = [(10.0, "schedule"), (10.0, "process"), (12.0, "tokenizer"), (12.5, "weights"), (13.5, "compile"),
            (15.5, "profiling"), (16.0, "capture"), (17.0, "probe"), (17.25, "started")]
    assert acts(results, 1) == acts(results, 2) == warm                           # beside llm-0
    assert acts(results, 3) == [(time + 30.0, reason) for time, reason in cold]   # the second node
    assert results.summary["fleet"]["llm"]["started"] == 3


def test_what_a_node_keeps_and_has_from_the_beginning():
    phases = NOTHING | {"image": 3, "weights": {"cold": 5, "warm": 1}, "compile": {"cold": 7, "warm": 2}}
    own = {"platform": None}
    first = run(phases, (1.0, 2), client=own)
    assert acts(first, 1)[-1] == (16.0, "started")
    assert acts(run(phases | {"prepared": ["image", "compile"]}, (1.0, 2), client=own), 1)[-1] == (8.0, "started")
    again = run(phases | {"keeps": ["weights"]}, (1.0, 2), (20.0, 1), (30.0, 2), client=own)
    assert acts(again, 1)[-1] == (30.0 + 3 + 1 + 7, "started")
    assert acts(run(phases | {"node": "own"}, (1.0, 2)), 1) == acts(first, 1)


def test_two_starts_at_once_share_the_link_to_storage():
    phases = NOTHING | {"weights": {"bandwidth": "1 GB/s"}}
    times = load_start_up("vllm-0.10", None)
    loads = 16_060_522_496   # bytes of llama-3.1-8b in 16 bits
    cached = run(phases, (1.0, 2))
    assert acts(cached, 1)[-1][0] == pytest.approx(1.0 + times.weights.fixed + loads / times.weights.rate, abs=1e-6)
    for own in ({"platform": "{i}"}, {"platform": None}):
        one = run(phases, (1.0, 2), client=own)
        assert acts(one, 1)[-1][0] == pytest.approx(1.0 + times.weights.fixed + loads / 1e9, abs=1e-6)
    cold = run(phases | {"keeps": []}, (1.0, 3))
    for client in (1, 2):
        assert acts(cold, client)[-1][0] == pytest.approx(1.0 + times.weights.fixed + 2 * loads / 1e9, abs=1e-6)
    two = run(phases, (1.0, 3), client={"platform": "{i//2}", "count": 4})   # llm-1 is warm, llm-2 alone on its node
    assert acts(two, 2)[-1][0] == pytest.approx(1.0 + times.weights.fixed + loads / 1e9, abs=1e-6)
    fast = run({**phases, "keeps": [], "weights": {"bandwidth": "100 GB/s"}}, (1.0, 3))
    assert acts(fast, 2)[-1][0] == pytest.approx(1.0 + times.weights.fixed + loads / times.weights.rate, abs=1e-6)
    given_up = run(phases | {"keeps": []}, (1.0, 3), (9.0, 2))
    half = (8.0 - times.weights.fixed) / 2   # GB that each has when the other is given up
    assert acts(given_up, 1)[-1][0] == pytest.approx(9.0 + loads / 1e9 - half, abs=1e-6)
    assert acts(given_up, 2)[-1] == (9.0, "schedule")


def test_a_second_start_waits_for_the_image_that_the_first_one_pulls():
    phases = NOTHING | {"image": {"size": "10 GB", "bandwidth": "1 GB/s"}}
    pulled = run(phases, (1.0, 3), client={"platform": "{i//2}"})
    assert acts(pulled, 1)[-1] == (1.0, "started")     # llm-0 has pulled for its node
    assert acts(pulled, 2)[-1] == (11.0, "started")
    both = run(phases, (1.0, 2), (5.0, 3), client={"platform": None})
    assert [acts(both, client)[-1][0] for client in (1, 2)] == [11.0, 15.0]
    joined = run(phases | {"keeps": []}, (1.0, 2), (5.0, 3))
    assert [acts(joined, client)[-1][0] for client in (1, 2)] == [11.0, 11.0]
    first_given_up = run(phases | {"keeps": []}, (1.0, 3), (2.0, 2), (3.0, 3))
    assert acts(first_given_up, 2)[2:] == [(2.0, "schedule"), (3.0, "schedule"), (3.0, "image"), (11.0, "probe"),
                                           (11.0, "started")], "the node goes on pulling"


def test_the_probe_of_the_group_is_waited_for():
    probe = {"period": 10, "offset": 4, "delay": 1, "failures": 3}
    phases = {name: value for name, value in NOTHING.items() if name != "probe"} | {"process": 7}
    results = run(phases, (10.0, 2), (27.0, 3), fleet={"probe": probe})
    assert acts(results, 1)[-1] == (25.0, "started")     # 17 s -> the probe at 24 s, and its delay
    assert acts(results, 2)[-1] == (35.0, "started")     # 34 s is the time of a probe


def test_a_crash_comes_back_without_node_and_image():
    phases = NOTHING | {"image": 5, "process": 3, "compile": {"cold": 9, "warm": 1}}
    results = run(phases, (1.0, 2), client={"platform": None}, fleet={
        "crashes": [{"at": 30, "replica": 1}, {"at": 32, "replica": 1}], "restarts": {"backoff": 0}})
    assert acts(results, 1)[-9:] == [
        (30.0, "crashed"), (30.0, "restart"), (30.0, "process"), (32.0, "crashed"), (32.0, "restart"),
        (32.0, "process"), (35.0, "compile"), (36.0, "probe"), (36.0, "started")]


# -- the first request -------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("stepping", ["runs", "every_step"])
def test_the_first_step_of_a_replica_is_longer(stepping):
    def first_token(more: float) -> tuple[list[int], list[int]]:
        results = run(NOTHING | {"first_request": more}, (2.5, 2), client={"count": 2}, stepping=stepping)
        stages = results.record.stages
        mine = stages["client"] == 1
        frame = results.requests.set_index("request")
        requests = stages["request"][mine].tolist()
        return [round((frame["arrival_s"] + frame["ttft_s"])[each] * S) for each in requests], requests

    plain, requests = first_token(0.0)
    slow, same = first_token(0.25)
    assert requests == same
    assert slow[0] - plain[0] == pytest.approx(S // 4, abs=2)
    assert slow[1:] == pytest.approx(plain[1:], abs=2), "only the first step is longer"


def test_phases_without_caches_are_as_a_total():
    def requests(start_up: dict[str, Any]) -> bytes:
        frame = run(start_up, (3.0, 3), (20.0, 1), (30.0, 4)).requests
        return frame.to_csv().encode()

    assert requests({"total": 7}) == requests(NOTHING | {"process": 4, "compile": 3})


# -- pools -------------------------------------------------------------------------------------------------------------


def test_a_pool_provisions_keeps_and_gives_nodes_again():
    phases = NOTHING | {"process": 1, "compile": {"cold": 5, "warm": 1},
                        "pool": {"nodes": 1, "provisioning": 8, "keep": 12}}
    results = run(phases, (2.0, 3), (20.0, 1), (25.0, 2), (45.0, 3), client={"platform": None}, until=80)
    assert acts(results, 1) == [
        (2.0, "schedule"), (2.0, "process"), (3.0, "compile (cold)"), (8.0, "probe"), (8.0, "started"),
        (20.0, "schedule"), (20.0, "drained"),
        (25.0, "schedule"), (25.0, "process"), (26.0, "compile"), (27.0, "probe"), (27.0, "started")]
    # llm-2 waits 8 s for a node; that node is empty from 20 s, given away at 32 s, so that another comes cold
    assert acts(results, 2)[:4] == [(2.0, "schedule"), (10.0, "process"), (11.0, "compile (cold)"), (16.0, "probe")]
    assert acts(results, 2)[-5:] == [
        (45.0, "schedule"), (53.0, "process"), (54.0, "compile (cold)"), (59.0, "probe"), (59.0, "started")]
    held = results.summary["clients"]["llm-2"]["held_s"]
    assert held == pytest.approx(18.0 + results.record.end_ns / S - 45.0)


def test_a_provider_without_nodes():
    out = {"provisioning": 2, "stock_out": [{"at": 1, "length": 20}, {"at": 20, "length": 10}]}
    results = run(NOTHING | {"process": 1, "pool": out}, (5.0, 2), client={"platform": None})
    assert acts(results, 1) == [(30.0, "schedule"), (32.0, "process"), (33.0, "probe"), (33.0, "started")]
    assert results.summary["clients"]["llm-1"]["held_s"] == pytest.approx(results.record.end_ns / S - 30.0)
    # a node that another replica gives back comes first; what was ordered stays as an empty node
    freed = run(NOTHING | {"process": 1, "pool": out}, (0.5, 2), (6.0, 1), (6.5, 2), client={"platform": None})
    assert acts(freed, 1)[-3:] == [(6.5, "process"), (7.5, "probe"), (7.5, "started")]
    gone = run(NOTHING | {"pool": out}, (5.0, 2), (8.0, 1), client={"platform": None})
    assert acts(gone, 1) == [(8.0, "schedule")]


def test_a_quota_of_nodes():
    quota = NOTHING | {"process": 1, "pool": {"provisioning": 2, "most": 2, "keep": 4}}
    results = run(quota, (1.0, 3), (20.0, 1), (30.0, 2), client={"platform": None, "count": 3})
    assert acts(results, 1)[:3] == [(1.0, "schedule"), (3.0, "process"), (4.0, "probe")]
    assert acts(results, 2) == [(20.0, "schedule")]       # it waited for a node all the time
    assert acts(results, 1)[-4:] == [(30.0, "schedule"), (32.0, "process"), (33.0, "probe"), (33.0, "started")]


# -- draws -------------------------------------------------------------------------------------------------------------


def test_distributions_by_hand():
    assert [UniformTime(min=2.0, max=6.0).at(share) for share in (0.0, 0.25, 1.0)] == [2.0, 3.0, 6.0]
    assert LognormalTime(median=8.0, sigma=0.5).at(0.5) == 8.0
    assert LognormalTime(median=8.0, sigma=0.5).at(0.95) == pytest.approx(8.0 * math.exp(0.5 * 1.6448536), rel=1e-6)
    assert ExponentialTime(mean=2.0).at(1 - math.exp(-3.0)) == pytest.approx(6.0)
    assert [SampleTime(times=[3.0, 1.0, 2.0]).at(share) for share in (0.0, 0.4, 0.99999, 1.0)] == [1.0, 2.0, 3.0, 3.0]
    with pytest.raises(InputError, match=r"start_up\.process\.max: expected at least min"):
        run(NOTHING | {"process": {"kind": "uniform", "min": 2, "max": 1}})


def test_draws_of_a_start_do_not_depend_on_other_clients():
    spread = {"kind": "lognormal", "median": 5, "sigma": 0.5}
    phases = NOTHING | {"process": spread, "capture": {"kind": "uniform", "min": 1, "max": 4}}
    few = run(phases, (1.0, 2), (30.0, 1), (40.0, 2), client={"count": 2}, until=90)
    many = run(phases, (1.0, 5), (30.0, 1), (40.0, 5), client={"count": 5}, until=90)
    assert acts(few, 1) == acts(many, 1)
    ups = [acts(many, client)[index + 3][0] - acts(many, client)[index][0] for client in (1, 2, 3)
           for index, (_, reason) in enumerate(acts(many, client)) if reason == "process"]
    assert len(set(ups)) == 6, "each start draws its own"
    assert acts(run(phases | {"tokenizer": 1}, (1.0, 2), client={"count": 2}), 1)[3][0] == acts(few, 1)[2][0] + 1.0
    other = run(phases, (1.0, 2), client={"count": 2}, seed=1)
    assert acts(other, 1) != acts(few, 1)


# -- what the engine derives -------------------------------------------------------------------------------------------


def test_phases_of_an_engine_by_hand():
    times = load_start_up("vllm-0.10", None)
    found = times.phases(Started(32, 100_000, 18_000_000_000, 14e9, 300e12, (1, 2, 4)))
    assert found["process"] == (times.process, times.process)
    assert found["weights"][0] == times.weights.fixed + 18e9 / times.weights.rate
    assert found["tokenizer"][1] == times.tokenizer.fixed + 1e5 * times.tokenizer.per_word
    assert found["compile"][1] == pytest.approx(
        times.trace.fixed + 32 * times.trace.per_layer + times.load_compiled.fixed + 32 * times.load_compiled.per_layer)
    assert found["compile"][0] - found["compile"][1] == pytest.approx(
        times.compile.of(32) - times.load_compiled.of(32))
    assert found["capture"][1] == pytest.approx(
        times.capture.fixed + 3 * 32 * times.capture.per_layer + 7 * 14e9 / (300e12 * times.capture.efficiency))
    assert found["capture"][0] - found["capture"][1] == pytest.approx(times.capture_first.of(32))
    none = times.phases(Started(32, 100_000, 18_000_000_000, 14e9, 300e12, ()))
    assert none["capture"] == (0.0, 0.0)


def lengths(start_up: dict[str, Any]) -> dict[str, float]:
    """Seconds of each phase of the start of a second replica."""
    found = acts(run(start_up | {"probe": 0.0}, (1.0, 2), until=200.0, client={"count": 2}), 1)
    return {name: after - at for (at, name), (after, _) in pairwise(found)}


@pytest.mark.parametrize("host", [0.5, {"warm": 20.0, "model": "llama-3.1-8b"}, {"warm": 20.0}])
def test_the_factor_of_a_host_by_hand(host):
    """Phases that are left out take it, and leave out what only the host of the times takes at its first capture."""
    warm = lengths({})
    factor = host if isinstance(host, float) else 20.0 / sum(warm.values())
    assert lengths({"host": host}) == pytest.approx({name: factor * each for name, each in warm.items()}, abs=1e-6)
    cold = lengths({"node": "own", "process": 5.0})
    first = load_start_up("vllm-0.10", None).capture_first.of(32)
    wanted = {name: factor * (each - first if name == "capture (cold)" else each) for name, each in cold.items()}
    assert lengths({"node": "own", "process": 5.0, "host": host}) == pytest.approx(wanted | {"process": 5.0}, abs=1e-6)


def test_more_layers_and_bytes_take_longer():
    times = load_start_up("vllm-0.10", None)
    small = times.phases(Started(16, 50_000, 2 << 30, 2e9, 300e12, (1, 2, 4)))
    large = times.phases(Started(80, 150_000, 140 << 30, 140e9, 300e12, (1, 2, 4, 8)))
    for phase in OF_ENGINE:
        for mine, theirs in zip(small[phase], large[phase], strict=True):
            assert mine <= theirs if phase == "process" else mine < theirs
        assert large[phase][0] >= large[phase][1]


def test_a_model_without_a_description_needs_given_phases():
    client = {"hardware": {"kind": "polynomial", "profile": "vllm-cpu-small-llama"}, "platform": None}
    with pytest.raises(InputError, match=r"clients\.0\.fleet\.start_up: .*descriptions; name them, or give"):
        run({"process": 1}, (1.0, 2), client=client)
    assert acts(run(NOTHING | {"process": 1}, (1.0, 2), client=client), 1)[-1] == (2.0, "started")


@given(st.data())
@quick_and_full(10, 75, thorough=600)
def test_any_phases_lose_nothing(data):
    time = st.sampled_from([0.0, 0.3, 2.0, {"kind": "exponential", "mean": 0.7}])
    phases: dict[str, Any] = {name: data.draw(time) for name in (*OF_ENGINE, "probe", "image", "first_request")}
    if data.draw(st.booleans()):
        phases["weights"] = {"bandwidth": 8e9}
    if data.draw(st.booleans()):
        phases["pool"] = {"nodes": data.draw(st.integers(0, 1)), "provisioning": data.draw(time),
                          "most": data.draw(st.sampled_from([None, 3])), "keep": data.draw(st.sampled_from([0.0, 3.0])),
                          "stock_out": data.draw(st.sampled_from([[], [{"at": 3.0, "length": 4.0}]]))}
    changes = data.draw(st.lists(st.tuples(st.integers(1, 300), st.integers(1, 4)), max_size=6,
                                 unique_by=lambda change: change[0]))
    crashes = data.draw(st.lists(st.builds(lambda at, slot: {"at": at / 10, "replica": slot}, st.integers(1, 300),
                                           st.integers(0, 3)), max_size=4))
    keys = {"fleet": {"crashes": crashes}, "gateway": {"retries": 20, "backoff": 0.2, "queue": {"ttl": 200}},
            "client": {"platform": data.draw(st.sampled_from([None, "a", "{i//2}"]))}}
    scheduled = [(at / 10, n) for at, n in sorted(changes)] or [(1.0, 2)]
    results = run(phases, *scheduled, until=30, **keys)
    literal = run(phases, *scheduled, until=30, **keys, stepping="every_step")
    assert len(results.record.status) == 30
    assert results.record.membership.tolist() == literal.record.membership.tolist()
    assert results.record.finish_ns.tolist() == literal.record.finish_ns.tolist()
    states = dict.fromkeys(range(4), GONE)
    for index, _, _, now in results.record.membership.tolist():
        states[index] = now
        if phases.get("pool", {}).get("most"):
            assert sum(state != GONE for state in states.values()) <= phases["pool"]["most"], "more nodes than allowed"
    for client in results.summary["clients"].values():
        assert 0.0 <= client["held_s"] <= results.record.end_ns / 1e9 + 1e-9


# -- explain -----------------------------------------------------------------------------------------------------------


def test_explain_has_the_phases_cold_and_warm(tmp_path, capsys):
    times, loads = load_start_up("vllm-0.10", None), 16_060_522_496
    file = tmp_path / "a.yaml"
    file.write_text("""
workload: {requests: 1, arrivals: {kind: poisson, rate: 1}, lengths: {kind: fixed, prompt: 8, output: 2}}
clients:
  - count: 2
    model: llama-3.1-8b
    device: a100-80gb
    fleet:
      start: 1
      probe: {period: 10 s, delay: 1 s}
      start_up:
        image: {size: 10 GB, bandwidth: 500 MB/s}
        process: {kind: lognormal, median: 8, sigma: 0.5}
        weights: {bandwidth: 1 GB/s}
        compile: {cold: 40, warm: 5}
        pool: {provisioning: 3 min}
        first_request: 9
""")
    assert main(["explain", str(file), "--json"]) == 0
    (start,) = [one for one in json.loads(capsys.readouterr().out) if "phases" in one]
    rows = {row["phase"]: (row["cold_s"], row["warm_s"]) for row in start["phases"]}
    assert list(rows) == ["node", "image", *OF_ENGINE, "probe", "first request"]
    assert rows["node"] == (180.0, 0.0)
    assert rows["image"] == (20.0, 0.0)
    assert rows["process"] == (8.0, 8.0)
    assert rows["weights"] == pytest.approx((times.weights.fixed + loads / 1e9,
                                             times.weights.fixed + loads / times.weights.rate))
    assert rows["compile"] == (40.0, 5.0)
    assert rows["profiling"] == pytest.approx((times.profiling.of(32) + times.profiling_first.of(32),
                                               times.profiling.of(32)))
    assert rows["probe"] == (6.0, 6.0)
    assert main(["explain", str(file)]) == 0
    shown = " ".join(capsys.readouterr().out.split())
    cold, warm = (sum(each[place] for name, each in rows.items() if name != "first request") for place in (0, 1))
    assert f"llm: a replica is ready after {cold:.3g} s (" in shown
    spread = {row["phase"]: row["spread"] for row in start["phases"]}
    low, high = (sum(each[1] * spread[name][1][end] for name, each in rows.items() if name != "first request")
                 for end in (0, 1))
    assert f" on a cold node, {warm:.3g} s ({low:.3g} to {high:.3g}) on a warm" in shown
    # by hand: what is given has no range, what follows from the host 0.5 to 1.1 of it
    derived = sum(rows[name][1] for name in ("tokenizer", "weights", "profiling", "capture"))
    assert low == pytest.approx(8 + 5 + 6 + 0.5 * derived)
    assert high == pytest.approx(8 + 5 + 6 + 1.1 * derived)
    assert main(["explain", str(file), "--set", "clients.0.fleet.start_up={total: 30}"]) == 0
    assert "a replica is ready after 30 s" in " ".join(capsys.readouterr().out.split())


def services(start_up: dict[str, Any]) -> Results:
    return simulate({
        "workload": {"requests": 40, "arrivals": {"kind": "uniform", "rate": 1.0, "spread": 0.0},
                     "lengths": {"kind": "fixed", "prompt": 8, "output": 2}, "pipeline": "find"},
        "pipelines": {"find": {"stages": {"find": {"kind": "find"}}}},
        "clients": [{"kind": "processing", "name": "index", "count": 2,
                     "serves": {"find": {"kind": "per_item", "fixed": "1 ms"}},
                     "fleet": {"start": 1, "start_up": start_up, "autoscaler": {
                         "kind": "schedule", "changes": [{"at": 3.0, "replicas": 2}]}}}]})


def test_services_start_in_given_phases():
    assert acts(services(NOTHING | {"image": 4, "process": 2}), 1)[-1] == (9.0, "started")
    with pytest.raises(InputError, match=r"fleet\.start_up: these clients are no LLM engines, .* give the `total`, or"):
        services({"image": 4})
    with pytest.raises(InputError, match=r"fleet\.start_up\.first_request: these clients are no LLM engines"):
        services(NOTHING | {"first_request": 4})
