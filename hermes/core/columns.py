"""Logs of rows that the kernel writes while it simulates.

Packing a row into a byte buffer is the cheapest way in Python to write a record that becomes numpy columns, and leaves
no Python object behind. The log turns the buffer into columns every few thousand rows. Those of a table with many rows
go to temporary files (`hermes.core.disk`).
"""

from __future__ import annotations

import ctypes
import os
import struct
import sys
from collections.abc import Iterable, Iterator
from contextlib import suppress
from dataclasses import replace
from typing import TYPE_CHECKING, TypeVar

import numpy as np
import numpy.typing as npt

from hermes.arrays import AnyArray, IntArray
from hermes.errors import InputError

if TYPE_CHECKING:
    from hermes.core.disk import ColumnFile

__all__ = [
    "MOST_ROWS", "RowLog", "StepLog", "compact", "constant", "kept", "kept_table", "parts", "release_memory",
    "rows_in_memory",
]

MOST_ROWS = "HERMES_ROWS_IN_MEMORY"
"""Environment variable: the most rows of a table that a simulation keeps in memory."""

T = TypeVar("T")
_ROWS = 8192
_NOTHING: npt.NDArray[np.integer] = np.empty(0, dtype=np.int32)
_CHUNK = 1 << 14
_MANY = 1 << 17
_MOST_ROWS = 1 << 22
_PART = 1 << 18   # rows at a time


def rows_in_memory() -> int:
    """Return from how many rows on a table is in temporary files. Raises `InputError` if `MOST_ROWS` is no number."""
    given = os.environ.get(MOST_ROWS, "")
    if given and not given.isdecimal():
        raise InputError("a number of rows", given, field=MOST_ROWS)
    return int(given) if given else _MOST_ROWS


def kept(columns: Iterable[AnyArray], rows: int) -> list[AnyArray]:
    """Return columns of a table with so many rows; in a temporary file if these are too many for memory."""
    if rows < rows_in_memory():
        return list(columns)
    from hermes.core.disk import stored  # for long runs

    return stored(columns)


def kept_table(table: T) -> T:
    """Return a dataclass with columns among its fields; those that are too long for memory in a temporary file."""
    values = {name: value for name, value in vars(table).items() if isinstance(value, np.ndarray)}
    rows = max(map(len, values.values()), default=0)
    return replace(table, **dict(zip(values, kept(values.values(), rows), strict=True)))  # type: ignore[type-var]


def parts(table: dict[str, IntArray]) -> Iterator[dict[str, IntArray]]:
    """Yield a table in parts of some 10^5 rows, and release their memory."""
    for low in range(0, len(next(iter(table.values()))), _PART):
        yield {name: column[low:low + _PART] for name, column in table.items()}
        release_memory(low)


def constant(value: int, length: int) -> IntArray:
    """Return a read-only column of equal integers that takes no memory."""
    return np.broadcast_to(np.int64(value), length)


def compact(column: IntArray) -> IntArray:
    """Return a column; if all its integers are equal, as one that takes no memory."""
    if not len(column) or not (column == column[0]).all():
        return column
    return np.broadcast_to(column[:1].copy(), len(column))


def release_memory(rows: int) -> None:
    """Give freed memory back to the system, where the C library can (glibc): it keeps what lies between live arrays.
    Give back the pages of columns in temporary files, too.

    rows: Of the tables that are at hand; for few it is not worth its time.
    """
    if rows > _MANY and sys.platform == "linux":
        with suppress(AttributeError):   # another C library
            ctypes.CDLL(None).malloc_trim(0)
    if (disk := sys.modules.get("hermes.core.disk")) is not None:
        disk.drop_pages()


class RowLog:
    """A log of rows with one integer per field.

    `add(*row)` writes one row. The hot path inlines it:
    `log.write(log.buffer, log.pos, *row); log.pos += log.size`, and `log.flush()` when `log.pos == log.limit`.
    `write_head` and `write_longer_head` write the fields of a head alone; the others are 0.
    """

    def __init__(
        self, fields: tuple[str, ...], narrow: frozenset[str] = frozenset(),
        heads: tuple[tuple[str, ...], tuple[str, ...]] = ((), ()),
    ) -> None:
        """
        Args:
            fields: In the order of `columns`.
            narrow: Fields that `columns` keeps in 32 bits: a product of two of them must fit as well.
            heads: Fields that a row begins with, twice: the longer head begins with the other one. The rest follows in
                the order of `fields`.
        """
        self.fields, self.narrow = fields, narrow
        self._places = {name: i for i, name in enumerate(dict.fromkeys((*heads[1], *fields)))}
        row = struct.Struct(f"{len(fields)}q")
        self.write, self.size, self.limit = row.pack_into, row.size, row.size * _ROWS
        self.write_head, self.write_longer_head = (struct.Struct(f"{len(head)}q").pack_into for head in heads)
        self.buffer = bytearray(self.limit)
        self.pos = 0
        self._packed: list[list[npt.NDArray[np.integer]]] = []
        self._files: list[ColumnFile] = []   # in the order of their places, once there are too many rows for memory
        self._most = rows_in_memory()
        self._count = 0

    def __len__(self) -> int:
        return self._count + self.pos // self.size

    def add(self, *row: int) -> None:
        """Write a row."""
        self.write(self.buffer, self.pos, *row)
        self.pos += self.size
        if self.pos == self.limit:
            self.flush()

    def flush(self) -> None:
        """Move the rows into columns, in 32 bits where they fit."""
        if not self.pos:
            return
        table = np.frombuffer(self.buffer, dtype=np.int64, count=self.pos // 8).reshape(-1, len(self.fields)).T
        columns: list[npt.NDArray[np.integer]] = []
        for column in table:
            low, high = column.min(), column.max()
            kind = np.int32 if low >= -(2**31) and high < 2**31 else np.int64
            columns.append(np.broadcast_to(np.array(low, kind), len(column)) if low == high else column.astype(kind))
        table[:] = 0   # what `write_head` leaves out
        self._packed.append(columns)
        self._count += table.shape[1]
        self.pos = 0
        if self._count >= self._most:
            self._write()

    def _write(self) -> None:
        """Move the pieces to files."""
        if not self._files:
            from hermes.core.disk import ColumnFile  # for long runs

            names = sorted(self.fields, key=self._places.__getitem__)
            self._files = [ColumnFile(narrow=name in self.narrow) for name in names]
        for piece in self._packed:
            for file, column in zip(self._files, piece, strict=True):
                file.add(column)
        self._packed = []

    def columns(self) -> dict[str, IntArray]:
        """Return all rows so far as columns: int64, or int32 for the counts named in `narrow` where they fit. A column
        of equal values is a read-only view of one. Empties the log: call it once, at the end."""
        self.flush()
        if self._files:
            self.buffer = bytearray()
            return {name: self._files[self._places[name]].column() for name in self.fields}
        out: dict[str, IntArray] = {}
        for name in self.fields:
            packed, i = self._packed, self._places[name]
            first = packed[0][i][0] if packed else 0
            if all((piece[i] == first).all() for piece in packed):
                out[name] = constant(int(first), self._count)
            else:
                small = name in self.narrow and all(piece[i].dtype == np.int32 for piece in packed)
                column: AnyArray = np.empty(   # Any: int32 has no type in common with `IntArray`
                    self._count, dtype=np.int32 if small else np.int64)
                at = 0
                for piece in packed:
                    column[at : at + len(piece[i])] = piece[i]
                    at += len(piece[i])
                    piece[i] = _NOTHING   # a slice would keep the rows in memory
                out[name] = column
                release_memory(self._count)
        self.buffer, self._packed = bytearray(), []
        return out


class StepLog:
    """End times (ns) of a client's steps, in order, in buffers that are never copied while the simulation runs.

    A planned run of steps writes its end times into `buffer[pos:]`. They become part of the log when `pos` moves past
    them.
    """

    def __init__(self) -> None:
        self._full: list[IntArray] = []
        self.buffer: IntArray = np.empty(64, dtype=np.int64)
        # A view of the buffer for single elements: several times faster than numpy's indexing.
        self.view = memoryview(self.buffer)  # type: ignore[arg-type]  # an ndarray is a buffer
        self.pos = 0
        self.size = len(self.buffer)

    def before(self, back: int) -> int:
        """Return the end time `back` places before `pos`; negative: of a step that is planned."""
        if back <= self.pos:
            return int(self.buffer[self.pos - back])
        back -= self.pos
        for piece in reversed(self._full):
            if back <= len(piece):
                break
            back -= len(piece)
        return int(piece[-back])

    def reserve(self, num_steps: int) -> None:
        """Make room for `num_steps` more end times in one piece, at `pos`; a new buffer begins at 0."""
        if self.pos + num_steps > len(self.buffer):
            if self.pos:
                self._full.append(self.buffer[: self.pos].copy())
            # Small at first, so that a thousand clients with little to do stay small.
            size = max(num_steps, min(_CHUNK, 2 * len(self.buffer)))
            self.buffer, self.pos = np.empty(size, dtype=np.int64), 0
            self.view, self.size = memoryview(self.buffer), size  # type: ignore[arg-type]

    def array(self) -> IntArray:
        """Return all end times so far, in one piece, which replaces the pieces: two copies would be the largest part
        of a long run's memory."""
        if self.pos or len(self._full) != 1:
            self.replace(np.concatenate([*self._full, self.buffer[: self.pos]]))
        return self._full[0]

    def replace(self, ends: IntArray) -> None:
        """Take these end times in place of all so far."""
        self._full = [ends]
        self.buffer, self.pos = np.empty(64, dtype=np.int64), 0
        self.view, self.size = memoryview(self.buffer), 64  # type: ignore[arg-type]
