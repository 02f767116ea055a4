"""CPU seconds of a test run: the sum over all processes, and each item's own, within the budgets of `house.json`.

The processes that a test starts and waits for count. A fixture counts to the first item that needs it. Machines differ
by more than a factor of two, and a busy one needs more CPU seconds for the same work: so each process times one and the
same piece of work at its start, at its end and between its items, and seconds are given as those of the machine on
which the piece takes `PIECE_S`. A run fails only if all of it is above its budget times the tolerance of the file; the
summary names whatever is over. An item alone fails no run: the first one of a process pays for what later
ones find loaded. `HERMES_TEST_CPU=FILE` writes the seconds of every item to a file, as JSON.
"""

from __future__ import annotations

import gc
import heapq
import json
import os
import time
from collections.abc import Iterator
from pathlib import Path
from statistics import fmean
from typing import Any

import pytest
from budgets import budgets, over

__all__ = ["CpuSeconds", "wrong"]

PIECE_S = 0.0171
"""CPU seconds of `piece` where the budgets were measured: two busy cores on which `make test` took 400 s."""
EVERY = 100
"""Items of a process between two timings of the piece."""
SHOWN = 10
"""Items that the summary shows."""
MEASURE = "CPU seconds"
OTHER = "any item"
"""The part of the budgets for the items of tests that have none of their own."""


def used(children: bool = True) -> float:
    """Return the CPU seconds of this process and of those that it started and waited for."""
    times = os.times()
    return times.user + times.system + (times.children_user + times.children_system if children else 0)


def piece() -> float:
    """Return the CPU seconds of a fixed piece of work of the kind that simulations and their tests do."""
    gc.disable()   # a collection looks at whatever the tests before left behind
    before = time.process_time()
    rows: dict[str, list[int]] = {}
    queue: list[tuple[int, int, str]] = []
    for number in range(12_000):
        key = f"request-{number * 7919 % 4099}"
        rows.setdefault(key, []).append(number)
        heapq.heappush(queue, (number * 7919 % 10_007, number, key))
    while queue:
        when, number, key = heapq.heappop(queue)
        rows[key].append(when + number)
    sorted(rows.items(), key=lambda row: (len(row[1]), row[0]))
    seconds = time.process_time() - before
    gc.enable()
    return seconds


def slower(pieces: list[float]) -> float:
    """Return how many times as many CPU seconds this machine takes as the one of the budgets."""
    return fmean(pieces) / PIECE_S


def wrong(target: str, total: float, items: dict[str, float], tolerance: float = 1.0) -> list[str]:
    """Return what is over its budget, one line each. Items count in `make test` alone."""
    allowed = budgets()[MEASURE]
    if target == "make test":
        allowed = allowed | {name: allowed.get(name.partition("[")[0], allowed[OTHER]) for name in items}
    else:
        items = {}
    return over(MEASURE, {target: round(total, 1)} | {name: round(one, 1) for name, one in items.items()}, allowed,
                tolerance)


class CpuSeconds:
    """Plug-in of a pytest process: measures its items, and adds up those of its workers."""

    def __init__(self, config: pytest.Config, target: str | None) -> None:
        """target: what make calls this run, None for one without a budget."""
        self.config = config
        self.target = target
        self.items: dict[str, float] = {}
        self.pieces = [piece()]
        self.collection = self.workers = self.total = 0.0
        self.slower = 1.0
        self.over: list[str] = []

    @pytest.hookimpl(wrapper=True)
    def pytest_runtest_protocol(self, item: pytest.Item) -> Iterator[None]:
        before = used()
        result = yield
        self.items[item.nodeid] = used() - before
        if len(self.items) % EVERY == 0:
            self.pieces.append(piece())
        return result

    @pytest.hookimpl(trylast=True)
    def pytest_collection_finish(self) -> None:
        self.collection += used()

    @pytest.hookimpl(optionalhook=True)
    def pytest_testnodedown(self, node: Any) -> None:
        told = getattr(node, "workeroutput", {}).get(MEASURE)
        if told is not None:
            self.items |= told["items"]
            self.pieces = told["pieces"] + (self.pieces if self.workers else [])   # the controller's own core is idle
            self.workers += told["all"]
            self.collection += told["collection"]

    @pytest.hookimpl(tryfirst=True)
    def pytest_sessionfinish(self, session: pytest.Session) -> None:
        output: dict[str, Any] | None = getattr(self.config, "workeroutput", None)
        if output is not None:   # a worker of xdist
            output[MEASURE] = {"items": self.items, "pieces": self.pieces, "all": used(), "collection": self.collection}
            return
        self.slower = slower(self.pieces)
        self.total = (self.workers + used(children=not self.workers)) / self.slower
        self.collection /= self.slower
        self.items = {name: seconds / self.slower for name, seconds in self.items.items()}
        if self.target is None or session.exitstatus:
            return
        self.over = wrong(self.target, self.total, self.items)
        if wrong(self.target, self.total, {}, budgets()["tolerance"][MEASURE]["number"]):
            session.exitstatus = pytest.ExitCode.TESTS_FAILED

    def pytest_terminal_summary(self, terminalreporter: Any) -> None:
        terminalreporter.section(MEASURE)
        terminalreporter.line(f"{self.total:.0f} in all, {self.collection:.0f} of them for collection, as on the "
                              f"machine of the budgets; this one takes {self.slower:.2f} times as many")
        for name, seconds in sorted(self.items.items(), key=lambda item: -item[1])[:SHOWN]:
            terminalreporter.line(f"{seconds:7.2f}  {name}")
        for line in self.over:
            terminalreporter.line(f"over budget: {line}", red=True)
        if file := os.environ.get("HERMES_TEST_CPU"):
            Path(file).write_text(json.dumps({"all": self.total, "slower": self.slower, "collection": self.collection,
                                              "items": self.items}))
