"""The reader of GPUStack's table, on a made-up one and on the recorded one where it is."""

from __future__ import annotations

from pathlib import Path

import pytest
from outside import OUTSIDE

from evidence.accuracy import gpustack as module
from evidence.accuracy.gpustack import gpustack, lengths
from hermes.errors import InputError

HEAD = "Text.\n| precision, layout | tokens/s | TTFT | TPOT |\n| --- | --- | --- | --- |\n"


def write(folder: Path, rows: str) -> Path:
    (folder / "gpustack").mkdir()
    (folder / "gpustack" / "README.md").write_text(HEAD + rows + "\nMore text.\n")
    return folder


def test_lengths_have_the_stated_means_within_the_benchmarks_limits() -> None:
    prompts, outputs = lengths()
    assert len(prompts) == len(outputs) == 984
    assert prompts.mean() == pytest.approx(217, rel=0.01)
    assert outputs.mean() == pytest.approx(198, rel=0.01)
    assert min(prompts.min(), outputs.min()) >= 4
    assert prompts.max() <= 1024
    assert (prompts + outputs).max() <= 2048
    assert (lengths()[1] == outputs).all(), "always the same"


def test_each_row_of_the_table_is_scored(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "REQUESTS", 40)
    rows = list(gpustack(write(tmp_path, "| FP8 TP4 | 7,528 | 9,925 | 122.0 |\n"
                                         "| FP8 TP4, expert parallel | 7,132 | 10,706 | 131.6 |\n")))
    assert [(row.metric, row.stat, row.measured) for row in rows[:3]] == [
        ("tokens/s", "mean", 7528.0), ("ttft", "mean", 9.925), ("tpot", "p50", 0.122)]
    assert [row.case.case for row in rows[::3]] == [
        "FP8 TP4, 40 prompts at once", "FP8 TP4, expert parallel, 40 prompts at once"]
    assert {row.case.card for row in rows} == {"h100-sxm tp4"}
    assert all(row.predicted > 0.0 for row in rows)
    assert rows[0].predicted != rows[3].predicted, "whole experts on each device"


@pytest.mark.parametrize(("rows", "what"), [
    ("", "a table with the columns"), ("| FP9 TP4 | 1 | 2 | 3 |\n", "expected a layout such as"),
    ("| FP8 TP4 | 1 | 2 | fast |\n", "FP8 TP4: expected tokens/s"),
    ("| FP8 TP4 | 1 | 2 |\n", "FP8 TP4: expected tokens/s")])
def test_a_malformed_table_is_one_line(tmp_path: Path, rows: str, what: str) -> None:
    with pytest.raises(InputError, match=f"README.md.*{what}"):
        list(gpustack(write(tmp_path, rows)))


@pytest.mark.long
@pytest.mark.outside("data/gpustack")
def test_the_recorded_table_is_scored() -> None:
    rows = list(gpustack(OUTSIDE / "data"))
    assert [(row.metric, row.measured) for row in rows[:3]] == [("tokens/s", 7528.0), ("ttft", 9.925), ("tpot", 0.122)]
    assert len(rows) == 2 * 3
