"""Replicas that come and go: slots, draining, routers that follow, device-hours, by hand and over random schedules."""

from __future__ import annotations

import json
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from long_runs import quick_and_full

from hermes import simulate
from hermes.cli import main
from hermes.core.record import DRAINING, GONE, READY, STARTING
from hermes.errors import InputError
from hermes.results.results import Results
from hermes.routing.base import ROUTERS

S = 1_000_000_000
CLIENT: dict[str, Any] = {
    "name": "llm", "count": 3, "memory": {"num_blocks": 400}, "price_per_hour": 36.0,
    "hardware": {"kind": "roofline", "model": "llama-3.1-8b", "device": "h100-sxm"},
}


def fleet(start: int, *changes: tuple[float, int], start_up: float = 1.0) -> dict[str, Any]:
    schedule = {"kind": "schedule", "changes": [{"at": at, "replicas": n} for at, n in changes]}
    return {"start": start, "start_up": {"total": start_up}, "autoscaler": schedule if changes else {"kind": "static"}}


def run(own: dict[str, Any] | None, rate: float = 20.0, requests: int = 200, **keys: Any) -> Results:
    client = CLIENT | keys.pop("client", {}) | ({} if own is None else {"fleet": own})
    return simulate({
        "workload": {"requests": requests, "arrivals": {"kind": "poisson", "rate": rate},
                     "lengths": {"kind": "fixed", "prompt": 64, "output": 32}} | keys.pop("workload", {}),
        "clients": keys.pop("clients", None) or [client]} | keys)


def rows(results: Results) -> list[tuple[int, int, float, int]]:
    return [(client, number, time / S, state) for client, number, time, state in results.record.membership.tolist()]


def ready_spans(results: Results) -> dict[int, list[tuple[int, int]]]:
    """Client -> spans of time in which it takes new stages."""
    spans: dict[int, list[tuple[int, int]]] = {}
    since: dict[int, int] = {}
    for client, _, time, state in results.record.membership.tolist():
        spans.setdefault(client, [])
        if client in since:
            spans[client].append((since.pop(client), time))
        if state == READY:
            since[client] = time
    for client, time in since.items():
        spans[client].append((time, 1 << 62))
    return spans


def check(results: Results) -> None:
    """No stage is given to a client that is not ready; none is lost; a slot holds one replica after the other."""
    record = results.record
    assert (record.status == 1).all()
    spans, stages = ready_spans(results), record.stages
    for client, assigned, end, kind in zip(stages["client"].tolist(), stages["assigned_ns"].tolist(),
                                           stages["end_ns"].tolist(), stages["kind"].tolist(), strict=True):
        if client in spans and record.stage_kinds[kind] != "decode":   # a hand-over is chosen before it is assigned
            assert any(low <= assigned <= high for low, high in spans[client]), (client, assigned)
        assert assigned <= end
    allowed = {GONE: {STARTING, READY}, STARTING: {READY, GONE}, READY: {DRAINING}, DRAINING: {GONE}}
    state = dict.fromkeys(spans, GONE)
    last: dict[int, int] = {}
    for client, number, time, now in record.membership.tolist():
        assert now in allowed[state[client]] or (time == 0 and now == GONE)
        assert number >= last.get(client, -1)
        state[client], last[client] = now, number
        if now == GONE:   # nothing of it is left
            mine = (stages["client"] == client) & (stages["assigned_ns"] < time)
            assert (stages["end_ns"][mine] <= time).all()
    for client in results.summary["clients"].values():
        assert client["held_s"] <= record.end_ns / S + 1e-9


@pytest.mark.feature("Plug-ins of research", (
    "Replicas that start, drain and leave (`fleet`); autoscalers `static`, `schedule` (`hermes.autoscalers`)"))
def test_a_replica_starts_drains_and_leaves_by_hand():
    results = run(fleet(1, (1.0, 2), (5.0, 1), start_up=2.0))
    stages = results.record.stages
    mine = stages["client"] == 1
    assert stages["assigned_ns"][mine].min() >= 3 * S
    last = int(stages["end_ns"][mine].max())
    under_way = mine & (stages["assigned_ns"] <= 5 * S) & (stages["end_ns"] > 5 * S)
    assert under_way.any(), "something must drain"
    assert rows(results) == [
        (0, 0, 0.0, READY), (1, -1, 0.0, GONE), (2, -1, 0.0, GONE), (1, 0, 1.0, STARTING), (1, 0, 3.0, READY),
        (1, 0, 5.0, DRAINING), (1, 0, last / S, GONE)]
    check(results)
    end, first = results.record.end_ns / S, results.record.arrival_ns.min() / S
    assert results.summary["clients"]["llm-1"]["held_s"] == pytest.approx(last / S - 1.0, rel=1e-12)
    held = end + last / S - 1.0   # replica 0 from 0 on, replica 1 from its start at 1 s
    assert results.summary["cost"]["total_dollars"] == pytest.approx(36.0 * held / 3600, rel=1e-12)
    found = results.summary["fleet"]["llm"]
    assert found["held_device_hours"] == pytest.approx(held / 3600, rel=1e-12)
    assert found["ready_mean"] == pytest.approx(1 + 2.0 / end, rel=1e-12)
    assert (found["slots"], found["ready_most"], found["started"], found["drained"]) == (3, 2, 1, 1)
    assert first < 1.0


def test_an_idle_replica_leaves_at_once_and_a_starting_one_is_given_up():
    results = run(fleet(1, (1.0, 3), (2.0, 1), start_up=5.0), rate=2.0, requests=10)
    assert [row for row in rows(results) if row[0] and row[1] == 0] == [
        (1, 0, 1.0, STARTING), (2, 0, 1.0, STARTING), (2, 0, 2.0, GONE), (1, 0, 2.0, GONE)]
    assert set(results.record.stages["client"].tolist()) == {0}
    idle = run(fleet(2, (0.001, 1)), rate=2.0, requests=10)
    assert [row[2:] for row in rows(idle) if row[0] == 1] == [(0.0, READY), (0.001, DRAINING), (0.001, GONE)]


def test_a_replica_that_has_no_slot_waits_until_one_has_drained():
    long = {"lengths": {"kind": "fixed", "prompt": 64, "output": 1500}}
    results = run(fleet(2, (1.0, 1), (1.1, 2), start_up=0.5), client={"count": 2}, workload=long, requests=60)
    again = [row for row in rows(results) if row[0] == 1]
    gone = next(time for _, _, time, state in again if state == GONE)
    assert gone > 1.5, "it must drain for longer than a start takes"
    assert [row[1:] for row in again] == [(0, 0.0, READY), (0, 1.0, DRAINING), (0, gone, GONE), (1, gone, STARTING),
                                          (1, pytest.approx(gone + 0.5), READY)]
    check(results)


def test_a_new_replica_in_a_slot_has_an_empty_cache():
    shared = {"prefixes": {"groups": 1, "tokens": 48}}
    results = run(fleet(2, (2.0, 1), (4.0, 2)), client={"count": 2}, workload=shared, router={"kind": "round_robin"})
    stages, second = results.record.stages, 1
    mine = np.flatnonzero((stages["client"] == second) & (stages["assigned_ns"] > 4 * S))
    first = mine[np.argsort(stages["assigned_ns"][mine])][0]
    before = (stages["client"] == second) & (stages["assigned_ns"] < 2 * S)
    assert stages["cached_tokens"][before].max() == 48
    assert stages["cached_tokens"][first] == 0
    assert stages["cached_tokens"][mine].max() == 48


ALL = sorted(set(ROUTERS.names()) - {"mixed_pool"})
OF_ROUTERS: dict[str, dict[str, Any]] = {"heavy_light": {"threshold": 63, "heavy_share": 0.7}}


OTHER_LOADS = {kind: () if "load" not in ROUTERS.get(kind).model_fields else
               ("kv_tokens",) if kind == "heavy_light" else ("kv_tokens", "requests") for kind in ALL}
WITH_LOADS = [(kind, load) for kind in ALL for load in (None, *OTHER_LOADS[kind])]


@pytest.mark.drawn
@pytest.mark.parametrize(("kind", "load"), WITH_LOADS)
def test_every_router_follows(kind, load):
    router = {"kind": kind, **OF_ROUTERS.get(kind, {}), **({} if load is None else {"load": load})}
    results = run(fleet(1, (1.0, 3), (3.0, 1), (5.0, 2)), router=router, rate=40.0, requests=300)
    check(results)
    assert set(results.record.stages["client"].tolist()) > {0}


def test_every_router_follows_many_clients():
    """Above 32 clients loads that change with every step are tracked (`LoadTrack`)."""
    results = run(fleet(5, (1.0, 40), (3.0, 3)), client={"count": 40}, rate=80.0, requests=500, stepping="runs")
    check(results)
    assert len(set(results.record.stages["client"].tolist())) > 20


def test_a_router_that_cannot_follow_is_refused():
    with pytest.raises(InputError, match="cannot follow clients that come and go") as found:
        run(fleet(1, (1.0, 2)), router={"kind": "mixed_pool"})
    assert found.value.field == "router"


def test_without_changes_a_fleet_is_as_its_clients_are():
    alone, same = run(None), run(fleet(3))
    assert alone.record.finish_ns.tolist() == same.record.finish_ns.tolist()
    assert not len(alone.record.membership)
    assert "fleet" not in alone.summary
    assert alone.summary["cost"]["total_dollars"] == pytest.approx(same.summary["cost"]["total_dollars"], rel=1e-12)
    assert alone.summary["energy"]["total_j"] == pytest.approx(same.summary["energy"]["total_j"], rel=1e-12)


@pytest.mark.parametrize(("own", "said", "field"), [
    (fleet(4), "at most 3 replicas", "clients.0.fleet.start"),
    (fleet(1, (1.0, 4)), "at most 3 replicas", "clients.0.fleet.autoscaler.changes.0.replicas"),
    (fleet(1, (2.0, 2), (1.0, 3)), "a time after 2 s", "clients.0.fleet.autoscaler.changes.1.at"),
    (fleet(1, (1.0, 0)), "no request could wait", "clients.0.fleet.autoscaler.changes.0.replicas"),
    ({"start": 1, "start_up": {"total": 1}, "autoscaler": {"kind": "schedul", "changes": []}}, "schedule",
     "clients.0.fleet.autoscaler.kind"),
])
def test_a_wrong_fleet_is_one_line_with_its_place(own, said, field):
    with pytest.raises(InputError, match=said) as found:
        run(own)
    assert found.value.field == field


def test_prefill_and_decode_replicas_come_and_go():
    own = fleet(1, (1.0, 3), (3.0, 1), (4.0, 2), start_up=0.3)
    clients = [CLIENT | {"name": role, "role": role, "model": "llama-3.1-8b", "fleet": own}
               for role in ("prefill", "decode")]
    results = run(None, clients=clients, rate=60.0, requests=400, network={"kind": "link", "bandwidth": "1 GB/s"})
    check(results)
    record = results.record
    moved = record.transfers
    for client, _, time, state in record.membership.tolist():
        if state == GONE and time:   # no KV moves from or to a replica that is gone
            mine = ((moved["src"] == client) | (moved["dst"] == client)) & (moved["start_ns"] < time)
            assert (moved["end_ns"][mine] <= time).all()


SCHEDULERS = ("chunked", "continuous", "static", "mixed", "sglang")


@quick_and_full(5, 50, thorough=400)
@given(
    scheduler=st.sampled_from(SCHEDULERS), start=st.integers(1, 3), rate=st.sampled_from([5.0, 40.0, 200.0]),
    changes=st.lists(st.tuples(st.integers(1, 40), st.integers(1, 3)), max_size=5, unique_by=lambda one: one[0]),
    start_up=st.sampled_from([0.0, 0.05, 1.0]), seed=st.integers(0, 1000), blocks=st.sampled_from([12, 60, 400]),
)
def test_any_schedule_loses_nothing(scheduler, start, rate, changes, start_up, seed, blocks):
    own = fleet(start, *((at / 10, n) for at, n in sorted(changes)), start_up=start_up)
    client = {"scheduler": {"kind": scheduler, "max_num_seqs": 8}, "memory": {"num_blocks": blocks}}
    if scheduler == "sglang":   # a block of one token
        client = {"scheduler": {"kind": scheduler}, "memory": {"num_blocks": 16 * blocks}, "model": "llama-3.1-8b"}
    found = [run(own, rate, 60, seed=seed, stepping=stepping, client=client)
        for stepping in ("runs", "every_step")]
    for results in found:
        check(results)
    first, second = (one.record for one in found)
    assert first.finish_ns.tolist() == second.finish_ns.tolist()
    assert first.membership.tolist() == second.membership.tolist()


@pytest.mark.parametrize("command", [("capacity",), ("size", "--device", "h100-sxm")])
def test_searches_for_a_fixed_number_refuse_replicas_that_come_and_go(command, tmp_path, capsys):
    (tmp_path / "day.yaml").write_text(json.dumps({
        "workload": {"requests": 50, "arrivals": {"kind": "poisson", "rate": 5},
                     "lengths": {"kind": "fixed", "prompt": 64, "output": 32}},
        "slo": {"ttft": 1}, "clients": [CLIENT | {"model": "llama-3.1-8b", "fleet": fleet(1, (1.0, 2))}]}))
    assert main([command[0], str(tmp_path / "day.yaml"), *command[1:]]) == 2
    (line,) = capsys.readouterr().err.strip().splitlines()
    assert "clients.0.fleet: its replicas come and go" in line
