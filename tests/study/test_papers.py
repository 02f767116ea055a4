"""The papers' figures: each study keeps those of its whole run in `paper.csv`, and a quick run agrees with them."""

import csv

import pytest

from hermes.study import known_studies, load_study

STUDIES = known_studies()
COLUMNS = ["where", "figure", "paper", "here", "interval", "range", "verdict", "why"]
VERDICTS = {"agrees", "partly", "direction", "differs", "-", "cannot tell", "not computed"}


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
    assert any(verdict in ("agrees", "partly", "direction", "differs") for verdict in quick.values())
