"""Running a sweep: every point is checked before any is run, and what has an outcome already is not run again."""

from __future__ import annotations

import hashlib
import os
from collections.abc import Callable, Iterable, Mapping
from contextlib import closing, nullcontext
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from hermes import __version__
from hermes.errors import InputError, Verbatim
from hermes.explore.config import Sweep, load_sweep
from hermes.explore.executor import Executor, InProcess, executor
from hermes.explore.figures import load_extract
from hermes.explore.hashing import code_digest, extract_sources, file_digests, plugin_modules, point_hash, text_of
from hermes.explore.jobs import Job, Outcome
from hermes.explore.opened import SweepResults, merged, open_sweep
from hermes.explore.points import RESERVED, Point, located, points, scenario
from hermes.explore.store import Folder, Journal
from hermes.scenario import resolved_yaml

__all__ = ["Plan", "Progress", "plan_sweep", "run_sweep"]

FEW = 20   # checks that are done before a worker has started

Progress = Callable[[str, int, int], None]   # (what is done, points done, points in all)


@dataclass(frozen=True)
class Planned:
    """A point that was checked. text: its resolved scenario as it runs."""

    point: Point
    seed: int
    hash: str
    text: str


@dataclass(frozen=True)
class Plan:
    """A sweep whose points were all checked. finished: hashes that have an outcome already."""

    sweep: Sweep
    points: list[Planned]
    finished: set[str]

    @property
    def waiting(self) -> list[Planned]:
        """What is to be run: each hash once, in the sweep's order."""
        first = {planned.hash: planned for planned in reversed(self.points)}
        return [p for p in self.points if p.hash not in self.finished and first[p.hash] is p]


def run_sweep(
    sweep: str | Path | Mapping[str, Any] | Sweep, out: str | os.PathLike[str], *, overrides: Iterable[str] = (),
    workers: int = 1, progress: Progress | None = None, engine: Executor | None = None,
) -> SweepResults:
    """Run the points of a sweep that have no outcome in the folder `out` yet, and return all of them.

    sweep: a file, the name of a built-in sweep, or a dict with the same keys (its paths relative to the current
    folder); overrides: `"workload.requests=100"` and the like, for all points; workers: processes, or 0 to run in this
    one; progress: a function of ("check" or "run", done, in all); engine: does the jobs in place of `workers` processes
    of this call's own, and stays open.

    Raises `InputError` for anything wrong with the sweep or one of its points, before anything is run, and for a folder
    that another process is working in. A point that fails while it runs is recorded as failed (`SweepResults.failed`)
    and tried again by the next call. Interrupted at any moment, the next call goes on from there; what ends up in
    `results.parquet` does not depend on interruptions or on `workers`, to the byte.
    """
    read, folder = load_sweep(sweep, overrides), Folder(Path(out))
    with folder.locked():
        modules = plugin_modules()
        with nullcontext(engine) if engine is not None else closing(executor(workers, modules)) as doing:
            plan = _plan(read, folder, doing, modules, progress)
            manifest = _manifest(plan)
            same = _same(folder, manifest)
            if same and not plan.waiting and folder.complete():
                if progress is not None:
                    progress("run", len(plan.finished), len(plan.finished))
                return open_sweep(folder.path)
            if plan.waiting or not same:
                folder.drop_results()
            folder.write_manifest(manifest, {
                p.hash: resolved_yaml(scenario(read, p.point), to_dir=folder.path.resolve()) for p in plan.points
            })
            _run(plan, folder, doing, progress)
        folder.write_table(folder.path / "results.parquet", merged(folder, manifest))
    return open_sweep(folder.path)


def plan_sweep(
    sweep: str | Path | Mapping[str, Any] | Sweep, out: str | os.PathLike[str] | None = None, *,
    overrides: Iterable[str] = (), workers: int = 1, progress: Progress | None = None,
) -> Plan:
    """Check every point and tell which have an outcome in `out`, running and writing nothing. Raises `InputError`."""
    modules = plugin_modules()
    with closing(executor(workers, modules)) as engine:
        folder = Folder(Path(os.devnull if out is None else out))
        return _plan(load_sweep(sweep, overrides), folder, engine, modules, progress)


def _plan(sweep: Sweep, folder: Folder, engine: Executor, modules: list[str], progress: Progress | None) -> Plan:
    sources: list[Path] = []
    if sweep.config.extract is not None:
        try:
            function = load_extract(sweep.config.extract, sweep.folder)
        except InputError as error:
            raise sweep.node.value["extract"].mark.error(error.expected, error.found, field="extract") from None
        sources = extract_sources(function)
    code = code_digest(modules, sources)
    found = points(sweep)
    made = []
    for point in found:
        checked = scenario(sweep, point)
        made.append((point, checked.seed, text_of(checked)))
    files = _files_of([text for _, _, text in made], sweep, folder, engine, code, found, progress)
    planned = [
        Planned(point, seed, point_hash(text, code, files[text], sweep.config.extract), text)
        for point, seed, text in made
    ]
    return Plan(sweep, planned, {p.hash for p in planned if _finished(folder, p.hash, sweep.config.keep)})


def _files_of(
    texts: list[str], sweep: Sweep, folder: Folder, engine: Executor, code: str, found: list[Point],
    progress: Progress | None,
) -> dict[str, dict[str, str]]:
    """Resolved scenario -> digests of the files it reads. Builds each simulation once; raises what is wrong with it."""
    base = str(sweep.base_dir.resolve())
    known = folder.checked()
    owner: dict[str, tuple[str, Point]] = {}
    files: dict[str, dict[str, str]] = {}
    for text, point in zip(texts, found, strict=True):
        key = hashlib.sha256("\0".join((text, code, base)).encode()).hexdigest()
        earlier = known.get(key)
        if earlier is not None and file_digests(earlier["paths"], sweep.base_dir.resolve()) == earlier["files"]:
            files[text] = earlier["files"]
        elif text not in files:
            owner.setdefault(key, (text, point))
    jobs = [Job(key, "check", text, base) for key, (text, _) in owner.items()]
    new = {}
    wrong: list[tuple[Point, Outcome]] = []
    here = InProcess() if len(jobs) <= FEW else engine
    for done, outcome in enumerate(here.run(jobs), 1):
        text, point = owner[outcome.key]
        if outcome.status == "failed":
            wrong.append((point, outcome))
            continue
        files[text] = file_digests(outcome.files, sweep.base_dir.resolve())
        new[outcome.key] = {"paths": outcome.files, "files": files[text]}
        if progress is not None:
            progress("check", done, len(jobs))
    if wrong:
        raise _refused(sweep, *min(wrong, key=lambda pair: pair[0].index))
    if new and folder.path.is_dir():
        folder.write_checked(known | new)
    return files


def _refused(sweep: Sweep, point: Point, outcome: Outcome) -> InputError:
    """A point that cannot be built, as an error at the place where that was written."""
    said = outcome.error
    if said is None:
        return located(sweep, point, InputError("a scenario that can be built", Verbatim(outcome.reason or "")))
    error = InputError(
        Verbatim(said["expected"]) if said["whole"] else said["expected"],
        said["found"] if said["has_found"] else ..., field=said["field"], file=said["file"],
        suggestion=said["suggestion"])
    return located(sweep, point, scenario(sweep, point).source.located(error))


def _finished(folder: Folder, key: str, keep: str) -> bool:
    """Whether a point has an outcome, and what is to be kept of it. Those that failed are tried again."""
    if folder.status(key) != "ok":
        return False
    wanted = {"summary": None, "requests": "requests.parquet", "all": "summary.json"}[keep]
    return wanted is None or (folder.path / "kept" / key / wanted).exists()


def _manifest(plan: Plan) -> dict[str, Any]:
    config = plan.sweep.config
    return {
        "name": config.name, "description": config.description, "version": __version__,
        "points": [{"settings": p.point.settings, "seed": p.seed, "hash": p.hash} for p in plan.points],
    }


def _same(folder: Folder, manifest: dict[str, Any]) -> bool:
    try:
        earlier = folder.manifest()
    except InputError:
        return False
    return all(earlier.get(key) == value for key, value in manifest.items())


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
    with folder.journal() as journal:
        if progress is not None:
            progress("run", before, before + len(waiting))
        for done, outcome in enumerate(engine.run(jobs), before + 1):
            _record(outcome, folder, journal)
            if progress is not None:
                progress("run", done, before + len(waiting))


def _record(outcome: Outcome, folder: Folder, journal: Journal) -> None:
    folder.write_part(outcome.key, {
        "hash": outcome.key, "status": outcome.status, "reason": outcome.reason, **outcome.figures,
    })
    entry = {"hash": outcome.key, "status": outcome.status, "wall_s": outcome.wall_s, "cpu_s": outcome.cpu_s}
    journal.add(entry | ({"traceback": outcome.traceback} if outcome.traceback else {}))
