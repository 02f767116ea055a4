"""Locks of files and folders between processes. The system drops them when their process ends, however it ends.

With fcntl (Linux, macOS) the file or folder itself is locked, and no lock file is left behind. Windows cannot lock a
folder, nor rename a file that is open. There, SQLite locks an empty file beside it, `.NAME.lock`, which is removed when
the lock is dropped; the file that a killed process leaves holds no lock, and the next process takes it over.
"""

from __future__ import annotations

import errno
import os
from contextlib import ExitStack, suppress
from pathlib import Path

try:
    from fcntl import LOCK_EX, LOCK_NB, flock
except ImportError:   # Windows
    HAS_FLOCK = False
else:
    HAS_FLOCK = True

__all__ = ["lock"]


def lock(path: Path) -> ExitStack:
    """Lock an existing file or folder until the result is closed. Collectors use it: standard library only.

    Raises `BlockingIOError` if it is locked already, in this process or another, and `OSError` if it cannot be locked.
    """
    with ExitStack() as held:
        if HAS_FLOCK:
            handle = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
            held.callback(os.close, handle)
            flock(handle, LOCK_EX | LOCK_NB)
        else:
            _lock_beside(path.resolve(strict=True), held)
        return held.pop_all()


def _lock_beside(path: Path, held: ExitStack) -> None:
    import sqlite3

    file = path.parent / f".{path.name}.lock"
    try:
        database = sqlite3.connect(file, timeout=0, isolation_level=None, check_same_thread=False)
        with ExitStack() as opened:
            opened.callback(database.close)
            database.execute("BEGIN EXCLUSIVE")
            opened.pop_all()
    except sqlite3.Error as error:
        number = errno.EAGAIN if error.sqlite_errorcode == sqlite3.SQLITE_BUSY else errno.EIO
        raise OSError(number, str(error), str(file)) from None   # EAGAIN: Python makes it a BlockingIOError
    held.callback(_remove, file)
    held.callback(database.close)   # first: Windows removes no file that is open


def _remove(file: Path) -> None:
    with suppress(OSError):   # another process has opened it since, and locks it next
        file.unlink()
