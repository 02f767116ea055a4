"""Figures of where the time goes: what they show is what the summary says; the command that draws them."""

from __future__ import annotations

from pathlib import Path

import pytest
from test_breakdown import scenario

from hermes.api import simulate
from hermes.cli import main
from hermes.results import Results
from hermes.results.breakdown_plots import breakdown, utilisation
from hermes.results.export import write_results


@pytest.fixture(scope="module")
def results() -> Results:
    data = scenario({"a": {"kind": "rank"}, "b": {"kind": "generate", "after": "a", "input_bytes": 10**8}})
    first = data["workload"]
    data["workload"] = [{"name": "graph", **first}, {"name": "chat", **first, "pipeline": "plain"}]
    return simulate(data)


def test_bars_are_as_long_as_the_means(results: Results) -> None:
    by_cause, by_pipeline = breakdown(results).axes
    summary = results.summary
    for axis, expected in (
        (by_cause, sum(part["total_s"]["mean"] for part in summary["breakdown"]["stages"].values())),
        (by_pipeline, sum(entry["e2e_s"]["mean"] for entry in summary["by"]["pipeline"].values())),
    ):
        scale = 1e3 if "(ms)" in axis.get_xlabel() else 1.0
        assert sum(bar.get_width() for bar in axis.patches) == pytest.approx(expected * scale)
    assert [label.get_text() for label in by_cause.get_yticklabels()] == ["rank", "generate"]


def test_the_most_used_comes_first(results: Results) -> None:
    (axis,) = utilisation(results).axes
    widths = [bar.get_width() for bar in axis.patches]
    assert widths == sorted(widths, reverse=True)
    assert widths[0] == pytest.approx(100 * results.utilisation["utilisation"].max())


@pytest.mark.parametrize("kind", ["breakdown", "latency", "utilisation", "clients", "queue"])
def test_the_command_draws_a_run(results: Results, tmp_path: Path, kind: str) -> None:
    write_results(results, tmp_path / "run")
    assert main(["plot", str(tmp_path / "run"), "-o", str(tmp_path / "x.png"), "--kind", kind]) == 0
    assert (tmp_path / "x.png").read_bytes().startswith(b"\x89PNG")


def test_the_command_says_what_is_wrong(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["plot", str(tmp_path), "-o", "x.png", "--kind", "brekdown"]) == 2
    assert "breakdown" in capsys.readouterr().err
    assert main(["plot", str(tmp_path), "-o", "x.jpeg"]) == 2


def test_the_command_says_that_a_run_was_interrupted(
    results: Results, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    write_results(Results(results.record, {"interrupted": True}), tmp_path / "cut")
    assert main(["plot", str(tmp_path / "cut"), "-o", str(tmp_path / "x.png")]) == 0
    assert capsys.readouterr().err.startswith("note: the run was interrupted at ")
