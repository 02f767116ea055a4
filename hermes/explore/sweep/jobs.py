"""Jobs of a sweep: perform one point, with plain data as input and output.

A job is independent of the sweep and holds all that is needed, so that another process or machine can perform it.
"""

from __future__ import annotations

import gc
import json
import os
import time
import traceback
import warnings
from collections.abc import Callable
from dataclasses import dataclass, field, fields
from pathlib import Path
from typing import Any, Literal

from hermes.api import run_built
from hermes.config.data_files import files_noted, kept_within
from hermes.config.writing import replacing
from hermes.config.yaml_document import as_node
from hermes.dispatch.simulation import Simulation
from hermes.errors import InputError, InputWarning, Verbatim, warn_all
from hermes.explore.certain_miss import CertainMiss, certain_miss
from hermes.explore.sweep.built import Built
from hermes.explore.sweep.figures import Scalar, extracted, figures, load_extract
from hermes.explore.sweep.hashing import text_digest, unnamed
from hermes.explore.sweep.points import RESERVED
from hermes.results import Results
from hermes.results.files.export import write_results, write_table
from hermes.scenario import Scenario, resolved_yaml, scenario_of
from hermes.scenario.build import build

__all__ = ["Job", "Outcome", "as_dict", "perform"]


@dataclass(frozen=True, slots=True)
class Job:
    """One piece of work.

    Args:
        key: Its name.
        task: `check` validates the scenario and builds the simulation; `run` runs it.
        document: The scenario's document as JSON.
        base_dir: Folder that the scenario's paths are relative to.
        batch: Name of the sweep's run that the job belongs to.
        check: Of a `run`: the key of the check of the same document. A worker may run what that check built.
        stored_in: Of a `check`: the folder in which the scenario will be stored, if it will be.
        extract, folder: See `hermes.explore.sweep.figures.load_extract`.
        reserved: Names that the extracted figures must not use.
        keep: The results to keep.
        keep_in: Folder for kept results.
        until_missed: See `hermes.explore.certain_miss.CertainMiss.times`: the simulation ends as soon as it certainly
            misses its SLO. The figures are then those of a part, and `stopped.*` says so. 0: it does not.
    """

    key: str
    task: Literal["check", "run"]
    document: str
    base_dir: str
    batch: str = ""
    check: str = ""
    stored_in: str | None = None
    extract: str | None = None
    folder: str = "."
    reserved: tuple[str, ...] = RESERVED
    keep: Literal["summary", "requests", "all"] = "summary"
    keep_in: str = ""
    until_missed: float = 0.0


@dataclass(frozen=True, slots=True)
class Outcome:
    """Outcome of a job.

    Args:
        reason: One line about the failure, if the job failed.
        files, seed, digest, stored: Of a check: the files that were read, the scenario's seed, the digest of its
            resolved text without name and description, and its text for `Job.stored_in`.
        kept: Whether the worker keeps the simulation that the check built.
        warnings: Texts of its `InputWarning`s, to be issued where all outcomes arrive: several may have the same.
        error: Expected, found (as text), field and file of an `InputError`, if that was the failure.
        wall_s, cpu_s: Time taken; differs between equal jobs.
    """

    key: str
    status: Literal["ok", "failed"]
    reason: str | None = None
    figures: dict[str, Scalar] = field(default_factory=dict)
    files: list[str] = field(default_factory=list)
    seed: int = 0
    digest: str = ""
    stored: str = ""
    kept: bool = False
    warnings: list[str] = field(default_factory=list)
    error: dict[str, Any] | None = None
    traceback: str | None = None
    wall_s: float = 0.0
    cpu_s: float = 0.0


def as_dict(message: Job | Outcome) -> dict[str, Any]:
    """Return the fields of a job or an outcome, for JSON."""
    return {each.name: getattr(message, each.name) for each in fields(message)}


def perform(job: Job, built: Built | None = None) -> Outcome:
    """Perform a job. Every failure becomes an outcome; only an interrupt is raised.

    built: What earlier checks of this process built; None: nothing is kept.
    """
    wall, cpu = time.perf_counter(), time.process_time()
    said: dict[str, Any]
    gc.freeze()   # the collector need not visit objects that exist already
    try:
        work: Callable[[Job, Built | None], dict[str, Any]] = _check if job.task == "check" else _run
        with warnings.catch_warnings(record=True) as issued, kept_within({} if built is None else built.models):
            warnings.simplefilter("always", InputWarning)
            done = work(job, built)
        for one in issued:
            if not issubclass(one.category, InputWarning):
                warnings.warn_explicit(one.message, one.category, one.filename, one.lineno)
        said = {"status": "ok", "warnings": list(dict.fromkeys(
            str(one.message) for one in issued if issubclass(one.category, InputWarning))), **done}
    except InputError as error:
        found = error.found if error.found is ... else _plain(error.found)
        said = {"status": "failed", "reason": str(error), "error": {
            "expected": error.expected, "whole": isinstance(error.expected, Verbatim),
            "found": None if found is ... else found, "has_found": found is not ...,
            "field": error.field, "file": error.file, "suggestion": error.suggestion,
        }}
    except Exception as error:
        said = {"status": "failed", "reason": " ".join(f"{type(error).__name__}: {error}".split()),
                "traceback": traceback.format_exc()}
    finally:
        gc.collect()   # a simulation is full of cycles; free its memory for the next one
        if built is None:
            gc.unfreeze()
        else:
            built.collect()
    return Outcome(job.key, wall_s=time.perf_counter() - wall, cpu_s=time.process_time() - cpu, **said)


def _plain(value: object) -> object:
    return value if isinstance(value, str | bool | int | float | None) else repr(value)


def _scenario(job: Job) -> Scenario:
    return scenario_of(as_node(json.loads(job.document)), Path(job.base_dir))


def _check(job: Job, built: Built | None) -> dict[str, Any]:
    with files_noted() as read:
        named = _scenario(job)   # reads the files of its clients' hardware
        scenario = unnamed(named)
        simulation, part = _built(job, scenario)
    return {
        "files": [os.path.abspath(path) for path in read], "seed": scenario.seed,
        "digest": text_digest(scenario),
        "stored": "" if job.stored_in is None else resolved_yaml(named, to_dir=Path(job.stored_in)),
        "kept": built is not None and built.keep(job.batch, job.key, (scenario, simulation, part)),
    }


def _run(job: Job, built: Built | None) -> dict[str, Any]:
    started = time.perf_counter()
    extract = None if job.extract is None else load_extract(job.extract, Path(job.folder))
    known = None if built is None else built.take(job.batch, job.check)
    if known is None:
        scenario = unnamed(_scenario(job))
        known = scenario, *_built(job, scenario)
    scenario, simulation, part = known
    warn_all(simulation.warnings)
    results = run_built(scenario, simulation, started)
    row = figures(results) | ({} if part is None else part.figures())
    if extract is not None:
        row |= extracted(extract, results, {*job.reserved, *row})
    _keep(job, results)
    return {"figures": row}


def _built(job: Job, scenario: Scenario) -> tuple[Simulation, CertainMiss | None]:
    """Return the simulation of a scenario, and the part that ends it early."""
    part = certain_miss(scenario, job.until_missed)
    return build(scenario, listeners=[] if part is None else [part]), part


def _keep(job: Job, results: Results) -> None:
    if job.keep == "all":
        write_results(results, job.keep_in)
    elif job.keep == "requests":
        folder = Path(job.keep_in)
        folder.mkdir(parents=True, exist_ok=True)
        with replacing(folder / "requests.parquet") as path:
            write_table(path, results.columns("requests"))
