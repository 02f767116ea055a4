"""Comparing two runs: the noise of a difference, the SLO and the dollars of both, and the verdict."""

from __future__ import annotations

import json
from typing import Any

import numpy as np
import pytest

from hermes.api import simulate
from hermes.core.noise import t_quantile
from hermes.results import Results
from hermes.results.compare import CompareRow, CompareTable, TotalRow, compare
from hermes.results.compare.difference_noise import noise_s


def run(count: int = 2, seed: int = 1, requests: int = 400, **more: Any) -> Results:
    return simulate({
        "seed": seed, "slo": {"ttft": "200 ms", "tpot": "50 ms"},
        "workload": {"requests": requests, "arrivals": {"kind": "poisson", "rate": 12},
                     "lengths": {"kind": "independent", "prompt": {"kind": "uniform", "min": 100, "max": 1500},
                                 "output": {"kind": "uniform", "min": 10, "max": 150}}},
        "clients": [{"name": "gpu", "count": count, "model": "llama-3.1-8b", "device": "l40s", "price_per_hour": 2.0}],
        **more})


def test_noise_of_a_mean_is_that_of_batch_means() -> None:
    rng = np.random.default_rng(1)
    values, others = rng.exponential(size=(2, 2000))
    times = np.arange(2000.0)
    batches = (values - others).reshape(20, 100).mean(axis=1)
    by_hand = t_quantile(20) * batches.std(ddof=1) / np.sqrt(20)
    assert noise_s(values, others, (times, times), "mean", same=True) == pytest.approx(by_hand, rel=1e-9)


def test_what_the_requests_have_in_common_is_no_noise() -> None:
    rng = np.random.default_rng(1)
    values, times = rng.exponential(size=2000), np.arange(2000.0)
    for stat in ("mean", "p50", "p90", "p99"):
        shifted = noise_s(values, values + 0.5, (times, times), stat, same=True)
        assert shifted == pytest.approx(0, abs=1e-12)
        apart = noise_s(values, values + 0.5, (times, times), stat, same=False)
        assert apart is not None
        assert apart > 0.01


@pytest.mark.parametrize("stat", ["mean", "p50", "p99"])
def test_noise_covers_the_difference_of_equal_systems(stat: str) -> None:
    """95% intervals of a difference that is zero: of 200, at least 170 hold it (a jackknife of p99 is not exact)."""
    rng, times, held = np.random.default_rng(3), np.arange(2000.0), 0
    for _ in range(200):
        a, b = rng.exponential(size=(2, 2000))
        found = np.percentile(a, 99) - np.percentile(b, 99) if stat == "p99" else (
            np.median(a) - np.median(b) if stat == "p50" else a.mean() - b.mean())
        half = noise_s(a, b, (times, times), stat, same=True)
        assert half is not None
        held += abs(found) <= half
    assert held >= 170


def test_few_requests_have_no_known_noise() -> None:
    few = np.arange(99.0)
    assert noise_s(few, few, (few, few), "mean", same=True) is None
    table = compare(run(requests=50), run(3, requests=50))
    assert all(row.noise_s is None for row in table.rows)
    assert table.verdict is not None
    assert "of unknown noise: TTFT p99" in table.verdict


def test_a_better_run_costs_more_and_meets_the_slo() -> None:
    slow, quick = run(2, requests=1500), run(4, requests=1500)   # of 400 one seed says too little
    assert (slow.summary["slo"]["pass"], quick.summary["slo"]["pass"]) == (False, True)
    table = compare(quick, slow)
    assert table.verdict is not None
    text = " ".join(table.to_text().split())
    assert table.verdict.startswith("the first against the second: better on TTFT p99 (-")
    assert "worse on $ per hour (+100.0%)" in table.verdict
    assert table.verdict.endswith("meets the SLO, the second misses the SLO")
    totals = {row.name: row for row in table.totals}
    assert (totals["cost.dollars_per_hour"].ours, totals["cost.dollars_per_hour"].reference) == (8.0, 4.0)
    for key, label in (("answer", "$ per million tokens of answers"), ("output", "$ per million generated tokens")):
        assert totals[f"headline.per_million_{key}_tokens_dollars"].ours == quick.summary["headline"][
            f"per_million_{key}_tokens_dollars"]
        assert label in text
    assert totals["headline.served_per_s"].noise is not None
    rows = {row[0]: row[1:] for row in table.slo}
    assert rows["SLO"] == ("met", "MISSED")
    assert rows["TTFT p99"][1].endswith("of 200 ms, MISSED")
    assert "|p99|" in text
    assert "of absolute values" in text
    ttft = next(row for row in table.rows if (row.metric, row.stat) == ("ttft", "p99"))
    assert ttft.difference_s == pytest.approx(ttft.ours_s - ttft.reference_s)   # type: ignore[operator]
    data = json.loads(json.dumps(table.to_dict(), allow_nan=False))
    assert data["verdict"] == table.verdict
    assert data["metrics"][0]["noise_s"] > 0
    # the other way round everything changes its sign
    turned = compare(slow, quick).verdict
    assert turned is not None
    assert "worse on TTFT p99 (+" in turned
    assert "better on $ per hour (-50.0%)" in turned


def test_a_run_against_itself_is_equal() -> None:
    one = run()
    verdict = compare(one, one).verdict
    assert verdict == ("the first against the second: equal: TTFT p99, TPOT p99, E2E p99, served, requests/s, "
                       "$ per hour; both miss the SLO")


@pytest.mark.long
def test_other_seeds_are_within_noise() -> None:
    """Two seeds of one system: nearly all verdicts say that nothing is proven."""
    runs = [run(3, seed=seed) for seed in range(1, 9)]
    beyond = 0
    for a, b in zip(runs[::2], runs[1::2], strict=True):
        table = compare(a, b, allow_different_requests=True)
        means = [row for row in table.rows if row.noise_s is not None and row.stat in ("mean", "p50")]
        beyond += sum(abs(row.difference_s or 0.0) > (row.noise_s or 0.0) for row in means)
    assert beyond <= 4   # of 32


def test_a_star_marks_the_whole_run() -> None:
    steady, whole = run(3, requests=1000), run(3, requests=1000, workload={
        "requests": 1000, "arrivals": {"kind": "at_once"}, "lengths": {"kind": "fixed", "prompt": 500, "output": 20}})
    assert [side.summary["headline"]["window"] for side in (steady, whole)] == ["steady", "whole"]
    text = compare(steady, whole, allow_different_requests=True).to_text()
    assert "* of the whole run: no steady state was found" in text
    assert "*" not in compare(steady, run(4, requests=1000)).to_text()


def test_differences_beyond_noise_are_coloured() -> None:
    rows = [CompareRow("ttft", stat, 1.0, 2.0, -0.5, noise) for stat, noise in (("p50", 0.1), ("p99", 3.0))]
    figures = [TotalRow("headline.served_per_s", 8.0, 10.0, -0.2, 0.5), TotalRow("cost.total_dollars", 1.0, 2.0, -0.5)]
    table = CompareTable(rows, [], 1, 1, None, totals=figures, names=("a", "b"), verdict="a against b")
    latencies, totals = (part.rows for part in table.sections() if part.title != "SLO: value and limit")
    assert [getattr(row[4], "colour", None) for row in latencies] == ["green", None]
    assert [getattr(row[3], "colour", None) for row in totals] == ["red", None]
    assert "\x1b" not in table.to_text()
