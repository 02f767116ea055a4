"""Atomic writing of files, locks of folders, scratch folders, and a test for writable folders.

A file appears whole or not at all: it is written beside its place and renamed into it. Errors name the file. Temporary
files and scratch folders are locked while they are in use: what a killed process left has no lock, and is removed when
the same place is written again.
"""

from __future__ import annotations

import errno
import os
import shutil
import tempfile
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager, suppress
from glob import escape
from pathlib import Path

from hermes.config.files import kind_of_file
from hermes.errors import HermesError, InputError, Verbatim
from hermes.locks import lock

__all__ = ["check_writable", "locked", "remove_strays", "replacing", "scratch_folder", "write_bytes",
           "write_text"]

PROBE_BYTES = 1 << 16
_SCRATCH = "hermes-scratch-"
_CANNOT_LOCK = (errno.EBADF, errno.ENOLCK, errno.ENOTSUP, errno.EOPNOTSUPP, errno.ENOSYS, errno.EINVAL)


def _reason(error: OSError) -> str:
    return (error.strerror or str(error)).lower()


@contextmanager
def replacing(path: str | os.PathLike[str]) -> Iterator[Path]:
    """Give a temporary path beside `path`; it replaces `path` if the block succeeds, and is removed otherwise.

    Makes the folder if needed; a link at `path` is replaced, not followed. Raises `InputError` if `path` is not a
    regular file (a device, a folder), and `HermesError` with its name if it cannot be written.
    """
    target = Path(path)
    try:
        kind = kind_of_file(target.stat().st_mode)
    except (OSError, ValueError):
        kind = None
    if kind is not None:
        raise InputError("a file to write", Verbatim(kind), file=str(target))
    temporary = target.with_name(f".{target.name}.{os.getpid()}.tmp")
    try:
        target.parent.mkdir(parents=True, exist_ok=True)
        for stray in target.parent.glob(f".{escape(target.name)}.*.tmp"):
            with suppress(HermesError, FileNotFoundError), locked(stray):
                stray.unlink()
        temporary.touch()
        try:
            with locked(temporary):
                yield temporary
                temporary.replace(target)
        finally:
            temporary.unlink(missing_ok=True)
    except OSError as error:
        raise HermesError(f"cannot write {target}: {_reason(error)}") from error


def write_bytes(path: str | os.PathLike[str], content: bytes, *, durable: bool = False) -> None:
    """Write `content` to a file, whole or not at all; durable: it is on disk on return. Errors as of `replacing`."""
    with replacing(path) as temporary:
        with open(temporary, "wb") as file:
            file.write(content)
            if durable:
                file.flush()
                os.fsync(file.fileno())
    if durable:
        _sync(Path(path).parent)


def write_text(path: str | os.PathLike[str], text: str, *, durable: bool = False) -> None:
    """Write a text in UTF-8 with its line ends unchanged, as `write_bytes` does."""
    write_bytes(path, text.encode(), durable=durable)


def _sync(folder: Path) -> None:
    """Flush a folder: only then is a rename on disk. Windows opens no folders."""
    if not hasattr(os, "O_DIRECTORY"):
        return
    handle = os.open(folder, os.O_RDONLY)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)


def remove_strays(folder: Path) -> None:
    """Remove the temporary files of a process that was killed. Only for a folder that is locked."""
    for stray in folder.glob(".*.tmp"):
        stray.unlink(missing_ok=True)


@contextmanager
def scratch_folder(out: str | os.PathLike[str] | None = None) -> Iterator[Path]:
    """Give the folder `out`, or without one a temporary folder that is removed at the end.

    Temporary folders that killed processes left are removed, too.
    """
    if out is not None:
        yield Path(out)
        return
    place = Path(tempfile.gettempdir())
    for stray in place.glob(f"{_SCRATCH}*"):
        pid = stray.name.removeprefix(_SCRATCH).partition("-")[0]
        if not Path(f"/proc/{pid}").exists():   # a living process may have made it and not locked it yet
            with suppress(HermesError), locked(stray):
                shutil.rmtree(stray, ignore_errors=True)
    with tempfile.TemporaryDirectory(prefix=f"{_SCRATCH}{os.getpid()}-") as folder, locked(Path(folder)):
        yield Path(folder)


def check_writable(folder: Path) -> None:
    """Make `folder` and write a little into it. Raises `HermesError` if that fails or the disk is full."""
    probe = folder / f".probe.{os.getpid()}.tmp"
    try:
        folder.mkdir(parents=True, exist_ok=True)
        try:
            with open(probe, "xb") as file:
                file.write(bytes(PROBE_BYTES))
                file.flush()
                os.fsync(file.fileno())
        finally:
            probe.unlink(missing_ok=True)
    except OSError as error:
        raise HermesError(f"cannot write into {folder}: {_reason(error)}") from error


@contextmanager
def locked(folder: Path, what: str = "a folder that no other process is writing into") -> Iterator[None]:
    """Hold the lock of an existing folder or file. Raises `InputError` if another process holds it.

    The system drops the lock when the process ends (`hermes.locks`). On file systems without locks, nothing is locked.
    """
    with ExitStack() as held:
        try:
            held.enter_context(lock(folder))
        except BlockingIOError:
            raise InputError(what, Verbatim("one that another process holds"), file=str(folder)) from None
        except OSError as error:
            if error.errno not in _CANNOT_LOCK:
                raise HermesError(f"cannot lock {folder}: {_reason(error)}") from error
        yield
