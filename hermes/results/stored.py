"""Read results back from a folder that `hermes.results.export` wrote.

The summary comes from `summary.json`, tables from their Parquet files. Token times, time series and traces come from
the `RunRecord`, which is rebuilt from those files at first use. `hermes.results.stored_summary` and
`hermes.results.stored_tables` check all that is read.
"""

from __future__ import annotations

import os
from functools import cached_property
from pathlib import Path
from typing import Any

from hermes.config.files import MAX_JSON_BYTES, read_text
from hermes.core.record import RunRecord
from hermes.results.frames import Columns
from hermes.results.results import Results
from hermes.results.stored_summary import StoredRun, read_summary
from hermes.results.stored_tables import read_record, read_table

__all__ = ["KEPT_META", "StoredResults", "open_run"]

# entries of a run's meta that are written: none that differs between equal runs
KEPT_META = ("name", "version", "seed", "interrupted", "warnings", "remarks")


class StoredResults(Results):
    """Results from a folder. Tables are read at first use; the summary is the one on disk."""

    def __init__(self, folder: Path, run: StoredRun, summary: dict[str, Any]) -> None:
        meta = {key: getattr(run, key) for key in KEPT_META if key in run.model_fields_set}
        super().__init__(self._read_record, meta, run.slo)
        self.folder, self._run = folder, run
        self.__dict__["summary"] = summary  # in place of the cached property

    @cached_property
    def scenario_text(self) -> str | None:
        """The resolved scenario as YAML, if it was written."""
        path = self.folder / "scenario.resolved.yaml"
        return read_text(path, MAX_JSON_BYTES) if path.exists() else None

    def columns(self, table: str) -> Columns:
        return read_table(self.folder, table)

    def _read_record(self) -> RunRecord:
        return read_record(self.folder, self._run, self.summary["counters"])


def open_run(folder: str | os.PathLike[str]) -> StoredResults:
    """Open the results in a folder that `write_results` wrote; `InputError` if there are none, or unfinished ones."""
    run, summary = read_summary(Path(folder))
    return StoredResults(Path(folder), run, summary)
