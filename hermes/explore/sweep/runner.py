"""Run a sweep: check every point first, then run the points without an outcome."""

from __future__ import annotations

import hashlib
import json
import os
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from hermes import __version__
from hermes.config.registry import plugin_modules
from hermes.errors import InputError, warn_all
from hermes.explore.sweep.config import Sweep, load_sweep
from hermes.explore.sweep.executor import Executor, opened
from hermes.explore.sweep.figures import load_extract
from hermes.explore.sweep.hashing import OTHER_REGISTRIES, Digests, code_digest, extract_sources
from hermes.explore.sweep.jobs import Job
from hermes.explore.sweep.planning import Plan, Planned, Progress, make_plan
from hermes.explore.sweep.points import RESERVED, document
from hermes.explore.sweep.results import SweepResults, merged, open_sweep
from hermes.explore.sweep.store import Folder
from hermes.scenario import Overrides

__all__ = ["plan_sweep", "run_sweep"]


def run_sweep(
    sweep: str | Path | Mapping[str, Any] | Sweep, out: str | os.PathLike[str], *, overrides: Overrides = (),
    workers: int = 1, progress: Progress | None = None, executor: Executor | None = None, table: bool = True,
) -> SweepResults:
    """Run the points of a sweep that have no outcome in the folder `out` yet, and return all of them.

    Args:
        sweep: A file, the name of a built-in sweep, or a dict with the same keys (paths relative to the current
            folder).
        out: Folder of the results.
        overrides: Settings for all points, such as `"workload.requests=100"`.
        workers: Number of processes; 0 runs the points in this one.
        progress: Function of ("check" or "run", points done, points in all).
        executor: Executor to use instead of `workers` new processes; it stays open.
        table: Whether to write `results.parquet`.

    Raises `InputError`, before any run, for a mistake in the sweep or one of its points, and for a folder that another
    process is working in. A point that fails while it runs is recorded as failed (`SweepResults.failed`); the next call
    tries it again. After an interrupt the next call continues; `results.parquet` does not depend on interruptions or on
    `workers`, to the byte.
    """
    read, folder = load_sweep(sweep, overrides), Folder(Path(out))
    with folder.locked():
        modules = plugin_modules(OTHER_REGISTRIES)
        code = _code(read, modules)
        if _is_finished(folder, read, code):
            done = open_sweep(folder.path)
            if progress is not None:
                progress("run", len(done), len(done))
            return done
        with opened(executor, workers, modules) as doing:
            doing.begin()
            _run_points(read, folder, doing, code, progress, table)
    return open_sweep(folder.path)


def plan_sweep(
    sweep: str | Path | Mapping[str, Any] | Sweep, out: str | os.PathLike[str] | None = None, *,
    overrides: Overrides = (), workers: int = 1, progress: Progress | None = None,
) -> Plan:
    """Check every point and tell which have an outcome in `out`. Runs and writes nothing. Raises `InputError`."""
    modules = plugin_modules(OTHER_REGISTRIES)
    with opened(None, workers, modules) as doing:
        read, folder = load_sweep(sweep, overrides), Folder(Path(os.devnull if out is None else out))
        return make_plan(read, folder, doing, _code(read, modules), progress, save=False)


def _code(sweep: Sweep, modules: list[str]) -> str:
    """Hash the code that outcomes depend on."""
    sources: list[Path] = []
    if sweep.config.extract is not None:
        try:
            function = load_extract(sweep.config.extract, sweep.folder)
        except InputError as error:
            raise sweep.node.value["extract"].mark.error(error.expected, error.found, field="extract") from None
        sources = extract_sources(function)
    return code_digest(modules, sources)


def _digest(sweep: Sweep, code: str) -> str:
    """Hash everything that a sweep's results depend on, except the files that its points read."""
    said = [sweep.node.plain(), sweep.base.plain(), str(sweep.folder.resolve()), str(sweep.base_dir.resolve()), code,
            *sorted(sweep.until_missed.items())]
    return hashlib.sha256(json.dumps(said, default=repr).encode()).hexdigest()


def _is_finished(folder: Folder, sweep: Sweep, code: str) -> bool:
    """Whether the folder holds complete results of this very sweep. Does not check the points again."""
    text = folder.finished_plan()
    try:
        plan: Any = json.loads(text) if text is not None else None
    except ValueError:
        return False
    if not isinstance(plan, dict) or not isinstance(plan.get("files"), dict):
        return False
    if plan.get("of") != _digest(sweep, code) or Digests().of(plan["files"]) != plan["files"]:
        return False
    return {point["hash"] for point in folder.manifest()["points"]} <= folder.finished(sweep.config.keep)


def _manifest(plan: Plan) -> dict[str, Any]:
    config = plan.sweep.config
    return {
        "name": config.name, "description": config.description, "version": __version__,
        "points": [{"settings": p.point.settings, "seed": p.seed, "hash": p.hash} for p in plan.points],
    }


def _run_points(sweep: Sweep, folder: Folder, executor: Executor, code: str, progress: Progress | None, table: bool
                ) -> None:
    plan = make_plan(sweep, folder, executor, code, progress, save=True)
    manifest, waiting = _manifest(plan), plan.waiting
    folder.drop_results()
    folder.write_manifest(manifest, {key: p.check for key, p in plan.unequal.items()})
    before = len(plan.unequal) - len(waiting)
    if progress is not None:
        progress("run", before, before + len(waiting))
    keep = sweep.config.keep
    for done, outcome in enumerate(executor.run(_jobs(plan, waiting, folder)), before + 1):
        folder.write_outcome(outcome.key, outcome.status, outcome.reason, outcome.figures, keep,
                             (outcome.wall_s, outcome.cpu_s, outcome.traceback))
        warn_all(outcome.warnings)
        if progress is not None:
            progress("run", done, before + len(waiting))
    if table:
        folder.write_results(merged(folder, manifest), json.dumps({"of": _digest(sweep, code), "files": plan.files}))


def _jobs(plan: Plan, waiting: list[Planned], folder: Folder) -> Iterator[Job]:
    """Yield the points to run, one by one: their documents need not be in memory together."""
    sweep, config = plan.sweep, plan.sweep.config
    columns = {name for planned in plan.points for name in planned.point.settings}
    base, own, kept = str(sweep.base_dir.resolve()), str(sweep.folder.resolve()), folder.path.resolve() / "kept"
    for planned in waiting:
        yield Job(
            planned.hash, "run", document(sweep, planned.point), base, plan.batch, check=planned.check,
            extract=config.extract, folder=own, reserved=(*RESERVED, *sorted(columns)), keep=config.keep,
            keep_in=str(kept / planned.hash), until_missed=sweep.ends_early(planned.point.settings))
