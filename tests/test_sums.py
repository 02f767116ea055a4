"""`hermes.sums` adds from left to right, on every Python, mypy refuses `sum` of floats; functions of `hermes.arrays`
give the same bits on every processor."""

import math
import re
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from hermes import arrays
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


@pytest.mark.parametrize("name", ["exp", "log", "log2", "log1p"])
def test_functions_of_arrays_are_those_of_math(name: str) -> None:
    values = np.random.default_rng(0).random((40, 50)) * 30
    expected = [[getattr(math, name)(value) for value in row] for row in values.tolist()]
    assert getattr(arrays, name)(values).tolist() == expected


def test_functions_of_arrays_at_their_ends() -> None:
    assert arrays.exp([800.0, -800.0, math.inf]).tolist() == [math.inf, 0.0, math.inf]
    assert arrays.log([0.0, 1.0, math.inf]).tolist() == [-math.inf, 0.0, math.inf]
    assert np.isnan(arrays.log([-1.0, math.nan, 1.0])).tolist() == [True, True, False]
    assert arrays.log(4.0).shape == ()
    assert arrays.power([2.0, 0.3, 1e300], 1.7).tolist() == [2.0**1.7, 0.3**1.7, math.inf]


def test_results_use_no_function_that_depends_on_the_processor() -> None:
    """Measurements and fits do, whose files every machine reads; and `telerag.overlap.families`, which draws states by
    sines and products of matrices, and keeps only which clusters are nearest."""
    package = ROOT / "hermes"
    measured = {"calibration", "retrieval"}
    found = [f"{path}: {match}" for path in sorted(package.rglob("*.py")) if measured.isdisjoint(path.parts)
             for match in re.findall(r"np\.(?:exp2?|expm1|log(?:2|10|1p)?|cbrt|tanh|power)\(",
                                     path.read_text())]
    assert not found
