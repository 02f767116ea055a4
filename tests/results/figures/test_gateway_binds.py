"""What binds at a gateway: its capacity, flow control, the engines behind it; relief of what is named helps."""

from __future__ import annotations

import copy
from typing import Any

import pytest

import hermes
from hermes.results import Results
from hermes.results.brief import parts
from hermes.results.layout import to_text

HARDWARE = {"kind": "polynomial", "profile": "llama-3.1-8b-h100-tp1-bf16"}
Data = dict[str, Any]


def scenario(gateway: Data, rate: float = 30.0, slo: Data | None = None, workload: Data | None = None, **client: Any
             ) -> Data:
    work = {"requests": 400, "arrivals": {"kind": "poisson", "rate": rate},
            "lengths": {"kind": "fixed", "prompt": 200, "output": 60}}
    one = {"name": "llm", "hardware": HARDWARE, "memory": {"num_blocks": 40_000}}
    return {"workload": work | (workload or {}), "clients": [one | client], "gateway": gateway,
            **({} if slo is None else {"slo": slo})}


def flow(limit: int = 100, **more: Any) -> Data:
    return {"flow_control": {"detector": {"kind": "concurrency", "limit": limit}, "ttl": "1 h"} | more}


def text(results: Results) -> str:
    return " ".join(to_text(parts(results.summary, results.meta)).split())


def ttft(data: Data, **changes: Any) -> float:
    changed = copy.deepcopy(data)
    for path, value in changes.items():
        *keys, last = path.split("__")
        at: Any = changed
        for key in keys:
            at = at[int(key)] if key.isdigit() else at[key]
        at[last] = value
    return float(hermes.simulate(changed).summary["latency"]["ttft_s"]["mean"])


def test_the_capacity_of_a_gateway() -> None:
    data = scenario({"capacity": 20.0})
    results = hermes.simulate(data)
    binds = results.summary["binds"]
    assert (binds["what"], binds["where"]) == ("capacity", "gateway")
    assert binds["share"] > 0.9
    assert "capacity of the gateway: calls wait for it" in text(results)
    assert "raise gateway.capacity or gateway.replicas" in text(results)
    base = ttft(data)
    assert ttft(data, gateway__capacity=40.0) < base / 20     # relief of what is named
    assert ttft(data, clients__0__count=2) == pytest.approx(base, rel=0.01)   # and of something else


def test_a_gateway_with_room_does_not_bind() -> None:
    binds = hermes.simulate(scenario({"capacity": 2000.0}, scheduler={"kind": "chunked", "max_num_seqs": 4})).summary[
        "binds"]
    assert (binds["what"], binds["where"]) == ("slots", "llm")
    assert "do" not in binds


def test_requests_that_a_horizon_cuts_off_wait_at_the_gateway_and_not_at_the_engines() -> None:
    data = scenario({"capacity": 10.0}) | {"horizon": "10 s"}
    binds = hermes.simulate(data).summary["binds"]
    assert (binds["what"], binds["where"]) == ("capacity", "gateway")


def test_flow_control_binds_while_the_engines_have_room() -> None:
    data = scenario(flow(4))
    results = hermes.simulate(data)
    binds = results.summary["binds"]
    assert (binds["what"], binds["where"]) == ("flow control", "llm")
    assert binds["groups"]["llm"]["held"]["limit"] == "in flight"
    assert "raise gateway.flow_control.detector.limit" in text(results)
    base = ttft(data)
    assert ttft(data, gateway__flow_control__detector__limit=8) < base / 2
    assert ttft(data, clients__0__memory={"num_blocks": 80_000}) == pytest.approx(base, rel=0.01)
    assert ttft(data, clients__0__scheduler={"kind": "chunked", "max_num_seqs": 512}) == pytest.approx(base, rel=0.01)


def test_the_ceiling_of_a_class_binds() -> None:
    data = scenario(flow(100) | {"classes": {"batch": {"priority": -1, "ceiling": 0.04}}},
                    workload={"classes": {"values": ["batch"]}})
    results = hermes.simulate(data)
    assert results.summary["binds"]["what"] == "flow control"
    assert results.summary["binds"]["groups"]["llm"]["held"]["limit"] == "ceiling"
    assert "raise the ceiling of its class in gateway.classes" in text(results)
    assert ttft(data, gateway__classes__batch__ceiling=0.08) < ttft(data) / 2


@pytest.mark.parametrize("detector", [{"kind": "concurrency", "limit": 16}, {"kind": "utilization"}])
def test_full_engines_bind_wherever_their_requests_wait(detector: Data) -> None:
    gateway = {"flow_control": {"detector": detector, "ttl": "1 h"}}
    data = scenario(gateway, scheduler={"kind": "chunked", "max_num_seqs": 4})
    results = hermes.simulate(data)
    binds = results.summary["binds"]
    assert (binds["what"], binds["where"]) == ("slots", "llm")
    assert "the engines are full: add replicas" in text(results)
    base = ttft(data)
    assert ttft(data, clients__0__count=2) < base / 2
    assert ttft(data, clients__0__scheduler={"kind": "chunked", "max_num_seqs": 8}) < base / 2


@pytest.mark.parametrize("gateway", [{"queue": {"ttl": "1 h"}}, flow(100)], ids=["queue", "flow control"])
def test_replicas_that_come_late_bind(gateway: Data) -> None:
    fleet = {"start": 0, "start_up": {"total": 5}, "autoscaler": {"kind": "schedule", "changes": [
        {"at": 8, "replicas": 1}]}}
    results = hermes.simulate(scenario(gateway, fleet=fleet))
    binds = results.summary["binds"]
    assert (binds["what"], binds["where"]) == ("replicas", "llm")
    assert "requests wait for a ready one" in text(results)
    assert "have a replica ready earlier" in text(results)


@pytest.mark.parametrize(("gateway", "workload", "what"), [
    (flow(4, ttl="500 ms", scan=0.05), {}, "time to live"),
    (flow(4, max=5), {}, "queue limit"), (flow(4, total=5), {}, "queue limit"),
    ({"capacity": 10.0, "backlog": 3}, {}, "capacity")])
def test_what_turns_requests_away_bounds_the_queue(gateway: Data, workload: Data, what: str) -> None:
    binds = hermes.simulate(scenario(gateway, workload=workload)).summary["binds"]
    found = binds.get("bounded_by", binds)
    assert found["what"] == what
    assert found["share"] > 0.05


def test_requests_without_a_ready_replica_are_turned_away() -> None:
    fleet = {"start": 1, "start_up": {"total": 6}, "crashes": [{"at": 2, "replica": 0}],
             "probe": {"period": 0.05, "failures": 1, "delay": 0}}
    results = hermes.simulate(scenario({}, fleet=fleet))
    binds = results.summary["binds"]
    assert (binds["what"], binds["where"]) == ("replicas", "gateway")
    away = sum(reason.startswith("unavailable: ") for reason in results.record.reject_reasons.values())
    assert binds["share"] == away / 400 > 0.3
    assert f"replicas: none is ready for {binds['share']:.0%} of the requests" in text(results)


def test_admission_turns_requests_of_low_bands_away() -> None:
    gateway = {"classes": {"batch": {"priority": -1}}, "admission": {"detector": {"kind": "concurrency", "limit": 4}}}
    results = hermes.simulate(scenario(gateway, 25.0, workload={"classes": {"values": ["batch"]}}))
    assert results.summary["binds"]["what"] == "admission"
    assert "gateway.admission.detector" in text(results)


def test_a_budget_of_a_tenant_turns_away_while_nothing_is_full() -> None:
    gateway = flow(100) | {"tenants": {"a": {"budget": {"tokens": 5000, "per": "2 s"}}}}
    results = hermes.simulate(scenario(gateway, workload={"tenants": {"values": ["a"]}, "requests": 2000}))
    binds = results.summary["binds"]
    assert (binds["what"], binds["where"]) == ("tenant budget", "gateway")
    assert "raise the budget in gateway.tenants" in text(results)


def test_a_missed_ttft_names_the_part_at_the_gateway() -> None:
    slow = hermes.simulate(scenario({"delay": 0.5}, 5.0, {"ttft": 0.2})).summary
    assert next(iter(slow["nearest_limit"]["parts"])) == "hop of the gateway"
    assert (slow["binds"]["what"], slow["binds"]["where"]) == ("gateway delay", "gateway")
    assert slow["binds"]["of"] == "TTFT p99"
    held = hermes.simulate(scenario(flow(4), 30.0, {"ttft": 0.2})).summary
    assert next(iter(held["nearest_limit"]["parts"])) == "held for llm"
    assert held["nearest_limit"]["parts"]["held for llm"] > 0.8


def test_the_report_says_how_much_of_the_ttft_is_at_the_gateway() -> None:
    results = hermes.simulate(scenario(flow(4)))
    shares = results.summary["breakdown"]["ttft"]
    share = shares["held_s"]["mean"] / results.summary["latency"]["ttft_s"]["mean"]
    assert share > 0.8
    assert f"gateway {share:.0%} of the mean TTFT (held)" in text(results)
    shown = to_text(parts(results.summary, results.meta, verbose=True))
    assert "to the first token" in shown
    assert "held (unplaced at the gateway)" in " ".join(shown.split())
