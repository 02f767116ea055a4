"""Settings of all tests."""

import copy
import gc
import os
import sys
from pathlib import Path
from typing import Any

import pytest
from hypothesis import settings
from long_runs import choose_size
from outside import outside

# Two test processes with two threads of linear algebra each wait for each other. Read when numpy is first imported.
os.environ.setdefault("OPENBLAS_NUM_THREADS", "1")

# Tests start many processes; without compiled files each of them compiles the package again.
os.environ.pop("PYTHONDONTWRITEBYTECODE", None)
sys.dont_write_bytecode = False

# How long an example takes says nothing about whether it is right, and on a busy machine nothing at all: the first one
# of a process also builds the models of a scenario.
settings.register_profile("quick", deadline=None, max_examples=40)
settings.register_profile("full", deadline=None, max_examples=100)

NAMED = {"browser", "compiled", "ray", "thorough", "whole"}   # have a command of their own


def pytest_configure(config: pytest.Config) -> None:
    """`-m long` and `-m thorough` run property tests in full; see `long_runs.py`."""
    thorough, full = _names(config, "thorough"), _names(config, "long")
    choose_size("thorough" if thorough else "long" if full else "quick")
    settings.load_profile("full" if thorough or full else "quick")


def pytest_runtest_setup(item: pytest.Item) -> None:
    """Skip a test marked `outside` where its data is not there."""
    for mark in item.iter_markers("outside"):
        outside(mark.args[0])


def pytest_collection_finish() -> None:
    """Six thousand tests are half a million objects, which stay: the garbage collector need not look at them again."""
    gc.collect()
    gc.freeze()


@pytest.hookimpl(tryfirst=True)
def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Leave out the tests marked `long` or as one of `NAMED` unless `-m` names them, or they have a smaller size."""
    if NAMED & set((config.option.markexpr or "").split()):
        return
    if _names(config, "long"):
        for item in items:   # property tests that leave the number of examples to the profile
            if getattr(getattr(item, "obj", None), "is_hypothesis_test", False):
                item.add_marker("long")
        return   # a test that is only `thorough` is not marked `long`
    marks = {item: item.get_closest_marker("long") for item in items}
    left_out = {item for item, mark in marks.items() if (mark is not None and "quick" not in mark.kwargs)
                or (mark is None and any(item.get_closest_marker(name) for name in NAMED))}
    if left_out:
        config.hook.pytest_deselected(items=list(left_out))
        items[:] = [item for item in items if item not in left_out]


def _names(config: pytest.Config, mark: str) -> bool:
    """Whether `-m` asks for a mark."""
    chosen = config.option.markexpr or ""
    return mark in chosen and f"not {mark}" not in chosen


SMALL = """\
name: small
seed: 7
workload:
  requests: 20
  arrivals: {kind: poisson, rate: 4 /s}
  lengths: {kind: fixed, prompt: 200, output: 20}
clients:
  - count: 2
    hardware: {kind: polynomial, profile: splitwise-2023-llama-2-70b-h100-tp8}
    memory: {num_blocks: 1000}
router: {kind: least_loaded, load: tokens_left}
network: {kind: link, bandwidth: 32 GB/s, latency: 20 us}
slo: {ttft: 500 ms}
"""
"""A small scenario to vary."""


@pytest.fixture
def small_file(tmp_path: Path) -> Path:
    """The small scenario as a file."""
    path = tmp_path / "small.yaml"
    path.write_text(SMALL)
    return path


@pytest.fixture
def small_data() -> dict[str, Any]:
    """The small scenario as data."""
    from hermes.config.yaml_document import parse_yaml

    return copy.deepcopy(parse_yaml(SMALL).plain())
