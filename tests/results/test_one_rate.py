"""One run, one rate: what `run`, sweeps, `report`, `compare` and the groups of a summary print."""

from __future__ import annotations

from pathlib import Path

import pytest

import hermes
from hermes.explore.sweep.runner import run_sweep
from hermes.explore.sweep.table import point_table
from hermes.results.charts.report_page import ROWS
from hermes.results.compare import compare

SPEC = {
    "workload": [
        {"name": name, "requests": 600, "arrivals": {"kind": "poisson", "rate": rate},
         "lengths": {"kind": "fixed", "prompt": 300, "output": 200}} for name, rate in (("a", 6), ("b", 6))],
    "clients": [{"model": "llama-3.1-8b", "device": "h100-sxm"}], "slo": {"ttft": "1 s", "tpot": "50 ms"},
}


def test_every_command_prints_the_rate_of_the_steady_state(tmp_path: Path) -> None:
    results = hermes.simulate(SPEC)
    summary = results.summary
    served = summary["headline"]["served_per_s"]
    assert summary["headline"]["window"] == "steady"
    assert served != pytest.approx(summary["throughput"]["requests_per_s"], rel=1e-6)
    assert sum(one["requests_per_s"] for one in summary["by"]["workload"].values()) == pytest.approx(served)
    totals = {row.name: row.ours for row in compare(results, results).totals}
    assert served in totals.values()
    assert summary["throughput"]["requests_per_s"] not in totals.values()
    assert not [key for key in ROWS if key.startswith(("throughput.", "goodput."))]
    swept = run_sweep({"name": "one", "scenario": SPEC, "cases": [{"label": "x", "set": {}}]}, tmp_path / "s",
                      workers=0)
    outcome = swept.outcome(0)
    assert outcome is not None
    assert outcome["headline.served_per_s"] == pytest.approx(served)
    assert f"{served:.3g}" in point_table(swept)


def test_a_point_that_has_not_settled_is_marked(tmp_path: Path) -> None:
    short = SPEC | {"workload": [one | {"requests": 30} for one in SPEC["workload"]]}
    swept = run_sweep({"name": "one", "scenario": short, "cases": [{"label": "x", "set": {}}]}, tmp_path / "s",
                      workers=0)
    table = point_table(swept)
    assert "+ " in table.splitlines()[2]
    assert "did not settle" in table
