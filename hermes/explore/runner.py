"""Run a sweep: check every point first, then run the points without an outcome."""

from __future__ import annotations

import hashlib
import json
import os
import time
from collections.abc import Callable, Mapping
from contextlib import closing, nullcontext
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from hermes import __version__
from hermes.config.registry import plugin_modules
from hermes.errors import InputError, Verbatim
from hermes.explore.config import Sweep, load_sweep
from hermes.explore.executor import Executor, InProcess, executor
from hermes.explore.figures import load_extract
from hermes.explore.hashing import (
    OTHER_REGISTRIES,
    code_digest,
    digests,
    extract_sources,
    point_hash,
    portable_name,
    text_of,
)
from hermes.explore.jobs import Job, Outcome
from hermes.explore.points import RESERVED, Point, located, points, scenario
from hermes.explore.store import Folder
from hermes.explore.sweep_results import SweepResults, merged, open_sweep
from hermes.scenario import Overrides, resolved_yaml

__all__ = ["Plan", "Progress", "plan_sweep", "run_sweep"]

FEW = 20   # checks in this process before workers are started
SAVE_EVERY_S = 1.0   # outcomes of the checks

Progress = Callable[[str, int, int], None]   # ("check" or "run", points done, points in all)


@dataclass(frozen=True)
class Planned:
    """A checked point.

    Args:
        text: Its resolved scenario as it runs.
        stored: The scenario as its folder keeps it.
    """

    point: Point
    seed: int
    hash: str
    text: str
    stored: str


@dataclass(frozen=True)
class Plan:
    """A sweep whose points were all checked.

    Args:
        finished: Hashes that have an outcome already.
        files: Digests of the files that the points read, by path.
    """

    sweep: Sweep
    points: list[Planned]
    finished: set[str]
    files: dict[str, str]

    @property
    def waiting(self) -> list[Planned]:
        """Return the points to run: each hash once, in the sweep's order."""
        first = {planned.hash: planned for planned in reversed(self.points)}
        return [p for p in self.points if p.hash not in self.finished and first[p.hash] is p]


def run_sweep(
    sweep: str | Path | Mapping[str, Any] | Sweep, out: str | os.PathLike[str], *, overrides: Overrides = (),
    workers: int = 1, progress: Progress | None = None, engine: Executor | None = None,
) -> SweepResults:
    """Run the points of a sweep that have no outcome in the folder `out` yet, and return all of them.

    Args:
        sweep: A file, the name of a built-in sweep, or a dict with the same keys (paths relative to the current
            folder).
        out: Folder of the results.
        overrides: Settings for all points, such as `"workload.requests=100"`.
        workers: Number of processes; 0 runs the points in this one.
        progress: Function of ("check" or "run", points done, points in all).
        engine: Executor to use instead of `workers` new processes; it stays open.

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
            opened = open_sweep(folder.path)
            if progress is not None:
                progress("run", len(opened), len(opened))
            return opened
        with nullcontext(engine) if engine is not None else closing(executor(workers, modules)) as doing:
            plan = _plan(read, folder, doing, code, progress, save=True)
            manifest = _manifest(plan)
            folder.drop_results()
            folder.write_manifest(manifest, {p.hash: p.stored for p in plan.points})
            _run(plan, folder, doing, progress)
        folder.write_results(merged(folder, manifest), json.dumps({"of": _digest(read, code), "files": plan.files}))
    return open_sweep(folder.path)


def plan_sweep(
    sweep: str | Path | Mapping[str, Any] | Sweep, out: str | os.PathLike[str] | None = None, *,
    overrides: Overrides = (), workers: int = 1, progress: Progress | None = None,
) -> Plan:
    """Check every point and tell which have an outcome in `out`. Runs and writes nothing. Raises `InputError`."""
    modules = plugin_modules(OTHER_REGISTRIES)
    with closing(executor(workers, modules)) as engine:
        read, folder = load_sweep(sweep, overrides), Folder(Path(os.devnull if out is None else out))
        return _plan(read, folder, engine, _code(read, modules), progress, save=False)


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
    said = [sweep.node.plain(), sweep.base.plain(), str(sweep.folder.resolve()), str(sweep.base_dir.resolve()), code]
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
    if plan.get("of") != _digest(sweep, code) or digests(plan["files"]) != plan["files"]:
        return False
    return {point["hash"] for point in folder.manifest()["points"]} <= folder.finished(sweep.config.keep)


def _plan(sweep: Sweep, folder: Folder, engine: Executor, code: str, progress: Progress | None, *, save: bool) -> Plan:
    found, made = points(sweep), []
    to_dir = folder.path.resolve() if save else None
    for point in found:
        checked = scenario(sweep, point)
        made.append((point, checked.seed, text_of(checked), resolved_yaml(checked, to_dir=to_dir) if save else ""))
    files = _files_of([text for _, _, text, _ in made], sweep, folder, engine, code, found, progress, save)
    contents = digests(path for paths in files.values() for path in paths)
    named = {path: portable_name(path, sweep.base_dir.resolve()) for path in contents}
    planned = []
    for point, seed, text, stored in made:
        read = {named[path]: contents[path] for path in files[text]}
        planned.append(Planned(point, seed, point_hash(text, code, read, sweep.config.extract), text, stored))
    finished = folder.finished(sweep.config.keep)
    return Plan(sweep, planned, {p.hash for p in planned} & finished, contents)


def _files_of(
    texts: list[str], sweep: Sweep, folder: Folder, engine: Executor, code: str, found: list[Point],
    progress: Progress | None, save: bool,
) -> dict[str, list[str]]:
    """Return the files that each resolved scenario reads. Builds each simulation once; raises its mistakes.

    Args:
        save: Whether to write down the files as they are found.
    """
    base = str(sweep.base_dir.resolve())
    known = folder.checked()
    contents = digests(path for of_one in known.values() for path in of_one)
    owner: dict[str, tuple[str, Point]] = {}
    files: dict[str, list[str]] = {}
    for text, point in zip(texts, found, strict=True):
        key = hashlib.sha256("\0".join((text, code, base)).encode()).hexdigest()
        earlier = known.get(key)
        if earlier is not None and all(contents[path] == digest for path, digest in earlier.items()):
            files[text] = list(earlier)
        elif text not in files:
            owner.setdefault(key, (text, point))
    jobs = [Job(key, "check", text, base) for key, (text, _) in owner.items()]
    new: dict[str, dict[str, str]] = {}
    saved = time.monotonic()
    wrong: list[tuple[Point, Outcome]] = []
    here = InProcess() if len(jobs) <= FEW else engine
    try:
        for done, outcome in enumerate(here.run(jobs), 1):
            text, point = owner[outcome.key]
            if outcome.status == "failed":
                wrong.append((point, outcome))
                continue
            files[text] = outcome.files
            new[outcome.key] = digests(outcome.files)
            if save and time.monotonic() > saved + SAVE_EVERY_S:
                folder.write_checked(new)
                new, saved = {}, time.monotonic()
            if progress is not None:
                progress("check", done, len(jobs))
    finally:
        if save:
            folder.write_checked(new)
    if wrong:
        raise _refused(sweep, *min(wrong, key=lambda pair: pair[0].index))
    return files


def _refused(sweep: Sweep, point: Point, outcome: Outcome) -> InputError:
    """Return the error of a point that cannot be built, at the place in the file that caused it."""
    said = outcome.error
    if said is None:
        return located(sweep, point, InputError("a scenario that can be built", Verbatim(outcome.reason or "")))
    error = InputError(
        Verbatim(said["expected"]) if said["whole"] else said["expected"],
        said["found"] if said["has_found"] else ..., field=said["field"], file=said["file"],
        suggestion=said["suggestion"])
    return located(sweep, point, scenario(sweep, point).source.located(error))


def _manifest(plan: Plan) -> dict[str, Any]:
    config = plan.sweep.config
    return {
        "name": config.name, "description": config.description, "version": __version__,
        "points": [{"settings": p.point.settings, "seed": p.seed, "hash": p.hash} for p in plan.points],
    }


def _run(plan: Plan, folder: Folder, engine: Executor, progress: Progress | None) -> None:
    sweep, waiting = plan.sweep, plan.waiting
    config = sweep.config
    columns = {name for planned in plan.points for name in planned.point.settings}
    jobs = [
        Job(p.hash, "run", p.text, str(sweep.base_dir.resolve()), config.extract, str(sweep.folder.resolve()),
            (*RESERVED, *sorted(columns)), config.keep, str(folder.path.resolve() / "kept" / p.hash))
        for p in waiting
    ]
    before = len({p.hash for p in plan.points}) - len(waiting)
    if progress is not None:
        progress("run", before, before + len(waiting))
    for done, outcome in enumerate(engine.run(jobs), before + 1):
        folder.write_outcome(outcome.key, outcome.status, outcome.reason, outcome.figures, config.keep,
                             (outcome.wall_s, outcome.cpu_s, outcome.traceback))
        if progress is not None:
            progress("run", done, before + len(waiting))
