"""Where sequences wait for KV blocks, ranges of results hold what the error of the engine's own sum would change."""

from __future__ import annotations

from functools import cache
from typing import Any

import pytest

import hermes
from hermes.api import load_scenario
from hermes.results import Results
from hermes.scenario.starts import budgets


def scenario(rate: float = 0.56, **memory: Any) -> dict[str, Any]:
    """Return 32 billion parameters on one card of 80 GB: room for eleven requests."""
    return {
        "seed": 1, "workload": {"requests": 60, "arrivals": {"kind": "poisson", "rate": rate},
                                "lengths": {"kind": "fixed", "prompt": 3000, "output": 600}},
        "clients": [{"model": "qwen3-32b", "device": "h100-sxm"} | ({"memory": memory} if memory else {})]}


@cache
def bound(*, again: bool = True) -> Results:
    return hermes.simulate(scenario(), alternatives=again)


def test_ranges_reach_what_runs_with_the_least_and_the_most_memory_give() -> None:
    """The two runs are asked for by hand: blocks of 16 tokens x 262,144 bytes in the ends of the printed range."""
    [(_, budget, _, _)] = budgets(load_scenario(scenario()))
    assert budget.kv_bytes_per_token == 64 * 2 * 8 * 128 * 2
    runs = [hermes.simulate(scenario(num_blocks=end // (16 * 262_144))) for end in budget.range]
    [source] = bound().summary["sources"]
    own = hermes.simulate(scenario(num_blocks=budget.num_blocks)).summary["sources"][0]["results"]
    for family, stats in {"ttft": [("ttft", "mean"), ("ttft", "p50")], "ttft p99": [("ttft", "p99")],
                          "times p99": [("tpot", "p99"), ("e2e", "p99")]}.items():
        ratios = [run.summary["latency"][f"{metric}_s"][stat] / bound().summary["latency"][f"{metric}_s"][stat]
                  for run in runs for metric, stat in stats]
        found = source["results"][family]
        assert found["high"] == pytest.approx(own[family]["high"] * max(1.0, *ratios))
        assert found["low"] == pytest.approx(own[family]["low"] * min(1.0, *ratios))
    assert source["kv_range"] is True
    assert source["results"]["ttft"]["class"] == "guess", "no measured step makes a queue for memory sure"


def test_what_was_not_simulated_is_said() -> None:
    [source] = bound(again=False).summary["sources"]
    assert source["kv_range"] is False
    assert "the error of KV memory is not in them" in " ".join(bound(again=False).to_text().split())
    assert "the error of KV memory is in them" in " ".join(bound().to_text().split())


def test_assumes_names_the_memory_with_its_range() -> None:
    [entry] = [one for one in bound().summary["assumes"] if one["name"] == "KV memory"]
    assert entry["method"] == "simulated"
    assert entry["effect"]["ttft_p99"] > 0.05, "less memory makes longer queues"
    ends = budgets_of_llm()
    least = hermes.simulate(scenario(num_blocks=ends[0] // (16 * 262_144))).summary
    for name, metric in (("ttft_p99", "ttft_s"), ("e2e_p99", "e2e_s")):
        was, now = (summary["latency"][metric]["p99"] for summary in (bound().summary, least))
        assert entry["effect"][name] == pytest.approx(now / was - 1.0)
    low, high = (end / 2**30 for end in ends)
    assert f"({low:.1f} to {high:.1f})" in entry["default"]


def budgets_of_llm() -> tuple[int, int]:
    [(_, budget, _, _)] = budgets(load_scenario(scenario()))
    return budget.range


@pytest.mark.parametrize("given", [scenario(rate=0.05), scenario(num_blocks=2000)], ids=["room", "given blocks"])
def test_no_range_where_nobody_waits_or_where_blocks_are_given(given: dict[str, Any]) -> None:
    summary = hermes.simulate(given, alternatives=True).summary
    assert "kv_range" not in summary["sources"][0]
    assert "KV memory" not in [one["name"] for one in summary["assumes"]]
