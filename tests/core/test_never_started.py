"""Requests that are given up before they start: no wait, no service and no energy of theirs is counted."""

from __future__ import annotations

import json
import math
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from long_runs import quick_and_full
from random_scenarios import chunked, scenarios

from hermes.api import simulate
from hermes.core.record import STATUS_COMPLETED, STATUS_REJECTED
from hermes.errors import InputError
from hermes.results import Results
from hermes.results.figures.usage import paid_ns
from hermes.results.files.export import write_results
from hermes.results.files.stored import open_run
from hermes.results.files.trace import trace_events
from hermes.results.request_times import request_times
from hermes.scenario import load_scenario
from hermes.scenario.build import build

POWER = {"idle": 90.0, "prefill": 600.0, "decode": 400.0}


def overload(**patience: float) -> dict[str, Any]:
    """An engine with eight places, and five times the requests that it can serve."""
    return {
        "name": "overload", "seed": 2,
        "workload": {"requests": 209, "arrivals": {"kind": "poisson", "rate": 40}, "patience": patience,
                     "lengths": {"kind": "independent", "prompt": {"kind": "uniform", "min": 20, "max": 1500},
                                 "output": {"kind": "uniform", "min": 2, "max": 420}}},
        "clients": [{"name": "gpu", "model": "llama-3.1-8b", "device": "l40s", "memory": {"num_blocks": 800},
                     "power": POWER, "scheduler": {"kind": "chunked", "max_num_seqs": 8}}]}


def check(results: Results) -> None:
    """Assert what holds of every run, however many requests were given up."""
    record, summary, stages, requests = results.record, results.summary, results.stages, results.requests
    start, end = paid_ns(record)
    assert start == 0
    for client in summary["clients"].values():
        assert client["utilisation"] is None or client["utilisation"] <= 1 + 1e-12
        assert client["mean_waiting"] is None or client["mean_waiting"] >= 0
    assert (results.utilisation.utilisation <= 1 + 1e-9).all()
    for kind in summary["stages"].values():
        for times in kind.values():
            assert times["min"] is None or times["min"] >= 0
    never = ~record.started
    assert stages.start_s[never].isna().all()
    assert stages.energy_j[never].fillna(0).eq(0).all()
    started = np.zeros(len(requests), dtype=bool)
    started[record.stages["request"][~never]] = True
    idle = (record.status == STATUS_REJECTED) & ~started
    for name in ("queue_s", "compute_s", "ttft_s", "tpot_s", "e2e_s"):
        assert requests[name][idle].isna().all(), name
    assert requests.energy_j[idle].fillna(0).eq(0).all()
    for name in ("queue_s", "compute_s", "ttft_s", "tpot_s", "e2e_s"):
        assert (requests[name].dropna() >= 0).all(), name
    done = (record.status == STATUS_COMPLETED) & (results.metrics.ttft_ns >= 0)
    assert (results.metrics.ttft_ns[done] <= results.metrics.e2e_ns[done]).all()
    energy = summary["energy"]
    runs = record.runs
    joules = 0.0   # by hand: each run at its state's watts, the rest from 0 to the end idle
    for index, info in enumerate(record.clients):
        mine = runs["client"] == index
        span = (runs["end_ns"] - runs["start_ns"])[mine] / 1e9
        watts = np.where(runs["prefill_seqs"][mine] > 0, info.prefill_w, info.decode_w)
        joules += math.fsum(span * watts) + info.idle_w * (end / 1e9 - math.fsum(span))
    assert energy["total_j"] == pytest.approx(joules, rel=1e-9, abs=1e-9)
    assert energy["requests_j"] + energy["unattributed_j"] + energy["idle_j"] == pytest.approx(
        energy["total_j"], rel=1e-9, abs=1e-9)


@quick_and_full(16, 60, thorough=400)
@given(st.data())
def test_nothing_is_counted_of_requests_that_never_started(data: st.DataObject) -> None:
    scenario = data.draw(scenarios("chunked"))
    for client in scenario["clients"]:
        client |= {"power": POWER, "scheduler": data.draw(chunked())}
    for workload in scenario["workload"]:
        if data.draw(st.booleans()):
            workload["patience"] = {data.draw(st.sampled_from(["first_token", "total"])):
                                    data.draw(st.sampled_from([2e-6, 1e-5, 1e-4, 0.02, 1.0]))}
            workload.pop("branches", None)
            workload.pop("branch_spread", None)
            workload["pipeline"] = "plain"
    results = Results(build(load_scenario(scenario)).run())
    check(results)


@pytest.mark.parametrize("patience", [{"first_token": 1}, {"total": 0.9}], ids=str)
def test_an_overload_that_most_give_up(patience: dict[str, float], tmp_path: Path) -> None:
    results = simulate(overload(**patience))
    check(results)
    never = ~results.record.started
    assert never.sum() > 70
    gpu = results.summary["clients"]["gpu"]
    assert gpu["stages"] == 209 - never.sum()
    waits = results.summary["stages"]["generate"]["wait_s"]
    assert waits["count"] == 209 - never.sum()
    assert 0 <= waits["min"] < waits["mean"] <= 1.2
    # all that are given up without a start were in the queue for as long as they had patience
    assert gpu["mean_waiting"] * results.summary["makespan_s"] > never.sum() * min(patience.values())
    # the engine goes on after the last answer, with what was given up later: that time is in the window
    assert results.summary["makespan_s"] >= results.record.runs["end_ns"].max() / 1e9 - 1
    # a folder keeps it, and every other reader copes with it
    write_results(results, tmp_path / "run")
    stored = open_run(tmp_path / "run")
    assert stored.stages.equals(results.stages)
    assert (stored.record.started == results.record.started).all()
    assert json.loads((tmp_path / "run" / "summary.json").read_text())["stages"] == results.summary["stages"]
    request = int(results.record.stages["request"][np.flatnonzero(never)[0]])
    [part] = request_times(results, request)
    assert (part.part, part.cause) == ("queue", "until its client gave up")
    assert part.seconds == pytest.approx(min(patience.values()), abs=0.2)
    assert all(event.get("ts", 0) >= 0 for event in trace_events(results.record, results.metrics))


def test_a_prompt_that_was_given_up_pays_for_its_prompt() -> None:
    """A generation without a first token computed a part of its prompt: no share of the decodes beside it."""
    results = simulate(overload(first_token=0.3))
    record = results.record
    cut = record.started & (record.stages["first_token_ns"] < 0)
    assert cut.any()
    runs = record.runs
    for row in np.flatnonzero(cut):
        begin, end = record.stages["start_ns"][row], record.stages["end_ns"][row]
        beside = (runs["start_ns"] >= begin) & (runs["start_ns"] < end)
        spent = ((runs["end_ns"] - runs["start_ns"]) * (runs["prefill_tokens"] > 0) * 600.0)[beside].sum() / 1e9
        assert 0 < results.stages.energy_j[row] <= spent * (1 + 1e-9)


SPECULATIVE = {"kind": "chunked", "speculative": {"num_speculative_tokens": 2, "acceptance_rate": 0.5}}
FLEET = [
    {"name": "small", "model": "llama-3.1-8b", "device": "l40s", "memory": {"num_blocks": 800}},
    {"name": "other", "model": "mistral-7b", "device": "l40s", "memory": {"num_blocks": 800}, "scheduler": SPECULATIVE},
]


def fleet(model: str, **asked: Any) -> dict[str, Any]:
    one = {"requests": 5, "arrivals": {"kind": "poisson", "rate": 5},
           "lengths": {"kind": "fixed", "prompt": 100, "output": 5}}
    return {"workload": [{"name": "asks", "model": model, **one, **asked},
                         {"name": "plain", "model": "mistral-7b", **one}], "clients": FLEET}


def test_only_the_clients_that_serve_a_workload_need_places_for_adapters() -> None:
    given = fleet("llama-3.1-8b", adapters={"count": 2})
    given["clients"] = [{**FLEET[0], "scheduler": {"kind": "chunked", "max_loras": 2}}, FLEET[1]]
    assert simulate(given).summary["requests"]["completed"] == 10
    with pytest.raises(InputError, match=r"clients\.1\.scheduler: a workload has adapters: give max_loras"):
        simulate({**fleet("mistral-7b", adapters={"count": 2}), "clients": given["clients"]})
