"""The study of Orthrus: what its tables are computed from, and the paper's cells."""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest

from hermes.study import known_studies, load_study

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
           "measured.served.embed.latency_s.p99": 4.0, "measured.served.generate.latency_s.p99": 5.0,
           "utilisation": 0.5, "occupied": 0.6, "phase.0": 10.0, "phase.1": 20.0, "phase.2": 30.0}
    rows = {point.label: dict(row) for point in figures.compared_points(folder, "serial", {})}
    rows[f"phases at once {IBS} serial"] |= {"utilisation": 0.75, "phase.2": 15.0}
    rows[f"burst {IBS} serial"]["measured.served.generate.latency_s.p99"] = 4.5
    found = {one.name: one for one in figures.compared(rows, "serial")}
    assert [found[f"llama-3.1-8b, Orthrus at {mix}, normalised"].paper for mix in ("9:1", "5:5", "1:9")] == [
        66.5, 98.4, 84.7]
    assert found[f"phases at once: {IBS}, utilisation %"].here == 75
    assert found["phases at once: Orthrus IBS sooner, %"].here == pytest.approx(25)
    assert found["burst: generation p99, IBS below SplitGPU 1:3, %"].here == pytest.approx(10)
    assert found["SameGPU FCFS, oldest: sum at 40-60% over that at 10 and 90%"].here == 1
    assert len(found) == len(figures.compared(rows, "serial")) == 25
    assert all(one.why.endswith(".") and "  " not in one.why for one in found.values())


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
