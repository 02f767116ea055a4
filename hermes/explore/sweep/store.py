"""The store of a sweep: one folder, consistent at every moment, however the writing process ends.

    sweep.sqlite     the sweep, its points, their scenarios and outcomes, and a journal of the time each point took
    results.parquet  all points in order, written when every one has an outcome
    kept/HASH/       kept results of a point besides its figures
    lock             held by the process that runs the sweep

Every change of the database is one transaction, kept in a write-ahead log while the sweep runs: what was written
survives the end of the process at any moment, and a loss of power may lose the last outcomes but nothing else. (With
SQLite's rollback journal, each outcome waited 15 ms for the disk.) The table is written beside its place and renamed
into it.
"""

from __future__ import annotations

import json
import os
import sqlite3
import zlib
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import ExitStack, closing, contextmanager, nullcontext, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from hermes.config.files import file_digest, parquet_table, unzipped
from hermes.config.writing import remove_strays, replacing
from hermes.errors import HermesError, InputError, Verbatim
from hermes.locks import lock
from hermes.results.files.arrow import with_units

if TYPE_CHECKING:
    import pyarrow as pa

__all__ = ["FORMAT", "Checked", "Folder"]

FORMAT = 2
GROUP_ROWS = 1_000   # of results.parquet
_DATABASE, _RESULTS = "sweep.sqlite", "results.parquet"
_OURS = {_DATABASE, *(f"{_DATABASE}-{part}" for part in ("journal", "wal", "shm")), _RESULTS, "kept", "lock",
         ".lock.lock"}   # the last: beside `lock` while it is locked, on Windows
_TABLES = f"""
    BEGIN IMMEDIATE;
    CREATE TABLE IF NOT EXISTS about (key TEXT PRIMARY KEY, value TEXT);
    CREATE TABLE IF NOT EXISTS scenarios (hash TEXT PRIMARY KEY, text BLOB);
    CREATE TABLE IF NOT EXISTS outcomes (hash TEXT PRIMARY KEY, status TEXT, reason TEXT, figures TEXT, kept INTEGER);
    CREATE TABLE IF NOT EXISTS checks (key TEXT PRIMARY KEY, found TEXT, scenario BLOB);
    CREATE TABLE IF NOT EXISTS journal (hash TEXT, status TEXT, wall_s REAL, cpu_s REAL, traceback TEXT);
    PRAGMA user_version = {FORMAT};
    COMMIT;
"""
_KEPT = {"requests": "requests.parquet", "all": "summary.json"}   # written last of a point's kept files


@dataclass(frozen=True, slots=True)
class Checked:
    """What the check of a point found.

    Args:
        digest: Of the scenario's resolved text.
        files: Digests of the files that were read, by path.
    """

    seed: int
    digest: str
    files: Mapping[str, str]


class Folder:
    """The files of one sweep. Reading needs no lock; only the process that holds the lock writes."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self._writing: sqlite3.Connection | None = None
        self._logged = False

    # -- the lock and the database ---------------------------------------------------------------------------------

    @contextmanager
    def locked(self) -> Iterator[None]:
        """Make the folder and hold its lock. The system drops the lock when the process ends."""
        if self.path.exists() and not self.path.is_dir():
            raise InputError("a folder for the sweep", str(self.path))
        if self.path.is_dir() and any(entry.name not in _OURS and not entry.name.endswith(".tmp")
                                      for entry in self.path.iterdir()):
            raise InputError("a new or empty folder, or one of a sweep", str(self.path))
        self.path.mkdir(parents=True, exist_ok=True)
        with open(self.path / "lock", "a+", encoding="ascii") as holder, ExitStack() as held:
            try:
                held.enter_context(lock(self.path / "lock"))
            except OSError:
                holder.seek(0)
                pid = holder.read(20).strip()
                raise InputError("a sweep that no other process is running" + (f" (process {pid} is)" if pid else ""),
                                 file=str(self.path)) from None
            holder.truncate(0)
            holder.write(f"{os.getpid()}\n")
            holder.flush()
            remove_strays(self.path)
            try:
                with closing(self._connect(create=True)) as self._writing:
                    try:
                        yield
                    finally:
                        self._close_log()
            finally:
                self._writing = None
            holder.truncate(0)

    def _open_log(self, database: sqlite3.Connection) -> None:
        """Use a write-ahead log, where the file system can hold one."""
        if not self._logged and database.execute("PRAGMA journal_mode = WAL").fetchone()[0] == "wal":
            database.execute("PRAGMA synchronous = NORMAL")
        self._logged = True

    def _close_log(self) -> None:
        """Have everything in one file again, which can be read in a folder that cannot be written. If another process
        is reading, the log stays until the next run."""
        if self._logged and self._writing is not None:
            with suppress(sqlite3.Error):
                self._writing.execute("PRAGMA busy_timeout = 1000")
                self._writing.execute("PRAGMA journal_mode = DELETE")
        self._logged = False

    @property
    def database(self) -> Path:
        return self.path / _DATABASE

    def _connect(self, *, create: bool = False) -> sqlite3.Connection:
        """Return the database, with its tables if `create`. Raises `InputError` for a missing or foreign file."""
        if not create and not self.database.is_file():
            raise InputError(f"the folder of a sweep (one with a {_DATABASE})", str(self.path))
        connection = None
        try:
            # autocommit: transactions are explicit
            connection = sqlite3.connect(self.database, timeout=60, isolation_level=None, check_same_thread=False)
            found = connection.execute("PRAGMA user_version").fetchone()[0]
            tables = "SELECT count(*) FROM sqlite_master WHERE name = 'checks'"
            if create and (not found or (found == FORMAT and not connection.execute(tables).fetchone()[0])):
                connection.executescript(_TABLES)
                found = FORMAT
        except sqlite3.Error as error:
            if connection is not None:
                connection.close()
            raise self._broken(error) from None
        if found != FORMAT:
            connection.close()
            raise InputError(f"a sweep of format {FORMAT}", Verbatim(f"format {found}"), file=str(self.database))
        return connection

    def _broken(self, error: Exception) -> InputError:
        return InputError("the database of a sweep (remove it and run the sweep again)", Verbatim(str(error)),
                          file=str(self.database))

    def _rows(self, query: str, *values: object, read: Callable[..., Any] = lambda *row: row) -> list[Any]:
        """Return the rows of a query, each passed through `read`. Raises `InputError` for unexpected content."""
        held = self._writing
        with nullcontext(held) if held is not None else closing(self._connect()) as database:
            try:
                return [read(*row) for row in database.execute(query, values)]
            except (sqlite3.Error, zlib.error, ValueError, TypeError, KeyError, AttributeError) as error:
                raise self._broken(error) from None

    def _write(self, *statements: tuple[str, Iterable[tuple[Any, ...]]]) -> None:
        """Execute several statements, each for several rows, as one transaction."""
        assert self._writing is not None, "the lock is not held"
        try:
            self._open_log(self._writing)
            self._writing.execute("BEGIN IMMEDIATE")
            try:
                for statement, rows in statements:
                    self._writing.executemany(statement, rows)
                self._writing.execute("COMMIT")
            finally:
                if self._writing.in_transaction:
                    self._writing.execute("ROLLBACK")
        except sqlite3.Error as error:   # for example a full disk, or a missing folder
            raise HermesError(f"cannot write {self.database}: {error}") from None

    # -- writing ---------------------------------------------------------------------------------------------------

    def write_manifest(self, manifest: Mapping[str, Any], checks: Mapping[str, str]) -> None:
        """Write the sweep's description, and the scenario of each hash. checks: by hash, the key of its check."""
        self._write(
            ("REPLACE INTO about VALUES ('manifest', ?)", [(json.dumps(manifest),)]),
            ("DELETE FROM scenarios", [()]),
            ("INSERT INTO scenarios SELECT ?, scenario FROM checks WHERE key = ?", checks.items()),
        )

    def write_outcome(
        self, key: str, status: str, reason: str | None, figures: Mapping[str, Any], keep: str,
        took: tuple[float, float, str | None],
    ) -> None:
        """Write the outcome of a point, and a line in the journal. took: wall and CPU seconds, and the traceback if
        any."""
        self._write(
            ("REPLACE INTO outcomes VALUES (?, ?, ?, ?, ?)",
             [(key, status, reason, json.dumps(figures), self._kept_bytes(key, keep))]),
            ("INSERT INTO journal VALUES (?, ?, ?, ?, ?)", [(key, status, *took)]),
        )

    def _kept_bytes(self, key: str, keep: str) -> int | None:
        """Return the size of the kept file that is written last, or None if nothing is kept."""
        path = self.path / "kept" / key / _KEPT.get(keep, "")
        return path.stat().st_size if keep in _KEPT and path.is_file() else None

    def write_checks(self, checks: Iterable[tuple[str, Checked, str]]) -> None:
        """Write (key, what the check found, the scenario) of checks."""
        self._write(("REPLACE INTO checks VALUES (?, ?, ?)", (
            (key, json.dumps([str(found.seed), found.digest, found.files]), zlib.compress(text.encode(), 1))
            for key, found, text in checks)))

    def write_results(self, tables: Iterable[pa.Table], plan: str) -> None:
        """Write the tables of all points as one; `plan` identifies the sweep it belongs to (see `finished_plan`)."""
        with replacing(self.path / _RESULTS) as temporary:
            _write_parquet(tables, temporary)
            digest = _digest(temporary)
        self._write(("REPLACE INTO about VALUES (?, ?)", [("results", digest), ("plan", plan)]))

    def drop_results(self) -> None:
        self._write(("DELETE FROM about WHERE key IN ('results', 'plan')", [()]))
        (self.path / _RESULTS).unlink(missing_ok=True)

    # -- reading ---------------------------------------------------------------------------------------------------

    def _about(self, key: str) -> str | None:
        found = self._rows("SELECT value FROM about WHERE key = ?", key, read=str)
        return found[0] if found else None

    def manifest(self) -> dict[str, Any]:
        """Return the sweep's name, description, version and points. Raises `InputError` for a folder without a
        sweep."""
        found = self._rows("SELECT value FROM about WHERE key = 'manifest'", read=_manifest)
        if not found:
            raise InputError("a sweep whose points were checked (run it again)", file=str(self.path))
        return found[0]  # type: ignore[no-any-return]

    def finished_plan(self) -> str | None:
        """Return the `plan` of the table of all points, or None if the table is missing or was changed."""
        path = self.path / _RESULTS
        digest = self._about("results")
        return self._about("plan") if digest is not None and path.is_file() and _digest(path) == digest else None

    def results(self) -> pa.Table | None:
        """Return the table of all points, or None if it is missing or was changed."""
        return None if self.finished_plan() is None else parquet_table(self.path / _RESULTS)

    def scenario_text(self, key: str) -> str:
        found = self._rows("SELECT text FROM scenarios WHERE hash = ?", key, read=unzipped)
        if not found:
            raise self._broken(KeyError(key))
        return bytes(found[0]).decode()

    def outcomes(self, keys: Sequence[str] | None = None) -> dict[str, dict[str, Any]]:
        """Return the outcomes of points that have one, by hash: hash, status, reason, figures. keys: of these only."""
        query, values = "SELECT hash, status, reason, figures FROM outcomes", tuple(keys or ())
        if keys is not None:
            query += f" WHERE hash IN ({', '.join('?' * len(values))})"
        return {row["hash"]: row for row in self._rows(query, *values, read=_outcome)}

    def outcome(self, key: str) -> dict[str, Any] | None:
        """Return the outcome of a point, or None before it has one."""
        rows = self._rows("SELECT hash, status, reason, figures FROM outcomes WHERE hash = ?", key, read=_outcome)
        return rows[0] if rows else None

    def reasons(self) -> dict[str, str | None]:
        """Return the reasons of failures by hash; None for points that succeeded."""
        rows = self._rows("SELECT hash, status, reason FROM outcomes")
        return {key: None if status == "ok" else str(reason) for key, status, reason in rows}

    def finished(self, keep: str) -> set[str]:
        """Return the hashes with an outcome and all their kept files. Failed points are left out, and tried again."""
        if not self.database.is_file():
            return set()
        rows = self._rows("SELECT hash, kept FROM outcomes WHERE status = 'ok'")
        return {key for key, kept in rows if keep not in _KEPT or (kept and self._kept_bytes(key, keep) == kept)}

    def checks(self) -> dict[str, Checked]:
        """Return what earlier checks found, so that points need not be built again to know it. A damaged entry is
        skipped: its point is checked again."""
        if not self.database.is_file():
            return {}
        same: dict[str, dict[str, str]] = {}   # most points read the same files: each dict is in memory once
        rows = self._rows("SELECT key, found FROM checks", read=lambda key, found: (key, _checked(found, same)))
        return {key: found for key, found in rows if found is not None}

    def journal(self) -> list[dict[str, Any]]:
        names = ("hash", "status", "wall_s", "cpu_s", "traceback")
        return self._rows(f"SELECT {', '.join(names)} FROM journal",
                          read=lambda *row: dict(zip(names, row, strict=True)))


def _write_parquet(tables: Iterable[pa.Table], path: Path) -> None:
    """Write tables of one schema, collected into groups of rows."""
    import pyarrow as pa
    import pyarrow.parquet as pq

    rest = map(with_units, tables)
    group = [next(rest)]
    with pq.ParquetWriter(path, group[0].schema, compression="zstd", write_statistics=False,
                          use_dictionary=False) as writer:
        for table in rest:
            if sum(map(len, group)) >= GROUP_ROWS:
                writer.write_table(pa.concat_tables(group))
                group = []
            group.append(table)
        writer.write_table(pa.concat_tables(group))


def _manifest(text: str) -> dict[str, Any]:
    manifest: dict[str, Any] = json.loads(text)
    if not all(isinstance(point, dict) and isinstance(point["hash"], str) for point in manifest["points"]):
        raise ValueError("points without a hash")
    return manifest


def _checked(text: str, same: dict[str, dict[str, str]]) -> Checked | None:
    try:
        seed, digest, files = json.loads(text)
        return Checked(int(seed), str(digest), same.setdefault(str(files), {str(k): str(v) for k, v in files.items()}))
    except (ValueError, TypeError, AttributeError):
        return None


def _outcome(key: str, status: str, reason: str | None, figures: str) -> dict[str, Any]:
    return {"hash": key, "status": status, "reason": reason, **json.loads(figures)}


def _digest(path: Path) -> str:
    """The hash of the table; "" where it is none that could have been written."""
    try:
        return file_digest(path)
    except InputError:
        return ""
