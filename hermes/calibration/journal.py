"""Journal of a collector: one JSON line per measured point, so that no measurement is lost.

The first line is the header; then one line per point, written and synced when the point is complete. A killed collector
continues where its journal ends: it does not measure the journal's points again, and drops a torn last line. Standard
library only: journals are written on machines that may have nothing else.

    {"kind": "header", "format": "hermes-journal/1", "plan": {...}, "environment": {...}}
    {"kind": "point", "point": "decode b=8 ctx=1024", "rows": [{...}, ...], "seconds": 1.25, ...}
    {"kind": "note", "text": "resumed", ...}
"""

from __future__ import annotations

import json
import os
import stat
from collections.abc import Iterator
from pathlib import Path
from typing import Any

__all__ = ["FORMAT", "Journal", "JournalError", "read_journal"]

FORMAT = "hermes-journal/1"
MAX_LINE = 64 * 2**20


class JournalError(ValueError):
    """The file is not a journal, or belongs to another plan."""


def _lines(path: Path) -> Iterator[tuple[dict[str, Any], int]]:
    """Yield the complete records and the offset of their end in bytes."""
    end = 0
    if not stat.S_ISREG(path.stat().st_mode):
        raise JournalError(f"{path}: not a regular file")
    with path.open("rb") as file:
        for line in iter(lambda: file.readline(MAX_LINE), b""):
            if not line.endswith(b"\n"):
                return  # torn by a kill
            try:
                record = json.loads(line)
            except (ValueError, RecursionError):
                raise JournalError(f"{path}: byte {end}: not a line of JSON") from None
            if not _is_record(record):
                raise JournalError(f"{path}: byte {end}: not a record of a journal")
            end += len(line)
            yield record, end


def _is_record(record: Any) -> bool:
    """Whether a line has the keys that resuming needs; packing the journal checks their content."""
    return isinstance(record, dict) and (record.get("kind") != "point" or (
        isinstance(record.get("point"), str) and isinstance(record.get("rows"), list)
        and isinstance(record.get("seconds", 0.0), int | float)))


def read_journal(path: Path) -> tuple[dict[str, Any], list[dict[str, Any]]]:
    """Return (header, other records in order). Raises `JournalError`."""
    records = [record for record, _ in _lines(path)]
    if not records or records[0].get("kind") != "header" or records[0].get("format") != FORMAT:
        raise JournalError(f"{path}: not a journal ({FORMAT})")
    return records[0], records[1:]


class Journal:
    """An open journal. Use as a context manager; every `write` is on disk when it returns."""

    def __init__(self, path: Path, plan: dict[str, Any], environment: dict[str, Any]) -> None:
        """Begin a journal, or continue one of an equal `plan`. Raises `JournalError`."""
        self.path = path
        self.done: set[str] = set()
        """Names of the complete points."""
        if path.exists() and path.stat().st_size:
            ends = [end for _, end in _lines(path)]
            if ends:
                header, records = read_journal(path)
                if header.get("plan") != json.loads(json.dumps(plan)):
                    raise JournalError(f"{path}: begun with another plan; choose another output or remove it")
                self.done = {record["point"] for record in records if record.get("kind") == "point"}
            with path.open("r+b") as file:
                file.truncate(ends[-1] if ends else 0)
        self._file = path.open("ab")
        if self._file.tell() == 0:
            self.write({"kind": "header", "format": FORMAT, "plan": plan, "environment": environment})
        else:
            self.write({"kind": "note", "text": "resumed", "environment": environment})

    def write(self, record: dict[str, Any]) -> None:
        """Append one record and sync it to disk."""
        self._file.write(json.dumps(record, separators=(",", ":")).encode() + b"\n")
        self._file.flush()
        os.fsync(self._file.fileno())

    def point(self, name: str, rows: list[dict[str, Any]], **more: Any) -> None:
        """Write a complete point: its measured steps, and further known values."""
        self.write({"kind": "point", "point": name, "rows": rows, **more})
        self.done.add(name)

    def __enter__(self) -> Journal:
        return self

    def __exit__(self, *_: object) -> None:
        self._file.close()
