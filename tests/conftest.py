"""Settings of all tests."""

import gc
import os
import sys

import pytest
from hypothesis import settings
from long_runs import full_runs

# Two test processes with two threads of linear algebra each wait for each other. Read when numpy is first imported.
os.environ.setdefault("OPENBLAS_NUM_THREADS", "1")

# Tests start many processes; without compiled files each of them compiles the package again.
os.environ.pop("PYTHONDONTWRITEBYTECODE", None)
sys.dont_write_bytecode = False

# How long an example takes says nothing about whether it is right, and on a busy machine nothing at all: the first one
# of a process also builds the models of a scenario.
settings.register_profile("quick", deadline=None, max_examples=40)
settings.register_profile("full", deadline=None, max_examples=100)

NAMED = {"browser", "compiled", "ray", "whole"}   # have a command of their own


def pytest_configure(config: pytest.Config) -> None:
    """`-m long` runs property tests in full; see `long_runs.py`."""
    full_runs(_names_long(config))
    settings.load_profile("full" if _names_long(config) else "quick")


def pytest_collection_finish() -> None:
    """Six thousand tests are half a million objects, which stay: the garbage collector need not look at them again."""
    gc.collect()
    gc.freeze()


@pytest.hookimpl(tryfirst=True)
def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Leave out the tests marked `long` or as one of `NAMED` unless `-m` names them, or they have a quick size."""
    if NAMED & set((config.option.markexpr or "").split()):
        return
    if _names_long(config):
        for item in items:   # property tests that leave the number of examples to the profile
            if getattr(getattr(item, "obj", None), "is_hypothesis_test", False):
                item.add_marker("long")
        return
    marks = {item: item.get_closest_marker("long") for item in items}
    left_out = {item for item, mark in marks.items() if (mark is not None and "quick" not in mark.kwargs)
                or any(item.get_closest_marker(name) for name in NAMED)}
    if left_out:
        config.hook.pytest_deselected(items=list(left_out))
        items[:] = [item for item in items if item not in left_out]


def _names_long(config: pytest.Config) -> bool:
    chosen = config.option.markexpr or ""
    return "long" in chosen and "not long" not in chosen
