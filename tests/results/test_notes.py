"""What pipelines and clients note about requests: in the summary, `run -v`, `compare`, sweeps and plots."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

import hermes
from hermes.api import simulate
from hermes.cli import main
from hermes.errors import InputError
from hermes.explore.sweep.figures import figures
from hermes.results.charts.run_charts import chart
from hermes.results.compare import compare
from hermes.results.files.export import write_results
from hermes.results.layout import to_text
from hermes.results.render import sections
from hermes.results.results import Results

CLIENT = {"name": "llm", "hardware": {"kind": "roofline", "model": "llama-3.1-8b", "device": "h100-sxm"},
          "memory": {"num_blocks": 1000}}


def noted(name: str = "shares", seed: int = 0, factor: float = 1.0) -> Results:
    results = simulate({
        "name": name, "seed": seed, "clients": [CLIENT],
        "workload": {"requests": 4, "arrivals": {"kind": "poisson", "rate": 9}, "lengths": {
            "kind": "fixed", "prompt": 9, "output": 3}}})
    results.record.notes = {"overlap": factor * np.array([0.25, 0.5, np.nan, 0.75]), "wide_bytes": np.full(4, 2e9)}
    return results


def test_the_summary_has_statistics_of_the_requests_that_have_one():
    found = noted().summary["notes"]
    assert (found["overlap"]["count"], found["overlap"]["mean"], found["overlap"]["p50"]) == (3, 0.5, 0.5)
    assert found["wide_bytes"]["max"] == 2e9
    assert "notes" not in simulate("quickstart", overrides=["workload.requests=3"]).summary


def test_a_sweep_has_a_column_of_each():
    row = figures(noted())
    assert (row["notes.overlap.mean"], row["notes.wide_bytes.p99"]) == (0.5, 2e9)


def test_run_prints_them_with_v():
    results = noted()
    shown = to_text(sections(results.summary, results.meta))
    (line,) = [line.split() for line in shown.splitlines() if line.strip().startswith("overlap")]
    assert line[:3] == ["overlap", "3", "0.5"]


@pytest.mark.feature("Plug-ins of research", (
    "Notes of requests: summary, `run -v`, `compare`, sweeps, `plot --kind notes`; TeleRAG's overlap and "
    "bytes, Orthrus's slots"))
def test_compare_shows_the_means_of_both():
    table = compare(noted(), noted(factor=0.5), names=("new", "old"))
    assert table.notes_mean == [("overlap", 0.5, 0.25), ("wide_bytes", 2e9, 2e9)]
    (line,) = [line.split() for line in table.to_text().splitlines() if line.strip().startswith("overlap")]
    assert line == ["overlap", "0.5", "0.25", "+100.00%"]
    assert table.to_dict()["notes_mean"][0] == {"name": "overlap", "ours": 0.5, "reference": 0.25}
    plain = noted()
    plain.record.notes = {}
    assert compare(noted(), plain).notes_mean[0] == ("overlap", 0.5, None)
    assert "noted" not in compare(plain, plain).to_text()


def test_a_figure_has_a_panel_for_each(tmp_path: Path):
    results = noted()
    first, second = chart([("one", results), ("two", noted(factor=0.5))], "notes").panels
    assert first.title == "overlap: mean 0.5 and 0.25"
    assert [layer.frame["x"].iloc[-1] for layer in first.layers] == [0.75, 0.375]
    assert second.x.title == "wide_bytes"
    assert [axis.get_xlabel() for axis in results.plot("notes").axes] == ["overlap", "wide_bytes"]
    write_results(results, tmp_path / "run")
    assert main(["plot", str(tmp_path / "run"), "-o", str(tmp_path / "x.png"), "--kind", "notes"]) == 0


def named(seed: int = 0, codes: tuple[float, ...] = (0, 2, np.nan, 2)) -> Results:
    results = noted(seed=seed)
    results.record.notes = {"method": np.array(codes)}
    results.record.note_names = {"method": ["apart", "together", "both"]}
    return results


def test_a_note_that_is_a_name_is_shown_by_the_shares_of_the_names(tmp_path: Path):
    results, other = named(), named(codes=(0, 0, 0, np.nan))
    assert results.summary["notes"]["method"] == {
        "count": 3, "shares": {"apart": 1 / 3, "together": 0.0, "both": 2 / 3}}
    assert figures(results)["notes.method.shares.both"] == pytest.approx(2 / 3)
    lines = [line.split() for line in to_text(sections(results.summary, results.meta)).splitlines()]
    assert [line for line in lines if line[:1] == ["method"]] == [
        ["method", "apart", "3", "33.3%"], ["method", "together", "3", "0.0%"], ["method", "both", "3", "66.7%"]]
    assert compare(results, other).notes_mean == [
        ("method apart", pytest.approx(1 / 3), 1.0), ("method together", 0.0, 0.0),
        ("method both", pytest.approx(2 / 3), 0.0)]
    (panel,) = chart([("one", results), ("two", other)], "notes").panels
    assert panel.layers[0].frame["x2"].tolist() == pytest.approx([1 / 3, 0, 2 / 3, 1, 0, 0])
    write_results(results, tmp_path / "run")
    assert hermes.open_run(tmp_path / "run").record.note_names == results.record.note_names


def test_a_figure_of_a_run_without_notes_is_refused():
    results = noted()
    results.record.notes = {}
    with pytest.raises(InputError, match="a run with notes"):
        chart([("one", results)], "notes")
