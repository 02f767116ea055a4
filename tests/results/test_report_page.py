"""The page of `hermes report`: what it says, how large it is, and that it asks nobody."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from hermes.api import open_run, simulate
from hermes.cli import main
from hermes.explore import open_sweep, run_sweep
from hermes.explore.sweep_report import sweep_page
from hermes.results.report_charts import POINTS, SAMPLE, cdf, run_charts, timeline
from hermes.results.report_page import MOST_BYTES, runs_page

vl_convert = pytest.importorskip("vl_convert", reason="needs vl-convert-python: pip install 'hermes-sim[report]'")


def scenario(**more: Any) -> dict[str, Any]:
    return {
        "name": "page </script><b>", "seed": 1, "slo": {"ttft": "400 ms"},
        "workload": {"requests": 150, "arrivals": {"kind": "poisson", "rate": 15},
                     "lengths": {"kind": "empirical", "profile": "azure-conv-2023"}},
        "clients": [{"model": "llama-3.1-8b", "device": "h100-sxm", "count": 2}], **more}


@pytest.fixture(scope="module")
def text() -> str:
    return runs_page([("one", simulate(scenario())), ("two", simulate(scenario(seed=2)))])


def specs(page: str) -> dict[str, Any]:
    found = re.search(r'<script type="application/json" id="specs">(.*?)</script>', page, flags=re.S)
    assert found is not None
    data: dict[str, Any] = json.loads(found[1])
    return data


def test_it_is_small_and_asks_nobody(text: str) -> None:
    assert len(text.encode()) < MOST_BYTES
    own = text[:text.index("<script>")]   # vega's own source mentions addresses, which the browser test watches
    assert not re.search(r"(src|href)=[\"']?(https?:)?//", own)
    assert "@import" not in own
    assert "url(" not in own


def test_names_are_escaped() -> None:
    page = runs_page([("<i>name</i>", simulate(scenario()))])
    assert "<i>name</i>" not in page
    assert "page </script><b>" not in page
    assert len(specs(page)) >= 8


def test_the_same_run_has_the_same_bytes() -> None:
    first, second = (runs_page([("run", simulate(scenario()))]) for _ in range(2))
    assert first == second


def test_figures_are_those_of_the_summary(text: str) -> None:
    run = simulate(scenario())
    latency = run.summary["latency"]
    assert f"{latency['ttft_s']['p99'] * 1e3:.4g} ms" in text
    assert f"{latency['e2e_s']['p99'] * 1e3:,.0f} ms" in text
    other = simulate(scenario(seed=2)).summary["latency"]
    assert f"({other['e2e_s']['p50'] / latency['e2e_s']['p50'] - 1:+.1%})" in text
    assert "Binds: " in text


def test_a_distribution_has_its_percentiles_and_the_limit() -> None:
    run = simulate(scenario())
    _, _, spec = cdf([("run", run)], "ttft", "TTFT")
    rows = spec["data"]["values"]
    seconds = run.requests["ttft_s"]
    assert len(rows) <= POINTS + 3
    assert rows[-1]["share"] == 1
    assert rows[-1]["ms"] == pytest.approx(seconds.max() * 1e3, rel=1e-3)
    marks = {row["what"]: row["ms"] for row in spec["layer"][1]["data"]["values"]}
    assert marks["p50"] == pytest.approx(np.percentile(seconds, 50) * 1e3, rel=1e-3)
    assert spec["layer"][2]["data"]["values"][0]["ms"] == 400


def test_the_timeline_is_a_sample_of_whole_requests() -> None:
    run = simulate(scenario())
    _, said, spec = timeline("run", run)
    assert f"{SAMPLE} of 150 completed requests" in said
    rows = run.requests.set_index("request")
    for row in spec["data"]["values"]:
        if row["phase"] == "answer":
            request = rows.loc[row["request"]]
            assert row["from"] == pytest.approx(request.first_token_s, abs=1e-4)
            assert row["to"] == pytest.approx(request.last_token_s, abs=1e-4)
    assert len({row["request"] for row in spec["data"]["values"]}) == SAMPLE


def test_large_runs_stay_small() -> None:
    charts = run_charts([("large", simulate(scenario(workload={
        "requests": 4000, "arrivals": {"kind": "poisson", "rate": 30},
        "lengths": {"kind": "fixed", "prompt": 300, "output": 20}})))])
    assert len(json.dumps([spec for _, _, spec in charts])) < 200_000


def test_a_run_in_which_all_requests_are_rejected() -> None:
    none = scenario(workload={"requests": 5, "arrivals": {"kind": "at_once"},
                              "lengths": {"kind": "fixed", "prompt": 3000, "output": 20}},
                    clients=[{"model": "llama-3.1-8b", "device": "h100-sxm", "memory": {"num_blocks": 20}}])
    page = runs_page([("none", simulate(none))])
    assert "rejected" in page
    assert not any("Timeline" in title for title, _, _ in run_charts([("none", simulate(none))]))


def test_the_command(tmp_path: Path) -> None:
    assert main(["run", "quickstart", "--set", "workload.requests=60", "-o", str(tmp_path / "run"), "-q"]) == 0
    page = tmp_path / "out" / "page.html"
    assert main(["report", str(tmp_path / "run"), "-o", str(page)]) == 0
    text = page.read_text()
    assert "max_num_batched_tokens" in text   # the scenario, every key
    assert text == runs_page([("quickstart", open_run(tmp_path / "run"))])
    assert main(["report", str(tmp_path), "-o", str(page)]) == 2


def test_a_sweep(tmp_path: Path) -> None:
    run_sweep({"name": "rates", "scenario": scenario(), "grid": {"workload.arrivals.rate": [5, 10, 1e9]}},
              tmp_path / "s", workers=0)
    page = sweep_page(open_sweep(tmp_path / "s"))
    (spec,) = specs(page).values()
    assert len(spec["data"]["values"]) == 3
    assert "rate 10" in page
    assert main(["report", str(tmp_path / "s"), "-o", str(tmp_path / "s.html")]) == 0
    assert main(["report", str(tmp_path / "s"), str(tmp_path / "s"), "-o", str(tmp_path / "s.html")]) == 2
