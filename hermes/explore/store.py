"""A sweep's folder: what stands in it, and how it is written so that it is whole at every moment.

    sweep.json        what the sweep is: its name, its points by number, their settings, seeds and hashes
    scenarios.parquet the resolved scenario of every point, by hash; paths relative to this folder
    parts/HASH.parquet  the outcome of one point, one row
    results.parquet   all points in order, written when every one has an outcome
    kept/HASH/        what is kept of a point besides its figures
    journal.jsonl     what each point took, and tracebacks: nothing here is the same twice
    checked.json      which files each scenario reads, so that points need not be built again to know their hash
    lock              held by the process that runs the sweep

Files are written beside their place, flushed to disk and renamed into it: a part that is there is whole.
"""

from __future__ import annotations

import fcntl
import json
import os
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import IO, TYPE_CHECKING, Any

from hermes.errors import HermesError, InputError

if TYPE_CHECKING:
    import pyarrow as pa

__all__ = ["FORMAT", "Folder", "columns_of", "table_of"]

FORMAT = 1
_OURS = {"sweep.json", "scenarios.parquet", "parts", "results.parquet", "kept", "journal.jsonl", "checked.json", "lock"}


class Folder:
    """The files of one sweep. Reading needs no lock; whoever writes holds it."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self.parts = path / "parts"

    # -- the lock --------------------------------------------------------------------------------------------------

    @contextmanager
    def locked(self) -> Iterator[None]:
        """Make the folder and hold its lock. The system drops the lock when the process ends, however it does."""
        if self.path.exists() and not self.path.is_dir():
            raise InputError("a folder for the sweep", str(self.path))
        if self.path.is_dir() and any(entry.name not in _OURS and not entry.name.endswith(".tmp")
                                      for entry in self.path.iterdir()):
            raise InputError("a new or empty folder, or one of a sweep", str(self.path))
        self.parts.mkdir(parents=True, exist_ok=True)
        with open(self.path / "lock", "a+", encoding="ascii") as lock:
            try:
                fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except OSError:
                lock.seek(0)
                holder = lock.read(20).strip()
                raise InputError(
                    "a sweep that no other process is running" + (f" (process {holder} is)" if holder else ""),
                    file=str(self.path)) from None
            lock.truncate(0)
            lock.write(f"{os.getpid()}\n")
            lock.flush()
            self._clean()
            yield
            lock.truncate(0)

    def _clean(self) -> None:
        """Remove what a process that was killed had half written."""
        for folder in (self.path, self.parts):
            for stray in folder.glob(".*.tmp"):
                stray.unlink(missing_ok=True)

    # -- writing ---------------------------------------------------------------------------------------------------

    def _replace(self, path: Path, content: bytes) -> None:
        temporary = path.with_name(f".{path.name}.{os.getpid()}.tmp")
        try:
            with open(temporary, "wb") as file:
                file.write(content)
                file.flush()
                os.fsync(file.fileno())
            temporary.replace(path)
        finally:
            temporary.unlink(missing_ok=True)
        self._sync(path.parent)

    @staticmethod
    def _sync(folder: Path) -> None:
        """A rename is on disk once its folder is."""
        handle = os.open(folder, os.O_RDONLY)
        try:
            os.fsync(handle)
        finally:
            os.close(handle)

    def write_table(self, path: Path, table: pa.Table) -> None:
        import pyarrow as pa
        import pyarrow.parquet as pq

        sink = pa.BufferOutputStream()
        pq.write_table(table, sink, compression="zstd", write_statistics=False, use_dictionary=False)
        self._replace(path, sink.getvalue().to_pybytes())

    def write_manifest(self, manifest: Mapping[str, Any], scenarios: Mapping[str, str]) -> None:
        """Scenarios first: whoever finds a manifest finds them."""
        self.write_table(self.path / "scenarios.parquet", table_of(
            [{"hash": key, "scenario": text} for key, text in scenarios.items()], ["hash", "scenario"]))
        text = json.dumps({"format": FORMAT, **manifest}, indent=1, ensure_ascii=False) + "\n"
        self._replace(self.path / "sweep.json", text.encode())

    def write_part(self, key: str, row: Mapping[str, Any]) -> None:
        self.write_table(self.parts / f"{key}.parquet", table_of([dict(row)], list(row)))

    def write_checked(self, checked: Mapping[str, Any]) -> None:
        self._replace(self.path / "checked.json", json.dumps(checked).encode())

    @contextmanager
    def journal(self) -> Iterator[Journal]:
        """Open to append; a line that a killed process left half written is ended first."""
        with open(self.path / "journal.jsonl", "a+b") as file:
            if file.tell():
                file.seek(-1, os.SEEK_END)
                if file.read(1) != b"\n":
                    file.write(b"\n")
            yield Journal(file)

    def drop_results(self) -> None:
        (self.path / "results.parquet").unlink(missing_ok=True)

    def complete(self) -> bool:
        """Whether everything has been written since the last point got its outcome."""
        return all((self.path / name).is_file() for name in ("results.parquet", "scenarios.parquet"))

    # -- reading ---------------------------------------------------------------------------------------------------

    def manifest(self) -> dict[str, Any]:
        """`sweep.json`; `InputError` where the folder is none of a sweep."""
        path = self.path / "sweep.json"
        try:
            manifest = json.loads(path.read_text(encoding="utf-8"))
            known = manifest["format"] == FORMAT
        except OSError:
            raise InputError("the folder of a sweep (one with a sweep.json)", str(self.path)) from None
        except (ValueError, KeyError, TypeError):
            known = False
        if not known:
            raise InputError(f"a sweep of format {FORMAT}", file=str(path))
        return manifest  # type: ignore[no-any-return]

    def scenario_text(self, key: str) -> str:
        import pyarrow.compute as pc

        table = _read(self.path / "scenarios.parquet")
        return str(table.filter(pc.equal(table["hash"], key))["scenario"][0].as_py())

    def part(self, key: str) -> dict[str, Any] | None:
        """The outcome of a point, None where there is none yet."""
        path = self.parts / f"{key}.parquet"
        if not path.exists():
            return None
        rows: list[dict[str, Any]] = _read(path).to_pylist()
        return rows[0]

    def status(self, key: str) -> str | None:
        """`ok` or `failed`, None where a point has no outcome yet."""
        path = self.parts / f"{key}.parquet"
        return str(_read(path, ["status"])["status"][0]) if path.exists() else None

    def checked(self) -> dict[str, Any]:
        """What was found out about scenarios earlier; empty where nothing can be read."""
        try:
            found = json.loads((self.path / "checked.json").read_text(encoding="utf-8"))
        except (OSError, ValueError):
            return {}
        return found if isinstance(found, dict) else {}

    def journal_entries(self) -> list[dict[str, Any]]:
        try:
            lines = (self.path / "journal.jsonl").read_text(encoding="utf-8", errors="replace").splitlines()
        except OSError:
            return []
        entries = []
        for line in lines:
            try:
                entries.append(json.loads(line))
            except ValueError:   # half a line: the process was killed
                continue
        return entries


class Journal:
    """Lines of what is different each time."""

    def __init__(self, file: IO[bytes]) -> None:
        self._file = file

    def add(self, entry: Mapping[str, Any]) -> None:
        self._file.write(json.dumps(entry, ensure_ascii=False).encode() + b"\n")
        self._file.flush()


def _read(path: Path, columns: list[str] | None = None) -> pa.Table:
    import pyarrow as pa
    import pyarrow.parquet as pq

    try:
        with pq.ParquetFile(path) as file:
            return file.read(columns, use_threads=False)   # one row mostly: threads would take longer to start
    except (pa.ArrowException, OSError) as error:
        raise HermesError(f"{path}: not readable, remove it and run the sweep again ({error})") from None


def table_of(rows: list[dict[str, Any]], columns: Iterable[str]) -> pa.Table:
    """Rows as an Arrow table; a column has one type, whatever order its values come in."""
    import pyarrow as pa

    return pa.table({name: _array([row.get(name) for row in rows]) for name in columns})


def _array(values: list[Any]) -> pa.Array:
    """true/false, integers, floats (where any is one, or one is too large for an integer), else text."""
    import pyarrow as pa

    kinds = {type(value) for value in values if value is not None}
    if kinds <= {bool}:
        return pa.array(values, pa.bool_() if kinds else pa.float64())
    if kinds <= {int} and all(value is None or -2**63 <= value < 2**63 for value in values):
        return pa.array(values, pa.int64())
    if kinds <= {int, float} and float in kinds:
        return pa.array([None if value is None else float(value) for value in values], pa.float64())
    return pa.array([value if value is None or isinstance(value, str) else _text(value) for value in values],
                    pa.string())


def _text(value: Any) -> str:
    return str(value).lower() if isinstance(value, bool) else str(value)


def columns_of(rows: Iterable[Mapping[str, Any]]) -> list[str]:
    """The names in all rows, in the order in which they first come."""
    return list(dict.fromkeys(name for row in rows for name in row))
