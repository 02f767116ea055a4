"""Replicas of several devices, ranks and nodes have one life: by hand, to the nanosecond.

Steps as in `hand_parts`: a prompt of 10 tokens takes 2,000 ns, each further token 1,000 ns; a step of all ranks takes
as long as that of the rank with most to do. A request of 1,000 alone has its tokens at 3,000, 4,000, ..., 10,000.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any, Literal

import hand_parts
import numpy as np
import pytest
from hand_parts import MODES, Run, Steps, ask, client, fleet, s
from hypothesis import given
from hypothesis import strategies as st
from long_runs import quick_and_full

from hermes.arrays import IntArray
from hermes.config.streams import Every
from hermes.core.clock import Clock
from hermes.errors import InputError
from hermes.fleet.failure_times import FailureClock
from hermes.hardware.base import StepStats
from hermes.hardware.config import HardwareConfig
from hermes.hardware.info import HardwareInfo
from hermes.scenario import load_scenario
from hermes.scenario.build import build

each_mode = pytest.mark.parametrize("mode", MODES)
S = 10**9


class Group(Steps):
    """Prices the steps of several ranks, each of some devices, and of stages that take equal parts of a step."""

    def __init__(self, tp: int, dp: int, pp: int) -> None:
        self.info = HardwareInfo("hand", "hand", devices=tp * pp, tp=tp, dp=dp, pp=pp, whole_experts=dp > 1)

    def lockstep_ns(self, batches: list[StepStats | None], num_steps: int) -> IntArray:
        longest = max(self.step_ns(one) for one in batches if one is not None)
        return np.full(num_steps, longest, dtype=np.int64)

    def stages_ns(self, stats: StepStats) -> list[int]:
        return [self.step_ns(stats) // self.info.pp] * self.info.pp

    def lockstep_stages_ns(self, batches: list[StepStats | None]) -> list[int]:
        return [int(self.lockstep_ns(batches, 1)[0]) // self.info.pp] * self.info.pp


class GroupConfig(HardwareConfig):
    kind: Literal["hand_group"] = "hand_group"
    tp: int = 1
    dp: int = 1
    pp: int = 1

    def build(self, base_dir: Path | None = None) -> Group:
        return Group(self.tp, self.dp, self.pp)


@pytest.fixture(scope="module", autouse=True)
def _hand_parts() -> Iterator[None]:
    with hand_parts.registered(hand_group=GroupConfig):
        yield


def group(own: dict[str, Any], *, tp: int = 1, dp: int = 1, pp: int = 1, **more: Any) -> dict[str, Any]:
    """Return clients whose engines have so many devices, ranks and stages."""
    parallel = {"tp": tp, "dp": dp, "pp": pp} | ({"ep": tp * dp} if dp > 1 else {})
    return client(own, hardware={"kind": "hand_group", "tp": tp, "dp": dp, "pp": pp}, parallel=parallel, **more)


def failing(*failures: dict[str, Any], **more: Any) -> dict[str, Any]:
    own = {key: more.pop(key) for key in ("restarts", "nodes", "liveness", "start_up") if key in more}
    return fleet(**more) | {"failures": list(failures)} | own


# -- one life ----------------------------------------------------------------------------------------------------------


@pytest.mark.feature("Plug-ins of research", "Fleets of engines with ranks, experts and stages over nodes and zones; "
                                             "a device takes its group down (`fleet.nodes`, `restarts.group_policy`)")
@each_mode
def test_a_device_of_two_takes_its_replica_down(mode: str) -> None:
    """TP2. The device is lost at 5,500, between the third token (5,000) and the fourth, and back at 9,500; the start
    takes 500. The retry takes 9,000 on the other replica."""
    own = failing({"kind": "device", "at": s(5500), "repair": s(4000)}, up=500)
    found = Run([group(own, tp=2)], [ask(1000), ask(20000, 1, 1)], mode)
    assert found.members(0) == [(0, 5500, "down", "device down"), (1, 9500, "starting", "restart"),
                                (1, 10000, "ready", "started")]
    assert found.members(1) == []
    assert found.attempts[:2] == [(0, 1, 0, 1000, 5500, "failed"), (0, 2, 1, 5500, 14500, "completed")]
    assert found.step_ends(0)[:3] == [3000, 4000, 5000]
    assert found.results.summary["fleet"]["llm"]["device_down"] == 1
    hours = found.results.summary["fleet"]["llm"]["held_device_hours"]
    assert hours == pytest.approx(2 * 2 * found.record.end_ns / S / 3600)   # both replicas, of two devices, throughout


@each_mode
def test_a_group_that_is_made_anew_takes_a_free_slot(mode: str) -> None:
    """As above, where a restart makes all pods anew: the third slot starts at once, without the wait of a second
    restart, and routers know of the deletion 200 later, while no probe runs."""
    own = failing({"kind": "device", "at": s(5500), "repair": s(4000)}, up=500, probe=(10**6, 1, 200, 0),
                  restarts={"group_policy": "recreate_group", "backoff": s(3000)})
    asks = [ask(1000), ask(5600, 1, 1), ask(5601, 1, 1), ask(5750, 1, 1), ask(5751, 1, 1)]
    found = Run([group(own, tp=2, count=3)], asks, mode)
    assert found.members(0) == [(0, 5500, "down", "device down"), (0, 5500, "gone", "recreated")]
    assert found.members(2) == [(0, 5500, "starting", "recreated"), (0, 6000, "ready", "started")]
    # the retry of 5,500 goes to 1, the ask of 5,600 to 0 and again to 1, that of 5,601 to 0 and 1; then 1 is alone
    assert [(row[2], row[5]) for row in found.attempts if row[0] in (1, 2)] == [
        (0, "failed"), (1, "completed"), (0, "failed"), (1, "completed")]
    assert [row[2] for row in found.attempts if row[0] in (3, 4)] == [1, 1]


@each_mode
def test_without_a_free_slot_the_group_waits_for_its_device(mode: str) -> None:
    own = failing({"kind": "device", "at": s(5500), "repair": s(4000)}, up=500,
                  restarts={"group_policy": "recreate_group"})
    found = Run([group(own, tp=2)], [ask(1000), ask(20000, 1, 1)], mode)
    assert found.members(0) == [(0, 5500, "down", "device down"), (0, 5500, "gone", "recreated"),
                                (1, 9500, "starting", "node repaired"), (1, 10000, "ready", "started")]


@each_mode
def test_a_device_of_eight_ranks_takes_all_of_them_down(mode: str) -> None:
    """DP8 + EP8, two replicas of eight ranks. Nine requests of 1,000 go round: one to each rank of replica 0, the last
    to rank 0 of replica 1. At 5,500 the eight fail with three tokens each; their retries go to ranks 1 to 7 of replica
    1, and to rank 0 of replica 0, which cannot be reached (its next try is rank 1 there). A step of all ranks of
    replica 1 is under way until 6,000, so that prompts begin then, and take 2,000: tokens at 8,000, ..., 15,000."""
    own = failing({"kind": "device", "at": s(5500), "repair": s(4000)}, up=500)
    found = Run([group(own, dp=8)], [ask(1000) for _ in range(9)], mode, gateway={"retries": 9})
    down = [(0, 5500, "down", "device down"), (1, 9500, "starting", "restart"), (1, 10000, "ready", "started")]
    assert all(found.members(rank) == down for rank in range(8))
    assert all(found.members(8 + rank) == [] for rank in range(8))
    first = [row for row in found.attempts if row[1] == 1]
    assert [row[2] for row in first] == [*range(8), 8]
    assert [row[4:] for row in first[:8]] == [(5500, "failed")] * 8
    again = [row for row in found.attempts if row[1] == 2]
    assert [row[2:] for row in again[:7]] == [(rank, 5500, 15000, "completed") for rank in range(9, 16)]
    assert again[7][2] == 0
    assert again[7][5] == "failed"
    summary = found.results.summary["fleet"]["llm"]
    assert (summary["slots"], summary["device_down"], summary["ready_most"]) == (2, 1, 2)
    assert summary["held_device_hours"] == pytest.approx(16 * found.record.end_ns / S / 3600)
    incident = found.results.summary["incidents"]["rows"][0]   # of all ranks
    assert incident["clients"] == ["llm-0"]
    failed = sum(row[5] == "failed" for row in found.attempts)
    assert incident["attempts_failed"] == failed == 16   # the eight, and one more at each rank
    assert incident["back_s"] == pytest.approx(s(10000 - 5500))


@each_mode
def test_ranks_start_and_drain_as_one(mode: str) -> None:
    """Two ranks of two stages. A second replica is wanted at 2,000 and ready at 2,500; the first request goes on at its
    rank when one replica is wanted from 4,000 on: the newest goes, all four batches at once, when its last request has
    ended."""
    own = failing(start=1, up=500, scale=((2000, 2), (4000, 1)))
    found = Run([group(own, dp=2, pp=2)], [ask(1000), *(ask(3000) for _ in range(7))], mode)
    grown = [(0, 2000, "starting", "schedule"), (0, 2500, "ready", "started"), (0, 4000, "draining", "schedule")]
    assert all(found.members(index)[:3] == grown for index in range(4, 8))
    ends = {found.members(index)[3][1] for index in range(4, 8)}
    assert ends == {max(stage[6] for stage in found.stages if stage[2] >= 4)}
    assert all(found.members(index) == [] for index in range(4))
    assert found.results.summary["fleet"]["llm"]["ready_most"] == 2


@each_mode
def test_a_hang_and_a_straggler_are_of_all_ranks(mode: str) -> None:
    """Both ranks have a request of 1,000. From 3,500 on steps take twice as long: tokens at 3,000, 4,000, 6,000, 8,000.
    Until 8,500 only: the step in flight ends at 10,000. A hang from 9,000 to 20,000: the last three follow at 21,000,
    22,000, 23,000."""
    own = failing({"kind": "straggler", "at": s(3500), "factor": 2, "lasts": s(5000)},
                  {"kind": "hang", "at": s(9000), "lasts": s(11000)}, start=1)
    found = Run([group(own, dp=2, count=1)], [ask(1000), ask(1000)], mode)
    assert found.step_ends(0) == found.step_ends(1) == [3000, 4000, 6000, 8000, 10000, 21000, 22000, 23000]


# -- nodes and zones ---------------------------------------------------------------------------------------------------


@each_mode
def test_a_node_takes_its_prefill_and_its_decode_group_down(mode: str) -> None:
    """Two nodes, each with a prefill and a decode replica of two ranks. The prompt is computed by rank 0 of p-0 until
    3,000; its KV (10,000 bytes, a byte a ns) is at d-0 at 13,000. The node goes down at 13,500, is back at 17,500."""
    def half(role: str) -> dict[str, Any]:
        own = failing(*([{"kind": "node", "at": s(13500), "repair": s(4000), "notice": s(1000)}] if role == "prefill"
                        else []), up=1000)
        return group(own, dp=2, name=role[0], role=role, platform="n{i}")

    found = Run([half("prefill"), half("decode")], [ask(1000, 10, 3)], mode,
                network={"kind": "link", "bandwidth": 1e9, "latency": 0.0}, gateway={"retries": 3})
    down = [(0, 13500, "down", "node down"), (1, 17500, "starting", "restart"), (1, 18500, "ready", "started")]
    assert [found.members(index) for index in (0, 1, 4, 5)] == [down] * 4
    assert [found.members(index) for index in (2, 3, 6, 7)] == [[]] * 4
    assert found.moves[0][:6] == (0, 0, 4, 10000, 3000, 13000)
    assert found.attempts[0][2:] == (4, 1000, 13500, "failed")
    assert found.attempts[-1][5] == "completed"


@each_mode
def test_a_zone_takes_the_nodes_of_all_groups_down(mode: str) -> None:
    """Replicas alternate between two zones; each group has one in each. Zone z1 goes down at 5,500 for 20,000; after
    2,000 its replicas are replaced where a slot is free: `a` has a third one, in zone z0."""
    zone = {"kind": "zone", "zone": "z1", "at": s(5500), "repair": s(20000), "notice": s(1000), "evict": s(2000)}
    a = failing(zone, up=500, nodes={"zone": "z{i%2}"})
    b = failing(up=500, nodes={"zone": "z{i%2}"})
    found = Run([group(a, name="a", count=3), group(b, name="b", tp=2)], [ask(1000), ask(30000, 1, 1)], mode)
    assert found.members(1) == [(0, 5500, "down", "zone down"), (0, 7500, "gone", "evicted")]
    assert found.members(2) == [(0, 7500, "starting", "evicted"), (0, 8000, "ready", "started")]
    assert found.members(4) == [(0, 5500, "down", "zone down"), (0, 7500, "gone", "evicted"),
                                (1, 25500, "starting", "node repaired"), (1, 26000, "ready", "started")]
    assert found.members(0) == found.members(3) == []
    summary = found.results.summary["fleet"]
    assert summary["a"]["zone_down"] == summary["b"]["zone_down"] == 1


@each_mode
def test_the_slowest_node_decides_the_start_of_a_group(mode: str) -> None:
    """TP16 on two nodes of eight; 30 to provision a node, 60 to load weights that are not in its page cache, 5 if they
    are, 10 to capture. At 100 the first node goes down, and is given up at 107. The group starts on the second one,
    which has the weights after 5, and on a new one, which has joined at 137 and loads until 197: both capture until
    207."""
    phases = dict.fromkeys(("process", "tokenizer", "compile", "profiling", "probe"), 0.0)
    own = failing({"kind": "node", "at": s(100), "repair": s(10**6), "notice": 0, "evict": s(7)}, start=1,
                  start_up=phases | {"weights": {"cold": s(60), "warm": s(5)}, "capture": s(10),
                                     "pool": {"provisioning": s(30)}})
    found = Run([group(own, tp=16, count=1)], [ask(1, 1, 1), ask(1000, 1, 1)], mode)
    rows = [(time, state, reason) for _, time, state, reason in found.members(0)]
    assert rows == [(100, "down", "node down"), (107, "gone", "evicted"), (107, "starting", "evicted"),
                    (107, "starting", "weights"), (197, "starting", "capture"), (207, "starting", "probe"),
                    (207, "ready", "started")]


# -- links -------------------------------------------------------------------------------------------------------------


@pytest.mark.feature("Plug-ins of research", "Links that are slow, or gone, for a while (`network.failures`)")
@each_mode
@pytest.mark.parametrize("kind", [{"kind": "link"}, {"kind": "link", "shared": True}, {"kind": "kv_link"}])
@pytest.mark.parametrize(("failures", "there"), [
    ([{"at": 5000, "factor": 4}], 37000),                   # 2,000 of 10,000 bytes by then; 8,000 take 32,000
    ([{"at": 5000, "factor": 4, "lasts": 8000}], 19000),    # 2,000, then 2,000 by 13,000, then 6,000
    ([{"at": 5000, "lasts": 8000}], 21000),                 # nothing from 5,000 to 13,000
    ([{"at": 0, "lasts": 8000}], 18000),                    # nothing before 8,000
    ([{"at": 3000, "factor": 2, "lasts": 8000}, {"at": 5000, "lasts": 1000}], 17500),   # 1,000; 2,500 by 11,000; 6,500
])
def test_a_slow_link_during_a_hand_over(mode: str, kind: dict[str, Any], failures: list[dict[str, Any]], there: int,
                                        ) -> None:
    """10,000 bytes of KV from 3,000 on, a byte a ns: at 13,000 without failures. Then the three tokens, which
    the decode engine gives."""
    network = kind | {"bandwidth": 1e9, "failures": [
        {key: value if key == "factor" else s(value) for key, value in one.items()} for one in failures]}
    pair = [client(name=role[0], role=role, count=1) for role in ("prefill", "decode")]
    found = Run(pair, [ask(1000, 10, 3)], mode, network=network)
    assert found.moves == [(0, 0, 1, 10000, 3000, there)]
    assert found.finish == [there + 3000]


@each_mode
def test_a_request_whose_kv_waits_for_a_link_ends_by_a_time_out(mode: str) -> None:
    """The link to d-0 is gone from 5,000 to 50,000. The try of 1,000 ends at 17,000, and its KV still arrives, at
    58,000; the retry goes through p-1 and d-1: 19,000, 29,000, 32,000."""
    network = {"kind": "link", "bandwidth": 1e9, "failures": [
        {"between": ["p-0", "d-0"], "at": s(5000), "lasts": s(45000)}]}
    pair = [client(name=role[0], role=role, count=2) for role in ("prefill", "decode")]
    found = Run(pair, [ask(1000, 10, 3)], mode, network=network, gateway={"per_try": s(16000)})
    assert found.attempts == [(0, 1, 2, 1000, 17000, "timed out"), (0, 2, 3, 17000, 32000, "completed")]
    assert found.moves == [(0, 1, 3, 10000, 19000, 29000), (0, 0, 2, 10000, 3000, 58000)]


# -- random times ------------------------------------------------------------------------------------------------------


def _down(index: int, client: dict[str, Any], seed: int, kind: str) -> list[int]:
    """Return when a client went down within 200,000, with failures of a kind each 20,000 of device time."""
    own = failing({"kind": kind, "every": {"mean": s(20000)}} | ({} if kind == "crash" else {"repair": s(1)}),
                  start=client["count"], up=0)
    found = Run([client | {"fleet": own}], [ask(10000 * n, 1, 1) for n in range(21)], seed=seed,
                gateway={"retries": 20})
    return [time for _, time, state, _ in found.members(index) if state == "down" and time < 200000]


@quick_and_full(10, 100)
@given(st.integers(0, 2**32), st.sampled_from([1, 2, 4]), st.sampled_from(["device", "node", "crash"]),
       st.sampled_from([{"tp": 8}, {"dp": 8}, {"pp": 4, "tp": 2}]))
def test_eight_devices_fail_eight_times_as_often_and_another_replica_changes_nothing(
        seed: int, more: int, kind: str, parallel: dict[str, int]) -> None:
    """The same draws: a replica of eight devices has used them up in an eighth of the time, to a ns each. (Draws go by
    the name of the first client, which ranks and stages have as a suffix.)"""
    if parallel == {"tp": 8}:
        one, eight = (_down(0, group({}, count=1, tp=tp), seed, kind) for tp in (1, 8))
        assert len(one) <= len(eight)
        assert all(abs(8 * fast - slow) <= 8 * (number + 1)
                   for number, (fast, slow) in enumerate(zip(eight, one, strict=False)))
    two, both = (_down(0, group({}, count=count, **parallel), seed, kind) for count in (2, 2 + more))
    assert two == both == _down(0, group({}, count=2, **parallel), seed, kind)


def test_the_published_rate_gives_the_published_number() -> None:
    """Llama 3: 16,384 devices for 54 days, one failure each 50,700 device-hours: 418.8; 419 were seen. Here within
    three standard deviations of a Poisson number."""
    env, strikes, rng, every = Clock(), [], np.random.default_rng(1), Every(mean=50700 * 3600)
    days = 54 * 24 * 3600 * S
    clock = FailureClock(env, 16384, lambda: every.draw_ns(rng), lambda: strikes.append(env._now),
                         lambda: env._now < days)
    clock.hold(True)
    env.drain()
    mean = 16384 * 54 * 24 / 50700
    assert len(strikes) == pytest.approx(mean, abs=3 * mean**0.5)


# -- refusals ----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(("failure", "nodes", "said"), [
    ({"kind": "device", "at": 1}, {}, r"repair"),
    ({"kind": "zone", "at": 1, "repair": 5}, {}, r"failures\.0.*zone: missing: which zone goes down"),
    ({"kind": "zone", "at": 1, "repair": 5, "zone": "a"}, {}, r"failures\.0: no replica of the group is in a zone"),
    ({"kind": "zone", "at": 1, "repair": 5, "zone": "a", "replica": 0}, {"zone": "a"}, r"expected one of the keys"),
    ({"kind": "zone", "at": 1, "repair": 5, "zone": "zo"}, {"zone": "z{i}"}, r"failures\.0\.zone: expected a zone of "),
])
def test_what_is_refused(failure: dict[str, Any], nodes: dict[str, Any], said: str) -> None:
    data = {"clients": [client(failing(failure, nodes=nodes))], "workload": [ask(0)]}
    with pytest.raises(InputError, match=said):
        build(load_scenario(data))


def test_two_zones_of_one_node_are_refused() -> None:
    groups = [client(failing(nodes={"zone": zone}), name=name, platform="n{i}") for name, zone in
              (("a", "z{i}"), ("b", "z"))]
    with pytest.raises(InputError, match=r"clients\.1\.fleet\.nodes\.zone: platform 'n0' would be in two zones"):
        build(load_scenario({"clients": groups, "workload": [ask(0)]}))


def test_a_default_that_places_devices_is_said() -> None:
    made = build(load_scenario({"clients": [group(failing(start=1), tp=16, count=1)], "workload": [ask(0)]}))
    assert made.remarks == ["llm: a replica has 16 devices on 2 nodes (`fleet.nodes.devices`: 8 of a usual machine); "
                            "`restarts.group_policy`: recreate_group, as LeaderWorkerSet's default"]
