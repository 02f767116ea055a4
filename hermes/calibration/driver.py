"""Runs a collector in an interpreter of its own and watches its journal.

The collector is a subprocess (`PYTHON -m COLLECTOR PLAN JOURNAL --budget SECONDS`): the engine's environment need not
have anything of ours but this package's files, and what it measures is not disturbed by us. All we know of its progress
is what its journal says.
"""

from __future__ import annotations

import os
import subprocess
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Protocol

import hermes
from hermes.calibration.collect.session import BUDGET_EXIT, DRIVER_PID
from hermes.calibration.journal import JournalError, read_journal
from hermes.errors import InputError, Verbatim

__all__ = ["PlanLike", "Progress", "collect", "interpreter_environment", "read_records"]

POLL_S = 0.2
PATIENCE_S = 3.0   # past the budget, before a collector that should have stopped by itself is told to
GRACE_S = 30.0   # and before it is ended: it may finish its point


class PlanLike(Protocol):
    """What is asked of a plan; `hermes.calibration.plan.Plan` is one."""

    @property
    def collector(self) -> str:
        """Module with the collector."""
        ...

    @property
    def points(self) -> list[dict[str, Any]]:
        """Points, each with a `name` of its own, perhaps with an `estimate_s`."""
        ...

    @property
    def estimate_s(self) -> float:
        """Seconds for all of them."""
        ...


@dataclass
class Progress:
    """What a journal says about a plan."""

    points: int
    """Points of the plan."""
    done: int = 0
    rows: int = 0
    classes: Counter[str] = field(default_factory=Counter)
    """SVAB classes of the points, the last attempt's."""
    failed: dict[str, str] = field(default_factory=dict)
    """Points that could not be measured, and why."""
    left_s: float = 0.0
    """Seconds the rest will take: the plan's estimates, corrected by how wrong they were so far."""
    last: str = ""


def read_records(path: Path) -> tuple[dict[str, Any], list[dict[str, Any]]]:
    """Header and records of a journal. Raises `InputError`."""
    try:
        return read_journal(path)
    except OSError as error:
        raise InputError("a readable journal", Verbatim(str(error.strerror).lower()), file=str(path)) from None
    except JournalError as error:
        raise InputError("a journal (hermes-journal/1)", Verbatim(str(error)), file=str(path)) from None


def progress_of(plan: PlanLike, path: Path) -> Progress:
    """Progress as the journal tells it; a journal not begun yet is none."""
    progress = Progress(len(plan.points), left_s=plan.estimate_s)
    try:
        _, records = read_journal(path)
    except (OSError, JournalError):
        return progress
    estimates = {point["name"]: float(point.get("estimate_s", 0.0)) for point in plan.points}
    classes: dict[str, str] = {}
    spent = expected = 0.0
    for record in records:
        if record.get("kind") != "point":
            continue
        name = record["point"]
        progress.rows += len(record["rows"])
        progress.last = name
        if "failed" in record:
            progress.failed[name] = record["failed"]
        classes[name] = record.get("class", "failed" if "failed" in record else "single")
        spent += record.get("seconds", 0.0)
        expected += estimates.get(name, 0.0)
    progress.done = len(classes)
    progress.classes = Counter(classes.values())
    left = sum(seconds for name, seconds in estimates.items() if name not in classes)
    if progress.done and expected > 0:
        progress.left_s = left * spent / expected
    elif progress.done:
        progress.left_s = (progress.points - progress.done) * spent / progress.done
    return progress


@contextmanager
def interpreter_environment() -> Iterator[dict[str, str]]:
    """Environment variables in which another interpreter finds this package, and nothing else of ours."""
    with tempfile.TemporaryDirectory(prefix="hermes-") as folder:
        (Path(folder) / "hermes").symlink_to(Path(hermes.__file__).resolve().parent, target_is_directory=True)
        yield os.environ | {"PYTHONPATH": folder, "PYTHONDONTWRITEBYTECODE": "1", DRIVER_PID: str(os.getpid())}


def collect(
    plan: PlanLike, plan_file: Path, journal: Path, *, python: str | None = None, budget_s: float | None = None,
    on_progress: Callable[[Progress], None] | None = None,
) -> tuple[Progress, bool]:
    """Run the plan's collector until it is done or out of budget: (progress, whether every point is there).

    plan_file: where `plan` is saved; python: interpreter that has the engine, by default this one; on_progress: called
    whenever the journal has grown. Raises `InputError` with the collector's last line if it fails.
    """
    with interpreter_environment() as environment, tempfile.TemporaryFile("w+", encoding="utf-8") as errors:
        command = [python or sys.executable, "-m", plan.collector, str(plan_file.resolve()), str(journal.resolve())]
        if budget_s is not None:
            command += ["--budget", f"{budget_s:g}"]
        try:
            process = subprocess.Popen(command, env=environment, stdin=subprocess.DEVNULL, stdout=errors, stderr=errors)
        except OSError as error:
            raise InputError("an interpreter", Verbatim(f"{python} ({error.strerror})"), field="--python") from None
        try:
            told = _watch(process, plan, journal, budget_s, on_progress)
        finally:
            _stop(process)
        if process.returncode not in (0, BUDGET_EXIT) and not told:
            errors.seek(0)
            raise InputError("a collector that succeeds", Verbatim(_last_words(errors.read(), process.returncode)),
                             field=plan.collector)
    progress = progress_of(plan, journal)
    if on_progress:
        on_progress(progress)
    return progress, process.returncode == 0


def _watch(
    process: subprocess.Popen[bytes] | subprocess.Popen[str], plan: PlanLike, journal: Path, budget_s: float | None,
    on_progress: Callable[[Progress], None] | None,
) -> bool:
    """Wait for the collector; show what it writes. Whether it overstayed its budget and was told to stop."""
    began, size, told = time.monotonic(), -1, False
    while process.poll() is None:
        over = time.monotonic() - began - budget_s if budget_s is not None else -1.0
        if over > GRACE_S:
            break
        if over > PATIENCE_S and not told:
            process.terminate()   # the point in hand is finished
            told = True
        now = journal.stat().st_size if journal.exists() else 0
        if now != size and on_progress:
            size = now
            on_progress(progress_of(plan, journal))
        time.sleep(POLL_S)
    return told


def _stop(process: subprocess.Popen[bytes] | subprocess.Popen[str]) -> None:
    """End what still runs; the journal keeps every finished point."""
    if process.poll() is None:
        process.terminate()
        try:
            process.wait(5.0)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait()


def _last_words(text: str, code: int) -> str:
    lines = [line.strip() for line in text.splitlines() if line.strip()]
    return lines[-1] if lines else (f"killed by signal {-code}" if code < 0 else f"exit code {code}")
