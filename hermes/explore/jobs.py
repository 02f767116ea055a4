"""Jobs of a sweep: perform one point, with plain data as input and output.

A job is independent of the sweep and holds all that is needed, so that another process or machine can perform it.
"""

from __future__ import annotations

import gc
import os
import time
import traceback
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal

from hermes.api import simulate
from hermes.config.data_files import files_noted
from hermes.config.writing import replacing
from hermes.config.yaml_document import parse_yaml
from hermes.errors import InputError, Verbatim
from hermes.explore.figures import Scalar, extracted, figures, load_extract
from hermes.explore.points import RESERVED
from hermes.results import Results
from hermes.results.export import write_results
from hermes.scenario import Scenario, scenario_of
from hermes.scenario.build import build

__all__ = ["Job", "Outcome", "perform"]


@dataclass(frozen=True)
class Job:
    """One piece of work.

    Args:
        key: Its name.
        task: `check` builds the simulation and lists the files it read; `run` runs it.
        text: A resolved scenario.
        base_dir: Folder that the scenario's paths are relative to.
        extract, folder: See `hermes.explore.figures.load_extract`.
        reserved: Names that the extracted figures must not use.
        keep: The results to keep.
        keep_in: Folder for kept results.
    """

    key: str
    task: Literal["check", "run"]
    text: str
    base_dir: str
    extract: str | None = None
    folder: str = "."
    reserved: tuple[str, ...] = RESERVED
    keep: Literal["summary", "requests", "all"] = "summary"
    keep_in: str = ""


@dataclass(frozen=True)
class Outcome:
    """Outcome of a job.

    Args:
        reason: One line about the failure, if the job failed.
        error: Expected, found (as text), field and file of an `InputError`, if that was the failure.
        wall_s, cpu_s: Time taken; differs between equal jobs.
    """

    key: str
    status: Literal["ok", "failed"]
    reason: str | None = None
    figures: dict[str, Scalar] = field(default_factory=dict)
    files: list[str] = field(default_factory=list)
    error: dict[str, Any] | None = None
    traceback: str | None = None
    wall_s: float = 0.0
    cpu_s: float = 0.0


def perform(job: Job) -> Outcome:
    """Perform a job. Every failure becomes an outcome; only an interrupt is raised."""
    wall, cpu = time.perf_counter(), time.process_time()
    said: dict[str, Any]
    gc.freeze()   # the collector need not visit objects that exist already
    try:
        work: Callable[[Job], dict[str, Any]] = _check if job.task == "check" else _run
        said = {"status": "ok", **work(job)}
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
        gc.unfreeze()
    return Outcome(job.key, wall_s=time.perf_counter() - wall, cpu_s=time.process_time() - cpu, **said)


def _plain(value: object) -> object:
    return value if isinstance(value, str | bool | int | float | None) else repr(value)


def _scenario(job: Job) -> Scenario:
    return scenario_of(parse_yaml(job.text), Path(job.base_dir))


def _check(job: Job) -> dict[str, Any]:
    with files_noted() as read:
        scenario = _scenario(job)   # reads the files of its clients' hardware
        build(scenario)
    return {"files": [os.path.abspath(path) for path in read]}


def _run(job: Job) -> dict[str, Any]:
    extract = None if job.extract is None else load_extract(job.extract, Path(job.folder))
    results = simulate(_scenario(job))
    if results.meta.get("interrupted"):
        raise KeyboardInterrupt
    row = figures(results)
    if extract is not None:
        row |= extracted(extract, results, {*job.reserved, *row})
    _keep(job, results)
    return {"figures": row}


def _keep(job: Job, results: Results) -> None:
    if job.keep == "all":
        write_results(results, job.keep_in)
    elif job.keep == "requests":
        folder = Path(job.keep_in)
        folder.mkdir(parents=True, exist_ok=True)
        with replacing(folder / "requests.parquet") as path:
            results.requests.to_parquet(path, index=False, compression="zstd")
