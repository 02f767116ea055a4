"""The study of Orthrus: what its tables are computed from, and the paper's cells."""

from __future__ import annotations

import importlib
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest

from hermes.clients.overhead import load_overhead
from hermes.study import Compared, known_studies, load_study

STUDY = load_study("orthrus")
points, tables = STUDY.module("points"), STUDY.module("tables")
IBS, SPLIT, SYSTEMS, mix = points.IBS, points.SPLIT, points.SYSTEMS, points.mix
PAPER, employed_table, served = tables.PAPER, tables.employed_table, tables.served


def rows_of(curve: dict[str, list[float]], clients: tuple[int, ...]) -> dict[str, dict[str, float]]:
    return {
        f"single {kind} {n} plain": {f"measured.served.{kind}.per_s": rate, "measured.weighted_per_s": rate}
        for kind, rates in curve.items() for n, rate in zip(clients, rates, strict=True)
    }


def test_the_papers_normalised_throughput_is_what_its_rates_add_up_to() -> None:
    for systems in PAPER.values():
        for embeds, generations, normalised in systems.values():
            assert embeds + 1.7 * generations == pytest.approx(normalised, rel=0.01)


def test_clients_at_work_follow_from_the_curve_of_one_gpu() -> None:
    clients = (1, 100, 256)
    curve = {"embed": [10.0, 20.0, 21.0], "generate": [0.1, 10.0, 13.0]}
    frame = employed_table(rows_of(curve, clients), clients).frame
    row = frame.set_index("embed:gen").loc["5:5"]
    embed = 1 + 99 * (12.54 - 10) / 10
    generate = 3 * (1 + 99 * (11.97 / 3 - 0.1) / 9.9)
    assert row["clients at work"] == pytest.approx(embed + generate)
    assert row["a closed loop of 512"] == "cannot"


@pytest.mark.drawn
@pytest.mark.parametrize("percent", PAPER)
def test_orthrus_against_the_paper_under_serial_overhead(percent: int, tmp_path: Path) -> None:
    """Predictions: the overheads come from two rates of a single GPU. The embedding-heavy mix comes out too fast."""
    context = STUDY.context(tmp_path, workers=0)
    folder = context.file("mix.yaml").parent
    point = mix(folder, IBS, percent)
    ours = served(STUDY.module("report").simulate(context, [point])[point.label])
    errors = np.array(ours) / PAPER[percent][IBS] - 1
    limit = 0.18 if percent == 90 else 0.10
    assert (np.abs(errors) < limit).all(), errors


def test_every_figure_of_the_paper_is_compared(tmp_path: Path) -> None:
    """From rows with made-up figures: the paper's, ours, and a name of its own for each."""
    context = STUDY.context(tmp_path)
    folder = context.file("mix.yaml").parent
    figures = STUDY.module("figures")
    row = {"measured.served.embed.per_s": 10.0, "measured.served.generate.per_s": 10.0, "measured.weighted_per_s": 27.0,
           "measured.tokens_per_s": 6604.8,
           **{f"measured.served.{kind}.latency_s.{name}": 5.0
              for kind in ("embed", "generate") for name in ("p50", "p99")},
           "utilisation": 0.5, "occupied": 0.6, "phase.0": 10.0, "phase.1": 20.0, "phase.2": 30.0}
    rows = {point.label: dict(row) for point in figures.compared_points(folder, "serial", {})}
    rows[f"phases at once {IBS} serial"] |= {"utilisation": 0.75, "phase.2": 15.0}
    rows[f"burst {IBS} serial"]["measured.served.generate.latency_s.p99"] = 4.5
    rows[f"mix {IBS} 50 serial"] |= {"measured.weighted_per_s": 20.0}
    needed = {("qwen2-7b", 90): STUDY.module("needed").Needed(2.5, 100.0),
              ("qwen2-7b", 50): STUDY.module("needed").Needed(None, 60.0)}
    found = {one.name: one for one in figures.compared(rows, "serial", needed)}
    assert [found[f"llama-3.1-8b, {IBS} at {mix}, normalised"].paper for mix in ("9:1", "5:5", "1:9")] == [
        66.49, 98.35, 84.67]
    assert found[f"phases at once: {IBS}, utilisation %"].here == 75
    assert found["phases at once: Orthrus IBS sooner, %"].here == pytest.approx(25)
    assert found["burst: generation p99, IBS below SplitGPU 1:3, %"].here == pytest.approx(10)
    assert found["SameGPU FCFS, oldest: sum at 40-60% over that at 10 and 90%"].here == 1
    assert found["one saturated GPU, generations/s"].here == pytest.approx(12.9)
    assert [found[f"{IBS} at 9:1, {rate}"].paper for rate in figures.RATES] == [58.80, 7.00, 70.07]
    assert found["Orthrus over SplitGPU 2:2 at 5:5"].here == pytest.approx(20 / 27)
    assert "behind in 3 of 9 cells" in found["Orthrus over SplitGPU, lowest and highest of three splits and mixes"].why
    assert found[f"qwen2-7b, {IBS} at 9:1, normalised"].why.endswith("the paper's sum needs 2.50 times these.")
    assert found[f"qwen2-7b, {IBS} at 5:5, normalised"].why.endswith("without any overhead the sum is 60.00.")
    assert len(found) == len(figures.compared(rows, "serial"))
    assert all(one.why.endswith(".") and "  " not in one.why for one in found.values() if one.paper is not None)
    assert all(one.where for one in found.values())


def test_the_overhead_needed_is_solved_or_none_is_low_enough() -> None:
    """Sums 100 / (1 + factor * slope): at any factor for two cells, and never the wanted one for the third."""
    slopes, asked = {"a": 1.0, "b": 0.1, "c": 1.0}, []

    def sums(factors: dict[str, float]) -> dict[str, float]:
        asked.append(factors)
        return {cell: 100 / (1 + factor * slopes[cell]) for cell, factor in factors.items()}

    wanted = {"a": 80.0, "b": 25.0, "c": 120.0}
    found = {cell: tried[-1] for cell, tried in STUDY.module("needed").solve(sums, wanted).items()}
    assert found["a"][0] == pytest.approx(0.25, rel=0.1)
    assert found["b"][0] == pytest.approx(30, rel=0.1)
    assert found["c"] == (0.0, 100.0)
    assert all(abs(found[cell][1] / wanted[cell] - 1) <= 0.01 for cell in "ab")
    assert len(asked) < 10


def test_a_factor_on_the_overhead_multiplies_both_fitted_figures() -> None:
    folder = STUDY.context(Path()).file("mix.yaml").parent
    fitted = load_overhead(points.PROFILE).serial
    point = points.model_mix(folder, points.MISTRAL, IBS, 50, mode="serial", factor=2.0)
    assert point.settings["clients"][0]["request_overhead"] == {
        "mode": "serial", "embed": 2 * fitted.embed, "generate": 2 * fitted.generate}
    same = points.model_mix(folder, points.MISTRAL, IBS, 50, mode="serial")
    assert same.settings == mix(folder, IBS, 50).settings


def test_latencies_of_ibs_are_below_or_above_those_of_a_system() -> None:
    def row(embed: float, generate: float) -> dict[str, float]:
        return {f"measured.served.{kind}.latency_s.{name}": value for name in ("p50", "p99")
                for kind, value in (("embed", embed), ("generate", generate))}

    rows = {f"burst {IBS} serial": row(2.0, 12.0), f"burst {SPLIT} serial": row(4.0, 10.0)}
    frame = tables.latency_table(rows, [SPLIT, IBS], (), "serial", ("serial",)).frame.set_index("system")
    assert frame.loc[SPLIT, "IBS embed p99 %"] == 50
    assert frame.loc[SPLIT, "IBS generate p50 %"] == pytest.approx(-20)
    assert frame.loc[IBS, "embed p99 s"] == 2


def test_a_spread_is_over_seeds_and_words_that_a_seed_changes_are_unsettled() -> None:
    spread = importlib.import_module(f"{STUDY.module('report').__name__.rpartition('.orthrus')[0]}.common.seeds")
    first = [Compared("a", 1.0, 1.0), Compared("b", "a dip", 0.5, agrees=True), Compared("c", 2.0, 2.0)]
    other = [Compared("a", 1.0, 1.5), Compared("b", "a dip", 1.1, agrees=False), Compared("c", 2.0, 2.0)]
    a, b, c = spread.with_spread(first, [other])
    assert a.interval == (1.0, 1.5)
    assert a.verdict == "agrees"
    assert b.verdict == "cannot tell"
    assert c.interval is None
    (short,) = spread.with_spread([Compared("a", 1.0, 1.0, settled=False)], [])
    assert short.verdict == "cannot tell"   # what a short run cannot settle stays so


def test_phases_at_once_are_sooner_and_busier_under_orthrus(tmp_path: Path) -> None:
    """A prediction; the paper has 38 and 79% busy, and 43% less time."""
    context = STUDY.context(tmp_path, workers=0)
    folder = context.file("mix.yaml").parent
    made = {system: points.phases(folder, "at once", system, mode="serial") for system in (SPLIT, IBS)}
    rows = STUDY.module("report").simulate(context, list(made.values()))
    split, ibs = (rows[made[system].label] for system in (SPLIT, IBS))
    assert split["utilisation"] < 0.5 < 0.7 < ibs["utilisation"] < ibs["occupied"] <= 1
    assert tables.phases_s(ibs) < 0.7 * tables.phases_s(split)
    assert ibs["active_s"] == pytest.approx(tables.phases_s(ibs))   # no phase lasts into the next
    assert ibs["phase.0"] < 60


def test_the_time_without_requests_is_not_active() -> None:
    """Two requests from 0 to 2 s and 1 to 3 s, a third one from 10 to 12 s; one of two engines runs 1 s."""
    stages = {"request": np.array([0, 1, 1, 2]), "end_ns": np.array([2, 2, 3, 12]) * 10**9}
    runs = {"start_ns": np.array([0, 10]) * 10**9, "end_ns": np.array([2, 11]) * 10**9,
            "overhead_ns": np.array([10**9, 0])}
    record = SimpleNamespace(
        arrival_ns=np.array([0, 1, 10]) * 10**9, stages=stages, runs=runs, clients=[None, None],
        labels={"workload": (np.array([0, 0, 1]), ["a", "b"])})
    assert points.active_figures(record) == {
        "active_s": 5.0, "utilisation": pytest.approx(2 / 10), "occupied": pytest.approx(3 / 10), "phase.0": 3.0,
        "phase.1": 12.0 - points.PHASE_S}


def test_the_step_time_is_that_of_other_models_too() -> None:
    folder = STUDY.context(Path()).file("mix.yaml").parent
    point = points.model_mix(folder, "qwen2-7b", IBS, 50, mode="serial", rank=16, step_overhead="2 ms")
    hardware = point.settings["clients"][0]["hardware"]
    assert hardware["step_overhead"] == "2 ms"
    assert hardware["embed_lora_rank"] == 32


def test_every_system_is_a_scenario_with_four_gpus() -> None:
    assert "orthrus" in known_studies()
    folder = STUDY.context(Path()).file("mix.yaml").parent
    for system in SYSTEMS:
        assert sum(client["count"] for client in mix(folder, system, 50).settings["clients"]) == 4
    assert mix(folder, SPLIT, 50).settings["clients"][0]["scheduler"]["serves"] == ["embed"]
