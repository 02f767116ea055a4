"""`hermes.sums` adds from left to right, on every Python, and mypy refuses `sum` of floats."""

import subprocess
import sys
from pathlib import Path

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from hermes.sums import float_sum

ROOT = Path(__file__).resolve().parents[1]


@given(st.lists(st.floats(allow_nan=False, allow_infinity=False, width=32)))
def test_it_is_what_numpy_accumulates(values: list[float]) -> None:
    expected = np.add.accumulate(np.array(values))[-1] if values else 0
    assert float_sum(values) == expected


def test_errors_are_not_carried_along() -> None:
    assert float_sum([1e16, 1.0, 1.0]) == 1e16   # `sum` gives 1e16 + 2 since Python 3.12


def test_mypy_refuses_the_other_one(tmp_path: Path) -> None:
    planted = tmp_path / "planted.py"
    planted.write_text("def f(a: list[int]) -> float:\n    return sum(a)\n"
                       "def g(a: list[float]) -> float:\n    return sum(a)\n")
    settings = tmp_path / "mypy.ini"
    settings.write_text(f"[mypy]\nplugins = {ROOT / 'scripts' / 'mypy_sums.py'}\n")
    done = subprocess.run(
        [sys.executable, "-m", "mypy", "--config-file", settings, "--cache-dir", tmp_path / "cache", planted],
        capture_output=True, text=True)
    assert done.returncode == 1, done.stdout
    assert "planted.py:4: sum of floats differs between versions of Python" in done.stderr
    assert "planted.py:2:" not in done.stdout + done.stderr
