"""Session of a collector: choice, order and time limit of the measured points. numpy and the standard library only.

    python -m hermes.calibration.collect.NAME PLAN.json JOURNAL.jsonl [--budget SECONDS]

A collector gives `main` a function that opens its engine; the session does the rest: it reads the plan, continues the
journal, warms up, measures the points level by level (coarse ones first, so that a short budget leaves a broad grid),
measures noisy ones again at the end of their level, and re-measures the plan's reference point repeatedly, to show
drift. Of a point it reads only `name`, `level` and `estimate_s`.

Exit codes:

- 0: every point is in the journal.
- 3: stopped by the budget or a signal; run again to continue.
- 2: an error; one line on stderr describes it.
"""

from __future__ import annotations

import argparse
import json
import os
import platform
import signal
import statistics
import sys
import time
from collections.abc import Callable, Sequence
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import numpy as np

from hermes.calibration.journal import Journal, JournalError, read_journal
from hermes.core.noise import classify, spread
from hermes.locks import lock

__all__ = [
    "BUDGET_EXIT", "DRIVER_PID", "STATISTICS", "Collector", "CollectorError", "Engine", "PointFailed", "Session",
    "cpu_name", "machine", "main", "need_unix", "noise_of",
]

BUDGET_EXIT = 3
DRIVER_PID = "HERMES_DRIVER_PID"
"""Environment variable with the process that started the collector; when that is gone, the collector stops."""

STATISTICS = (
    "prefill_seqs", "prefill_tokens", "prefill_past", "prefill_attn", "decode_seqs", "decode_ctx", "decode_ctx_max",
    "sampled",
)
"""Keys of a row that say which batch it was; rows with equal ones repeat each other."""

Point = dict[str, Any]
Row = dict[str, Any]


class CollectorError(Exception):
    """An error that the user can correct: one line, exit code 2."""


class PointFailed(Exception):  # noqa: N818  (an outcome, not a mistake)
    """A point that cannot be measured (out of memory, say); the journal keeps the reason and the session goes on."""


class Collector:
    """Interface of what is measured, opened once per session; derive from it and implement `measure`."""

    def __init__(self, plan: dict[str, Any]) -> None:
        self.plan = plan

    def environment(self) -> dict[str, Any]:
        """Return versions, device and settings for a reader of the steps, JSON; here nothing but the date."""
        return {"date": time.strftime("%Y-%m-%d")}

    def measure(self, point: Point) -> tuple[list[Row], dict[str, Any]]:
        """Measure one point: rows (columns of `hermes-steps/1`; unknown ones left out), and further values for the
        journal.

        Rows of one repeated step have equal statistics and `repetition` 0, 1, ...; `cv` and `class` in the second part
        replace the session's own. Raises `PointFailed`.
        """
        raise NotImplementedError

    def close(self) -> None:
        """Release memory and processes; here none."""


Engine = Collector   # the name that collectors imported before


def cpu_name() -> str:
    """Return the CPU's name as the system reports it."""
    try:
        with open("/proc/cpuinfo", encoding="utf-8", errors="replace") as file:
            for line in file:
                if line.startswith("model name"):
                    return " ".join(line.split(":", 1)[1].split())
    except OSError:
        pass
    return platform.processor() or platform.machine()


def machine() -> dict[str, Any]:
    """Return the machine and the versions that every measurement of the host records."""
    return {
        "cpu": cpu_name(), "cores": len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else None,
        "system": platform.platform(), "python": platform.python_version(), "numpy": np.__version__,
    }


def need_unix(what: str) -> None:
    """Raise `CollectorError` on Windows, for measurements that use CPU time (in steps of 16 ms there) or processes."""
    if not hasattr(os, "fork"):
        raise CollectorError(f"{what}: not measured on Windows; measure on Linux or macOS")


def noise_of(rows: Sequence[Row], clock: str) -> tuple[float, str]:
    """Return (coefficient of variation, SVAB class) of a point: the median over its repeated steps; (0, "single")
    without any.

    `clock` "cpu" takes `cpu_time_s`, any other `time_s`.
    """
    column = "cpu_time_s" if clock == "cpu" else "time_s"
    groups: dict[tuple[int, ...], list[float]] = {}
    for row in rows:
        groups.setdefault(tuple(row.get(name, 0) for name in STATISTICS), []).append(row[column])
    variations = [spread(values).cv for values in groups.values() if len(values) > 1]
    if not variations:
        return 0.0, "single"
    cv = statistics.median(variations)
    return cv, classify(cv)


def _past_attempts(path: Path) -> dict[str, list[str]]:
    """Return classes of the attempts at each point in a journal."""
    if not path.exists() or not path.stat().st_size:
        return {}
    try:
        _, records = read_journal(path)
    except JournalError:
        return {}   # torn header, or no journal: `Journal` raises the error
    found: dict[str, list[str]] = {}
    for record in records:
        if record.get("kind") == "point":
            found.setdefault(record["point"], []).append(record.get("class", "single"))
    return found


class Session:
    """One run of a collector over a plan."""

    def __init__(self, plan: dict[str, Any], journal: Path, budget_s: float = float("inf")) -> None:
        """Begin a session. `budget_s` counts from now, including opening the engine and warm-up."""
        self.plan, self.path, self.budget_s = plan, journal, budget_s
        self.began = time.monotonic()
        self.stopped = False
        """Set by SIGTERM: finish the current point, begin no other."""
        self.clock: str = plan.get("clock", "wall")
        self.attempts = _past_attempts(journal)
        self._measured_s, self._estimated_s, self._slowest_s = 0.0, 0.0, 0.0
        self._reference_due = 0.0
        self._driver = int(os.environ.get(DRIVER_PID, "0"))

    def run(self, open_engine: Callable[[dict[str, Any]], Collector]) -> int:
        """Measure the missing points; return the exit code."""
        levels = sorted({point.get("level", 0) for point in self.plan["points"]})
        if not any(self._next(level) for level in levels):
            return 0
        engine = open_engine(self.plan)
        try:
            with Journal(self.path, self.plan, engine.environment()) as journal:
                self._warm_up(engine, journal)
                for level in levels:
                    while point := self._next(level):
                        if not self._may_start(point):
                            return BUDGET_EXIT
                        self._check_drift(engine, journal)
                        self._measure(engine, journal, point)
                self._check_drift(engine, journal, last=True)
        finally:
            engine.close()
        return 0

    def _next(self, level: int) -> Point | None:
        """Return the next point: one never measured, or else, once, one whose repetitions disagreed."""
        points = [point for point in self.plan["points"] if point.get("level", 0) == level]
        fresh = (p for p in points if p["name"] not in self.attempts)
        noisy = (p for p in points if self.attempts.get(p["name"]) in (["flaky"], ["rejected"]))
        return next(fresh, None) or next(noisy, None)

    def _elapsed(self) -> float:
        return time.monotonic() - self.began

    def _expected_s(self, point: Point) -> float:
        """Return seconds of a point: its estimate, corrected by the error of the estimates so far."""
        estimate = float(point.get("estimate_s", 0.0))
        if self._estimated_s > 0 and estimate > 0:
            return estimate * self._measured_s / self._estimated_s
        return estimate or self._slowest_s

    def _may_start(self, point: Point) -> bool:
        # on Windows, the parent may be the launcher of a virtual environment, and stays the parent when it has ended
        orphaned = self._driver and hasattr(os, "fork") and os.getppid() != self._driver
        return not self.stopped and not orphaned and self._elapsed() + self._expected_s(point) <= self.budget_s

    def _warm_up(self, engine: Collector, journal: Journal) -> None:
        """Measure the reference point, or else the first one, for the plan's warm-up time; drop the results."""
        seconds = float(self.plan.get("warmup_s", 0.0))
        point = self.plan.get("reference") or self.plan["points"][0]
        began, rounds = time.monotonic(), 0
        while time.monotonic() - began < seconds and self._may_start(point):
            engine.measure(point)
            rounds += 1
        journal.write({"kind": "note", "text": "warmed up", "seconds": time.monotonic() - began, "rounds": rounds})

    def _check_drift(self, engine: Collector, journal: Journal, *, last: bool = False) -> None:
        reference, every = self.plan.get("reference"), float(self.plan.get("reference_every_s", 60.0))
        if not reference or not (last or self._elapsed() >= self._reference_due) or not self._may_start(reference):
            return
        rows, _ = engine.measure(reference)
        journal.write({"kind": "reference", "at_s": time.time(), "rows": rows})
        self._reference_due = self._elapsed() + every

    def _measure(self, engine: Collector, journal: Journal, point: Point) -> None:
        name, began = point["name"], time.monotonic()
        attempt = len(self.attempts.get(name, []))
        try:
            rows, more = engine.measure(point)
        except PointFailed as error:
            self.attempts.setdefault(name, []).append("failed")
            journal.point(name, [], attempt=attempt, seconds=time.monotonic() - began, failed=str(error))
            return
        seconds = time.monotonic() - began
        cv, verdict = noise_of(rows, self.clock)
        record = {"attempt": attempt, "seconds": seconds, "cv": cv, "class": verdict, **more}
        verdict = record["class"]
        journal.point(name, rows, **record)
        self.attempts.setdefault(name, []).append(verdict)
        self._measured_s += seconds
        self._estimated_s += float(point.get("estimate_s", 0.0))
        self._slowest_s = max(self._slowest_s, seconds)


def load_plan(path: Path) -> dict[str, Any]:
    """Read a plan, as far as a session needs it. Raises `CollectorError`."""
    try:
        plan = json.loads(path.read_text(encoding="utf-8"))
        points = plan["points"]
        names = [point["name"] for point in points]
        good = str(plan["format"]).endswith("plan/1") and len(names) == len(set(names)) > 0
    except (OSError, ValueError, KeyError, TypeError) as error:
        raise CollectorError(f"{path}: not a plan ({type(error).__name__}: {error})") from None
    if not good:
        raise CollectorError(f"{path}: not a plan (hermes-plan/1) with points of different names")
    return dict(plan)


def _lock(path: Path, wait_s: float = 15.0) -> ExitStack:
    """An exclusive lock beside the journal: a collector whose driver was killed may still be finishing a point."""
    file = path.with_name(path.name + ".lock")
    file.touch()
    until = time.monotonic() + wait_s
    while True:
        try:
            return lock(file)
        except OSError:
            if time.monotonic() > until:
                raise CollectorError(f"{path}: another collector is writing it") from None
            time.sleep(0.2)


def main(open_engine: Callable[[dict[str, Any]], Collector], arguments: Sequence[str] | None = None) -> int:
    """Run a collector's `__main__`; return the exit code."""
    parser = argparse.ArgumentParser(description="Measure the points of a plan into a journal.")
    parser.add_argument("plan", type=Path, help="what `hermes calibrate plan` wrote")
    parser.add_argument("journal", type=Path, help="the journal to begin or to continue")
    parser.add_argument("--budget", type=float, default=float("inf"), metavar="SECONDS", help="stop in time for this")
    options = parser.parse_args(arguments)
    try:
        plan = load_plan(options.plan)
        if plan.get("clock") == "cpu":
            need_unix("clock: cpu")
        options.journal.parent.mkdir(parents=True, exist_ok=True)
        with _lock(options.journal):
            session = Session(plan, options.journal, options.budget)
            signal.signal(signal.SIGTERM, lambda *_: setattr(session, "stopped", True))
            return session.run(open_engine)
    except (CollectorError, JournalError) as error:
        print(" ".join(str(error).split()), file=sys.stderr)
        return 2
    except KeyboardInterrupt:
        return 130
