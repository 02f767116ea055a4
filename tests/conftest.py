"""Settings of all tests."""

import os

import pytest
from hypothesis import settings
from long_runs import full_runs

# Two test processes with two threads of linear algebra each wait for each other. Read when numpy is first imported.
os.environ.setdefault("OPENBLAS_NUM_THREADS", "1")

# How long an example takes says nothing about whether it is right, and on a busy machine nothing at all: the first one
# of a process also builds the models of a scenario.
settings.register_profile("hermes", deadline=None)
settings.load_profile("hermes")


def pytest_configure(config: pytest.Config) -> None:
    """`-m long` runs property tests in full; see `long_runs.py`."""
    full_runs(_names_long(config))


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Leave out the tests marked `long` unless `-m` names them, or they have a quick size."""
    if _names_long(config):
        return
    marks = {item: item.get_closest_marker("long") for item in items}
    left_out = {item for item, mark in marks.items() if mark is not None and "quick" not in mark.kwargs}
    if left_out:
        config.hook.pytest_deselected(items=list(left_out))
        items[:] = [item for item in items if item not in left_out]


def _names_long(config: pytest.Config) -> bool:
    chosen = config.option.markexpr or ""
    return "long" in chosen and "not long" not in chosen
