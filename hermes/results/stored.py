"""Read results back from a folder that `hermes.results.export` wrote.

The summary comes from `summary.json`, tables from their Parquet files. Token times, time series and traces come from
the `RunRecord`, which is rebuilt from those files at first use.
"""

from __future__ import annotations

import json
import os
from functools import cached_property
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np
from pydantic import ValidationError

from hermes.core.record import RUN_COLUMNS, STAGE_FIELDS, TRANSFER_FIELDS, ClientInfo, RunRecord
from hermes.errors import InputError
from hermes.results.frames import STATUSES, Coded, Columns
from hermes.results.resource_file import read_resources
from hermes.results.results import Results
from hermes.results.slo import SloConfig
from hermes.units import NS_PER_S

__all__ = ["FORMAT", "KEPT_META", "StoredResults", "open_run"]

FORMAT = 1
# entries of a run's meta that are written: none that differs between equal runs
KEPT_META = ("name", "version", "seed", "interrupted", "warnings", "remarks")


class StoredResults(Results):
    """Results from a folder. Tables are read at first use; the summary is the one on disk."""

    def __init__(self, folder: Path, run: dict[str, Any], summary: dict[str, Any]) -> None:
        try:
            slo = SloConfig.model_validate(run.get("slo", {}))
        except ValidationError:
            raise InputError("the SLOs of a run", run.get("slo"), file=str(folder / "summary.json"),
                             field="run.slo") from None
        super().__init__(self._read_record, {key: run[key] for key in KEPT_META if key in run}, slo)
        self.folder, self._run = folder, run
        self.__dict__["summary"] = summary  # in place of the cached property

    @cached_property
    def scenario_text(self) -> str | None:
        """The resolved scenario as YAML, if it was written."""
        path = self.folder / "scenario.resolved.yaml"
        return path.read_text(encoding="utf-8") if path.exists() else None

    def columns(self, table: str) -> Columns:
        return {name: _from_arrow(column) for name, column in self._table(table).items()}

    def _table(self, name: str) -> dict[str, Any]:
        import pyarrow as pa
        import pyarrow.parquet as pq

        path = self.folder / f"{name}.parquet"
        if not path.exists():
            raise InputError("a table of a finished run", "no such file", file=str(path))
        try:
            table = pq.read_table(path).combine_chunks().unify_dictionaries()
        except (pa.ArrowException, OSError) as error:
            raise InputError("a Parquet file", str(error), file=str(path)) from None
        return {column: table[column] for column in table.column_names}

    def _read_record(self) -> RunRecord:
        return _read_record(self)


def _from_arrow(column: Any) -> Any:
    import pyarrow as pa

    chunk = column.combine_chunks()
    if isinstance(chunk, pa.ChunkedArray):  # no rows
        chunk = pa.concat_arrays(chunk.chunks) if chunk.num_chunks else pa.array([], chunk.type)
    if pa.types.is_dictionary(chunk.type):
        codes = chunk.indices.fill_null(-1).to_numpy(zero_copy_only=False).astype(np.int32)
        return Coded(codes, chunk.dictionary.to_pylist())
    if pa.types.is_string(chunk.type):
        return chunk.to_pylist()
    return chunk.to_numpy(zero_copy_only=False)


def _ns(values: Any) -> Any:
    """Convert seconds back to nanoseconds; NaN to -1."""
    return np.where(np.isnan(values), -1, np.rint(np.nan_to_num(values) * NS_PER_S)).astype(np.int64)


def _fields(columns: Columns, fields: tuple[str, ...], codes: dict[str, dict[str, int]]) -> dict[str, Any]:
    out: dict[str, Any] = {}
    for name in fields:
        if name in ("fork", "branch") and name not in columns:
            out[name] = np.full(len(out["request"]), -1, dtype=np.int64)   # older results have no branches
        elif name in codes:
            mapping = np.array([codes[name][text] for text in columns[name].names] + [-1], dtype=np.int64)
            out[name] = mapping[columns[name].codes]
        elif name.endswith("_ns"):
            out[name] = _ns(columns[name.removesuffix("_ns") + "_s"])
        else:
            out[name] = columns[name].astype(np.int64)
    return out


def _runs(columns: Columns, by_name: dict[str, int]) -> dict[str, Any]:
    written = tuple(name for name in RUN_COLUMNS if name in columns or name.removesuffix("_ns") + "_s" in columns)
    runs = _fields(columns, written, {"client": by_name})
    runs.setdefault("left_waiting", np.zeros_like(runs["client"]))   # missing in older results
    return runs


def _client_info(clients: Columns, row: int) -> ClientInfo:
    info = ClientInfo("", "")
    for name, default in vars(info).items():
        if name in clients:  # older results have fewer columns
            setattr(info, name, type(default)(clients[name][row]))  # numpy scalars to str, int, float
    return info


def _read_record(stored: StoredResults) -> RunRecord:
    """Rebuild the record from the tables of a folder."""
    requests, clients = stored.columns("requests"), stored.columns("clients")
    stages, steps, tokens = (stored.columns(name) for name in ("stages", "steps", "token_steps"))
    infos = [_client_info(clients, row) for row in range(len(clients.get("name", ())))]
    names = [info.name for info in infos]
    by_name = {name: index for index, name in enumerate(names)}
    kinds: list[str] = stages["kind"].names
    reasons: Coded = requests["reject_reason"]
    owner = np.array([by_name[name] for name in steps["client"].names] + [-1], dtype=np.int64)[steps["client"].codes]
    ends, bounds = _ns(steps["end_s"]), np.searchsorted(owner, np.arange(len(infos) + 1))
    decodes = steps["decodes"]
    cut = np.flatnonzero(np.diff(tokens["stage"])) + 1
    gap_rows = tokens["stage"][np.concatenate(([0], cut))] if len(tokens["stage"]) else []
    resources = read_resources(stored.folder)
    return RunRecord(
        clients=infos,
        stage_kinds=kinds,
        arrival_ns=_ns(requests["arrival_s"]),
        **{name: requests[name].astype(np.int64) for name in ("prompt_tokens", "output_tokens", "priority", "session")},
        status=np.array([STATUSES.index(name) for name in requests["status"].names] + [0], dtype=np.int8)[
            requests["status"].codes],
        finish_ns=_ns(requests["finish_s"]),
        reject_reasons={
            int(row): reasons.names[reasons.codes[row]] for row in np.flatnonzero(reasons.codes >= 0)
        },
        stages=_fields(stages, STAGE_FIELDS, {
            "kind": {name: code for code, name in enumerate(kinds)}, "client": by_name,
        }),
        runs=_runs(stored.columns("runs"), by_name),
        transfers=_fields(stored.columns("transfers"), TRANSFER_FIELDS, {"src": by_name, "dst": by_name}),
        step_ends=[ends[a:b] for a, b in pairwise(bounds)],
        gaps={int(row): part for row, part in zip(gap_rows, np.split(tokens["step"], cut), strict=False)},
        decode_steps=[
            None if decodes[a:b].all() else np.flatnonzero(decodes[a:b]) for a, b in pairwise(bounds)
        ],
        out_of_range_steps=[int(count) for count in clients.get("out_of_range_steps", ())],
        end_ns=round(stored._run["end_s"] * NS_PER_S),
        counters=dict(stored.summary["counters"]),
        labels={
            name: (requests[name].codes.astype(np.int64), requests[name].names)
            for name in ("workload", "pipeline", "model") if name in requests
        },
        notes={name.removeprefix("note_"): np.asarray(column, dtype=np.float64)
               for name, column in requests.items() if name.startswith("note_")},
        links=resources["links"], tiers=resources["tiers"], machines=resources["machines"],
        sharing=resources["sharing"],
        out_of_requests_ns=round(stored._run.get("out_of_requests_s", -1 / NS_PER_S) * NS_PER_S),
    )


def open_run(folder: str | os.PathLike[str]) -> StoredResults:
    """Open the results in a folder that `write_results` wrote; `InputError` if there are none, or unfinished ones."""
    path = Path(folder) / "summary.json"
    try:
        content = json.loads(path.read_text(encoding="utf-8"))
    except (FileNotFoundError, NotADirectoryError):
        raise InputError("a folder with finished results (summary.json)", str(folder)) from None
    except json.JSONDecodeError as error:
        raise InputError("JSON", error.msg, file=str(path), line=error.lineno, column=error.colno) from None
    except (OSError, UnicodeDecodeError) as error:
        raise InputError("a readable file", str(error), file=str(path)) from None
    run = content.pop("run", None) if isinstance(content, dict) else None
    if not isinstance(run, dict) or "end_s" not in run:
        raise InputError("a summary that hermes wrote", file=str(path), field="run")
    if run.get("format") != FORMAT:
        raise InputError(f"results of format {FORMAT}", run.get("format"), file=str(path), field="run.format")
    return StoredResults(Path(folder), run, content)
