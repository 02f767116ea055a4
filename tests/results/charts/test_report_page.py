"""The page of `hermes report`: its figures, its size, and that it needs no network."""

from __future__ import annotations

import json
import re
from html import escape
from pathlib import Path
from typing import Any

import pytest

from hermes.api import open_run, simulate
from hermes.cli import main
from hermes.explore import open_sweep, run_sweep
from hermes.explore.sweep.report import sweep_page
from hermes.results.brief import brief
from hermes.results.charts.report_page import MOST_BYTES, VEGA, runs_page
from hermes.results.compare import compare
from hermes.results.layout import format_s


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


@pytest.mark.feature("Scenarios and commands", "`hermes report`: a page without a network, of runs or a sweep")
def test_it_is_small_and_asks_nobody(text: str) -> None:
    assert len(text.encode()) < MOST_BYTES
    own = text[:text.index("<script>")]   # vega's own source mentions addresses, which the browser test watches
    assert not re.search(r"(src|href)=[\"']?(https?:)?//", own)
    assert "@import" not in own
    assert "url(" not in own


def test_the_licences_of_the_script_are_beside_it() -> None:
    """`scripts/build_vega.py` writes both; a page has the script as it is."""
    licences = VEGA.with_name("LICENSE").read_text(encoding="utf-8")
    for name, text in (("vega", "University of Washington"), ("vega-lite", "University of Washington"),
                       ("d3-array", "Mike Bostock"), ("fast-json-patch", "MIT")):
        assert re.search(rf"^{name} \d+\.\d+\.\d+ \(", licences, flags=re.M)
        assert text in licences
    assert "</script" not in VEGA.read_text(encoding="utf-8")


def test_names_are_escaped() -> None:
    page = runs_page([("<i>name</i>", simulate(scenario()))])
    assert "<i>name</i>" not in page
    assert "page </script><b>" not in page
    assert len(specs(page)) >= 8


@pytest.mark.long
def test_the_same_run_has_the_same_bytes() -> None:
    first, second = (runs_page([("run", simulate(scenario()))]) for _ in range(2))
    assert first == second


def test_figures_are_those_of_the_summary(text: str) -> None:
    run = simulate(scenario())
    latency = run.summary["latency"]
    for metric in ("ttft_s", "e2e_s"):
        assert f"<td>{format_s(latency[metric]['p99'])}</td>" in text
    other = simulate(scenario(seed=2)).summary["latency"]
    change = other["e2e_s"]["p50"] / latency["e2e_s"]["p50"] - 1
    assert f"({change:+.1%})" in text
    binds = dict(brief(run.summary, run.meta))["binds"]
    assert f"<dt>binds</dt><dd>{escape(binds)}</dd>" in text
    (curve, *_) = specs(text)["chart0"]["layer"]
    assert curve["data"]["values"][-1]["x"] == pytest.approx(run.requests["ttft_s"].max() * 1e3, rel=1e-4)


def rows(page: str) -> dict[str, list[str]]:
    """Cells of the table of two runs by the name of the row."""
    table = page.split("Side by side", 1)[1].split("</table>", 1)[0]
    found = (re.findall(r"<td>(.*?)</td>", row) for row in table.split("<tr>")[2:])
    return {cells[0]: cells[1:] for cells in found}


@pytest.mark.long
def test_two_runs_side_by_side_are_judged_by_noise() -> None:
    steady = {"workload": {"requests": 1500, "arrivals": {"kind": "poisson", "rate": 8},
                           "lengths": {"kind": "fixed", "prompt": 300, "output": 20}}}
    slow = [{"model": "llama-3.1-8b", "device": "l40s", "count": 2}]
    first, seeded, slower = (simulate(scenario(**steady, **more)) for more in ({}, {"seed": 2}, {"clients": slow}))
    found = rows(runs_page([("first", first), ("seed", seeded), ("l40s", slower)]))
    assert [cell.split(" <")[0] for cell in found["SLO"]] == [
        {True: "met", False: "MISSED"}[run.summary["slo"]["pass"]] for run in (first, seeded, slower)]
    for number, run in ((1, seeded), (2, slower)):
        table = compare(run, first, allow_different_requests=True)
        for name, metric, stat in (("TTFT p50", "ttft", "p50"), ("E2E p99", "e2e", "p99"), ("TPOT p50", "tpot", "p50")):
            (row,) = (one for one in table.rows if (one.metric, one.stat) == (metric, stat))
            assert row.noise_s is not None
            assert row.difference_s is not None
            judged = "" if abs(row.difference_s) <= row.noise_s else "worse" if row.difference_s > 0 else "better"
            assert re.findall(r"better|worse", found[name][number])[:1] == ([judged] if judged else [])
            assert f"({row.error:+.1%})" in found[name][number], "the sign with the colour"
            assert judged == ("worse" if run is slower else ""), "a seed is no difference, a slower card is one"
    price = first.summary["headline"]["per_million_output_tokens_dollars"]
    assert found["$ per million generated tokens"][0] == f"{price:.4g}"


def test_charts_of_two_runs_have_one_scale(text: str) -> None:
    for spec in specs(text).values():
        domains = {str(layer["encoding"][way]["scale"]["domain"]) for layer in spec["layer"] for way in ("x",)
                   if "scale" in layer["encoding"].get(way, {})}
        assert len(domains) == 1


def test_large_runs_stay_small() -> None:
    page = runs_page([("large", simulate(scenario(workload={
        "requests": 4000, "arrivals": {"kind": "poisson", "rate": 30},
        "lengths": {"kind": "fixed", "prompt": 300, "output": 20}})))])
    assert len(json.dumps(specs(page))) < 200_000


def test_a_run_in_which_all_requests_are_rejected() -> None:
    none = scenario(workload={"requests": 5, "arrivals": {"kind": "at_once"},
                              "lengths": {"kind": "fixed", "prompt": 3000, "output": 20}},
                    clients=[{"model": "llama-3.1-8b", "device": "h100-sxm", "memory": {"num_blocks": 20}}])
    page = runs_page([("none", simulate(none))])
    assert "rejected" in page
    assert "share of requests" not in json.dumps(specs(page)), "no distribution of nothing"


@pytest.mark.long
def test_the_command(tmp_path: Path) -> None:
    assert main(["run", "quickstart", "--set", "workload.requests=60", "-o", str(tmp_path / "run"), "-q"]) == 0
    page = tmp_path / "out" / "page.html"
    assert main(["report", str(tmp_path / "run"), "-o", str(page)]) == 0
    text = page.read_text()
    assert "max_num_batched_tokens" in text   # the scenario, every key
    assert text == runs_page([("quickstart", open_run(tmp_path / "run"))])
    assert main(["report", str(tmp_path), "-o", str(page)]) == 2


@pytest.mark.long
def test_a_sweep(tmp_path: Path) -> None:
    sweep = run_sweep({"name": "rates", "scenario": scenario(), "grid": {"workload.arrivals.rate": [5, 10, 1e9]}},
                      tmp_path / "s", workers=0)
    page = sweep_page(open_sweep(tmp_path / "s"))
    assert page == sweep_page(open_sweep(tmp_path / "s"))
    *_, front = specs(page).values()
    places = {(one["x"], one["y"]) for layer in front["layer"] if layer["mark"]["type"] == "point"
              for one in layer["data"]["values"]}
    assert places == {(float(f"{row['latency.ttft_s.p99'] * 1e3:.5g}"), float(
        f"{row['headline.output_tokens_per_s']:.5g}")) for _, row in sweep.frame().iterrows()}
    assert "rate 10" in page
    assert escape(sweep.to_text()) in page
    assert main(["report", str(tmp_path / "s"), "-o", str(tmp_path / "s.html")]) == 0
    assert main(["report", str(tmp_path / "s"), str(tmp_path / "s"), "-o", str(tmp_path / "s.html")]) == 2
