"""The study `telerag`: its fits, and that a point agrees with what it says of itself."""

from __future__ import annotations

from pathlib import Path

import pytest

from hermes.plugins.telerag import PIPELINE_NAMES
from hermes.plugins.telerag.overlap import make_family, overlap_curve
from hermes.scenario import load_scenario
from hermes.study import known_studies, load_study

STUDY = load_study("telerag")
points, telerag_paper, required_times = map(STUDY.module, ("points", "paper", "required_times"))
CPU, budget_table, model_of, profile = points.CPU, points.budget_table, points.model_of, points.profile
sizes_of, tokens_in = points.sizes_of, points.tokens_in
required_share_times = required_times.required_share_times
required_speedup_times = required_times.required_speedup_times
fit_rates, Runs = STUDY.module("rates").fit_rates, STUDY.module("runs").Runs
BUDGET_GB = telerag_paper.BUDGET_GB


def point(runs, *asked, **more):
    """One simulation."""
    return runs.means("one", {0: runs.ask(*asked, **more)})[0]


def test_it_is_known():
    assert "telerag" in known_studies()


@pytest.mark.parametrize("family", [
    "gaussian",
    *(pytest.param(name, marks=pytest.mark.long) for name in ("moved", "noise", "redraw", "unequal gaussian")),
])
def test_the_profile_is_fitted_to_what_it_says(family):
    found = profile()
    fit, sizes = found.family(family), sizes_of(found)
    made, nprobe = make_family(fit.family, **fit.shape), found.index.nprobe
    for pipeline, overlap in telerag_paper.OVERLAP_256.items():
        strength = fit.strengths[PIPELINE_NAMES[pipeline]]
        drawn = overlap_curve(made, strength, fit.bias, sizes, [nprobe], [nprobe], queries=256)
        assert 100 * drawn.overlap[0, 0] == pytest.approx(overlap, abs=0.2)
    assert fit.strengths[PIPELINE_NAMES["Self-RAG"]] == 0


def test_budgets_hold_what_their_bytes_do():
    rows = {row["pipeline"]: row for row in budget_table(64)}
    assert rows["Iter"]["clusters held"] == pytest.approx(3e9 / telerag_paper.PROBED_BYTES, rel=0.03)
    for row in rows.values():
        assert row["gaussian %"] <= row["ceiling %"] + 1e-9
    assert rows["Self-RAG"]["gaussian error"] == pytest.approx(0, abs=1.5)


def test_scenarios_have_the_numbers_of_the_profile():
    found = profile()
    for name, system in (("desktop", "desktop"), ("server", "server"), ("kv-pressure", "desktop")):
        scenario = load_scenario(f"studies/telerag/{name}")
        index = scenario.clients[0].index
        assert index.size_sigma == pytest.approx(found.index.size_sigma, rel=1e-3)
        assert (index.clusters, index.total, index.probed_mean) == (
            found.index.clusters, found.index.total, found.index.probed_mean)
        rate = scenario.clients[1].serves["cpu_search"].rate
        assert rate == pytest.approx(found.scans[CPU[system]].rate, rel=5e-3)


def test_windows_are_what_the_link_moves_meanwhile(tmp_path: Path):
    assert [tokens_in(p) for p in ("HyDE", "FLARE", "Self-RAG")] == sorted(
        (tokens_in(p) for p in ("HyDE", "FLARE", "Self-RAG")), reverse=True)
    runs = Runs(STUDY.context(tmp_path, workers=0), 4)
    assert model_of("Self-RAG", "llama-3.2-3b") == "llama-2-7b"
    cpu = point(runs, "desktop", "Self-RAG", "offload", cpu_rate=25e9)
    assert BUDGET_GB["Self-RAG"] / 24 * 0.6 < cpu.window_s <= BUDGET_GB["Self-RAG"] / 24   # whole tokens
    assert cpu.probed_bytes == pytest.approx(256 * telerag_paper.PROBED_BYTES, rel=0.08)
    assert cpu.e2e_s == pytest.approx(cpu.generate_s + cpu.scanned_bytes / 25e9, rel=0.03)
    ahead = point(runs, "desktop", "Self-RAG", "lookahead", cpu_rate=25e9)
    assert ahead.e2e_s < cpu.e2e_s
    assert ahead.peak_buffer <= BUDGET_GB["Self-RAG"] * 1e9
    assert ahead.overlap == pytest.approx(BUDGET_GB["Self-RAG"] * 1e9 / ahead.probed_bytes, abs=0.02)


def test_a_profiled_budget_is_link_times_window_up_to_the_buffer(tmp_path: Path):
    runs = Runs(STUDY.context(tmp_path, workers=0), 2)
    for model, pipeline in (("llama-3.2-3b", "HyDE"), ("llama-3-8b", "HyDE")):
        cpu = point(runs, "desktop", pipeline, "offload", model=model)
        passed = point(runs, "desktop", pipeline, "lookahead", model=model, budget="profiled", requests=66)
        wanted = min(24e9 * cpu.window_s, telerag_paper.SETUPS["desktop"].buffers[model])
        assert wanted - 60e6 < passed.peak_buffer <= wanted      # whole clusters


def test_the_rates_are_fitted_to_their_two_figures(tmp_path: Path):
    found = fit_rates(STUDY.context(tmp_path, workers=0), 16)
    for cpu, rate in found.items():
        assert profile().scans[cpu].rate == pytest.approx(rate, rel=1e-3)


@pytest.mark.long
def test_what_would_have_to_be_true_is_true_when_simulated(tmp_path: Path):
    """Scans longer by the factor that the linear extrapolation asks for give 1.55, in the simulator too."""
    runs = Runs(STUDY.context(tmp_path, workers=0), 6)
    row = required_speedup_times(runs, (32,)).iloc[0]
    assert row["simulated then"] == pytest.approx(telerag_paper.DATASETS["NQ"], rel=0.01)
    assert row["simulated"] < row["simulated then"]
    shares = required_share_times(runs).set_index("case")
    assert shares["share at batch 4 %"]["CPU, simulated"] > 60
    assert shares["generation, 4 over 1"]["60% by slower generation"] > shares["generation, 4 over 1"]["CPU, simulated"]


def test_a_larger_buffer_lowers_batch_and_throughput(tmp_path: Path):
    small, large = Runs(STUDY.context(tmp_path, quick=True, workers=0), 4).memory((2, 12)).to_dict("records")
    assert large["KV capacity tokens"] < small["KV capacity tokens"] / 2
    assert large["largest batch"] < small["largest batch"] / 2
    assert large["requests/s"] < 0.8 * small["requests/s"]
