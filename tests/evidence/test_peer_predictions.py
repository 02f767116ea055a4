"""docs/accuracy/aiconfigurator.csv: what another predictor says for the rows of InferenceX and GPUStack."""

from __future__ import annotations

import os
from collections import Counter
from pathlib import Path
from types import ModuleType

import pandas as pd
import pytest
from outside import OUTSIDE
from scripts_loaded import load

ROOT = Path(__file__).parents[2]
TABLE = pd.read_csv(ROOT / "docs" / "accuracy" / "aiconfigurator.csv")
LOOPS = TABLE[TABLE.set != "gpustack"]


@pytest.fixture(scope="module")
def script() -> ModuleType:
    return load("scripts/predict_aiconfigurator.py")


def test_every_row_has_one_prediction_of_each_metric(script: ModuleType) -> None:
    key = list(script.KEY)
    assert list(TABLE.columns) == [*key, "metric", "stat", "predicted"]
    assert not TABLE.duplicated([*key, "metric"]).any()
    assert (TABLE.predicted > 0).all()
    assert {(one.metric, one.stat) for one in TABLE.itertuples()} == set(script.STATS.items())
    metrics = {kind: Counter(of.metric) for kind, of in TABLE.groupby("set")}
    assert metrics.pop("gpustack") == {"tpot": 2, "output tokens/s": 2}
    assert all(len(set(of.values())) == 1 and set(of) == set(script.STATS) for of in metrics.values())


def test_the_end_to_end_time_is_ttft_and_every_other_token(script: ModuleType) -> None:
    wide = LOOPS.pivot(index=list(script.KEY), columns="metric", values="predicted").reset_index()
    share = wide.set.map(lambda name: script.MEAN_LENGTH[name.split("-")[0]])
    tokens = (share * wide.output_tokens).round() - 1
    assert (wide.ttft + tokens * wide.tpot).tolist() == pytest.approx(wide.e2e.tolist(), rel=1e-4)
    # no more than its users take: within the time that the planner does not count (TensorRT-LLM's drained steps)
    assert (wide["output tokens/s"] * wide.e2e / (tokens * wide.concurrency)).between(0.5, 2.0).all()


@pytest.mark.outside("data/inferencex")
def test_every_row_of_the_sets_is_answered_but_those_of_one_card(script: ModuleType) -> None:
    rows = script.rows_of(OUTSIDE / "data")
    asked = {tuple(row[key] for key in script.KEY) for row in rows}
    answered = set(TABLE[list(script.KEY)].itertuples(index=False, name=None))
    assert answered <= asked
    assert {key[1] for key in asked - answered} == {"mi355x"}


@pytest.mark.outside("data/inferencex")
def test_the_file_is_what_the_package_predicts(script: ModuleType, tmp_path: Path) -> None:
    python = os.environ.get("HERMES_AICONFIGURATOR_PYTHON")
    if python is None:
        pytest.skip("no interpreter with aiconfigurator-core (HERMES_AICONFIGURATOR_PYTHON)")
    script.main(python, OUTSIDE / "data", tmp_path / "found.csv")
    assert (tmp_path / "found.csv").read_bytes() == (ROOT / "docs" / "accuracy" / "aiconfigurator.csv").read_bytes()


def test_an_interpreter_without_the_package_is_one_line(
        script: ModuleType, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    stand_in = tmp_path / "python"
    stand_in.write_text("#!/bin/sh\necho \"ModuleNotFoundError: No module named 'aiconfigurator_core'\" >&2\nexit 1\n")
    stand_in.chmod(0o755)
    monkeypatch.setattr(script, "rows_of", lambda data: [])
    with pytest.raises(SystemExit, match=r"failed: ModuleNotFoundError: No module named 'aiconfigurator_core'"):
        script.main(str(stand_in), tmp_path, None)
