"""Settings of all tests."""

import copy
import gc
import os
import sys
from pathlib import Path
from typing import Any

import pytest
from cpu_seconds import CpuSeconds
from draw import not_drawn, seed
from hypothesis import settings
from long_runs import choose_size
from outside import outside

# Two test processes with two threads of linear algebra each wait for each other. Read when numpy is first imported.
os.environ.setdefault("OPENBLAS_NUM_THREADS", "1")

# Tests start many processes; without compiled files each of them compiles the package again.
os.environ.pop("PYTHONDONTWRITEBYTECODE", None)
sys.dont_write_bytecode = False

# As the command line does: with Python's own 700, collections take a sixth of a simulation.
gc.set_threshold(100_000)

# How long an example takes says nothing about whether it is right, and on a busy machine nothing at all: the first one
# of a process also builds the models of a scenario.
settings.register_profile("quick", deadline=None, max_examples=20)
settings.register_profile("full", deadline=None, max_examples=100)

NAMED = {"browser", "compiled", "ray", "thorough", "whole"}   # have a command of their own


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption("--size", choices=["quick", "full"], default="quick",
                     help="full: every case of every test, property tests in full (make test-all)")


def pytest_configure(config: pytest.Config) -> None:
    """Choose the size of the property tests, see `long_runs.py`, and measure the run."""
    size = "thorough" if _names(config, "thorough") else "full" if _full(config) else "quick"
    choose_size(size)
    settings.load_profile("quick" if size == "quick" else "full")
    seed()   # before xdist starts the workers
    everything = (config.args_source is pytest.Config.ArgsSource.TESTPATHS and not config.option.markexpr
                  and not config.option.keyword and not config.option.lf)
    target = "make test-all" if size == "full" else "make test"
    config.pluginmanager.register(CpuSeconds(config, target if everything else None), "cpu_seconds")


def pytest_report_header(config: pytest.Config) -> str:
    return "all cases" if _full(config) else f"cases drawn with HERMES_TEST_DRAW={seed()}"


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
    """Leave out what is not of this size: see `long_runs.py` and `draw.py`. `-m` with one of `NAMED` runs all of it."""
    if NAMED & set((config.option.markexpr or "").split()):
        return
    if _names(config, "long"):
        for item in items:   # property tests that leave the number of examples to the profile
            if getattr(getattr(item, "obj", None), "is_hypothesis_test", False):
                item.add_marker("long")
    marks = {item: item.get_closest_marker("long") for item in items}
    left_out = {item for item, mark in marks.items()
                if mark is None and any(item.get_closest_marker(name) for name in NAMED)}
    if not _full(config):
        left_out |= {item for item, mark in marks.items() if mark is not None and "quick" not in mark.kwargs}
        left_out |= not_drawn(item for item in items if item not in left_out)
    if left_out:
        config.hook.pytest_deselected(items=list(left_out))
        items[:] = [item for item in items if item not in left_out]


def _full(config: pytest.Config) -> bool:
    return config.option.size == "full" or _names(config, "long")


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
