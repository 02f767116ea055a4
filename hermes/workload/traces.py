"""Trace files: observed requests, one per row.

A trace is a table with the columns `arrival_s` (float64 seconds, nondecreasing), `prompt_tokens` and `output_tokens`
(integers of at least 1), and optionally `priority`, `session`, `prefix_group`, `prefix_tokens`, `max_new_tokens`
(integers), `tenant`, `class` (texts; an empty one for none) and `hash_ids` (lists of integers): chained hashes of the
prompt's blocks, of `hash_block_tokens` tokens each (a number in the metadata). For hashed pieces of unequal lengths the
column `hash_tokens` replaces `hash_block_tokens`: lists of the tokens of each piece, in sum at most `prompt_tokens`.

On disk a trace is Parquet, marked by the metadata key `hermes-trace/1`, or CSV with a header line and the same names.
`hermes.workload.importers` reads foreign formats.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping
from dataclasses import replace
from hashlib import blake2b
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal, TypeVar

import numpy as np
import numpy.typing as npt

from hermes.config.columns import Column
from hermes.config.files import parquet_column, parquet_schema, parquet_table
from hermes.config.tables import Table, csv_table
from hermes.config.writing import replacing
from hermes.core.int_lists import Integers, IntLists, narrowed
from hermes.core.request_table import ANY_NUMBER, NamedColumn, RequestTable
from hermes.errors import InputError, Verbatim, suggest
from hermes.workload.base import MAX_TOKENS, seconds_to_ns
from hermes.workload.stats import describe_arrivals, describe_counts, spearman

if TYPE_CHECKING:
    import pandas as pd
    import pyarrow as pa

__all__ = [
    "COLUMNS", "TRACE_KEY", "ZeroTokens", "check_trace", "describe", "describe_frame", "read_parquet_columns",
    "read_trace", "write_trace",
]

TRACE_KEY = b"hermes-trace/1"

_REQUIRED = ("arrival_s", "prompt_tokens", "output_tokens")
COLUMNS = {column.name: column for column in (
    Column("arrival_s", "number", 0.0, 1e9, unit="seconds"), Column("prompt_tokens", "integer", 1, MAX_TOKENS),
    Column("output_tokens", "integer", 1, MAX_TOKENS), Column("priority", "integer", -(2**31), 2**31),
    Column("session", "integer", -1, 2**62), Column("prefix_group", "integer", -1, 2**62),
    Column("prefix_tokens", "integer", 0, MAX_TOKENS), Column("max_new_tokens", "integer", -1, MAX_TOKENS),
    Column("tenant", "text"), Column("class", "text"),
    Column("hash_ids", "integers", 0), Column("hash_tokens", "integers", 1),
)}
_HASHES = ("hash_ids", "hash_tokens")
ANY_LENGTH = -1   # `max_new_tokens` of a request that sets no limit

N = TypeVar("N", np.int32, np.int64, np.float64)
ZeroTokens = Literal["refuse", "drop", "one"]


def read_trace(path: str | Path) -> RequestTable:
    """Read the requests of a trace file: Parquet, or CSV by the suffix `.csv`.

    Raises `InputError` with file, row and column if it is not a trace.
    """
    columns, metadata = _read(Path(path))
    if (asked := columns.get("max_new_tokens")) is not None:
        columns["max_new_tokens"] = np.where(asked == ANY_LENGTH, ANY_NUMBER, asked)
    for name, ours in (("tenant", "tenant"), ("class", "service_class")):
        if name in columns:
            columns[ours] = NamedColumn.of(columns.pop(name))
    if "hash_ids" in columns:
        columns["hash_block_tokens"] = int(metadata.get("hash_block_tokens", 512))
    return RequestTable(arrival_ns=seconds_to_ns(columns.pop("arrival_s")), **columns)


def describe(path: str | Path) -> dict[str, Any]:
    """Describe a trace file: counts, rate, burstiness, length quantiles and rank correlation (JSON-able).

    Raises `InputError` as `read_trace` does.
    """
    import pandas as pd

    columns, metadata = _read(Path(path))
    frame = pd.DataFrame({name: column for name, column in columns.items() if name not in _HASHES})
    return describe_frame(frame) | {"columns": list(columns), "source": metadata.get("source")}


def describe_frame(frame: pd.DataFrame) -> dict[str, Any]:
    """Describe a trace in memory, as `describe`."""
    prompt, output = (frame[name].to_numpy() for name in ("prompt_tokens", "output_tokens"))
    return {
        "requests": len(frame),
        "columns": [str(name) for name in frame.columns],
        "arrivals": describe_arrivals(frame["arrival_s"].to_numpy()),
        "prompt_tokens": describe_counts(prompt),
        "output_tokens": describe_counts(output),
        "spearman": spearman(prompt, output),
    }


def write_trace(frame: pd.DataFrame, path: str | Path, *, source: str, hash_block_tokens: int = 512) -> None:
    """Write a checked trace as Parquet.

    Args:
        frame: The columns of the trace.
        path: The file.
        source: The trace's origin, which `describe` shows.
        hash_block_tokens: Tokens per block of `hash_ids`, if the trace has no `hash_tokens`.

    Raises `HermesError` if the file cannot be written.
    """
    import pyarrow as pa
    import pyarrow.parquet as pq

    checked = check_trace(Table(path, {str(name): column for name, column in frame.items()}))
    metadata: dict[str, Any] = {"source": source}
    if "hash_tokens" not in checked:
        metadata["hash_block_tokens"] = hash_block_tokens
    table = pa.Table.from_pandas(checked, preserve_index=False)
    table = table.replace_schema_metadata({TRACE_KEY: json.dumps(metadata, sort_keys=True).encode()})
    with replacing(path) as temporary:
        pq.write_table(table, temporary)


def check_trace(table: Table, *, sort: bool = False, zero_tokens: ZeroTokens = "refuse") -> pd.DataFrame:
    """Return the columns as a checked trace: types, bounds, order of arrivals; `InputError` at the first violation.

    Args:
        table: Columns under the names of `COLUMNS`.
        sort: Sort the rows instead of refusing rows out of order.
        zero_tokens: Treatment of rows without prompt or output tokens.
    """
    import pandas as pd

    frame = pd.DataFrame(_typed(table, zero_tokens))
    tokens = ["prompt_tokens", "output_tokens"]
    if zero_tokens == "drop":
        frame = frame[(frame[tokens] > 0).all(axis=1)]
    elif zero_tokens == "one":
        frame[tokens] = frame[tokens].clip(lower=1)
    if sort:
        frame = frame.sort_values("arrival_s", kind="stable")
    times = frame["arrival_s"].to_numpy()
    for place in np.flatnonzero(np.diff(times) < 0)[:1] + 1:
        expected = f"an arrival not before the previous row's ({float(times[place - 1])!r}; sort the rows first)"
        raise table.wrong("arrival_s", int(frame.index[place]), expected, float(times[place]))
    if "max_new_tokens" in frame:
        asked = frame["max_new_tokens"]
        for row in frame.index[(asked < frame["output_tokens"]) & (asked != ANY_LENGTH)][:1]:
            expected = f"at least the row's output_tokens ({frame['output_tokens'][row]}), or -1 for no limit"
            raise table.wrong("max_new_tokens", int(row), expected, int(asked[row]))
    if "prefix_tokens" in frame:
        for row in frame.index[frame["prefix_tokens"] > frame["prompt_tokens"]][:1]:
            expected = f"at most the row's prompt_tokens ({frame['prompt_tokens'][row]})"
            raise table.wrong("prefix_tokens", int(row), expected, int(frame["prefix_tokens"][row]))
    if "hash_tokens" in frame:
        _check_pieces(frame, table)
    return frame.reset_index(drop=True)


def _typed(table: Table, zero_tokens: ZeroTokens = "refuse") -> dict[str, Any]:
    """Return the columns with types and bounds checked; `InputError` at the first violation."""
    for name in table.columns:
        if name not in COLUMNS:
            raise InputError(f"columns among {', '.join(COLUMNS)}", name, file=table.file,
                             suggestion=suggest(name, COLUMNS))
    table.need([*_REQUIRED, *(["hash_ids"] if "hash_tokens" in table else [])])
    declared = dict(COLUMNS)
    if zero_tokens != "refuse":
        declared |= {name: replace(COLUMNS[name], low=0) for name in ("prompt_tokens", "output_tokens")}
    return {name: table.typed(column) for name, column in declared.items() if name in table}


def _check_pieces(frame: pd.DataFrame, table: Table) -> None:
    """Raise `InputError` at the first row with another number of `hash_tokens` than of `hash_ids`, or longer pieces
    than its prompt."""
    columns = (frame[name] for name in ("hash_ids", "hash_tokens", "prompt_tokens"))
    for row, ids, tokens, prompt in zip(frame.index, *columns, strict=True):
        if len(ids) != len(tokens):
            expected, found = f"a number for each of the row's {len(ids)} hash_ids", f"{len(tokens)} numbers"
        elif sum(tokens) > prompt:
            expected, found = f"pieces of at most the row's prompt_tokens ({prompt}) in sum", f"{sum(tokens)} tokens"
        else:
            continue
        raise table.wrong("hash_tokens", int(row), expected, Verbatim(found))


def _read(path: Path) -> tuple[dict[str, Any], dict[str, Any]]:
    """Return a trace file's checked columns, hashes as `IntLists`, and its metadata."""
    if path.suffix.lower() == ".csv":
        return _arrays(check_trace(csv_table(path))), {}   # it has no lists
    columns, raw = read_parquet_columns(path)
    try:
        metadata = json.loads(raw.get(TRACE_KEY, b""))
        valid = isinstance(metadata, dict) and 0 < int(metadata.get("hash_block_tokens", 512)) <= MAX_TOKENS
    except (ValueError, TypeError, RecursionError, OverflowError):
        valid = False
    if not valid:
        found = Verbatim(f"Parquet without {TRACE_KEY.decode()} metadata")
        raise InputError("a trace written by `hermes trace import`", found, file=str(path))
    hashes = {name: columns[name] for name in _HASHES if name in columns}
    if not hashes or ("hash_ids" in hashes and all(map(_plainly_hashes, hashes, hashes.values()))):
        checked = _typed(Table(path, {name: column for name, column in columns.items() if name not in hashes}))
        checked |= hashes
        if _rows_fit(checked):
            return checked, metadata
    columns |= {name: column.lists() for name, column in hashes.items() if isinstance(column, IntLists)}
    return _arrays(check_trace(Table(path, columns))), metadata   # lists of another type, or an error: row by row


def _arrays(frame: pd.DataFrame) -> dict[str, Any]:
    """Return the columns of a checked trace as arrays, hashes as `IntLists`."""
    return {str(name): IntLists.of(column) if name in _HASHES else column.to_numpy() for name, column in frame.items()}


def _plainly_hashes(name: str, column: Any) -> bool:
    """Return whether a column is known to pass `_lists`."""
    if not isinstance(column, IntLists):
        return False
    values = column.values
    return not values.size or (int(values.min()) >= COLUMNS[name].low and int(values.max()) < 2**62)


def _rows_fit(checked: Mapping[str, Any]) -> bool:
    """Return whether checked columns, hashes as `IntLists`, are known to pass what `check_trace` asks of rows."""
    if (np.diff(checked["arrival_s"]) < 0).any():
        return False
    asked = checked.get("max_new_tokens")
    if asked is not None and ((asked < checked["output_tokens"]) & (asked != ANY_LENGTH)).any():
        return False
    if "prefix_tokens" in checked and (checked["prefix_tokens"] > checked["prompt_tokens"]).any():
        return False
    if "hash_tokens" not in checked:
        return True
    ids, tokens = checked["hash_ids"], checked["hash_tokens"]
    sizes = tokens.ends - tokens.begins
    return (np.array_equal(sizes, ids.ends - ids.begins)
            and int(tokens.values.max(initial=0)) * int(sizes.max(initial=0)) < 2**62   # sums are exact
            and not bool((tokens.sums() > checked["prompt_tokens"]).any()))


def read_parquet_columns(path: Path) -> tuple[dict[str, Any], dict[bytes, bytes]]:
    """Return the columns of a Parquet file by name, and its metadata. `InputError` for another file."""
    import pyarrow.types as kinds

    what = "a trace: a Parquet file, or a CSV file with the suffix .csv"
    schema = parquet_schema(path, what)
    lists = {field.name for field in schema if kinds.is_list(field.type) and kinds.is_int64(field.type.value_type)}
    table = parquet_table(path, [name for name in schema.names if name not in lists], what=what)
    columns = {name: _int_lists(parquet_column(path, name, what)) for name in schema.names if name in lists}
    rest = parquet_table(path, [name for name, column in columns.items() if column is None], what=what)
    found: dict[str, Any] = {}
    for name in schema.names:
        column = columns.get(name)
        found[name] = _plain_column((rest if name in lists else table).column(name)) if column is None else column
    return found, schema.metadata or {}


def _plain_column(column: pa.ChunkedArray) -> Any:
    """Return a Parquet column as pandas has it; of plain numbers, as an array."""
    import pyarrow.types as kinds

    if column.null_count or not (kinds.is_int64(column.type) or kinds.is_float64(column.type)):
        return column.to_pandas()
    if kinds.is_int64(column.type):
        return np.concatenate([np.empty(0, dtype=np.int64), *(_array(chunk, np.int64) for chunk in column.chunks)])
    return np.concatenate([np.empty(0, dtype=np.float64), *(_array(chunk, np.float64) for chunk in column.chunks)])


def _array(numbers: pa.Array, number: type[N]) -> npt.NDArray[N]:
    """Return Arrow's numbers, none of them null, as an array. Arrow's own way imports pandas, which takes a while."""
    if not len(numbers):
        return np.empty(0, dtype=number)
    start = numbers.offset
    return np.frombuffer(numbers.buffers()[1], dtype=number)[start:start + len(numbers)]


def _int_lists(chunks: Iterable[pa.ListArray]) -> IntLists | None:
    """Return a Parquet column of lists, equal ones stored once; None if it has nulls."""
    made: dict[bytes, int] = {}   # digest of a list -> its beginning
    parts: list[Integers] = [np.empty(0, dtype=np.int32)]
    begins: list[int] = []
    sizes: list[Integers] = [np.empty(0, dtype=np.int64)]
    size = 0
    for chunk in chunks:
        offsets = _array(chunk.offsets, np.int32)   # `flatten` and `value_lengths` import pyarrow.compute, for 50 ms
        flat = chunk.values[int(offsets[0]):int(offsets[-1])]
        if chunk.null_count or flat.null_count:
            return None
        values, lengths = _array(flat, np.int64), np.diff(offsets)
        sizes.append(lengths)
        new = []
        start = 0
        for end in np.cumsum(lengths).tolist():
            row = values[start:end]
            begin = made.setdefault(blake2b(row.data, digest_size=16).digest(), size)
            if begin == size:
                new.append(row)
                size += end - start
            begins.append(begin)
            start = end
        if new:
            parts.append(narrowed(values if len(new) == len(chunk) else np.concatenate(new)))
    first = np.array(begins, dtype=np.int64)
    return IntLists(np.concatenate(parts), first, first + np.concatenate(sizes))
