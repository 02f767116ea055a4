"""Columns of long runs in temporary files.

A table of many rows is written to files without a name, one for each column, while the simulation goes on, and is read
back as memory that the system fills from the file when it is used. `columns.RowLog` decides which tables are that long.
The values are the same, so that no result depends on it.
"""

from __future__ import annotations

import math
import mmap
import os
import sys
import tempfile
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from typing import IO
from weakref import WeakSet

import numpy as np
import numpy.typing as npt

from hermes.arrays import AnyArray, IntArray
from hermes.errors import HermesError

__all__ = ["ColumnFile", "drop_pages", "stored"]

_CHUNK = 1 << 18   # values written or read at a time
_ALIGNED = 64    # bytes
_NOTHING: AnyArray = np.empty(0)
_mapped: WeakSet[mmap.mmap] = WeakSet()


def drop_pages() -> None:
    """Unmap the pages of all columns on disk: the next use of a value reads its page again, mostly from the system's
    cache of the file."""
    if sys.platform != "win32":
        for each in [*_mapped]:
            each.madvise(mmap.MADV_DONTNEED)


def stored(columns: Iterable[AnyArray]) -> list[AnyArray]:
    """Return the same columns, read-only and in one temporary file; those of equal values that take no memory as they
    are. Takes one after the other. Raises `HermesError` if there is no room for them."""
    found: list[AnyArray] = []
    places: list[tuple[int, int, np.dtype[np.generic], tuple[int, ...]]] = []   # number, place in the file, type, shape
    size = 0
    with _reported(), _temporary() as file:
        for column in columns:
            found.append(column)
            if column.nbytes and column.strides != (0,):
                found[-1] = _NOTHING   # not in memory any more when the next one is made
                places.append((len(found) - 1, size, column.dtype, column.shape))
                for low in range(0, len(column), _CHUNK):
                    file.write(np.ascontiguousarray(column[low:low + _CHUNK]).data)
                size = -(-(size + column.nbytes) // _ALIGNED) * _ALIGNED
                file.seek(size)
                drop_pages()
            del column
        file.truncate(size)
        held = _mapping(file, size) if size else b""
    for number, place, kind, shape in places:
        found[number] = np.frombuffer(held, kind, math.prod(shape), place).reshape(shape)
    return found


class ColumnFile:
    """A column of integers that grows in a temporary file. Raises `HermesError` if there is no room for it.

    narrow: Whether it is of 32 bits if all pieces are.
    """

    def __init__(self, *, narrow: bool) -> None:
        self._kind: type[np.signedinteger] = np.int32 if narrow else np.int64
        self._file: IO[bytes] | None = None   # None as long as all values are equal
        self._first = self._count = 0

    def add(self, piece: npt.NDArray[np.integer]) -> None:
        """Add values."""
        if not self._count:
            self._first = int(piece[0])
        if self._file is None and (piece == self._first).all():
            self._count += len(piece)
            return
        with _reported():
            if self._file is None:
                if not -(2**31) <= self._first < 2**31:
                    self._kind = np.int64
                self._file = _temporary()
                for low in range(0, self._count, _CHUNK):
                    self._file.write(np.full(min(_CHUNK, self._count - low), self._first, self._kind).data)
            if self._kind is np.int32 and piece.dtype != np.int32:
                self._widen(self._file)
            self._file.write(np.ascontiguousarray(piece, dtype=self._kind).data)
        self._count += len(piece)

    def _widen(self, narrow: IO[bytes]) -> None:
        """Write the values so far in 64 bits."""
        wide = _temporary()
        narrow.seek(0)
        while values := narrow.read(4 * _CHUNK):
            wide.write(np.frombuffer(values, np.int32).astype(np.int64).data)
        narrow.close()
        self._file, self._kind = wide, np.int64

    def column(self) -> IntArray:
        """Return all values, read-only: as one value that takes no memory if all are equal."""
        if self._file is None:
            return np.broadcast_to(np.int64(self._first), self._count)
        with _reported(), self._file as file:
            file.flush()
            return np.frombuffer(_mapping(file, file.tell()), self._kind)


def _temporary() -> IO[bytes]:
    return tempfile.TemporaryFile(prefix="hermes-", dir=_folder())


def _folder() -> str:
    return os.environ.get("TMPDIR") or tempfile.gettempdir()   # `tempfile` leaves out a TMPDIR that is no folder


def _mapping(file: IO[bytes], size: int) -> mmap.mmap:
    file.flush()
    found = mmap.mmap(file.fileno(), size, access=mmap.ACCESS_READ)
    _mapped.add(found)
    return found


@contextmanager
def _reported() -> Iterator[None]:
    try:
        yield
    except OSError as error:
        where = os.environ.get("TMPDIR") or tempfile.tempdir or "a temporary folder"
        raise HermesError(f"cannot keep the tables of this long run in {where}: {error.strerror or error}; give it "
                          "room, or set TMPDIR to another folder") from error
