"""The "assumes" block: what it lists, what silences it, and that its figures agree with simulating the alternative."""

from __future__ import annotations

import json
from functools import cache
from typing import Any

import numpy as np
import pytest
import yaml

import hermes
from hermes.results.assumes import LISTED, MOST, assumed_lines, changes_between, decides, headlines, ordered
from hermes.results.files.export import write_results
from hermes.scenario import load_scenario
from hermes.scenario.assumptions import assumptions
from hermes.site import page_url

LLM: dict[str, Any] = {"model": "llama-3.1-8b", "device": "h100-sxm"}
NOISE = 0.06   # of a p99 when steps shift by microseconds: prompts meet other batches
SLO = {"ttft": "1 s", "tpot": "50 ms"}


def scenario(rate: float, client: dict[str, Any] | None = None, requests: int = 400, **more: Any) -> dict[str, Any]:
    return {"seed": 1, "slo": SLO, "clients": [{**LLM, **(client or {})}],
            "workload": {"requests": requests, "arrivals": {"kind": "poisson", "rate": rate},
                         "lengths": {"kind": "empirical", "profile": "azure-conv-2023"}}, **more}


ADAPTERS = scenario(3, {"scheduler": {"kind": "chunked", "max_loras": 8}})
ADAPTERS["workload"]["adapters"] = {"count": 16}
UNPRICED = scenario(3, {"scheduler": {"kind": "chunked", "max_loras": 8},
                        "hardware": {"kind": "roofline", "model": LLM["model"], "device": LLM["device"]}})
UNPRICED["workload"]["adapters"] = {"count": 16}
CLOSED = scenario(1)
CLOSED["workload"]["arrivals"] = {"kind": "closed_loop", "users": 32}
ROLES = scenario(3)
ROLES["clients"] = [{**LLM, "name": "p", "role": "prefill"}, {**LLM, "name": "d", "role": "decode"}]

SCENARIOS = {
    "idle": scenario(1), "busy": scenario(8), "closed": CLOSED, "roles": ROLES, "adapters": ADAPTERS,
    "unpriced adapters": UNPRICED,
    "pcie": scenario(0.4, {"model": "llama-3.1-70b", "device": "rtx-pro-6000", "parallel": {"tp": 4}}, 300),
    "fp8 on A100": scenario(0.6, {"model": "llama-3.1-70b", "device": "a100-80gb", "parallel": {"tp": 2},
                                  "hardware": {"kind": "composed", "dtype": "fp8"}}, 300),
    "planned with the results": scenario(8, {"scheduler": {"kind": "continuous"}}),
    "experts": scenario(6, {"model": "qwen3-30b-a3b", "parallel": {"dp": 4, "ep": 4}}, 800),
}
EXPECTED = {   # what each scenario must have among its defaults
    "idle": {"sampling", "engine time", "front end", "one seed"},
    "roles": {"KV link"}, "adapters": {"adapter loads"}, "unpriced adapters": {"adapter work"},
    "pcie": {"tensor-parallel link"}, "planned with the results": {"host's time"},
    "fp8 on A100": {"weight-only FP8"}, "experts": {"expert parallelism"},
}


@cache
def simulated(name: str) -> hermes.Results:
    return hermes.simulate(SCENARIOS[name])


@pytest.mark.drawn
@pytest.mark.parametrize("name", EXPECTED)
def test_defaults_of_the_issue_are_found(name: str) -> None:
    assert {entry["name"] for entry in simulated(name).summary["assumes"]} >= EXPECTED[name]


@pytest.mark.drawn
@pytest.mark.parametrize("name", SCENARIOS)
def test_first_order_agrees_with_simulating_the_alternative(name: str) -> None:
    """First order is at most 1.5 times what a simulation finds, and at least a third, within 6 points of noise.

    So nothing that a simulation moves by 20% goes unlisted. First order leaves out queues: near a limit a simulation
    may find any multiple of it, and the entry says "before queues change".
    """
    run = simulated(name)
    entries = {entry["name"]: entry for entry in run.summary["assumes"]}
    before, compared = headlines(run.summary), 0
    for one in assumptions(load_scenario(SCENARIOS[name])):
        entry = entries.get(one.name)
        if entry is None or entry["method"] == "not simulated":
            continue
        after = hermes.simulate(SCENARIOS[name], overrides=dict(one.settings)).summary
        there = changes_between(before, headlines(after))
        here = entry["effect"]
        for figure in ("ttft_p99", "tpot_p99", "e2e_p99", "served_per_s"):
            a, b = here.get(figure, 0.0), there.get(figure, 0.0)
            if max(abs(a), abs(b)) < LISTED:
                continue
            compared += 1
            larger, smaller = (abs(b), abs(a)) if entry["method"] == "rough" else (0.0, 3 * abs(a))
            assert abs(a) <= 1.5 * abs(b) + NOISE, (one.name, figure, a, b)
            assert abs(b) <= max(larger, smaller) + NOISE, (one.name, figure, a, b)
            assert a * b > 0 or max(abs(a), abs(b)) < 2 * NOISE, (one.name, figure, a, b)
    assert compared or name in ("roles", "experts", "idle")


def test_a_key_that_the_scenario_writes_is_no_default() -> None:
    names = {entry["name"] for entry in simulated("idle").summary["assumes"]}
    written = scenario(1, {"frontend": {"before": "4.5 ms", "after": "1.5 ms"},
                           "hardware": {"kind": "composed", "top_p": True}})
    again = {entry["name"] for entry in hermes.simulate(written).summary["assumes"]}
    assert names - again == {"front end", "sampling"}


def test_a_front_end_twice_as_slow_by_hand() -> None:
    run = simulated("idle")
    entry = next(one for one in run.summary["assumes"] if one["name"] == "front end")
    assert entry["effect"]["ttft_p99"] == pytest.approx(6e-3 / run.summary["latency"]["ttft_s"]["p99"], rel=1e-6)


def test_machines_without_a_price_by_hand() -> None:
    unpriced = scenario(1)
    unpriced["clients"].append({**LLM, "name": "own", "device": "b300", "parallel": {"tp": 2}})
    unpriced["clients"][0]["price_per_hour"] = 4.0
    summary = hermes.simulate(unpriced).summary
    assert summary["cost"]["clients_without_price"] == 1
    entry = next(one for one in summary["assumes"] if one["name"] == "prices")
    assert entry["effect"] == {"dollars_per_million": pytest.approx(2 * 1.0 / 4.0)}
    assert "own" in entry["default"]


def test_watts_that_nobody_measured_by_hand() -> None:
    """The high end of an MI300X's range: that many more joules. Measured cards, and watts that are given, are none."""
    runs = {}
    for name, client in {"measured": {}, "guess": {"device": "mi300x"},
                         "given": {"device": "mi300x", "power": {"idle": 100, "prefill": 600, "decode": 500}}}.items():
        one = scenario(1)
        one["clients"][0].update(client)
        runs[name] = hermes.simulate(one).summary
    found = {name: [entry for entry in summary["assumes"] if entry["name"] == "watts"]
             for name, summary in runs.items()}
    assert found["measured"] == found["given"] == []
    (entry,) = found["guess"]
    assert entry["effect"] == {"tokens_per_j": pytest.approx(1 / 1.25 - 1)}
    assert entry["default"] == "of mi300x: guess, -25 to +25%"
    assert runs["guess"]["energy"]["total_j"] > 0


def test_watts_of_some_clients_count_by_their_joules() -> None:
    two = scenario(1)
    two["clients"].append({**LLM, "name": "own", "device": "b300", "parallel": {"tp": 2}})
    summary = hermes.simulate(two).summary
    (entry,) = [one for one in summary["assumes"] if one["name"] == "watts"]
    own = sum(client["energy_j"] for name, client in summary["clients"].items() if name.startswith("own"))
    share = own / summary["energy"]["total_j"]
    assert 0 < share < 1
    assert entry["effect"] == {"tokens_per_j": pytest.approx(1 / (1 + 0.25 * share) - 1)}


@pytest.mark.long
def test_one_seed_is_the_spread_over_seeds() -> None:
    """The interval of one run's parts is that of other seeds, within a factor of two and a half."""
    runs = [hermes.simulate(scenario(8, requests=800), seed=seed).summary for seed in range(8)]
    for figure in ("tpot_p99", "e2e_p99"):
        values = np.array([headlines(run)[figure] for run in runs], dtype=float)
        spread = 1.96 * values.std(ddof=1) / values.mean()
        halves = [entry["effect"][figure] for run in runs for entry in run["assumes"] if entry["name"] == "one seed"]
        assert spread / 2.5 < float(np.median(halves)) < 2.5 * spread


def test_a_limit_inside_the_interval_may_turn() -> None:
    at = simulated("busy").summary["latency"]["tpot_s"]["p99"]
    near = hermes.simulate({**SCENARIOS["busy"], "slo": {"tpot": at * 1.01}}).summary["assumes"]
    assert next(entry for entry in near if entry["name"] == "one seed")["turns_verdict"]
    assert near[0]["turns_verdict"]
    far = hermes.simulate({**SCENARIOS["busy"], "slo": {"tpot": at * 10}}).summary["assumes"]
    assert not any(entry["turns_verdict"] for entry in far)


def test_an_alternative_that_turns_the_verdict_is_listed_however_small() -> None:
    entry = {"name": "sampling", "default": "greedy", "alternative": "top-p", "effect": {"tpot_p99": 0.011},
             "turns_verdict": True, "method": "first order"}
    assert decides(entry)
    assert assumed_lines([entry]) == [
        "sampling: greedy; top-p would make TPOT p99 about +1.1%, and may turn the SLO verdict"]
    assert assumed_lines([{**entry, "turns_verdict": False}]) == []
    assert assumed_lines([{**entry, "turns_verdict": False}], verbose=True) == [
        "sampling: greedy; top-p would make TPOT p99 about +1.1%"]
    assert assumed_lines([{**entry, "method": "rough"}]) == [
        "sampling: greedy; top-p would make TPOT p99 about +1.1% before queues change, and may turn the SLO verdict"]
    assert assumed_lines([{**entry, "method": "simulated"}]) == [
        "sampling: greedy; top-p would make TPOT p99 +1.1% (simulated), and turn the SLO verdict"]
    assert assumed_lines([{**entry, "effect": {}, "turns_verdict": False, "method": "not simulated"}],
                         verbose=True) == ["sampling: greedy; top-p was not simulated"]


def test_at_most_six_lines_largest_first_all_with_v() -> None:
    entries = [{"name": f"n{i}", "default": "a", "alternative": "b", "effect": {"e2e_p99": -0.01 * i},
                "turns_verdict": False, "method": "first order"} for i in range(12)]
    lines = assumed_lines(entries)
    assert [line.split(":")[0] for line in lines[:MOST]] == ["n11", "n10", "n9", "n8", "n7", "n6"]
    assert lines[MOST:] == ["and 1 more (-v)"]   # n5 moves a headline by 5% too
    assert len(assumed_lines(entries, verbose=True)) == 12
    assert [entry["name"] for entry in ordered(entries)][:2] == ["n11", "n10"]


def test_same_bytes_in_summary_text_and_files(tmp_path: Any) -> None:
    run = hermes.simulate(SCENARIOS["busy"])
    assert run.summary["assumes"] == simulated("busy").summary["assumes"]
    write_results(run, tmp_path)
    assert json.loads((tmp_path / "summary.json").read_text())["assumes"] == run.summary["assumes"]
    text = run.to_text()
    assert "assumes  " in text
    stored = hermes.open_run(tmp_path).to_text()
    assert text.splitlines()[1:] == stored.splitlines()[1:]   # the first line has the time taken
    assert max(map(len, run.to_text(verbose=True).splitlines())) <= 80
    assert page_url("background/not-modelled") in run.to_text(verbose=True)


def test_defaults_are_those_of_the_document_that_extends_another(tmp_path: Any) -> None:
    (tmp_path / "base.yaml").write_text(yaml.safe_dump(scenario(1, {"frontend": {"before": "1 ms"}})))
    (tmp_path / "more.yaml").write_text("extends: base.yaml\nseed: 2\n")
    assert "front end" not in {one.name for one in assumptions(load_scenario(tmp_path / "more.yaml"))}
