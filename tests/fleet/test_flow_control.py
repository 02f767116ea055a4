"""Flow control and admission over random scenarios with crashes, time-outs, retries, autoscalers, roles and branches:
nothing is lost, nothing leaks, and runs equal single steps."""

from __future__ import annotations

from typing import Any

from conservation import (
    assert_conserved,
    assert_held,
    assert_nothing_leaks,
    assert_steps_give_the_same,
    assert_tokens_add_up,
    ran,
)
from hypothesis import given
from hypothesis import strategies as st
from long_runs import quick_and_full
from test_failures import scenarios as failing

FAIRNESS: tuple[dict[str, Any], ...] = (
    {"kind": "global_strict"}, {"kind": "round_robin"}, {"kind": "least_attained_service", "half_life": 0.3},
    {"kind": "deficit_round_robin", "quantum": 40})
CLASSES = {"gold": {"priority": 2, "ttft": 0.1, "ttl": 0.5}, "basic": {"ttft": 0.5, "ceiling": 0.9},
           "batch": {"priority": -1}, "spare": {"priority": -1, "ceiling": 0.6}}


@st.composite
def scenarios(draw: Any) -> dict[str, Any]:
    data: dict[str, Any] = draw(failing())
    own = data["gateway"]
    own["classes"] = CLASSES
    data["workload"] |= {"tenants": {"values": ["a", "b", "c"], "weights": [1, 2, 5]},
                         "classes": {"values": list(CLASSES)}}
    detector = draw(st.sampled_from([
        {"kind": "utilization"}, {"kind": "utilization", "queue": 1, "kv": 0.3, "scrape": 0.02, "stale": 0.04},
        {"kind": "concurrency", "limit": 3}, {"kind": "concurrency", "limit": 10}]))
    if draw(st.integers(0, 4)) == 0:
        own["admission"] = {"detector": detector}
        return data
    own.pop("queue")
    own["tenants"] = {"a": {"weight": 3}}
    own["flow_control"] = {
        "detector": detector, "fairness": draw(st.sampled_from(FAIRNESS)),
        "ordering": draw(st.sampled_from(["fcfs", "edf", "slo_deadline"])),
        "ttl": draw(st.sampled_from([0.1, 0.4, 60.0])), "scan": draw(st.sampled_from([0.05, 1.0])),
        "max": draw(st.sampled_from([3, 5000])), "cycle": draw(st.sampled_from([0.001, 0.01])),
        "max_bytes": draw(st.sampled_from([2000, 10**9])),
        "total": draw(st.sampled_from([None, 4])), "total_bytes": draw(st.sampled_from([None, 3000])),
        "bands": draw(st.sampled_from([[], [
            {"priority": -1, "max": 1, "ordering": "edf", "fairness": {"kind": "round_robin"}}, {"priority": 7}]])),
        "revoke": draw(st.sampled_from([None, {"grace": 0.05}, {"below": 1, "most": 5, "grace": 0.2}]))}
    return data


@quick_and_full(10, 100, thorough=3000)
@given(scenarios())
def test_whatever_waits_nothing_is_lost(data: dict[str, Any]) -> None:
    simulation, record = ran(data)
    assert_nothing_leaks(simulation)
    assert_conserved(record)
    flow = data["gateway"].get("flow_control")
    if flow is not None:
        gateways = data["gateway"].get("replicas", 1)
        in_order = flow["ordering"] == "fcfs" and flow["fairness"]["kind"] == "global_strict" and gateways == 1 \
            and not flow["bands"]
        assert_held(record, round(flow["cycle"] * 1e9), first_come=in_order, gateways=gateways)
    if data["clients"][0]["name"] == "llm" and data["clients"][0]["scheduler"]["kind"] in ("chunked", "continuous"):
        assert_tokens_add_up(record)
    assert_steps_give_the_same(data, record)
