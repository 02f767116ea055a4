"""The study `telerag`: its fits, and that a point agrees with what it says of itself."""

from __future__ import annotations

from pathlib import Path

import pandas as pd
import pytest

from hermes.plugins.telerag import PIPELINE_NAMES
from hermes.plugins.telerag.overlap import make_family, overlap_curve
from hermes.scenario import load_scenario
from hermes.study import known_studies, load_study

STUDY = load_study("telerag")
points, telerag_paper, compared = map(STUDY.module, ("points", "paper", "compared"))
CPU, budget_table, model_of, profile = points.CPU, points.budget_table, points.model_of, points.profile
sizes_of, tokens_in = points.sizes_of, points.tokens_in
rates, Runs, Rates = STUDY.module("rates"), STUDY.module("runs").Runs, points.Rates
BUDGET_GB = telerag_paper.BUDGET_GB
SLOW = Rates(25e9, 25e9, 200e9)


def point(runs, *asked, **more):
    """One simulation."""
    return runs.means("one", {0: runs.ask(*asked, **more)})[0]


def test_it_is_known():
    assert "telerag" in known_studies()


@pytest.mark.drawn
@pytest.mark.parametrize(("family", "dataset"), [
    *(("gaussian", dataset) for dataset in telerag_paper.DATASETS),
    *(pytest.param(name, "NQ", marks=pytest.mark.long) for name in ("moved", "noise", "redraw", "unequal gaussian")),
])
def test_the_profile_is_fitted_to_what_it_says(family, dataset):
    found = profile()
    fit, sizes = found.family(family), sizes_of(found)
    made, nprobe = make_family(fit.family, **fit.shape), found.index.nprobe
    assert fit.strengths.keys() == telerag_paper.OVERLAP_256.keys() == telerag_paper.DATASETS.keys()
    for pipeline, overlap in telerag_paper.OVERLAP_256[dataset].items():
        strength = fit.strengths[dataset][PIPELINE_NAMES[pipeline]]
        drawn = overlap_curve(made, strength, fit.bias, sizes, [nprobe], [nprobe], queries=256)
        assert 100 * drawn.overlap[0, 0] == pytest.approx(overlap, abs=0.2)
    assert fit.strengths[dataset][PIPELINE_NAMES["Self-RAG"]] == 0


@pytest.mark.long
def test_budgets_hold_what_their_bytes_do():
    rows = {row["pipeline"]: row for row in budget_table(queries=64)}
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
        for client, machine in ((scenario.clients[1], CPU[system]), (scenario.clients[2], points.GPU[system])):
            for stage, fitted in found.scans[machine].items():
                assert client.serves[stage].rate == pytest.approx(fitted.rate, rel=5e-3)


def test_windows_are_what_the_link_moves_meanwhile(tmp_path: Path):
    assert [tokens_in(p) for p in ("HyDE", "FLARE", "Self-RAG")] == sorted(
        (tokens_in(p) for p in ("HyDE", "FLARE", "Self-RAG")), reverse=True)
    runs = Runs(STUDY.context(tmp_path, workers=0), 4)
    assert model_of("Self-RAG", "llama-3.2-3b") == "llama-2-7b"
    cpu = point(runs, "desktop", "Self-RAG", "offload", rates=SLOW)
    assert BUDGET_GB["Self-RAG"] / 24 * 0.6 < cpu.window_s <= BUDGET_GB["Self-RAG"] / 24   # whole tokens
    assert cpu.probed_bytes == pytest.approx(256 * telerag_paper.PROBED_BYTES, rel=0.08)
    assert cpu.e2e_s == pytest.approx(cpu.generate_s + cpu.probed_bytes / 25e9, rel=0.03)
    ahead = point(runs, "desktop", "Self-RAG", "lookahead", rates=SLOW)
    assert ahead.e2e_s < cpu.e2e_s
    assert ahead.peak_buffer <= BUDGET_GB["Self-RAG"] * 1e9
    assert ahead.overlap == pytest.approx(BUDGET_GB["Self-RAG"] * 1e9 / ahead.probed_bytes, abs=0.02)


@pytest.mark.long
def test_a_profiled_budget_is_link_times_window_up_to_the_buffer(tmp_path: Path):
    runs = Runs(STUDY.context(tmp_path, workers=0), 2)
    for model, pipeline in (("llama-3.2-3b", "HyDE"), ("llama-3-8b", "HyDE")):
        cpu = point(runs, "desktop", pipeline, "offload", model=model, rates=SLOW)
        passed = point(runs, "desktop", pipeline, "lookahead", model=model, budget="profiled", requests=66,
                       rates=SLOW)
        wanted = min(24e9 * cpu.window_s, telerag_paper.SETUPS["desktop"].buffers[model])
        assert wanted - 60e6 < passed.peak_buffer <= wanted      # whole clusters


@pytest.mark.thorough
def test_the_rates_are_fitted_to_their_three_figures(tmp_path: Path):
    """The profile has the rates that the full study fits, and the simulation at these rates has the figures."""
    runs = Runs(STUDY.context(tmp_path, workers=0), 16)
    found = runs.rates()
    for system, fitted in found.items():
        cpu, gpu = profile().scans[CPU[system]], profile().scans[points.GPU[system]]
        assert [cpu["cpu_search"].rate, cpu["miss_search"].rate, gpu["gpu_search"].rate] == pytest.approx(
            [fitted.baseline, fitted.miss, fitted.gpu], rel=1e-3)
    for mode in ("offload", "resident"):
        (simulated,) = runs.modes("one", "server", (mode,))
        share = 100 * rates.mean(p.retrieve_s / p.e2e_s for p in simulated)
        assert share == pytest.approx(telerag_paper.SERVER_SHARE[mode][1], abs=0.02)
    speedup = rates.mean(cpu.retrieve_s / ahead.retrieve_s for cpu, ahead in runs.pairs("one"))
    assert speedup == pytest.approx(telerag_paper.RETRIEVAL_SPEEDUP, abs=0.01)


@pytest.mark.thorough
def test_assumptions_give_the_other_rates(tmp_path: Path):
    def fitted(*changes: str) -> dict[str, Rates]:
        return Runs(STUDY.context(tmp_path / "-".join(changes), workers=0, changes=changes), 2).rates()

    given = fitted("baseline_rate=20", "gpu_rate=300", "miss_over_baseline=3", "desktop_cpu=bandwidth",
                   "gpu_scales=bandwidth", "miss_scales=same", "faiss_side_by_side=2")
    assert given["server"] == Rates(20e9, pytest.approx(3 * given["desktop"].baseline, rel=1e-4), 300e9, 2)
    assert given["desktop"].baseline == pytest.approx(20e9 * 204.8 / 460.8, rel=1e-4)
    assert given["desktop"].gpu < 100e9
    assert fitted("gpu_rate=10")["desktop"].miss == 1e13     # the GPU alone is too slow for the paper's 7.21


@pytest.mark.thorough
def test_the_gain_on_the_server_grows_only_with_a_faster_search_of_misses(tmp_path: Path):
    def gains(*changes: str) -> list[float]:
        runs = Runs(STUDY.context(tmp_path / "-".join(changes), workers=0, changes=changes), 4)
        modes = ("offload", "lookahead")
        found = runs.means("gains", {(batch, mode): runs.ask("server", "FLARE", mode, batch=batch)
                                     for batch in (1, 4) for mode in modes})
        return [found[batch, "offload"].e2e_s / found[batch, "lookahead"].e2e_s for batch in (1, 4)]

    first, last = gains()
    assert last > 1.2 * first
    first, last = gains("miss_over_baseline=1", "miss_scales=same")
    assert last < 0.98 * first


def test_late_copies_are_an_assumption(tmp_path: Path):
    """With windows of different lengths a late copy is waited for or given up, which ends the query sooner."""
    def latency(*changes: str) -> float:
        context = STUDY.context(tmp_path / "-".join(changes), workers=0, changes=["window_sigma=0.5", *changes])
        return point(Runs(context, 6), "desktop", "HyDE", "lookahead", rates=SLOW).e2e_s

    assert latency("late=give_up") < latency("late=wait")
    usual = Runs(STUDY.context(tmp_path), 6)
    assert usual.ask("desktop", "HyDE", "lookahead", rates=SLOW).changes == ()


def test_other_seeds_keep_the_rates_of_the_first(tmp_path: Path):
    context = STUDY.context(tmp_path, workers=0)
    other = Runs(context, 2, 1, {"desktop": SLOW, "server": SLOW})
    assert other.rates()["desktop"] == SLOW
    first, second = (point(runs, "desktop", "SubQ", "offload", rates=SLOW) for runs in (Runs(context, 2), other))
    assert first.probed_bytes != second.probed_bytes


@pytest.mark.thorough
def test_every_figure_has_a_cause_and_a_label_changes_it(tmp_path: Path):
    """The figures as assumed and those of a what-if label are the same rows, which `--set` gives too."""
    labels = STUDY.config.what_if
    assert {"desktop_cpu", "answer_tokens", "miss_over_baseline", "faiss_side_by_side"} <= {
        name for changes in labels.values() for name in changes}
    runs = Runs(STUDY.context(tmp_path, workers=0, changes=["miss_over_baseline=1"]), 1)
    rows = [*compared.compared(runs), *compared.overlaps(pd.DataFrame(budget_table())), *compared.strengths()]
    assert len({row.name for row in rows}) == len(rows)
    assert all(row.why.endswith(".") for row in rows)
    assert next(row.why for row in rows if row.name == "retrieval alone, nprobe 256").startswith("The rate of misses")


def test_a_larger_buffer_lowers_batch_and_throughput(tmp_path: Path):
    small, large = Runs(STUDY.context(tmp_path, quick=True, workers=0), 4).memory((2, 12)).to_dict("records")
    assert large["KV capacity tokens"] < small["KV capacity tokens"] / 2
    assert large["largest batch"] < small["largest batch"] / 2
    assert large["requests/s"] < 0.8 * small["requests/s"]
