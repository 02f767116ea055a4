"""Property tests in sizes: a quick one in `make test`, the full one in `make test-all`, and for the few that need more
a third one in `make nightly`.

    @quick_and_full(20, 300)                      # 20 examples by default, 300 with `pytest --size full`
    @quick_and_full(20, 300, thorough=5000)       # and 5,000 with `pytest -m thorough`
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

__all__ = ["choose_size", "count", "quick_and_full"]

_SIZE = "HERMES_TEST_SIZE"


def choose_size(size: str) -> None:
    """Choose the size of all tests that are imported from now on: quick, full or thorough. `conftest.py` calls this for
    each process."""
    os.environ[_SIZE] = size


def count(quick: int, full: int, thorough: int | None = None) -> int:
    """The number of examples of this run."""
    size = os.environ.get(_SIZE, "quick")
    return quick if size == "quick" else full if size == "full" or thorough is None else thorough


def quick_and_full(quick: int, full: int, thorough: int | None = None, **options: Any) -> Callable[[Any], Any]:
    """Decorator: hypothesis settings with `quick`, `full` or `thorough` examples, and the marker `long`, also
    `thorough` for a test that has a third size.

    options: further hypothesis settings. For a state machine decorate its `TestCase`.
    """
    chosen = settings(max_examples=count(quick, full, thorough), deadline=None, **options)

    def decorate(test: Any) -> Any:
        if isinstance(test, type):   # of a state machine
            test.settings = chosen   # type: ignore[attr-defined]
        else:
            test = chosen(test)
        if thorough is not None:
            test = pytest.mark.thorough(test)
        return pytest.mark.long(quick=quick)(test)

    return decorate
