"""Bounded, strict readers of untrusted files: bytes, text, JSON, JSON lines, CSV, Parquet.

Every reader refuses anything but a regular file (a FIFO would block, a device may be endless), stops at a stated size,
and raises `InputError` with one line that names the file. `hermes.config.writing` has the writers.
"""

from __future__ import annotations

import csv
import hashlib
import io
import json
import os
import re
import stat
import zlib
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, BinaryIO, TypeVar
from unicodedata import category

from hermes.config.data_files import note_file
from hermes.errors import InputError, Verbatim

if TYPE_CHECKING:
    import pandas as pd
    import pyarrow as pa

__all__ = [
    "DATA_SUFFIXES", "MAX_BYTES", "MAX_DOCUMENT_BYTES", "MAX_JSON_BYTES", "MAX_ROWS", "MAX_UNPACKED", "VISIBLE",
    "beside", "csv_rows", "file_digest", "half_character", "is_parquet", "json_lines", "kind_of_file", "open_file",
    "parquet_column", "parquet_frame", "parquet_metadata", "parquet_schema", "parquet_table", "parse_json",
    "read_bytes", "read_json", "read_text", "relative_name", "require_file", "text_lines", "unseen_character",
    "unzipped",
]

MAX_BYTES = 8 * 2**20         # of a file that people write
MAX_JSON_BYTES = 256 * 2**20  # of a JSON file that a program writes
MAX_DOCUMENT_BYTES = 2 * 2**30   # of a JSON document that another tool writes: a data set of conversations has 0.7 GB
MAX_TABLE_BYTES = 4 * 2**30   # of a file whose content is hashed
MAX_UNPACKED = 2**30          # of what a compressed file holds
MAX_LINE = 64 * 2**20         # characters of one line of a trace: a prompt's token ids stand in one
DATA_SUFFIXES = (".yaml", ".yml", ".py", ".json", ".jsonl", ".csv", ".parquet")   # of files that scenarios name
MAX_ROWS = 100_000_000        # of a table

_UNPRINTABLE = re.compile("[\x00-\x08\x0b\x0c\x0e-\x1f\x7f\ufffe\uffff]")
_SURROGATE = re.compile("[\ud800-\udfff]")   # half a character: JSON can escape it, UTF-8 cannot hold it
T = TypeVar("T")
_NEVER_WAIT = getattr(os, "O_NONBLOCK", 0) | getattr(os, "O_NOCTTY", 0)   # for the writer of a FIFO; not on Windows
_KINDS = {
    stat.S_IFIFO: "a FIFO", stat.S_IFCHR: "a device", stat.S_IFBLK: "a device", stat.S_IFSOCK: "a socket",
    stat.S_IFDIR: "a directory",
}


def kind_of_file(mode: int) -> str | None:
    """Return "a FIFO", "a device", "a socket" or "a directory" for `st_mode`; None for a regular file."""
    return None if stat.S_ISREG(mode) else _KINDS.get(stat.S_IFMT(mode), "something else")


def _unreadable(what: str, path: str | os.PathLike[str], error: Exception) -> InputError:
    """Return the error of a path that the system refused; a name with a null byte is shown escaped."""
    if isinstance(error, OSError):
        reason = "a directory" if os.path.isdir(path) else str(error.strerror or error).lower()
        return InputError(what, Verbatim(reason), file=os.fspath(path))
    return InputError(what, os.fspath(path))


def require_file(path: str | os.PathLike[str], what: str = "a readable file") -> None:
    """Raise `InputError` unless `path` is a regular file. For libraries that open files themselves."""
    try:
        kind = kind_of_file(os.stat(path).st_mode)
    except (OSError, ValueError) as error:
        raise _unreadable(what, path, error) from None
    if kind is not None:
        raise InputError(what, Verbatim(kind), file=os.fspath(path))


def open_file(path: str | os.PathLike[str], what: str = "a readable file") -> BinaryIO:
    """Open a regular file for reading bytes. Never blocks; raises `InputError` for anything else."""
    note_file(os.fspath(path))
    try:
        file = open(  # noqa: SIM115  (the caller closes it)
            path, "rb", opener=lambda name, flags: os.open(name, flags | _NEVER_WAIT)
        )
    except (OSError, ValueError) as error:
        raise _unreadable(what, path, error) from None
    kind = kind_of_file(os.fstat(file.fileno()).st_mode)
    if kind is not None:
        file.close()
        raise InputError(what, Verbatim(kind), file=os.fspath(path))
    return file


def read_bytes(
    path: str | os.PathLike[str], max_bytes: int = MAX_BYTES, what: str = "a readable file",
) -> bytes:
    """Return the content of a regular file of at most `max_bytes`; raises `InputError` for anything else."""
    with open_file(path, what) as file:
        try:
            size = os.fstat(file.fileno()).st_size
            large, parts, left = size > max_bytes, [], max_bytes + 1
            # what it has, and what it gained since: `read(n)` asks for n bytes of memory at once
            while not large and left and (part := file.read(min(left, max(size + 1, 1 << 16)))):
                parts.append(part)
                left -= len(part)
                size = 0
            raw = b"".join(parts)
        except OSError as error:
            raise _unreadable(what, path, error) from None
    if large or len(raw) > max_bytes:
        raise InputError(f"a file of at most {max_bytes} bytes", Verbatim("a larger one"), file=os.fspath(path))
    return raw


def file_digest(path: str | os.PathLike[str], max_bytes: int = MAX_TABLE_BYTES) -> str:
    """The SHA-256 of a file's bytes in hexadecimal; `InputError` for one that is no file or larger."""
    digest = hashlib.sha256()
    with open_file(path) as file:
        if os.fstat(file.fileno()).st_size > max_bytes:
            raise InputError(f"a file of at most {max_bytes} bytes", Verbatim("a larger one"), file=os.fspath(path))
        try:
            while block := file.read(1 << 20):
                digest.update(block)
        except OSError as error:
            raise _unreadable("a readable file", path, error) from None
    return digest.hexdigest()


def read_text(path: str | os.PathLike[str], max_bytes: int = MAX_BYTES, *, printable: bool = True) -> str:
    """Return the text of a UTF-8 file. Raises `InputError` if it cannot be read, is too large or (`printable`) has
    control characters."""
    name, raw = os.fspath(path), read_bytes(path, max_bytes)
    try:
        text = raw.decode("utf-8-sig")
    except UnicodeDecodeError as error:
        found = Verbatim(f"byte 0x{raw[error.start]:02x} at offset {error.start}")
        raise InputError("UTF-8 text", found, file=name, line=raw.count(b"\n", 0, error.start) + 1) from None
    bad = _UNPRINTABLE.search(text) if printable else None
    if bad:
        line = text.count("\n", 0, bad.start()) + 1
        raise InputError("printable text", Verbatim(f"character U+{ord(bad[0]):04X}"), file=name, line=line)
    return text


def half_character(text: str) -> Verbatim | None:
    """Return the first lone surrogate in `text` as messages show it, or None; such text cannot be written in UTF-8."""
    bad = None if text.isascii() else _SURROGATE.search(text)
    return None if bad is None else Verbatim(f"U+{ord(bad[0]):04X}, half of one")


def unzipped(data: bytes) -> bytes:
    """Return what zlib has packed, of at most `MAX_UNPACKED` bytes: a thousandth of that may be enough for it.

    Raises `ValueError` or `zlib.error` for more, and for data of another kind.
    """
    packed = zlib.decompressobj()
    found = packed.decompress(data, MAX_UNPACKED)
    if not packed.eof:
        raise ValueError(f"it is cut off, or unpacks to more than {MAX_UNPACKED} bytes")
    return found


VISIBLE = "text without direction marks and zero-width characters"
_BLANK = frozenset(map(chr, (0x34f, 0x115f, 0x1160, 0x17b4, 0x17b5, 0x3164, 0xffa0, *range(0x180b, 0x1810),
                             *range(0xfe00, 0xfe10), *range(0xe0100, 0xe01f0))))   # that nobody sees, beside formats


def unseen_character(text: str) -> Verbatim | None:
    """Return the first character of `text` that is not seen, as messages show it: it turns the text around or has no
    width, so that two names look alike. None without one."""
    bad = "" if text.isascii() else next((c for c in text if c in _BLANK or category(c) == "Cf"), "")
    return Verbatim(f"character U+{ord(bad):04X}") if bad else None


# -- JSON --------------------------------------------------------------------------------------------------------------


def read_json(path: str | os.PathLike[str], max_bytes: int = MAX_BYTES, *, unknown: bool = False) -> Any:
    """Return the content of a JSON file.

    unknown: Whether NaN and infinities, which Python's own writer writes, become null.

    Raises `InputError` with line and column for invalid JSON, duplicate keys, NaN, an infinity, a number beyond the
    range of floats or half a character.
    """
    text = read_text(path, max_bytes, printable=max_bytes <= MAX_JSON_BYTES)
    return parse_json(text, os.fspath(path), unknown=unknown)


def parse_json(text: str, file: str, line: int | None = None, *, unknown: bool = False) -> Any:
    """Parse JSON `text` from `file`, with the same errors; line: its line in the file, for a text of one line."""
    try:
        value = json.loads(text, object_pairs_hook=_once, parse_constant=_null if unknown else _no_constant,
                           parse_float=_finite)
        if "\\ud" in text or "\\uD" in text:
            _check_characters(value)
        return value
    except _TwiceError as error:
        at, field = _second(text)
        raise InputError("each key once", Verbatim(f"{error.args[0]!r} again"), file=file, line=line or at,
                         field=field) from None
    except _ValueRefusedError as error:
        raise InputError(error.args[0], error.args[1], file=file, line=line) from None
    except json.JSONDecodeError as error:
        raise InputError(f"valid JSON ({error.msg})", file=file, line=line or error.lineno,
                         column=error.colno) from None
    except (ValueError, RecursionError) as error:
        raise InputError(f"valid JSON ({type(error).__name__})", file=file, line=line) from None


class _TwiceError(Exception):
    """A key that its object already has."""


class _ValueRefusedError(Exception):
    """A refused value: (what is expected, what was found)."""


def _once(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    out = dict(pairs)
    if len(out) < len(pairs):
        keys = [key for key, _ in pairs]
        raise _TwiceError(next(key for index, key in enumerate(keys) if key in keys[:index]))
    return out


def _check_characters(value: Any) -> None:
    waiting = [value]
    while waiting:
        item = waiting.pop()
        if isinstance(item, dict):
            waiting += [*item, *item.values()]
        elif isinstance(item, list):
            waiting += item
        elif isinstance(item, str) and (half := half_character(item)) is not None:
            raise _ValueRefusedError("whole characters", half)


def _null(name: str) -> Any:
    return None


def _no_constant(name: str) -> Any:
    raise _ValueRefusedError("finite numbers", Verbatim(name))


def _finite(text: str) -> float:
    number = float(text)
    if number in (float("inf"), float("-inf")):
        raise _ValueRefusedError("finite numbers", Verbatim(text[:40]))
    return number


_TOKEN = re.compile(r'(?P<text>"(?:[^"\\]|\\.)*")(?P<key>\s*:)?|[{}\[\],]')


def _second(text: str) -> tuple[int | None, str | None]:
    """Return line and path of the first duplicate key in valid JSON."""
    inside: list[tuple[str, set[str]]] = []   # per open object or list: its key, and the keys so far
    key = ""
    for token in _TOKEN.finditer(text):
        mark = token[0]
        if token["text"] is None:
            if mark in "{[":
                inside.append((key, set()))
            elif mark in "}]":
                inside.pop()
            key = ""
        elif token["key"] is not None:
            key, keys = json.loads(token["text"]), inside[-1][1]
            if key in keys:
                way = [name for name, _ in inside if name]
                return text.count("\n", 0, token.start()) + 1, ".".join([*way, key])
            keys.add(key)
    return None, None


# -- line by line ------------------------------------------------------------------------------------------------------


def text_lines(path: str | os.PathLike[str], what: str = "a text file") -> Iterator[str]:
    """Yield the lines of a UTF-8 file, with their ends. Raises `InputError` for unreadable files and lines without an
    end."""
    name = os.fspath(path)
    number = 0
    with open_file(path, what) as raw:
        try:
            stream = io.TextIOWrapper(raw, encoding="utf-8-sig", newline="")
            while text := stream.readline(MAX_LINE):
                number += 1
                if len(text) == MAX_LINE:
                    raise InputError(f"{what} with lines of less than {MAX_LINE} characters", Verbatim("a longer one"),
                                     file=name, line=number)
                if number > MAX_ROWS:
                    raise InputError(f"{what} of at most {MAX_ROWS} lines", Verbatim("more"), file=name)
                yield text
        except UnicodeDecodeError:
            raise InputError(f"{what} in UTF-8", Verbatim("bytes that are not"), file=name, line=number + 1) from None
        except OSError as error:
            raise _unreadable(what, path, error) from None


def json_lines(path: str | os.PathLike[str]) -> Iterator[tuple[int, dict[str, Any]]]:
    """Yield (line number, object) for each non-blank line of a JSON-lines file. Raises `InputError` for other lines."""
    name = os.fspath(path)
    for number, text in enumerate(text_lines(path, "a file of JSON lines"), start=1):
        if not text.strip():
            continue
        row = parse_json(text, name, number)
        if not isinstance(row, dict):
            raise InputError("a JSON object", row, file=name, line=number)
        yield number, row


def csv_rows(
    path: str | os.PathLike[str], delimiter: str = ",", *, unnamed: bool = False,
) -> Iterator[tuple[int, list[str]]]:
    """Yield (line it ends on, cells) for each non-empty row of a CSV file, the header first, all of its length.

    Args:
        path: The file.
        unnamed: Whether columns may lack a name, as the row numbers that pandas writes.

    Raises `InputError` if a row has another number of cells, or column names are missing or not distinct.
    """
    name = os.fspath(path)
    reader = csv.reader(text_lines(path, "a CSV file"), delimiter=delimiter, strict=True)
    header: list[str] | None = None
    try:
        for row in reader:
            if header is None:
                header = [cell.strip() for cell in row]
                named = [name for name in header if name] if unnamed else header
                if not named or "" in named or len(set(named)) != len(named):
                    raise InputError("a header line with distinct column names", header, file=name, line=1)
                yield reader.line_num, header
            elif row and len(row) != len(header):
                raise InputError(f"{len(header)} fields", Verbatim(str(len(row))), file=name, line=reader.line_num)
            elif row:
                yield reader.line_num, row
    except csv.Error as error:
        raise InputError(f"a CSV file ({error})", file=name, line=reader.line_num or 1) from None
    if header is None:
        raise InputError("a header line with distinct column names", Verbatim("an empty file"), file=name, line=1)


# -- Parquet -----------------------------------------------------------------------------------------------------------


def parquet_table(
    path: str | os.PathLike[str], columns: Sequence[str] | None = None, *, what: str = "a Parquet file",
    max_rows: int = MAX_ROWS,
) -> pa.Table:
    """Return the columns (all, or those of the given names that exist) of a Parquet file, as checked Arrow data.

    Raises `InputError` for a damaged or truncated file, duplicate columns, and too many rows.
    """
    import pyarrow.parquet as pq

    def read() -> pa.Table:
        with pq.ParquetFile(os.fspath(path)) as file:
            _check_rows(file, path, max_rows)
            names = file.schema_arrow.names
            chosen = None if columns is None else [name for name in columns if name in names]
            table = file.read(chosen, use_threads=file.metadata.num_rows > 100_000)
        table.validate(full=True)
        return table

    return _guarded(read, path, what)


def parquet_frame(path: str | os.PathLike[str]) -> pd.DataFrame:
    """The whole of a Parquet file as a DataFrame. Raises `InputError` as `parquet_table` does."""
    frame: pd.DataFrame = _guarded(lambda: parquet_table(path).to_pandas(), path, "a Parquet file")
    return frame


def parquet_column(path: str | os.PathLike[str], name: str, what: str = "a Parquet file") -> Iterator[pa.Array]:
    """Yield a column of a Parquet file some thousand rows at a time. Raises `InputError` as above."""
    import pyarrow.parquet as pq

    file = _guarded(lambda: pq.ParquetFile(os.fspath(path), buffer_size=1 << 20), path, what)   # not the whole column
    with file:
        _check_rows(file, path, MAX_ROWS)
        batches = _guarded(lambda: file.iter_batches(batch_size=4096, columns=[name]), path, what)
        while True:
            batch: pa.RecordBatch | None = _guarded(lambda: _checked_next(batches), path, what)
            if batch is None:
                return
            yield batch.column(0)


def _checked_next(batches: Iterator[pa.RecordBatch]) -> pa.RecordBatch | None:
    batch = next(batches, None)
    if batch is not None:
        batch.validate(full=True)
    return batch


def parquet_schema(path: str | os.PathLike[str], what: str = "a Parquet file") -> pa.Schema:
    """Return names and types of the columns of a Parquet file, and its metadata. Raises `InputError` as above."""
    import pyarrow.parquet as pq

    def read() -> pa.Schema:
        with pq.ParquetFile(os.fspath(path)) as file:
            _check_rows(file, path, MAX_ROWS)
            return file.schema_arrow

    return _guarded(read, path, what)


def parquet_metadata(path: str | os.PathLike[str], what: str = "a Parquet file") -> tuple[int, list[str]]:
    """Return (rows, names of the columns) of a Parquet file, from its footer. Raises `InputError` without one."""
    import pyarrow.parquet as pq

    def read() -> tuple[int, list[str]]:
        with pq.ParquetFile(os.fspath(path)) as file:
            return file.metadata.num_rows, list(file.schema_arrow.names)

    return _guarded(read, path, what)


def is_parquet(path: str | os.PathLike[str]) -> bool:
    """Whether a complete Parquet file with at least one row exists: its footer is written last."""
    try:
        return parquet_metadata(path)[0] > 0
    except InputError:
        return False


def _check_rows(file: Any, path: str | os.PathLike[str], max_rows: int) -> None:
    names = file.schema_arrow.names
    if len(set(names)) < len(names):
        raise InputError("columns with distinct names", Verbatim(", ".join(names)), file=os.fspath(path))
    if file.metadata.num_rows > max_rows:   # a tiny file can claim any number of rows
        raise InputError(f"at most {max_rows} rows", file.metadata.num_rows, file=os.fspath(path))


def _guarded(read: Callable[[], T], path: str | os.PathLike[str], what: str) -> T:
    """Return the result of `read` for the Parquet file `path`; every failure becomes an `InputError`."""
    import pyarrow as pa

    note_file(os.fspath(path))
    require_file(path, what)
    try:
        return read()
    except InputError:
        raise
    except OSError as error:
        reason = (error.strerror or "").lower()
    except (pa.ArrowException, ValueError, TypeError, KeyError, IndexError, NotImplementedError, RecursionError,
            OverflowError, MemoryError):
        reason = ""
    raise InputError(what, Verbatim(reason or "one that is damaged, or not Parquet"), file=os.fspath(path)) from None


def beside(path: Path, name: str) -> Path:
    """Return the file `name` in the folder of `path`. Raises `InputError` for a name outside it (`../x`, `/x`)."""
    if name in ("", ".", "..") or "/" in name or "\\" in name or "\0" in name:
        raise InputError("the name of a file beside this one", name, file=str(path))
    return path.with_name(name)


def relative_name(path: str | os.PathLike[str], folder: str | os.PathLike[str]) -> str:
    """Return a path relative to a folder, with slashes; the whole path where it is on another drive (Windows)."""
    try:
        return Path(os.path.relpath(path, folder)).as_posix()
    except ValueError:
        return Path(path).resolve().as_posix()
