"""Property tests in two sizes: a quick one in the default run, the full one under `make test-long`.

    @quick_and_full(20, 300)                      # 20 examples by default, 300 with `pytest -m long`
    @given(...)
    def test_a_property(...): ...

    @pytest.mark.long(quick=40)                   # a test with a loop of its own
    def test_another(...):
        for case in cases(count(40, 300)): ...

`conftest.py` leaves tests marked `long` out of the default run, except those with a `quick` size.
"""

from __future__ import annotations

import os
from collections.abc import Callable
from typing import Any

import pytest
from hypothesis import settings

__all__ = ["count", "full_runs", "quick_and_full"]

_FULL = "HERMES_FULL_RUNS"


def full_runs(on: bool) -> None:
    """Choose the size of all tests that are imported from now on; `conftest.py` calls this for each process."""
    os.environ[_FULL] = "1" if on else ""


def count(quick: int, full: int) -> int:
    """The number of examples of this run."""
    return full if os.environ.get(_FULL) else quick


def quick_and_full(quick: int, full: int, **options: Any) -> Callable[[Any], Any]:
    """Decorator: hypothesis settings with `quick` or `full` examples, and the marker `long`.

    options: further hypothesis settings. For a state machine decorate its `TestCase`.
    """
    chosen = settings(max_examples=count(quick, full), deadline=None, **options)

    def decorate(test: Any) -> Any:
        if isinstance(test, type):   # of a state machine
            test.settings = chosen   # type: ignore[attr-defined]
        else:
            test = chosen(test)
        return pytest.mark.long(quick=quick)(test)

    return decorate
