"""Spares: started replicas kept back, woken when they are wanted, awake or at a sleep level, by hand."""

from __future__ import annotations

import json
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from long_runs import quick_and_full

from hermes import simulate
from hermes.cli import main
from hermes.core.record import GONE, MEMBER_STATES, READY, SPARE, STARTING
from hermes.errors import InputError
from hermes.hardware.descriptions.devices import load_device
from hermes.hardware.start_up import load_start_up
from hermes.results.results import Results

S = 1_000_000_000
LOADS = 16_060_522_496   # bytes of llama-3.1-8b in 16 bits
CLIENT: dict[str, Any] = {
    "name": "llm", "count": 4, "memory": {"num_blocks": 400, "prefix_caching": True}, "price_per_hour": 36.0,
    "hardware": {"kind": "roofline", "model": "llama-3.1-8b", "device": "h100-sxm"},
}


def run(spares: dict[str, Any] | None, *changes: tuple[float, int], start_up: Any = None, until: int = 60,
        **keys: Any) -> Results:
    schedule = {"kind": "schedule", "changes": [{"at": at, "replicas": n} for at, n in changes]}
    own = {"start": 1, "start_up": start_up or {"total": 10}, "autoscaler": schedule, "spares": spares}
    return simulate({
        "workload": {"requests": until, "arrivals": {"kind": "uniform", "rate": 1.0, "spread": 0.0},
                     "lengths": {"kind": "fixed", "prompt": 64, "output": 4}} | keys.pop("workload", {}),
        "clients": [CLIENT | {"fleet": own | keys.pop("fleet", {})} | keys.pop("client", {})]} | keys)


def rows(results: Results, client: int) -> list[tuple[float, str, str]]:
    """What becomes of a slot: (time in s, state, reason), the state it begins in left out."""
    found = zip(results.record.membership.tolist(), results.record.membership_reasons, strict=True)
    mine = [(time / S, MEMBER_STATES[state], reason) for (index, _, time, state), reason in found if index == client]
    return mine[1:]


@pytest.mark.feature("Plug-ins of research", "Spares of a fleet (`fleet.spares`), sleep levels")
def test_a_spare_is_woken_and_replaced_and_a_drained_replica_becomes_one():
    results = run({"count": 1, "wake": 2}, (5.0, 2), (20.0, 3), (40.0, 1))
    assert rows(results, 1) == [
        (0.0, "spare", "start"), (5.0, "starting", "schedule"), (7.0, "ready", "woken"),
        (40.0, "draining", "schedule"), (40.0, "gone", "drained")]
    assert rows(results, 2)[:4] == [
        (5.0, "starting", "spare"), (15.0, "spare", "started"), (20.0, "starting", "schedule"),
        (22.0, "ready", "woken")]
    assert rows(results, 3) == [(20.0, "starting", "spare"), (30.0, "spare", "started")]
    # at 40 s there is a spare: both go. Without the one of slot 3, the newer of the two is kept
    few = run({"count": 1, "wake": 2}, (5.0, 2), (20.0, 3), (25.0, 1), client={"count": 3})
    assert rows(few, 2)[-2:] == [(25.0, "draining", "schedule"), (25.0, "spare", "drained")]
    assert rows(few, 1)[-2:] == [(25.0, "draining", "schedule"), (25.0, "gone", "drained")]
    assert results.summary["fleet"]["llm"]["started"] == 3


def test_a_spare_gets_no_requests_and_costs_its_devices():
    results, without = run({"count": 2}, (50.0, 1)), run(None, (50.0, 1))
    assert set(results.record.stages["client"].tolist()) == {0}
    held = {name: found["held_s"] for name, found in results.summary["clients"].items()}
    end = results.record.end_ns / 1e9   # held from 0 on
    assert held == {"llm-0": end, "llm-1": end, "llm-2": end, "llm-3": 0.0}
    assert results.summary["cost"]["total_dollars"] == pytest.approx(3 * without.summary["cost"]["total_dollars"])


def test_a_spare_that_still_starts_is_taken_and_one_given_up_starts_on_as_a_spare():
    results = run({"count": 1, "wake": 1}, (5.0, 2), (8.0, 3))
    assert rows(results, 2) == [(5.0, "starting", "spare"), (15.0, "ready", "started")]
    assert rows(results, 3) == [(8.0, "starting", "spare"), (18.0, "spare", "started")]
    given_up = run({"count": 1, "wake": 1}, (5.0, 3), (8.0, 2), client={"count": 3})
    assert rows(given_up, 2) == [(5.0, "starting", "schedule"), (15.0, "spare", "started")]
    while_waking = run({"count": 1, "wake": 4}, (5.0, 2), (6.0, 1), (30.0, 2), client={"count": 2})
    assert rows(while_waking, 1) == [
        (0.0, "spare", "start"), (5.0, "starting", "schedule"), (9.0, "spare", "woken"),
        (30.0, "starting", "schedule"), (34.0, "ready", "woken")]


def test_sleep_levels_by_hand():
    """Level 1 on an H100: 16.06 GB over the 55.63 GB/s that nvbandwidth copies over its slot of 64 GB/s: 0.289 s, not
    0.251 s."""
    assert pytest.approx(0.2887, rel=0.001) == LOADS / 55.63e9
    link, times = load_device("h100-sxm").host_bandwidth, load_start_up("vllm-0.10", None)
    for level, wake in ((0, 0.0), (1, LOADS / (0.87 * link)), (2, times.weights.fixed + LOADS / times.weights.rate)):
        results = run({"count": 1, "sleep": level}, (5.0, 2))
        assert rows(results, 1)[-1][0] == pytest.approx(5.0 + wake, abs=1e-6), level


def test_a_replica_that_slept_has_lost_its_cache():
    def hits(level: int) -> int:
        results = run({"count": 1, "sleep": level, "wake": 0}, (5.5, 2), (20.5, 1), (30.5, 2), client={"count": 2},
                      workload={"prefixes": {"groups": 1, "tokens": 48}}, until=40)
        stages = results.record.stages
        mine = (stages["client"] == 1) & (stages["assigned_ns"] > 30 * S)
        return int(stages["cached_tokens"][mine][0])

    assert hits(0) == 48
    assert hits(1) == hits(2) == 0


def test_a_spare_crashes_and_starts_again():
    results = run({"count": 1, "wake": 1}, (30.0, 2), fleet={"crashes": [{"at": 4, "replica": 1}]})
    assert rows(results, 1) == [
        (0.0, "spare", "start"), (4.0, "down", "crashed"), (4.0, "starting", "restart"), (14.0, "spare", "started"),
        (30.0, "starting", "schedule"), (31.0, "ready", "woken")]


def test_phases_and_pools_start_spares():
    phases = dict.fromkeys(("process", "tokenizer", "weights", "profiling", "capture", "probe"), 0.0) | {
        "compile": {"cold": 8, "warm": 2}, "pool": {"provisioning": 3, "keep": 0}, "first_request": 5}
    results = run({"count": 1}, (5.0, 2), (20.0, 3), start_up=phases)
    assert rows(results, 2) == [
        (5.0, "starting", "spare"), (8.0, "starting", "compile (cold)"), (16.0, "starting", "probe"),
        (16.0, "spare", "started"), (20.0, "starting", "schedule"), (20.0, "ready", "woken")]
    stages = results.record.stages
    first = [int((stages["end_ns"] - stages["assigned_ns"])[stages["client"] == client][0]) for client in (1, 2)]
    assert first[0] < S < 5 * S < first[1], "only the one that started has a slow first request"


def test_draws_of_waking_do_not_depend_on_other_clients():
    spares = {"count": 1, "wake": {"kind": "uniform", "min": 1, "max": 4}}
    few = run(spares, (5.0, 2), (20.0, 1), (30.0, 2), client={"count": 2})
    many = run(spares | {"count": 3}, (5.0, 4), client={"count": 7})
    assert rows(few, 1)[:3] == rows(many, 1)
    assert len({rows(many, client)[2][0] for client in (1, 2, 3)}) == 3
    ups = [rows(few, 1)[place + 1][0] - rows(few, 1)[place][0] for place in (1, 5)]
    assert len(set(ups)) == 2
    assert all(1.0 <= up <= 4.0 for up in ups)


@pytest.mark.parametrize(("spares", "message"), [
    ({"count": 4}, r"fleet\.spares\.count: expected at most 3, the group's count less `start`, found 4"),
    ({"count": 0}, r"fleet\.spares\.count: "), ({"count": 1, "sleep": 3}, r"fleet\.spares\.sleep: "),
])
def test_refused(spares, message):
    with pytest.raises(InputError, match=message):
        run(spares, (5.0, 2))


def test_a_level_needs_a_description_or_a_time():
    client = {"hardware": {"kind": "polynomial", "profile": "vllm-cpu-small-llama"}}
    with pytest.raises(InputError, match=r"fleet\.spares\.wake: missing: .* give the time"):
        run({"count": 1, "sleep": 1}, (5.0, 2), client=client)
    assert rows(run({"count": 1, "sleep": 1, "wake": 2}, (5.0, 2), client=client), 1)[-1][0] == 7.0


def test_explain_says_how_long_waking_takes(tmp_path, capsys):
    file = tmp_path / "a.yaml"
    file.write_text("""
workload: {requests: 1, arrivals: {kind: poisson, rate: 1}, lengths: {kind: fixed, prompt: 8, output: 2}}
clients:
  - {count: 2, model: llama-3.1-8b, device: a100-80gb, fleet: {start: 1, start_up: {}, spares: {count: 1, sleep: 1}}}
""")
    assert main(["explain", str(file), "--json"]) == 0
    (start,) = [one for one in json.loads(capsys.readouterr().out) if "phases" in one]
    assert start["wake_s"] == pytest.approx(LOADS / (0.87 * 32e9))
    assert main(["explain", str(file)]) == 0
    assert "a spare takes requests 0.577 s after it is wanted" in capsys.readouterr().out


@given(st.data())
@quick_and_full(10, 150)
def test_any_spares_lose_nothing(data):
    spares = {"count": data.draw(st.integers(1, 3)), "sleep": data.draw(st.integers(0, 2)),
              "wake": data.draw(st.sampled_from([0.0, 0.5, 3.0]))}
    changes = data.draw(st.lists(st.tuples(st.integers(1, 300), st.integers(1, 4)), min_size=1, max_size=8,
                                 unique_by=lambda change: change[0]))
    crashes = data.draw(st.lists(st.builds(lambda at, slot: {"at": at / 10, "replica": slot}, st.integers(1, 300),
                                           st.integers(0, 3)), max_size=4))
    updates = data.draw(st.sampled_from([[], [], [{"at": 4.0, "surge": 0, "unavailable": 1}]]))
    keys: dict[str, Any] = {"fleet": {"crashes": crashes, "probe": {"period": 1, "failures": 1}, "updates": updates},
                            "gateway": {"retries": 20, "backoff": 0.2, "queue": {"ttl": 200}},
                            "start_up": {"total": data.draw(st.sampled_from([0.0, 1.0, 6.0]))}}
    scheduled = [(at / 10, n) for at, n in sorted(changes)]
    results = run(spares, *scheduled, until=30, **keys)
    literal = run(spares, *scheduled, until=30, **keys, stepping="every_step")
    assert results.record.membership.tolist() == literal.record.membership.tolist()
    assert results.record.finish_ns.tolist() == literal.record.finish_ns.tolist()
    state = dict.fromkeys(range(4), GONE)
    for client, _, _, now in results.record.membership.tolist():
        assert now != READY or state[client] in (STARTING, GONE), "only what starts, or is there at first, is ready"
        assert now != SPARE or state[client] != SPARE
        state[client] = now


def test_an_update_replaces_spares_when_it_has_ended():
    results = run({"count": 1, "wake": 1}, (50.0, 2), client={"count": 3},
                  fleet={"updates": [{"at": 5, "surge": 1, "unavailable": 0}]})
    assert rows(results, 1) == [
        (0.0, "spare", "start"), (5.0, "gone", "update"), (5.0, "starting", "update"), (15.0, "ready", "started")]
    assert rows(results, 0)[:2] == [(15.0, "draining", "update"), (15.0, "gone", "drained")]
    assert rows(results, 2) == [
        (15.0, "starting", "spare"), (25.0, "spare", "started"), (50.0, "starting", "schedule"),
        (51.0, "ready", "woken")]
    assert rows(results, 0)[2] == (50.0, "starting", "spare")


def test_a_host_that_is_joined_without_pcie_copies_at_its_links_rate() -> None:
    for name, share in (("h100-sxm", 0.87), ("gh200", 1.0)):   # NVLink-C2C has no slot
        device = load_device(name, None)
        assert device.copied_from_host == pytest.approx(share * device.host_bandwidth)
