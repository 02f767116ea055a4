"""Calibration session: run a collector in its own interpreter, watch its journal, continue an interrupted one.

All measurements use it: LLM engines, links, indices. The collector is a subprocess (`PYTHON -m COLLECTOR PLAN JOURNAL
--budget SECONDS`): the engine's environment needs only this package's files, and this process does not disturb the
measurement. Plan and journal lie beside the output; the journal shows the progress.
`hermes.calibration.collect.session` is the collector's side.
"""

from __future__ import annotations

import importlib.util
import os
import shutil
import subprocess
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path

from hermes.calibration.collect.session import BUDGET_EXIT, DRIVER_PID
from hermes.calibration.journal import JournalError, read_journal
from hermes.calibration.plan import PointPlan, save_plan
from hermes.config.writing import check_writable
from hermes.errors import InputError, Verbatim
from hermes.sums import float_sum

__all__ = ["Measured", "Progress", "collect", "interpreter_environment", "measure", "progress_of"]

POLL_S = 0.2
PATIENCE_S = 3.0   # seconds past the budget before a collector is told to stop
GRACE_S = 30.0   # seconds until it is killed: it may finish its point

OnProgress = Callable[["Progress"], None] | None
Process = subprocess.Popen[bytes] | subprocess.Popen[str]


@dataclass
class Progress:
    """Progress of a plan, from its journal."""

    points: int
    """Points of the plan."""
    done: int = 0
    rows: int = 0
    classes: Counter[str] = field(default_factory=Counter)
    """SVAB classes of the points, the last attempt's."""
    failed: dict[str, str] = field(default_factory=dict)
    """Points that could not be measured, with reasons."""
    left_s: float = 0.0
    """Seconds left: the plan's estimates, corrected by their error so far."""
    last: str = ""


@dataclass(frozen=True)
class Measured:
    """Journal of a measurement, and whether every point is in it."""

    journal: Path
    progress: Progress
    complete: bool


def progress_of(plan: PointPlan, path: Path) -> Progress:
    """Read the progress from the journal; no progress if it does not exist yet."""
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
    left = float_sum(seconds for name, seconds in estimates.items() if name not in classes)
    if progress.done and expected > 0:
        progress.left_s = left * spent / expected
    elif progress.done:
        progress.left_s = (progress.points - progress.done) * spent / progress.done
    return progress


@contextmanager
def interpreter_environment(collector: str = "hermes") -> Iterator[dict[str, str]]:
    """Return the environment variables with which another interpreter finds this package and the collector's, but no
    other package of ours and no module of the current folder."""
    with tempfile.TemporaryDirectory(prefix="hermes-") as folder:
        for name in ("hermes", collector.partition(".")[0], "hermes__mypyc"):   # the last: of a compiled build
            place = _place_of(name)
            if place is not None and not (Path(folder) / place.name).exists():
                _link(place, Path(folder) / place.name)
        yield os.environ | {
            "PYTHONPATH": folder, "PYTHONSAFEPATH": "1", "PYTHONDONTWRITEBYTECODE": "1", DRIVER_PID: str(os.getpid())}


def _link(place: Path, name: Path) -> None:
    try:
        name.symlink_to(place, target_is_directory=place.is_dir())
    except OSError:   # Windows lets few accounts make links
        (shutil.copytree if place.is_dir() else shutil.copy2)(place, name)


def _place_of(package: str) -> Path | None:
    """Return the folder or the file of a top-level package; None if this interpreter does not have it."""
    spec = importlib.util.find_spec(package)
    if spec is None or spec.origin is None:
        return None
    origin = Path(spec.origin).resolve()
    return origin.parent if spec.submodule_search_locations else origin


def measure(
    plan: PointPlan, output: Path, *, python: str | None = None, budget_s: float | None = None,
    on_progress: OnProgress = None,
) -> Measured:
    """Measure the missing points of a plan; plan and journal lie beside `output`. Raises `InputError`."""
    if output.suffix not in (".yaml", ".yml"):
        raise InputError("a file name that ends in .yaml", str(output), field="output")
    output.parent.mkdir(parents=True, exist_ok=True)
    check_writable(output.parent)
    plan_file, journal = output.with_suffix(".plan.json"), output.with_suffix(".journal.jsonl")
    save_plan(plan, plan_file)
    progress, complete = collect(plan, plan_file, journal, python=python, budget_s=budget_s, on_progress=on_progress)
    return Measured(journal, progress, complete)


def collect(
    plan: PointPlan, plan_file: Path, journal: Path, *, python: str | None = None, budget_s: float | None = None,
    on_progress: OnProgress = None,
) -> tuple[Progress, bool]:
    """Run the plan's collector until it is done or out of budget; return (progress, whether every point is there).

    Args:
        plan_file: Path to save `plan` to.
        python: Interpreter that has the engine, by default this one.
        on_progress: Called whenever the journal has grown.

    Raises `InputError` with the collector's last line if it fails.
    """
    with (interpreter_environment(plan.collector) as environment,
          tempfile.TemporaryFile("w+", encoding="utf-8", errors="replace") as errors):
        command = [python or sys.executable, "-m", plan.collector, str(plan_file.resolve()), str(journal.resolve())]
        if budget_s is not None:
            command += ["--budget", f"{budget_s:g}"]
        try:
            process = subprocess.Popen(command, env=environment, stdin=subprocess.DEVNULL, stdout=errors, stderr=errors)
        except OSError as error:
            raise InputError("an interpreter", Verbatim(f"{python} ({error.strerror})"), field="--python") from None
        try:
            stopped = _watch(process, plan, journal, budget_s, on_progress)
        finally:
            _stop(process)
        if process.returncode not in (0, BUDGET_EXIT) and not stopped:
            errors.seek(0)
            code, lines = process.returncode, errors.read().splitlines()
            said = [line.strip() for line in lines if line.strip()] or [
                f"killed by signal {-code}" if code < 0 else f"exit code {code}"]
            raise InputError("a collector that succeeds", Verbatim(said[-1]), field=plan.collector)
    progress, complete = progress_of(plan, journal), process.returncode == 0
    if complete and progress.done < progress.points:
        raise InputError("an interpreter that runs the collector", Verbatim(
            f"{python or sys.executable}: it ended without an error and measured {progress.done} of {progress.points} "
            "points"), field="--python")
    if not progress.done:
        raise InputError("at least one measured point", Verbatim("none: it was stopped before the first one; run it "
                         "again with more time"), field="--budget")
    if on_progress:
        on_progress(progress)
    return progress, complete


def _watch(
    process: Process, plan: PointPlan, journal: Path, budget_s: float | None, on_progress: OnProgress
) -> bool:
    """Wait for the collector and print its output. Return whether it exceeded its budget and was told to stop."""
    began, size, stopped = time.monotonic(), -1, False
    while process.poll() is None:
        over = time.monotonic() - began - budget_s if budget_s is not None else -1.0
        if over > GRACE_S:
            break
        if over > PATIENCE_S and not stopped:
            process.terminate()   # the collector finishes its current point
            stopped = True
        now = journal.stat().st_size if journal.exists() else 0
        if now != size and on_progress:
            size = now
            on_progress(progress_of(plan, journal))
        time.sleep(POLL_S)
    return stopped


def _stop(process: Process) -> None:
    """End running processes; the journal keeps every finished point."""
    if process.poll() is None:
        process.terminate()
        try:
            process.wait(5.0)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait()
