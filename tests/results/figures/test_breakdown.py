"""Critical paths: by hand, and in simulated graphs whose parts have to add up; summaries of mixed workloads; energy of
stages served by all kinds of client."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from long_runs import quick_and_full
from synthetic_records import MS, by_hand, columns, stage

from hermes.api import simulate
from hermes.core.record import STAGE_FIELDS, TRANSFER_FIELDS, RunRecord
from hermes.results.figures.breakdown import CAUSES, breakdown, critical_path
from hermes.results.figures.usage import window_ns
from hermes.results.metrics import answer, request_metrics
from hermes.units import NS_PER_S

LLM = {
    "name": "llm", "model": "llama-3.1-8b", "power": {"idle": 90.0, "prefill": 600.0, "decode": 400.0},
    "hardware": {"kind": "roofline", "model": "llama-3.1-8b", "device": "h100-sxm"},
}


def fan_out() -> RunRecord:
    """Request 0: a (100 to 110), then b (to 130) beside c (to 150), then d, whose data takes 150 to 170 to arrive; it
    starts at 180 and ends at 200. Beside it all a long e, which the request does not wait for."""
    record = by_hand()
    record.stage_kinds = ["a", "b", "c", "d", "e"]
    rows = [(0, 0, 100, 100, 110), (1, 0, 110, 115, 130), (2, 1, 110, 110, 150), (3, 2, 150, 180, 200),
            (4, 0, 110, 110, 300)]
    record.stages = columns(STAGE_FIELDS, [
        stage(0, kind, client, assigned, start, -1, end, (-1, -1), tokens=0)
        for kind, client, assigned, start, end in rows
    ])
    record.transfers = columns(TRANSFER_FIELDS, [
        {"request": 0, "src": 0, "dst": 2, "bytes": 5, "start_ns": 150 * MS, "end_ns": 160 * MS},
        {"request": 0, "src": 1, "dst": 2, "bytes": 5, "start_ns": 150 * MS, "end_ns": 170 * MS},
    ])
    record.runs = {name: values[:0] for name, values in record.runs.items()}
    record.status = np.array([1, 0, 0, 0, 0, 0], dtype=np.int8)
    record.finish_ns = np.array([200, -1, -1, -1, -1, -1]) * MS
    return record


def test_of_stages_side_by_side_the_last_to_end_counts() -> None:
    record = fan_out()
    path = critical_path(record)
    assert path.on_path.tolist() == [True, False, True, True, False]
    assert path.communication_ns.tolist() == [0, 0, 0, 20 * MS, 0]      # the two transfers overlap
    assert path.queue_ns.tolist() == [0, 5 * MS, 0, 10 * MS, 0]
    assert [int(path.per_request(record, cause)[0]) // MS for cause in CAUSES] == [10, 20, 70]
    assert path.other_ns[0] == 0
    parts = breakdown(record, path, request_metrics(record, answer(record)))
    assert list(parts["stages"]) == ["a", "c", "d"]
    assert [part["share"] for part in parts["stages"].values()] == [0.1, 0.4, 0.5]


@st.composite
def graphs(draw: st.DrawFn) -> dict[str, Any]:
    """Fan-outs and joins of services around generations; data moves between them."""
    stages: dict[str, Any] = {}
    for i in range(draw(st.integers(1, 6))):
        parents = draw(st.lists(st.integers(0, i - 1), unique=True, max_size=3)) if i else []
        kind = draw(st.sampled_from(["embed", "rank", "generate"]))
        copies = 1 if kind == "generate" else draw(st.integers(1, 3))
        stages[f"s{i}"] = {
            "kind": kind, "after": [f"s{p}" for p in parents], "copies": copies,
            "input_bytes": draw(st.sampled_from([0, 10**6, 10**8])) if parents else 0,
        }
    return stages


def scenario(stages: dict[str, Any], **changes: Any) -> dict[str, Any]:
    services = {"embed": {"kind": "per_item", "per_item": "2 ms"}, "rank": {"kind": "per_item", "per_item": "7 ms"}}
    watts = {"idle": 50.0, "prefill": 200.0}
    return {
        "workload": {"requests": 8, "arrivals": {"kind": "poisson", "rate": 60},
                     "lengths": {"kind": "fixed", "prompt": 300, "output": 4}, "pipeline": "g"},
        "pipelines": {"g": {"stages": stages}},
        "clients": [
            LLM | {"count": 2},
            {"kind": "processing", "name": "cpu", "cores": 2, "serves": services, "power": watts},
            {"kind": "rag", "name": "rag", "max_batch": 4, "serves": services, "power": watts},
        ],
        "network": {"kind": "link", "bandwidth": "10 GB/s", "latency": "1 ms", "shared": True},
    } | changes


@pytest.mark.feature("Results, sweeps, studies", "Critical path; time at a gateway")
@quick_and_full(8, 25)
@given(graphs())
def test_the_parts_add_up_to_the_latency(stages: dict[str, Any]) -> None:
    results = simulate(scenario(stages))
    record = results.record
    path = critical_path(record)
    assert (path.queue_ns >= 0).all()
    assert not path.other_ns.any()
    total = np.sum([path.per_request(record, cause) for cause in CAUSES], axis=0)
    np.testing.assert_array_equal(total, record.finish_ns - record.arrival_ns)
    parts = results.summary["breakdown"]["stages"]
    assert sum(part["share"] for part in parts.values()) == pytest.approx(1)
    assert sum(part["on_path"] + part["beside"] for part in parts.values()) <= len(record.stages["kind"])
    frame = results.requests
    path_s = frame["path_queue_s"] + frame["path_communication_s"] + frame["path_compute_s"]
    np.testing.assert_allclose(path_s, frame["e2e_s"])
    # joules: of all clients, services included, power times time; and those of stages are all that is not idle
    energy, held_s = results.summary["energy"], window_ns(record)[1] / NS_PER_S
    by_client = sum(
        info.idle_w * (held_s - client["stepping_s"]) + client["prefill_j"] + client["decode_j"]
        for info, client in zip(record.clients, results.summary["clients"].values(), strict=True)
    )
    assert energy["total_j"] == pytest.approx(by_client)
    assert sum(kind["total_j"] for kind in energy["stages"].values()) == pytest.approx(energy["requests_j"])
    assert energy["requests_j"] + energy["unattributed_j"] + energy["idle_j"] == pytest.approx(energy["total_j"])
    assert results.stages["energy_j"].sum() == pytest.approx(energy["requests_j"])


def test_a_service_costs_its_watts_while_it_serves() -> None:
    stages = {"a": {"kind": "embed"}, "b": {"kind": "rank", "after": "a"}}
    data = scenario(stages, clients=scenario(stages)["clients"][1:2])
    data["workload"] |= {"requests": 3, "arrivals": {"kind": "uniform", "rate": 1.0}}
    energy = simulate(data).summary["energy"]
    # 3 x 2 ms and 3 x 7 ms at 200 W; the rest of the window at 50 W
    assert energy["stages"]["embed"] == pytest.approx({"total_j": 1.2, "mean_j": 0.4})
    assert energy["stages"]["rank"] == pytest.approx({"total_j": 4.2, "mean_j": 1.4})


def test_generations_are_split_at_the_first_token() -> None:
    results = simulate(scenario({"s0": {"kind": "generate"}}))
    part = results.summary["breakdown"]["stages"]["generate"]
    frame = results.stages
    assert part["first_token_s"]["mean"] == pytest.approx((frame["first_token_s"] - frame["start_s"]).mean())
    assert part["first_token_s"]["mean"] < part["compute_s"]["mean"]
    prompt_j = results.summary["energy"]["stages"]["generate"]["prompt_j"]
    assert 0 < prompt_j < results.summary["energy"]["stages"]["generate"]["total_j"]


def test_what_is_mixed_is_summarised_apart() -> None:
    data = scenario({"a": {"kind": "rank"}, "b": {"kind": "generate", "after": "a"}})
    first = data["workload"]
    data["workload"] = [{"name": "graph", **first}, {"name": "chat", **first, "pipeline": "plain", "requests": 5}]
    results = simulate(data)
    by = results.summary["by"]
    assert list(by) == ["workload", "pipeline"]        # one model only
    assert {name: entry["requests"] for name, entry in by["pipeline"].items()} == {"g": 8, "plain": 5}
    assert list(by["pipeline"]["plain"]["stages_mean_s"]) == ["generate"]
    assert list(by["pipeline"]["g"]["stages_mean_s"]) == ["generate", "rank"]
    for entry in by["pipeline"].values():
        assert sum(entry["stages_mean_s"].values()) == pytest.approx(entry["e2e_s"]["mean"])
    total = sum(entry["requests_per_s"] for entry in by["workload"].values())
    assert total == pytest.approx(results.summary["throughput"]["requests_per_s"])
    assert "by pipeline" in results.to_text(verbose=True)
    assert "where the time goes" in results.to_text(verbose=True)
