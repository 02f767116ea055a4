"""What is done about one point, wherever it is done: a job goes in, an outcome comes out, both plain data.

Nothing here knows the sweep: a job says all that is needed, so that it can be sent to another process or machine.
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
    """One piece of work. key: names it; text: a resolved scenario; base_dir: what its paths are relative to.

    task `check` builds the simulation and says which files it read; `run` runs it.
    extract, folder: see `hermes.explore.figures.load_extract`; reserved: names that its figures must not have;
    keep, keep_in: what is kept of a run, in which folder.
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
    """What came of a job.

    reason: one line, where it failed; error: `InputError`'s expected, found (as text), field and file, where that is
    what it failed with; wall_s, cpu_s: what it took, different each time.
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
    """Do it. Whatever goes wrong is the outcome; only an interrupt is raised."""
    wall, cpu = time.perf_counter(), time.process_time()
    said: dict[str, Any]
    gc.freeze()   # what is there already need not be looked at afterwards
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
        gc.collect()   # a simulation is full of cycles, and the next one needs its memory
        gc.unfreeze()
    return Outcome(job.key, wall_s=time.perf_counter() - wall, cpu_s=time.process_time() - cpu, **said)


def _plain(value: object) -> object:
    return value if isinstance(value, str | bool | int | float | None) else repr(value)


def _scenario(job: Job) -> Scenario:
    return scenario_of(parse_yaml(job.text), Path(job.base_dir))


def _check(job: Job) -> dict[str, Any]:
    with files_noted() as read:
        scenario = _scenario(job)   # reads what its clients' hardware is built from
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
