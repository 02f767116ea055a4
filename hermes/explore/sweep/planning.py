"""Plan of a sweep: check every point, find its hash, and tell which points have an outcome already.

A check validates the scenario of a point and builds its simulation, in a worker if there are many points. What a check
found is kept in the folder, so that the next run of the sweep need not check the point again.
"""

from __future__ import annotations

import hashlib
import os
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field

from hermes.errors import InputError, Verbatim, warn_all
from hermes.explore.sweep.config import Sweep
from hermes.explore.sweep.executor import Executor, InProcess
from hermes.explore.sweep.hashing import Digests, point_hash, portable_name
from hermes.explore.sweep.jobs import Job, Outcome
from hermes.explore.sweep.points import Point, document, located, points, scenario
from hermes.explore.sweep.store import Checked, Folder

__all__ = ["Plan", "Planned", "Progress", "make_plan"]

FEW = 20             # checks in this process while workers start
SAVE_EVERY_S = 1.0   # what the checks found

Progress = Callable[[str, int, int], None]   # ("check" or "run", points done, points in all)


@dataclass(frozen=True, slots=True)
class Planned:
    """A checked point.

    Args:
        check: Key of its check.
    """

    point: Point
    seed: int
    hash: str
    check: str


@dataclass(frozen=True)
class Plan:
    """A sweep whose points were all checked.

    Args:
        finished: Hashes that have an outcome already.
        files: Digests of the files that the points read, by path.
        batch: Name of this run of the sweep, for its jobs.
    """

    sweep: Sweep
    points: list[Planned]
    finished: set[str]
    files: dict[str, str]
    batch: str

    @property
    def unequal(self) -> dict[str, Planned]:
        """The first point of each hash, in the sweep's order."""
        first: dict[str, Planned] = {}
        for planned in self.points:
            first.setdefault(planned.hash, planned)
        return first

    @property
    def waiting(self) -> list[Planned]:
        """The points to run: each hash once, in the sweep's order."""
        return [planned for key, planned in self.unequal.items() if key not in self.finished]


def make_plan(
    sweep: Sweep, folder: Folder, executor: Executor, code: str, progress: Progress | None, *, save: bool,
) -> Plan:
    """Check every point that the folder has no check of. Raises the mistake of the first wrong point.

    Args:
        code: Digest of the code that outcomes depend on.
        save: Whether to write down what the checks found, and the scenarios.
    """
    found = points(sweep)
    checks = _Checks(sweep, folder, code, save)
    checks.look_up(found)
    here = checks.missing <= FEW and not isinstance(executor, InProcess)
    checks.make(found, InProcess() if here else executor, progress)
    known = checks.known
    planned = [Planned(point, known[key].seed, checks.hash_of(key, until_missed=sweep.ends_early(point.settings)), key)
               for point, key in zip(found, checks.keys, strict=True)]
    finished = folder.finished(sweep.config.keep)
    return Plan(sweep, planned, {p.hash for p in planned} & finished, checks.files, checks.batch)


@dataclass
class _Checks:
    """Checks of a sweep's points, each document once.

    The key of a check stands for all that it depends on except the files that it read: the document, the code, and the
    folders that paths are relative to.
    """

    sweep: Sweep
    folder: Folder
    code: str
    save: bool
    keys: list[str] = field(default_factory=list)
    """Of each point."""
    known: dict[str, Checked] = field(default_factory=dict)
    missing: int = 0

    def __post_init__(self) -> None:
        self.contents = Digests()
        self.batch = os.urandom(8).hex()
        self._base = str(self.sweep.base_dir.resolve())
        self._stored_in = str(self.folder.path.resolve())
        self._names: dict[str, str] = {}
        self._hashes: dict[str, str] = {}
        self._same: dict[str, dict[str, str]] = {}   # most points read the same files: each dict is in memory once
        self._wrong: list[tuple[Point, Outcome]] = []

    def look_up(self, found: list[Point]) -> None:
        """Find the keys of all points, and the checks of earlier runs that still hold."""
        earlier = self.folder.checks()
        for point in found:
            try:
                text = document(self.sweep, point, warn=True)
            except InputError:
                for before in found[:point.index]:   # an earlier point may have a mistake, too
                    scenario(self.sweep, before)
                raise
            key = self._key(text, until_missed=self.sweep.ends_early(point.settings))
            self.keys.append(key)
            checked = earlier.get(key)
            if checked is not None and all(self.contents[path] == digest for path, digest in checked.files.items()):
                self.known[key] = checked
        self.missing = len(set(self.keys) - self.known.keys())

    def _key(self, text: str, *, until_missed: float) -> str:
        early = [f"{until_missed:g}"] if until_missed else []
        whole = "\0".join((text, self.code, self._base, self._stored_in, *early))
        return hashlib.sha256(whole.encode()).hexdigest()[:32]

    def hash_of(self, key: str, *, until_missed: float) -> str:
        """Return the hash of a point whose check is known."""
        if key not in self._hashes:
            checked = self.known[key]
            read = {self._portable(path): digest for path, digest in checked.files.items()}
            self._hashes[key] = point_hash(checked.digest, self.code, read, self.sweep.config.extract,
                                           until_missed=until_missed)
        return self._hashes[key]

    @property
    def files(self) -> dict[str, str]:
        """Digests of the files that the points read."""
        return self.contents.of(path for checked in self.known.values() for path in checked.files)

    def _portable(self, path: str) -> str:
        if path not in self._names:
            self._names[path] = portable_name(path, self.sweep.base_dir.resolve())
        return self._names[path]

    def make(self, found: list[Point], executor: Executor, progress: Progress | None) -> None:
        """Make the checks that are missing."""
        first: dict[str, Point] = {}
        for point, key in zip(found, self.keys, strict=True):
            if key not in self.known:
                first.setdefault(key, point)
        new: list[tuple[str, Checked, str]] = []
        saved = time.monotonic()
        try:
            for done, outcome in enumerate(executor.run(self._jobs(first)), 1):
                point = first[outcome.key]
                warn_all(outcome.warnings)
                if outcome.status == "failed":
                    self._wrong.append((point, outcome))
                    continue
                files = {path: self.contents[path] for path in outcome.files}
                checked = Checked(outcome.seed, outcome.digest, self._same.setdefault(str(files), files))
                self.known[outcome.key] = checked
                new.append((outcome.key, checked, outcome.stored))
                if self.save and time.monotonic() > saved + SAVE_EVERY_S:
                    self.folder.write_checks(new)
                    new, saved = [], time.monotonic()
                if progress is not None:
                    progress("check", done, len(first))
        finally:
            if self.save and new:
                self.folder.write_checks(new)
        if self._wrong:
            raise _refused(self.sweep, *min(self._wrong, key=lambda pair: pair[0].index))

    def _jobs(self, first: dict[str, Point]) -> Iterator[Job]:
        """Yield the checks to make, in the order of the points; none after a mistake, since those before are made."""
        for key, point in first.items():
            if self._wrong:
                return
            yield Job(key, "check", document(self.sweep, point), self._base, self.batch,
                      stored_in=self._stored_in if self.save else None,
                      until_missed=self.sweep.ends_early(point.settings))


def _refused(sweep: Sweep, point: Point, outcome: Outcome) -> InputError:
    """Return the error of a point that cannot be built, at the place in the file that caused it."""
    try:
        checked = scenario(sweep, point)
    except InputError as mistake:
        return mistake
    said = outcome.error
    if said is None:
        return located(sweep, point, InputError("a scenario that can be built", Verbatim(outcome.reason or "")))
    error = InputError(
        Verbatim(said["expected"]) if said["whole"] else said["expected"],
        said["found"] if said["has_found"] else ..., field=said["field"], file=said["file"],
        suggestion=said["suggestion"])
    return located(sweep, point, checked.source.located(error))
