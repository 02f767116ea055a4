"""Tables from outside: the one door for rows of CSV, JSON lines, JSON lists, Parquet and .npz files.

A reader returns a `Table`: columns of raw values, and the place of each row in its file. The `typed` method converts a
whole column as a `Column` declares it, and names file, line and field of the first wrong value. Readers are bounded
(`hermes.config.files`): regular files only, limited bytes, lines and rows.
"""

from __future__ import annotations

import io
import os
import zipfile
import zlib
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from hermes.arrays import FloatArray, IntArray
from hermes.config.columns import PER_S, Column
from hermes.config.files import (
    MAX_UNPACKED,
    VISIBLE,
    csv_rows,
    json_lines,
    parquet_schema,
    parquet_table,
    unseen_character,
)
from hermes.errors import InputError, Verbatim, suggest
from hermes.units import parse_number

__all__ = ["Column", "Table", "csv_table", "json_table", "lookup", "npz_arrays", "parquet_columns"]

_NOTHING = ("", "nan", "null")   # texts of a missing value, in small letters


class Table:
    """Columns of raw values, and where they stand in the file.

    Attributes:
        file: Name of the file, for messages.
        columns: Values by name: a list, an array or a Series each, all of one length.
        lines: Line of each row; None for formats without lines.
        places: Text in front of the field in messages, one per row (`benchmarks.0.requests.`).
        names: Name of a column in the file, where it differs from that in `columns`.
    """

    def __init__(
        self, file: str | os.PathLike[str], columns: Mapping[str, Any], *, lines: Sequence[int] | None = None,
        places: Sequence[str] | None = None, names: Mapping[str, str] | None = None,
    ) -> None:
        self.file, self.columns, self.lines, self.places = os.fspath(file), dict(columns), lines, places
        self.names = dict(names or {})

    def __len__(self) -> int:
        return len(next(iter(self.columns.values()), ()))

    def __contains__(self, name: str) -> bool:
        return name in self.columns

    def need(self, names: Iterable[str]) -> None:
        """Raise `InputError` if one of the columns is missing."""
        for name in names:
            if name not in self.columns:
                found = Verbatim(f"columns {', '.join(map(str, self.columns))}"[:200] if self.columns else "no columns")
                raise InputError(f"a column {name}", found, file=self.file,
                                 suggestion=suggest(name, map(str, self.columns)))

    def renamed(self, names: Mapping[str, str]) -> Table:
        """Return the columns `names.values()` under the names `names.keys()`. `InputError` if one is missing."""
        self.need(names.values())
        return Table(self.file, {ours: self.columns[theirs] for ours, theirs in names.items()}, lines=self.lines,
                     places=self.places, names={ours: self.names.get(theirs, theirs) for ours, theirs in names.items()})

    def rows(self, chosen: Sequence[int]) -> Table:
        """Return some of the rows, in the given order."""
        def pick(values: Any) -> Any:
            return values[chosen] if isinstance(values, np.ndarray) else [values[row] for row in chosen]

        return Table(self.file, {name: pick(_plain(values)) for name, values in self.columns.items()},
                     lines=None if self.lines is None else pick(self.lines),
                     places=None if self.places is None else pick(self.places), names=self.names)

    def wrong(self, name: str, row: int, expected: str, found: object = ...) -> InputError:
        """Return the error of a value: `expected`, and `found` or the value itself."""
        field = self.names.get(name, name)
        if self.places is not None:
            field = self.places[row] + field
        elif self.lines is None:
            field = f"{field}[{row}]"
        if found is ...:
            value = _plain(self.columns[name])[row]
            found = value.item() if isinstance(value, np.generic) else value
        line = None if self.lines is None else int(self.lines[row])
        return InputError(expected, found, field=field, file=self.file, line=line)

    def typed(self, column: Column) -> Any:
        """Return a column as declared: float64, int64, lists of integers, or texts. `InputError` at the first other
        value."""
        convert: Callable[[Column], Any] = {
            "number": self._numbers, "integer": self._integers, "integers": self._lists, "text": self._texts,
        }[column.kind]
        return convert(column)

    def seconds(self, name: str, unit: str) -> FloatArray:
        """Return times in any unit (or `timestamp`: ISO 8601) as seconds after the earliest."""
        if unit != "timestamp":
            floats = self._numbers(Column(name))
            return (floats - floats.min()) / PER_S[unit] if len(floats) else floats
        import pandas as pd

        values = list(self.columns[name])
        try:
            instants = pd.DatetimeIndex(pd.to_datetime(pd.Series(values), format="ISO8601", utc=True, errors="coerce"))
            ns = instants.as_unit("ns").asi8
        except (ValueError, TypeError, OverflowError):
            raise InputError("ISO 8601 dates and times", field=self.names.get(name, name), file=self.file) from None
        for row in np.flatnonzero(instants.isna())[:1]:
            raise self.wrong(name, int(row), "an ISO 8601 date and time", values[row])
        return (ns - ns.min()) / PER_S["ns"] if len(ns) else np.zeros(0)

    def numbered(self, name: str) -> IntArray:
        """Return values of any type as numbers in the order of their appearance; -1 for empty texts and nulls."""
        import pandas as pd

        texts = pd.Series(["" if value is None else str(value) for value in self.columns[name]], dtype=object)
        return pd.factorize(texts.where(texts != ""))[0].astype(np.int64)

    def _numbers(self, column: Column) -> FloatArray:
        values = _plain(self.columns[column.name])
        if isinstance(values, np.ndarray) and values.dtype.kind not in "iufOU":
            raise InputError("a column of numbers", Verbatim(f"one of {values.dtype}"),
                             field=self.names.get(column.name, column.name), file=self.file)
        if column.null and not (isinstance(values, np.ndarray) and values.dtype.kind in "iuf"):
            values = [np.nan if _missing(value) else value for value in values]
        try:
            if not _plainly_numbers(values):
                raise ValueError
            floats = np.asarray(values, dtype=np.float64)
            if floats.ndim != 1:
                raise ValueError
        except (TypeError, ValueError, OverflowError):
            for row, value in enumerate(values):
                try:
                    parse_number(value)
                except (TypeError, ValueError, OverflowError):
                    raise self.wrong(column.name, row, "a number") from None
            raise InputError("a column of numbers", field=column.name, file=self.file) from None
        bad = ~np.isfinite(floats)
        if column.null and bad.any():
            bad &= ~np.isnan(floats)
        for expected, wrong in (("a finite number", bad), (column.expected, (floats < column.low) |
                                                           (floats > column.high))):
            if wrong.any():
                raise self.wrong(column.name, int(np.argmax(wrong)), expected)
        return floats

    def _integers(self, column: Column) -> Any:
        floats = self._numbers(column)
        bad = (floats != np.rint(floats)) & ~np.isnan(floats)
        if bad.any():
            raise self.wrong(column.name, int(np.argmax(bad)), column.expected)
        if column.null and np.isnan(floats).any():
            return floats
        values = _plain(self.columns[column.name])
        if isinstance(values, np.ndarray) and values.dtype.kind in "iu":
            return values.astype(np.int64)  # exact above 2^53, unlike floats
        if len(floats) and np.abs(floats).max() > 2**53:
            return np.array([_exact(value) for value in values], dtype=np.int64)
        return floats.astype(np.int64)

    def _lists(self, column: Column) -> list[list[int]]:
        low, lists = int(column.low), []
        checked: set[int] = set()   # ids of lists; a Parquet file's equal rows are one list
        for row, items in enumerate(self.columns[column.name]):
            numbers = items.tolist() if isinstance(items, np.ndarray) else items
            if id(items) not in checked:
                if not isinstance(numbers, list) or not all(type(i) is int and low <= i < 2**62 for i in numbers):
                    raise self.wrong(column.name, row, column.expected, items)
                if numbers is items:
                    checked.add(id(items))
            lists.append(numbers)
        return lists

    def _texts(self, column: Column) -> list[str]:
        values = ["" if column.null and value is None else value for value in self.columns[column.name]]
        for row, value in enumerate(values):
            if not isinstance(value, str):
                raise self.wrong(column.name, row, column.expected)
        unseen = next((value for value in dict.fromkeys(values) if unseen_character(value) is not None), None)
        if unseen is not None:
            raise self.wrong(column.name, values.index(unseen), VISIBLE, unseen_character(unseen))
        return values


def _missing(value: Any) -> bool:
    return value is None or (isinstance(value, str) and value.strip().lower() in _NOTHING)


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


def _exact(value: Any) -> int:
    """Return the integer that a value or its text states, not the nearest float."""
    try:
        return int(value)
    except ValueError:   # "1e17"
        return int(float(value))


# -- readers -----------------------------------------------------------------------------------------------------------


def csv_table(path: Path, delimiter: str = ",", *, unnamed: bool = False) -> Table:
    """Return a CSV file with a header line, columns as lists of texts. `InputError` if it is none."""
    found = csv_rows(path, delimiter, unnamed=unnamed)
    _, header = next(found)
    columns: dict[str, list[str]] = {name: [] for name in header}
    lines: list[int] = []
    rows: list[list[str]] = []
    for line, row in found:
        rows.append(row)
        lines.append(line)
        if len(rows) == 4096:  # many small lists at once would occupy the garbage collector
            _transpose(rows, header, columns)
    _transpose(rows, header, columns)
    return Table(path, columns, lines=lines)


def _transpose(rows: list[list[str]], header: list[str], columns: dict[str, list[str]]) -> None:
    """Append the rows to the columns."""
    for name, values in zip(header, zip(*rows, strict=True), strict=False):
        columns[name].extend(values)
    rows.clear()


def json_table(path: Path, names: Sequence[str], optional: Sequence[str] = ()) -> Table:
    """Return columns of the objects in a file of JSON lines.

    names: Keys that every object must have; `a.b` is the key b of the object a. `optional` ones are None where an
    object lacks them, and left out where all do. Raises `InputError` for a missing key and anything but objects.
    """
    columns: dict[str, list[Any]] = {name: [] for name in (*names, *optional)}
    lines: list[int] = []
    for number, row in json_lines(path):
        lines.append(number)
        for name in names:
            try:
                columns[name].append(row[name] if name in row else lookup(row, name))
            except KeyError:
                raise InputError("a value", Verbatim("none"), field=name, file=str(path), line=number,
                                 suggestion=suggest(name, row)) from None
        for name in optional:
            columns[name].append(row.get(name))
    for name in optional:
        if all(value is None for value in columns[name]):
            del columns[name]
    return Table(path, columns, lines=lines)


def parquet_columns(path: Path, names: Sequence[str]) -> Table:
    """Return columns of a Parquet file: arrays of numbers, or lists. `a.b` is the key b of the struct a.

    Raises `InputError` for a missing column and for a damaged file.
    """
    import pyarrow as pa

    known = parquet_schema(path).names
    roots = [name if name in known else name.split(".", 1)[0] for name in names]
    found = parquet_table(path, list(dict.fromkeys(roots)))
    columns: dict[str, Any] = {}
    for name, root in zip(names, roots, strict=True):
        if root not in found.column_names:
            continue
        column = found.column(root)
        if pa.types.is_integer(column.type) or pa.types.is_floating(column.type):
            columns[name] = column.to_numpy()
            continue
        values = column.to_pylist()
        with suppress(KeyError):
            columns[name] = values if name == root else [lookup(value, name[len(root) + 1:]) for value in values]
    Table(path, dict.fromkeys(known)).need(name for name in names if name not in columns)
    return Table(path, columns, lines=range(1, len(found) + 1))


def lookup(row: Any, name: str) -> Any:
    """Return the value at `a.b.0` in nested objects and lists; KeyError if there is none."""
    if isinstance(row, dict) and name in row:
        return row[name]
    for part in name.split("."):
        if isinstance(row, list) and part.isdecimal() and int(part) < len(row):
            row = row[int(part)]
        elif isinstance(row, dict) and part in row:
            row = row[part]
        else:
            raise KeyError(name)
    return row


def npz_arrays(raw: bytes, file: str | os.PathLike[str], what: str) -> dict[str, npt.NDArray[Any]]:
    """Return the arrays of an `.npz` file's bytes, read-only. `InputError` for damaged files and arrays of objects."""
    try:
        with np.load(io.BytesIO(raw), allow_pickle=False) as stored:
            # an archive of a few kilobytes may hold gigabytes of zeros
            unpacked = sum(member.file_size for member in stored.zip.infolist())
            arrays = {key: stored[key] for key in stored.files} if unpacked <= MAX_UNPACKED else {}
    except (OSError, ValueError, EOFError, KeyError, TypeError, AttributeError, SyntaxError, MemoryError,
            NotImplementedError, RuntimeError, zipfile.BadZipFile, zlib.error) as error:
        raise InputError(f"{what} ({type(error).__name__})", file=os.fspath(file)) from None
    if unpacked > MAX_UNPACKED:
        raise InputError(f"{what} that unpacks to at most {MAX_UNPACKED} bytes", unpacked, file=os.fspath(file))
    for key, array in arrays.items():
        if not isinstance(array, np.ndarray):   # numpy gives the bytes of a member that is none
            raise InputError(f"{what} of arrays alone", Verbatim("another file"), file=os.fspath(file), field=key)
        array.flags.writeable = False
    return arrays
