"""Read results back from a folder that `hermes.results.files.export` wrote.

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

from hermes.config.files import DATA_SUFFIXES, MAX_JSON_BYTES, read_json, read_text
from hermes.config.yaml_document import parse_yaml
from hermes.errors import InputError, Verbatim
from hermes.results.files.record_file import RECORD, read_record
from hermes.results.measure import MeasureConfig
from hermes.results.results import Results
from hermes.results.slo import SloConfig

__all__ = ["FORMAT", "KEPT_META", "SCENARIO", "StoredResults", "digest_of", "open_run", "scenario_digest"]

FORMAT = 3   # of summary.json and record.parquet: raise it when a key or a field changes

SCENARIO = "scenario.resolved.yaml"

# entries of a run's meta that are written: none but `environment` differs between equal runs
KEPT_META = ("name", "version", "environment", "seed", "interrupted", "warnings", "remarks")


class StoredResults(Results):
    """Results from a folder. The record is read at first use; the summary is the one on disk."""

    def __init__(self, folder: Path, run: dict[str, Any], summary: dict[str, Any]) -> None:
        slo, measure = SloConfig.model_validate(run["slo"]), run["measure"]
        super().__init__(lambda: read_record(folder / RECORD, run["record"]),
                         {key: run[key] for key in KEPT_META if key in run}, slo,
                         None if measure is None else MeasureConfig.model_validate(measure))
        self.folder, self._scenario_digest = folder, run.get("scenario")
        self.__dict__["summary"] = summary  # in place of the cached property

    @cached_property
    def scenario_text(self) -> str | None:
        """The resolved scenario as YAML, if it was written. Raises `InputError` if it was changed."""
        path = self.folder / SCENARIO
        if self._scenario_digest is not None and path.exists():
            return self._checked_text(path)
        return read_text(path, MAX_JSON_BYTES) if path.exists() else None

    def scenario_file(self) -> Path:
        """Return the file of the resolved scenario. Raises `InputError` if it is not there as the run wrote it."""
        path = self.folder / SCENARIO
        if not path.is_file():
            raise InputError(Verbatim(f"it has no {SCENARIO}, from which it is simulated again"), file=str(self.folder))
        self._checked_text(path)
        return path

    def _checked_text(self, path: Path) -> str:
        text = read_text(path, MAX_JSON_BYTES)
        if scenario_digest(text) != self._scenario_digest:
            raise InputError(Verbatim("it was changed after the run, or written by an older hermes; run the scenario "
                                      "again"), file=str(path))
        return text


def digest_of(content: dict[str, Any]) -> str:
    """Return the SHA-256 of the content of a `summary.json` without its own digest, however it is laid out.

    It leaves out `run.environment`: equal runs have equal digests in every build, and on every Python.
    """
    run = {key: value for key, value in content["run"].items() if key != "environment"}
    return hashlib.sha256(json.dumps({**content, "run": run}).encode()).hexdigest()


def scenario_digest(text: str) -> str:
    """Return the SHA-256 of what a resolved scenario says. It leaves out the folders of files, since the same run has
    other ones elsewhere."""
    def said(value: object) -> object:
        if isinstance(value, dict):
            return {str(key): said(one) for key, one in value.items()}
        if isinstance(value, list):
            return [said(one) for one in value]
        return value.replace("\\", "/").rpartition("/")[2] if isinstance(value, str) and value.endswith(
            DATA_SUFFIXES) else value

    return hashlib.sha256(json.dumps(said(parse_yaml(text, SCENARIO).plain()), default=str).encode()).hexdigest()


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
        one = "a folder with finished results (summary.json)"
        found = str(folder)
        if (Path(folder) / "sweep.sqlite").is_file():
            raise InputError(one, Verbatim(f"a sweep's; `hermes sweep {found}` compares its points"), file=found)
        if Path(folder).suffix in (".yaml", ".yml"):
            raise InputError(one, Verbatim(f"a scenario; `hermes run {found} -o DIR` makes one"), file=found)
        raise InputError(one, found)
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
