"""Trace files: observed requests, one per row.

A trace is a table with the columns `arrival_s` (float64 seconds, nondecreasing), `prompt_tokens` and `output_tokens`
(integers of at least 1), and optionally `priority`, `session`, `prefix_group`, `prefix_tokens`, `max_new_tokens`
(integers) and `hash_ids` (lists of integers): chained hashes of the prompt's blocks, of `hash_block_tokens` tokens each
(a number in the metadata). For hashed pieces of unequal lengths the column `hash_tokens` replaces `hash_block_tokens`:
lists of the tokens of each piece, in sum at most `prompt_tokens`.

On disk a trace is Parquet, marked by the metadata key `hermes-trace/1`, or CSV with a header line and the same names.
`hermes.workload.importers` reads foreign formats.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Mapping, Sequence
from hashlib import blake2b
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal, TypeVar

import numpy as np
import numpy.typing as npt

from hermes.config.files import csv_rows, parquet_column, parquet_schema, parquet_table
from hermes.config.writing import replacing
from hermes.core.int_lists import Integers, IntLists, narrowed
from hermes.core.request_table import ANY_NUMBER, RequestTable
from hermes.errors import InputError, Verbatim, suggest
from hermes.units import parse_number
from hermes.workload.base import MAX_TOKENS, FloatArray, IntArray, seconds_to_ns
from hermes.workload.stats import describe_arrivals, describe_counts, spearman

if TYPE_CHECKING:
    import pandas as pd
    import pyarrow as pa

__all__ = [
    "TRACE_KEY", "Locate", "ZeroTokens", "check_trace", "describe", "describe_frame",
    "read_csv_columns", "read_parquet_columns", "read_trace", "require_columns", "to_floats", "write_trace",
]

TRACE_KEY = b"hermes-trace/1"

_REQUIRED = ("arrival_s", "prompt_tokens", "output_tokens")
_INTEGERS = {  # column: smallest value, largest value
    "prompt_tokens": (1, MAX_TOKENS), "output_tokens": (1, MAX_TOKENS), "priority": (-(2**31), 2**31),
    "session": (-1, 2**62), "prefix_group": (-1, 2**62), "prefix_tokens": (0, MAX_TOKENS),
    "max_new_tokens": (-1, MAX_TOKENS),
}
_HASHES = {"hash_ids": 0, "hash_tokens": 1}   # column: smallest value
_MAX_SECONDS = 1e9
ANY_LENGTH = -1   # `max_new_tokens` of a request that sets no limit

N = TypeVar("N", np.int32, np.int64, np.float64)
Locate = Callable[[str, int], tuple[str, int | None]]
"""(column, row index) -> (field, line) for an error message."""
ZeroTokens = Literal["refuse", "drop", "one"]


def read_trace(path: str | Path) -> RequestTable:
    """Read the requests of a trace file: Parquet, or CSV by the suffix `.csv`.

    Raises `InputError` with file, row and column if it is not a trace.
    """
    columns, metadata = _read(Path(path))
    if (asked := columns.get("max_new_tokens")) is not None:
        columns["max_new_tokens"] = np.where(asked == ANY_LENGTH, ANY_NUMBER, asked)
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

    checked = check_trace({str(name): column for name, column in frame.items()}, str(path))
    metadata: dict[str, Any] = {"source": source}
    if "hash_tokens" not in checked:
        metadata["hash_block_tokens"] = hash_block_tokens
    table = pa.Table.from_pandas(checked, preserve_index=False)
    table = table.replace_schema_metadata({TRACE_KEY: json.dumps(metadata, sort_keys=True).encode()})
    with replacing(path) as temporary:
        pq.write_table(table, temporary)


def check_trace(
    columns: Mapping[str, Any], file: str, locate: Locate | None = None, *, sort: bool = False,
    zero_tokens: ZeroTokens = "refuse",
) -> pd.DataFrame:
    """Return the columns as a checked trace: types, bounds, order of arrivals; `InputError` at the first violation.

    Args:
        columns: For each name a sequence of numbers or of their texts.
        locate: Function from a column and row to their place in the file.
        sort: Sort the rows instead of refusing rows out of order.
        zero_tokens: Treatment of rows without prompt or output tokens.
    """
    import pandas as pd

    locate = locate or _row
    frame = pd.DataFrame(_checked(columns, file, locate, zero_tokens))
    tokens = ["prompt_tokens", "output_tokens"]
    if zero_tokens == "drop":
        frame = frame[(frame[tokens] > 0).all(axis=1)]
    elif zero_tokens == "one":
        frame[tokens] = frame[tokens].clip(lower=1)
    if sort:
        frame = frame.sort_values("arrival_s", kind="stable")
    _in_order(frame, file, locate)
    if "max_new_tokens" in frame:
        asked = frame["max_new_tokens"]
        for row in frame.index[(asked < frame["output_tokens"]) & (asked != ANY_LENGTH)][:1]:
            expected = f"at least the row's output_tokens ({frame['output_tokens'][row]}), or -1 for no limit"
            raise _refuse(expected, asked, "max_new_tokens", int(row), file, locate)
    if "prefix_tokens" in frame:
        for row in frame.index[frame["prefix_tokens"] > frame["prompt_tokens"]][:1]:
            expected = f"at most the row's prompt_tokens ({frame['prompt_tokens'][row]})"
            raise _refuse(expected, frame["prefix_tokens"], "prefix_tokens", int(row), file, locate)
    if "hash_tokens" in frame:
        _check_pieces(frame, file, locate)
    return frame.reset_index(drop=True)


def _checked(
    columns: Mapping[str, Any], file: str, locate: Locate, zero_tokens: ZeroTokens = "refuse",
) -> dict[str, Any]:
    """Return the columns with types and bounds checked; `InputError` at the first violation."""
    known = [*_REQUIRED, *_INTEGERS, *_HASHES]
    for column in columns:
        if column not in known:
            raise InputError(f"columns among {', '.join(known)}", column, file=file, suggestion=suggest(column, known))
    require_columns(columns, _REQUIRED, file)
    times = to_floats(columns["arrival_s"], "arrival_s", file, locate)
    bad = np.flatnonzero((times < 0) | (times > _MAX_SECONDS))
    if bad.size:
        raise _refuse(f"seconds from 0 to {_MAX_SECONDS:g}", times, "arrival_s", int(bad[0]), file, locate)
    checked: dict[str, Any] = {"arrival_s": times}
    for name, (low, high) in _INTEGERS.items():
        if name in columns:
            lenient = zero_tokens != "refuse" and name in ("prompt_tokens", "output_tokens")
            checked[name] = _integers(columns[name], name, 0 if lenient else low, high, file, locate)
    if "hash_tokens" in columns:
        require_columns(columns, ["hash_ids"], file)
    for name, low in _HASHES.items():
        if name in columns:
            checked[name] = _lists(columns[name], name, low, file, locate)
    return checked


def require_columns(columns: Mapping[str, Any], names: Iterable[str], file: str) -> None:
    """Raise `InputError` if one of `names` is missing."""
    for name in names:
        if name not in columns:
            found = Verbatim(f"columns {', '.join(map(str, columns))}"[:200] if columns else "no columns")
            raise InputError(f"a column {name}", found, file=file, suggestion=suggest(name, map(str, columns)))


def _row(column: str, row: int) -> tuple[str, int | None]:
    return f"{column}[{row}]", None


def _refuse(expected: str, values: Any, name: str, row: int, file: str, locate: Locate) -> InputError:
    field, line = locate(name, row)
    value = values[row].item() if isinstance(values[row], np.generic) else values[row]
    return InputError(expected, value, field=field, file=file, line=line)


def to_floats(values: Any, name: str, file: str, locate: Locate) -> FloatArray:
    """Return a column of numbers or their texts as float64; `InputError` at the first that is not a finite number."""
    plain = _plain(values)
    if isinstance(plain, np.ndarray) and plain.dtype.kind not in "iufOU":
        raise InputError("a column of numbers", Verbatim(f"one of {plain.dtype}"), field=name, file=file)
    try:
        if not _plainly_numbers(plain):
            raise ValueError
        floats = np.asarray(plain, dtype=np.float64)
        if floats.ndim != 1:
            raise ValueError
    except (TypeError, ValueError, OverflowError):
        for row, value in enumerate(plain):
            try:
                parse_number(value)
            except (TypeError, ValueError, OverflowError):
                raise _refuse("a number", plain, name, row, file, locate) from None
        raise InputError("a column of numbers", field=name, file=file) from None
    bad = np.flatnonzero(~np.isfinite(floats))
    if bad.size:
        raise _refuse("a finite number", plain, name, int(bad[0]), file, locate)
    return floats


def _plainly_numbers(values: Any) -> bool:
    """Return False if a value may be something else that numpy takes for a number: true, `1_000`, non-Latin digits."""
    if isinstance(values, np.ndarray) and values.dtype.kind in "iuf":
        return True
    kinds = {type(value) for value in values}
    if bool in kinds or np.bool_ in kinds:
        return False
    texts = "".join(value for value in values if isinstance(value, str)) if str in kinds else ""
    return texts.isascii() and "_" not in texts


def _plain(values: Any) -> Any:
    """Return a column as an array or a sequence, whose rows are found by position."""
    return values.to_numpy() if hasattr(values, "to_numpy") else values


def _in_order(frame: pd.DataFrame, file: str, locate: Locate) -> None:
    times = frame["arrival_s"].to_numpy()
    back = np.flatnonzero(np.diff(times) < 0)
    if back.size:
        place = int(back[0]) + 1
        expected = f"an arrival not before the previous row's ({float(times[place - 1])!r}; sort the rows first)"
        raise _refuse(expected, frame["arrival_s"], "arrival_s", int(frame.index[place]), file, locate)


def _integers(values: Any, name: str, low: int, high: int, file: str, locate: Locate) -> IntArray:
    expected = f"an integer from {low} to 2**{high.bit_length() - 1}"
    floats = to_floats(values, name, file, locate)
    plain = _plain(values)
    bad = np.flatnonzero((floats < low) | (floats > high) | (floats != np.rint(floats)))
    if bad.size:
        raise _refuse(expected, plain, name, int(bad[0]), file, locate)
    if isinstance(plain, np.ndarray) and plain.dtype.kind in "iu":
        return plain.astype(np.int64)  # exact above 2^53, unlike floats
    if len(floats) and np.abs(floats).max() > 2**53:
        return np.array([_exact(value) for value in plain], dtype=np.int64)
    return floats.astype(np.int64)


def _exact(value: Any) -> int:
    """Return the integer that a value or its text states, not the nearest float."""
    try:
        return int(value)
    except ValueError:   # "1e17"
        return int(float(value))


def _lists(values: Any, name: str, low: int, file: str, locate: Locate) -> list[list[int]]:
    """Return a column of lists of integers of at least `low`; `InputError` at the first other value."""
    lists: list[list[int]] = []
    checked: set[int] = set()   # ids of lists; a Parquet file's equal rows are one list
    for row, items in enumerate(values.lists() if isinstance(values, IntLists) else values):
        numbers = items.tolist() if isinstance(items, np.ndarray) else items
        if id(items) in checked:
            lists.append(numbers)
            continue
        if not isinstance(numbers, list) or not all(type(i) is int and low <= i < 2**62 for i in numbers):
            field, line = locate(name, row)
            raise InputError(f"a list of integers of at least {low}", items, field=field, line=line, file=file)
        if numbers is items:
            checked.add(id(items))
        lists.append(numbers)
    return lists


def _check_pieces(frame: pd.DataFrame, file: str, locate: Locate) -> None:
    """Raise `InputError` at the first row with another number of `hash_tokens` than of `hash_ids`, or longer pieces
    than its prompt."""
    columns = (frame[name] for name in ("hash_ids", "hash_tokens", "prompt_tokens"))
    for row, ids, tokens, prompt in zip(frame.index, *columns, strict=True):
        if len(ids) == len(tokens) and sum(tokens) <= prompt:
            continue
        field, line = locate("hash_tokens", int(row))
        if len(ids) != len(tokens):
            expected, found = f"a number for each of the row's {len(ids)} hash_ids", f"{len(tokens)} numbers"
        else:
            expected, found = f"pieces of at most the row's prompt_tokens ({prompt}) in sum", f"{sum(tokens)} tokens"
        raise InputError(expected, Verbatim(found), field=field, line=line, file=file)


def _read(path: Path) -> tuple[dict[str, Any], dict[str, Any]]:
    """Return a trace file's checked columns, hashes as `IntLists`, and its metadata."""
    if path.suffix.lower() == ".csv":
        texts, lines = read_csv_columns(path)   # it has no lists
        return _arrays(check_trace(texts, str(path), lambda name, row: (name, lines[row]))), {}
    columns, raw = read_parquet_columns(path)
    try:
        metadata = json.loads(raw.get(TRACE_KEY, b""))
        valid = isinstance(metadata, dict) and 0 < int(metadata.get("hash_block_tokens", 512)) <= MAX_TOKENS
    except (ValueError, TypeError, RecursionError):
        valid = False
    if not valid:
        found = Verbatim(f"Parquet without {TRACE_KEY.decode()} metadata")
        raise InputError("a trace written by `hermes trace import`", found, file=str(path))
    hashes = {name: columns[name] for name in _HASHES if name in columns}
    if not hashes or ("hash_ids" in hashes and all(map(_plainly_hashes, hashes, hashes.values()))):
        checked = _checked({name: column for name, column in columns.items() if name not in hashes}, str(path), _row)
        checked |= hashes
        if _rows_fit(checked):
            return checked, metadata
    return _arrays(check_trace(columns, str(path))), metadata   # lists of another type, or an error: row by row


def _arrays(frame: pd.DataFrame) -> dict[str, Any]:
    """Return the columns of a checked trace as arrays, hashes as `IntLists`."""
    return {str(name): IntLists.of(column) if name in _HASHES else column.to_numpy() for name, column in frame.items()}


def _plainly_hashes(name: str, column: Any) -> bool:
    """Return whether a column is known to pass `_lists`."""
    if not isinstance(column, IntLists):
        return False
    values = column.values
    return not values.size or (int(values.min()) >= _HASHES[name] and int(values.max()) < 2**62)


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
        flat = chunk.flatten()
        if chunk.null_count or flat.null_count:
            return None
        values, lengths = _array(flat, np.int64), _array(chunk.value_lengths(), np.int32)
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


def read_csv_columns(path: Path, delimiter: str = ",") -> tuple[dict[str, list[str]], Sequence[int]]:
    """The columns of a CSV file as texts by header name, and the line each row ends on. `InputError` if it is none."""
    found = csv_rows(path, delimiter)
    _, header = next(found)
    columns: dict[str, list[str]] = {name: [] for name in header}
    lines: list[int] = []
    rows: list[list[str]] = []
    for line, row in found:
        rows.append(row)
        lines.append(line)
        if len(rows) == 4096:  # many small lists at once would occupy the garbage collector
            _transpose(rows, columns)
    _transpose(rows, columns)
    return columns, lines


def _transpose(rows: list[list[str]], columns: dict[str, list[str]]) -> None:
    """Append the rows to the columns."""
    for column, values in zip(columns.values(), zip(*rows, strict=True), strict=False):
        column.extend(values)
    rows.clear()
