"""The papers' figures: each study keeps those of its whole run in `paper.csv`, and a quick run agrees with them."""

import csv
import subprocess

import pytest
from scripts_loaded import load

from hermes.study import VERDICTS, known_studies, load_study

STUDIES = known_studies()
draw_paper_rows = load("scripts/draw_paper_rows.py")
COLUMNS = ["where", "figure", "paper", "here", "interval", "range", "verdict", "why"]


def kept(name):
    """Rows of a study's whole run by figure."""
    with (STUDIES[name] / "paper.csv").open(encoding="utf-8", newline="") as file:
        return {row["figure"]: row for row in csv.DictReader(file)}


@pytest.mark.parametrize("name", STUDIES)
def test_every_figure_of_a_paper_has_a_row_with_its_verdict_and_reason(name):
    config = load_study(STUDIES[name]).config
    assert config.paper
    rows = kept(name)
    assert rows
    for figure, row in rows.items():
        assert {column for column in COLUMNS if column != "range"} <= set(row), figure
        assert row["verdict"] in VERDICTS, figure
        if row["verdict"] != "-":
            assert row["where"], f"{figure}: no figure, table or section of the paper"
            assert row["why"], f"{figure}: no reason"
    assert {one.figure for one in config.missing} <= set(rows)


@pytest.mark.thorough
@pytest.mark.parametrize("name", STUDIES)
def test_a_quick_run_agrees_with_the_page_in_every_verdict(name, tmp_path):
    study = load_study(STUDIES[name])
    report = study.run(study.context(tmp_path, quick=True, workers=2))
    rows = kept(name)
    quick = {row["figure"]: row["verdict"] for row in report.tables[0].frame.to_dict("records")}
    reversed_ = {figure: (verdict, rows[figure]["verdict"]) for figure, verdict in quick.items()
                 if verdict not in ("cannot tell", rows[figure]["verdict"])}
    assert not reversed_, "figure: (quick, whole)"
    assert any(verdict not in ("-", "cannot tell", "not computed") for verdict in quick.values())


def test_the_rows_checked_by_hand_are_those_of_the_seed():
    """studies/checked.csv names the rows that scripts/draw_paper_rows.py draws, and says what was wrong with each."""
    with (draw_paper_rows.ROOT / "studies" / "checked.csv").open(encoding="utf-8", newline="") as file:
        checked = list(csv.DictReader(file))
    assert len(checked) == 40
    assert all(row["note"] for row in checked if row["wrong"] != "no")
    try:
        rows = draw_paper_rows.rows_at("23e8b78d")
    except (OSError, subprocess.CalledProcessError):
        pytest.skip("no git, or a clone without the commit that the rows were drawn from")
    drawn = [(row["study"], row["figure"], row["paper"]) for row in draw_paper_rows.drawn(58, 40, rows)]
    assert drawn == [(row["study"], row["figure"], row["paper"]) for row in checked]
