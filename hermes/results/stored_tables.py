"""Read the tables of a results folder with their types checked, and rebuild the `RunRecord`.

A table from elsewhere, or a changed one, gives an error of one line if a column is missing, has another type or holds
nulls, or if an index is outside the table that it refers to.
"""

from __future__ import annotations

from functools import cache
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from hermes.config.files import parquet_table
from hermes.core.reasons import NAMES
from hermes.core.record import RUN_COLUMNS, RUN_FIELDS, STAGE_FIELDS, TRANSFER_FIELDS, ClientInfo, RunRecord
from hermes.errors import InputError, Verbatim
from hermes.results.frames import STATUSES, Coded, Columns, table_columns
from hermes.results.metrics import answer, request_metrics
from hermes.results.resource_file import read_resources
from hermes.results.stored_summary import StoredRun
from hermes.results.utilisation import KINDS
from hermes.units import NS_PER_S

__all__ = ["read_record", "read_table"]

_LABELS = ("workload", "pipeline", "model")
_LATER = {   # columns that earlier versions did not write
    "stages": {"fork", "branch", "communication_s", "on_path", "energy_j"},
    "runs": {"stopped", "stopped_s", "kv_block_ns", "kv_block_s", "lora_tokens", "lora_adapters"},
}
_OPTIONAL = {"background": "bool"}   # columns that are written where they say something
_MANY = 1_000_000_000   # rows of a table of a run
_MAX_S = 9e9            # seconds as integer nanoseconds in 64 bits


@cache
def _kinds(table: str) -> dict[str, str]:
    """Return the kind of each column of a table: int, float, bool or text. Taken from the tables of an empty run."""
    none = np.zeros(0, dtype=np.int64)
    record = RunRecord(
        clients=[ClientInfo("", "")], stage_kinds=[], arrival_ns=none, prompt_tokens=none, output_tokens=none,
        priority=none, session=none, status=none.astype(np.int8), finish_ns=none, reject_reasons={},
        stages=dict.fromkeys(STAGE_FIELDS, none), runs=dict.fromkeys(RUN_FIELDS, none),
        transfers=dict.fromkeys(TRANSFER_FIELDS, none), step_ends=[none], gaps={}, out_of_range_steps=[0], end_ns=0,
    )
    columns = table_columns(table, record, request_metrics(record, answer(record)))
    return {name: _kind(column) for name, column in columns.items()}


def _kind(column: Any) -> str:
    if not isinstance(column, np.ndarray):
        return "text"
    return {"i": "int", "u": "int", "f": "float", "b": "bool"}[column.dtype.kind]


def _stored_kind(column: Any) -> str:
    """Return the kind of an Arrow column."""
    import pyarrow as pa

    kind = column.type
    if pa.types.is_dictionary(kind):
        kind = kind.value_type
    tests = {"int": pa.types.is_signed_integer, "float": pa.types.is_floating, "bool": pa.types.is_boolean,
             "text": pa.types.is_string}
    return next((name for name, fits in tests.items() if fits(kind)), str(kind))


def read_table(folder: Path, table: str) -> Columns:
    """Return one of `hermes.results.frames.TABLES` as columns; `InputError` if it is not as hermes writes it."""
    path = folder / f"{table}.parquet"
    if not path.exists():
        raise InputError("a table of a finished run", "no such file", file=str(path))
    found = parquet_table(path, max_rows=_MANY).combine_chunks().unify_dictionaries()
    expected = _kinds(table)
    for name in expected:
        if name not in found.column_names and name not in _LATER.get(table, ()) and table != "clients":
            raise InputError(f"a column {name}", Verbatim(", ".join(found.column_names)[:200]), file=str(path))
    columns = {name: found[name] for name in found.column_names}
    for name, column in columns.items():
        _check_type(name, column, expected, table, str(path))
    read = {name: _from_arrow(column) for name, column in columns.items()}
    if table == "utilisation":
        unknown = set(_coded(read["kind"]).names) - set(KINDS)
        if unknown:
            raise InputError(f"one of {', '.join(KINDS)}", min(unknown), file=str(path), field="kind")
    return read


def _check_type(name: str, column: Any, expected: dict[str, str], table: str, file: str) -> None:
    """Refuse nulls except for missing texts: an undefined number is NaN."""
    kind, wanted = _stored_kind(column), expected.get(name)
    if wanted is None:
        other = "float" if name.startswith("note_") else "text" if name in _LABELS else kind
        wanted = _OPTIONAL.get(name, other) if table == "stages" else other
    if table in ("clients", "utilisation") and {kind, wanted} == {"int", "float"}:
        wanted = kind   # integers or floats, depending on the clients
    if kind != wanted:
        raise InputError(f"a column of {_words(wanted)}", Verbatim(_words(kind)), file=file, field=name)
    missing = column.null_count and not (kind == "text" and name in ("reject_reason", *_LABELS))
    if missing:
        raise InputError("no nulls", Verbatim(f"{column.null_count}"), file=file, field=name)


def _words(kind: str) -> str:
    return {"int": "integers", "float": "floats", "bool": "truth values", "text": "texts"}.get(kind, kind)


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


# -- the record --------------------------------------------------------------------------------------------------------


class _Reader:
    """Columns of one table, converted to the types of a `RunRecord`; every error names file and column."""

    def __init__(self, folder: Path, table: str) -> None:
        self.file, self.columns = str(folder / f"{table}.parquet"), read_table(folder, table)

    def __contains__(self, name: str) -> bool:
        return name in self.columns

    def __len__(self) -> int:
        first = next(iter(self.columns.values()), ())
        return len(first.codes if isinstance(first, Coded) else first)

    def wrong(self, name: str, expected: str, row: int, found: object) -> InputError:
        return InputError(expected, found, file=self.file, field=f"{name}[{row}]")

    def ints(self, name: str, low: int = -(2**62), high: int = 2**62) -> npt.NDArray[np.int64]:
        """Return a column of integers from `low` to below `high`."""
        values: npt.NDArray[np.int64] = self.columns[name].astype(np.int64)
        bad = np.flatnonzero((values < low) | (values >= high))
        if len(bad):
            expected = f"an integer from {low} to {high - 1}" if high < 2**62 else f"an integer of at least {low}"
            raise self.wrong(name, expected, int(bad[0]), int(values[bad[0]]))
        return values

    def ns(self, name: str, *, undefined: bool = False) -> npt.NDArray[np.int64]:
        """Return seconds as nanoseconds, and NaN as -1 if a time may be undefined."""
        values = self.columns[name]
        good = (values >= 0) & (values <= _MAX_S)
        bad = np.flatnonzero(~(good | np.isnan(values) if undefined else good))
        if len(bad):
            raise self.wrong(name, "a time in seconds", int(bad[0]), float(values[bad[0]]))
        return np.where(np.isnan(values), -1, np.rint(np.nan_to_num(values) * NS_PER_S)).astype(np.int64)

    def codes(self, name: str, known: dict[str, int], *, missing: bool = False) -> npt.NDArray[np.int64]:
        """Return a column of names as their numbers in `known`."""
        column = _coded(self.columns[name])
        for text in column.names:
            if text not in known:
                raise InputError(f"one of {', '.join(known)}"[:300], text, file=self.file, field=name)
        if not missing and (column.codes < 0).any():
            raise InputError("no nulls", file=self.file, field=name)
        mapping = np.array([known[text] for text in column.names] + [-1], dtype=np.int64)
        return mapping[column.codes]

    def fields(self, names: tuple[str, ...], codes: dict[str, dict[str, int]], undefined: tuple[str, ...] = (),
               indices: tuple[str, ...] = ()) -> dict[str, npt.NDArray[np.int64]]:
        """Return columns under a record's names: `_ns` from seconds, names as codes; indices: integers, -1 allowed."""
        out = {}
        for name in names:
            if name in codes:
                out[name] = self.codes(name, codes[name])
            elif name.endswith("_ns"):
                stored = name.removesuffix("_ns") + "_s"
                out[name] = self.ns(stored, undefined=name in undefined)
            else:
                out[name] = self.ints(name, -1 if name in indices else 0)
        return out


def _coded(column: Any) -> Coded:
    if isinstance(column, Coded):
        return column
    names = list(dict.fromkeys(text for text in column if text is not None))
    place = {text: code for code, text in enumerate(names)}
    return Coded(np.array([place.get(text, -1) for text in column], dtype=np.int32), names)


def _client_infos(clients: _Reader) -> list[ClientInfo]:
    """Return the clients. Every column is optional: earlier versions wrote fewer."""
    infos = [ClientInfo("", "") for _ in range(len(clients))]
    for name, default in vars(ClientInfo("", "")).items():
        if name in clients:
            column = clients.columns[name]
            values = [column.names[code] for code in column.codes] if isinstance(column, Coded) else column
            for info, value in zip(infos, values, strict=True):
                setattr(info, name, type(default)(value))  # numpy scalars to str, int, float
    if "name" not in clients:
        raise InputError("a column name", Verbatim("none"), file=clients.file)
    names = [info.name for info in infos]
    if len(set(names)) < len(names):
        raise InputError("clients with different names", Verbatim("one twice"), file=clients.file, field="name")
    return infos


def _background(stages: _Reader) -> npt.NDArray[np.int64]:
    """Return the rows of stages in the background; the column is written where there are any."""
    return np.flatnonzero(stages.columns["background"]) if "background" in stages else np.empty(0, dtype=np.int64)


def _stages(stages: _Reader, kinds: list[str], by_name: dict[str, int], requests: int) -> dict[str, Any]:
    codes = {"kind": {name: code for code, name in enumerate(kinds)}, "client": by_name}
    old = tuple(name for name in ("fork", "branch") if name not in stages)   # older results have no branches
    names = tuple(name for name in STAGE_FIELDS if name not in old)
    out = stages.fields(names, codes, ("start_ns", "first_token_ns"),
                        ("request", "first_step", "last_step", "fork", "branch"))
    stages.ints("request", 0, requests)
    return {name: out[name] if name in out else np.full(len(out["request"]), -1, dtype=np.int64)
            for name in STAGE_FIELDS}


def _runs(runs: _Reader, by_name: dict[str, int]) -> dict[str, Any]:
    written = tuple(name for name in RUN_COLUMNS if name in runs or name.removesuffix("_ns") + "_s" in runs)
    out = runs.fields(written, {"client": by_name, "stopped": {name: int(code) for code, name in NAMES.items()}})
    for name in ("stopped", "stopped_ns"):
        out.setdefault(name, np.zeros_like(out["client"]))   # missing in older results
    return out


def _labels(requests: _Reader) -> dict[str, tuple[npt.NDArray[np.int64], list[str]]]:
    coded = {name: _coded(requests.columns[name]) for name in _LABELS if name in requests}
    return {name: (column.codes.astype(np.int64), column.names) for name, column in coded.items()}


def read_record(folder: Path, run: StoredRun, counters: dict[str, int]) -> RunRecord:
    """Rebuild the record from the tables of a folder. `InputError` if they do not belong together."""
    clients, requests, stages, steps, tokens = (
        _Reader(folder, name) for name in ("clients", "requests", "stages", "steps", "token_steps"))
    infos = _client_infos(clients)
    by_name = {info.name: index for index, info in enumerate(infos)}
    kinds = _coded(stages.columns["kind"]).names
    owner = steps.codes("client", by_name)
    if (np.diff(owner) < 0).any():
        raise InputError("the steps of one client after those of another", file=steps.file, field="client")
    ends, bounds = steps.ns("end_s"), np.searchsorted(owner, np.arange(len(infos) + 1))
    numbers = steps.ints("step", 0)
    wrong = np.flatnonzero(numbers != np.arange(len(numbers)) - bounds[owner])
    if len(wrong):
        raise steps.wrong("step", "the steps of a client in order", int(wrong[0]), int(numbers[wrong[0]]))
    decodes = steps.columns["decodes"]
    reasons = _coded(requests.columns["reject_reason"])
    resources = read_resources(folder, len(infos))
    record = RunRecord(
        clients=infos,
        stage_kinds=kinds,
        arrival_ns=requests.ns("arrival_s", undefined=True),
        prompt_tokens=requests.ints("prompt_tokens", 0), output_tokens=requests.ints("output_tokens", 0),
        priority=requests.ints("priority"), session=requests.ints("session", -1),
        status=requests.codes("status", {name: code for code, name in enumerate(STATUSES)}).astype(np.int8),
        finish_ns=requests.ns("finish_s", undefined=True),
        reject_reasons={int(row): reasons.names[reasons.codes[row]] for row in np.flatnonzero(reasons.codes >= 0)},
        stages=_stages(stages, kinds, by_name, len(requests)),
        runs=_runs(_Reader(folder, "runs"), by_name),
        transfers=_Reader(folder, "transfers").fields(
            TRANSFER_FIELDS, {"src": by_name, "dst": by_name}, ("end_ns",), ("request",)),
        step_ends=[ends[a:b] for a, b in pairwise(bounds)],
        gaps=_gaps(tokens, len(stages)),
        decode_steps=[None if decodes[a:b].all() else np.flatnonzero(decodes[a:b]) for a, b in pairwise(bounds)],
        out_of_range_steps=[int(n) for n in clients.ints("out_of_range_steps", 0)]
        if "out_of_range_steps" in clients else [],
        end_ns=round(run.end_s * NS_PER_S),
        counters=dict(counters),
        labels=_labels(requests),
        notes={name.removeprefix("note_"): np.asarray(column, dtype=np.float64)
               for name, column in requests.columns.items() if name.startswith("note_")},
        **resources,  # type: ignore[arg-type]  # a list for each of some fields
        background=_background(stages),
        out_of_requests_ns=-1 if run.out_of_requests_s is None else round(run.out_of_requests_s * NS_PER_S),
    )
    _check_steps(record, stages, tokens)
    return record


def _gaps(tokens: _Reader, stages: int) -> dict[int, npt.NDArray[np.int64]]:
    owner, step = tokens.ints("stage", 0, stages), tokens.ints("step", 0)
    if (np.diff(owner) < 0).any():
        raise InputError("stages in order", file=tokens.file, field="stage")
    cut = np.flatnonzero(np.diff(owner)) + 1
    rows = owner[np.concatenate(([0], cut))] if len(owner) else owner
    return {int(row): part for row, part in zip(rows, np.split(step, cut), strict=False)}


def _check_steps(record: RunRecord, stages: _Reader, tokens: _Reader) -> None:
    """Check that the steps of stages exist, and are as many as their tokens."""
    columns, counts = record.stages, np.array([len(ends) for ends in record.step_ends], dtype=np.int64)
    for name in ("first_step", "last_step"):
        bad = np.flatnonzero(columns[name] >= counts[columns["client"]])
        if len(bad):
            raise stages.wrong(name, "a step of the client", int(bad[0]), int(columns[name][bad[0]]))
    bad = np.flatnonzero(columns["last_step"] < columns["first_step"])
    if len(bad):
        raise stages.wrong("last_step", "a step not before the first", int(bad[0]), int(columns["last_step"][bad[0]]))
    for row, steps in record.gaps.items():
        if steps.max(initial=-1) >= counts[columns["client"][row]]:
            raise tokens.wrong("step", "a step of the client", row, int(steps.max()))
