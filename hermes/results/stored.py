"""Read results back from a folder that `hermes.results.export` wrote.

The summary comes from `summary.json`; tables, token times, time series and traces are computed from the `RunRecord` in
`record.parquet`, as after the simulation. Parquet files of tables are for other programs and never read.
"""

from __future__ import annotations

import hashlib
import json
import os
from functools import cached_property
from pathlib import Path
from typing import Any

from hermes.config.files import MAX_JSON_BYTES, read_json, read_text
from hermes.errors import InputError, Verbatim
from hermes.results.measure import MeasureConfig
from hermes.results.record_file import RECORD, read_record
from hermes.results.results import Results
from hermes.results.slo import SloConfig

__all__ = ["FORMAT", "KEPT_META", "StoredResults", "digest_of", "open_run"]

FORMAT = 2   # of summary.json and record.parquet: raise it when a key or a field changes

# entries of a run's meta that are written: none but `environment` differs between equal runs
KEPT_META = ("name", "version", "environment", "seed", "interrupted", "warnings", "remarks")


class StoredResults(Results):
    """Results from a folder. The record is read at first use; the summary is the one on disk."""

    def __init__(self, folder: Path, run: dict[str, Any], summary: dict[str, Any]) -> None:
        slo, measure = SloConfig.model_validate(run["slo"]), run["measure"]
        super().__init__(lambda: read_record(folder / RECORD, run["record"]),
                         {key: run[key] for key in KEPT_META if key in run}, slo,
                         None if measure is None else MeasureConfig.model_validate(measure))
        self.folder = folder
        self.__dict__["summary"] = summary  # in place of the cached property

    @cached_property
    def scenario_text(self) -> str | None:
        """The resolved scenario as YAML, if it was written."""
        path = self.folder / "scenario.resolved.yaml"
        return read_text(path, MAX_JSON_BYTES) if path.exists() else None


def digest_of(content: dict[str, Any]) -> str:
    """Return the SHA-256 of the content of a `summary.json` without its own digest, however it is laid out.

    It leaves out `run.environment`: equal runs have equal digests in every build, and on every Python.
    """
    run = {key: value for key, value in content["run"].items() if key != "environment"}
    return hashlib.sha256(json.dumps({**content, "run": run}).encode()).hexdigest()


def open_run(folder: str | os.PathLike[str]) -> StoredResults:
    """Open the results in a folder that `write_results` wrote.

    Raises `InputError` if there are none or unfinished ones, or if `summary.json` was changed.
    """
    path = Path(folder) / "summary.json"
    try:
        there = path.exists()
    except OSError:
        there = False
    if not there:
        raise InputError("a folder with finished results (summary.json)", str(folder))
    summary = read_json(path, MAX_JSON_BYTES)
    run = summary.get("run") if isinstance(summary, dict) else None
    if not isinstance(run, dict):
        raise InputError("a summary that hermes wrote", file=str(path), field="run")
    if run.get("format") != FORMAT:
        raise InputError(f"results of format {FORMAT} (run the scenario again)", run.get("format"), file=str(path),
                         field="run.format")
    if run.pop("digest", None) != digest_of(summary):
        raise InputError(Verbatim("it was changed after the run; run the scenario again"), file=str(path))
    del summary["run"]
    return StoredResults(Path(folder), run, summary)
