"""What a pipeline keeps of its requests is shown by runs, comparisons, sweeps and figures, and changes no summary."""

from __future__ import annotations

import numpy as np
import pytest

import hermes
from hermes.config.data_files import resource_dir
from hermes.explore import run_sweep
from hermes.explore.sweep.plots import sweep_chart
from hermes.results.compare import compare
from hermes.results.files.export import write_results

BASE = resource_dir("scenarios") / "studies" / "metis" / "base.yaml"


def run(*overrides, **pipeline):
    given = ", ".join(f"{key}: {value}" for key, value in pipeline.items())
    return hermes.simulate(BASE, overrides=["workload.requests=40", f"workload.pipeline={{name: metis, {given}}}",
                                            *overrides])


@pytest.fixture(scope="module")
def two():
    return run(dataset="squad"), run(dataset="squad", system="fixed", chunks=1)


def test_means_are_those_of_completed_requests(two):
    results = run("clients.0.memory={num_blocks: 110, prefix_caching: false}", dataset="musique", system="hindsight")
    rows = results.requests
    done = rows["status"] == "completed"
    assert 5 < done.sum() < 35   # the others' prompts never fit
    assert results.summary["notes"]["f1"]["mean"] == pytest.approx(rows.loc[done, "note_f1"].mean(), rel=1e-12)
    assert "notes" not in hermes.simulate("quickstart", overrides=["workload.requests=5"]).summary


def test_a_run_shows_f1_and_with_everything_all_of_it(two):
    first, _ = two
    mean = first.requests["note_f1"].mean()
    (line,) = [line for line in first.to_text().splitlines() if line.startswith("F1")]
    assert line.split() == ["F1", "mean", f"{mean:.3f}"]
    everything = first.to_text(verbose=True)
    assert "noted about requests" in everything
    assert all(name in everything for name in ("chunks", "kv_used", "f1_heavy-tail"))


def test_files_of_a_run_are_shown_alike(two, tmp_path):
    first, _ = two
    write_results(first, tmp_path / "out")
    assert hermes.open_run(tmp_path / "out").summary["notes"] == first.summary["notes"]


def test_a_comparison_has_f1_with_its_noise(two):
    table = compare(*two)
    (row,) = [one for one in table.totals if one.name == "notes.f1.mean"]
    ours, theirs = (one.requests["note_f1"].to_numpy() for one in two)
    assert (row.ours, row.reference) == pytest.approx((ours.mean(), theirs.mean()), rel=1e-12)
    assert "F1, mean of a request" in table.to_text()
    assert "F1, mean of a request" in table.verdict


@pytest.mark.long
def test_noise_of_f1_is_that_of_the_differences():
    """Two long settled runs of the same queries: about 2 standard errors of the differences, a little more for t."""
    load = ("workload.requests=1200", "workload.arrivals.rate=2")
    sides = [run(*load, dataset="squad", system="fixed", method=method, chunks=2) for method in ("stuff", "map_rerank")]
    (row,) = [one for one in compare(*sides).totals if one.name == "notes.f1.mean"]
    ours, theirs = (one.requests["note_f1"].to_numpy() for one in sides)
    standard_error = np.std(ours - theirs) / np.sqrt(len(ours))
    assert row.noise == pytest.approx(2.1 * standard_error, rel=0.5)


def test_a_sweep_has_a_column_and_a_panel(tmp_path):
    (tmp_path / "sweep.yaml").write_text(
        "name: systems\nscenario: studies/metis/base\n"
        "grid: {workload.pipeline.system: [metis, fixed], workload.requests: [20]}\n")
    sweep = run_sweep(tmp_path / "sweep.yaml", tmp_path / "out", workers=0)
    frame = sweep.frame()
    assert (frame["notes.f1.mean"] > 0.3).all()
    assert frame["notes.chunks.mean"].tolist()[1] == 4.0
    head, below = sweep.to_text().splitlines()[:2]
    assert head.split()[-1] == "F1"
    assert below.split()[-1] == "mean"
    assert [panel.title for panel in sweep_chart(sweep).panels][-1] == "F1 (mean)"
