"""The study of Orthrus: what its tables are computed from, and the paper's cells."""

from __future__ import annotations

from pathlib import Path

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


def test_every_system_is_a_scenario_with_four_gpus() -> None:
    assert "orthrus" in known_studies()
    folder = STUDY.context(Path()).file("mix.yaml").parent
    for system in SYSTEMS:
        assert sum(client["count"] for client in mix(folder, system, 50).settings["clients"]) == 4
    assert mix(folder, SPLIT, 50).settings["clients"][0]["scheduler"]["serves"] == ["embed"]
