"""Schedules recorded from the real engine are replayed without a difference, in runs and in single steps."""

from __future__ import annotations

from pathlib import Path

import pytest

from hermes.conform import conform_file, find_files

SCHEDULES = Path(__file__).resolve().parents[1] / "data" / "vllm-schedules"
FILES = find_files([SCHEDULES / folder for folder in ("given", "recorded", "recorded-options")])


def test_the_recordings_are_there() -> None:
    given = [path for path in FILES if path.parent.name == "given"]
    assert len(given) == 14
    assert len(FILES) - len(given) >= 20


@pytest.mark.parametrize("every_step", [False, True], ids=["runs", "every_step"])
@pytest.mark.parametrize("path", FILES, ids=lambda path: f"{path.parent.name}/{path.stem}")
def test_every_step_is_identical(path: Path, every_step: bool) -> None:
    result = conform_file(path, every_step=every_step)
    assert result.first_difference is None
    assert result.identical == result.steps > 0
