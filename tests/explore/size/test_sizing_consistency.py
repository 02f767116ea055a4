"""`hermes size` agrees with longer runs, other seeds, other numbers of clients and `capacity`.

All thirty questions: `scripts/sizing_consistency.py`.
"""

from __future__ import annotations

import sys
from pathlib import Path
from types import ModuleType

import pytest
import yaml
from scripts_loaded import load

SCRIPT = Path(__file__).parents[3] / "scripts" / "sizing_consistency.py"
QUICK = (6, 8, 16, 28)   # answers of minutes and of seconds, mixed and split, of four, five, seven and four clients


@pytest.fixture(scope="module")
def script() -> ModuleType:
    return load("scripts/sizing_consistency.py")


@pytest.mark.thorough
@pytest.mark.parametrize("number", QUICK)
def test_an_answer_holds_in_runs_ten_times_as_long(script: ModuleType, number: int) -> None:
    questions = yaml.safe_load(script.QUESTIONS.read_text())
    assert len(questions) == 30
    found = script.asked(number, questions[number])
    assert found["long"] == [None] * 3 or found["noise"]
    assert found["clients"] >= max(3, found["bound"] or 0)
    assert all(misses[0] is not None for misses in found["fewer"].values())


@pytest.mark.whole
def test_all_answers(script: ModuleType, tmp_path: Path, monkeypatch: pytest.MonkeyPatch,
                     capsys: pytest.CaptureFixture[str]) -> None:
    monkeypatch.setattr(sys, "argv", [str(SCRIPT), str(tmp_path / "answers.jsonl"), "--capacity"])
    assert script.main() == 0, capsys.readouterr().out
