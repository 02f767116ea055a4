"""Collector of disk reads that bypass the page cache. Standard library and numpy.

The reader writes its own file of random bytes (so that no compression helps) and unlinks it while it is open: no file
is left behind however the process ends. It reads with O_DIRECT if the file system takes it; otherwise each reading
drops the file's pages first (posix_fadvise DONTNEED). Neither bypasses caches below the operating system: those of the
device, or of the host of a virtual machine.
"""

from __future__ import annotations

import mmap
import os
import random
import shutil
import tempfile
import threading
import time
from typing import Any

import numpy as np

from hermes.calibration.collect.contention import waited_s

__all__ = ["DiskReader"]

_ALIGN = 4096
_SAMPLE_S = 2e-3
_GUESS = 50e-6           # seconds of a small read, to choose how many make a repetition


class DiskReader:
    """A file of `largest` bytes (at least 64 MiB) and sequential reads of it."""

    def __init__(self, folder: str, largest: int) -> None:
        """Raises `OSError` if the file cannot be written."""
        self.size = max(largest, 64 * 2**20)
        self._random = random.Random(0)
        free = shutil.disk_usage(folder).free
        if free < self.size + 2**30:
            raise OSError(f"{folder}: {free} bytes free, the test file needs {self.size} and 1 GiB to spare")
        write, path = tempfile.mkstemp(prefix="hermes-link-", dir=folder)
        try:
            self._file, self.method = self._open(path)
        finally:
            os.unlink(path)
        self._write(write)
        self.folder = folder

    def _open(self, path: str) -> tuple[int, str]:
        direct = getattr(os, "O_DIRECT", 0)
        if direct:
            try:
                return os.open(path, os.O_RDONLY | direct), "O_DIRECT"
            except OSError:  # tmpfs, some network file systems
                pass
        if not hasattr(os, "posix_fadvise"):
            raise OSError(f"{path}: neither O_DIRECT nor posix_fadvise here: the page cache would answer")
        return os.open(path, os.O_RDONLY), "posix_fadvise(DONTNEED)"

    def _write(self, file: int) -> None:
        rng = np.random.default_rng(0)
        with os.fdopen(file, "wb", buffering=0) as out:
            left = self.size
            while left:
                block = rng.bytes(min(left, 2**24))
                out.write(block)
                left -= len(block)
            os.fsync(out.fileno())

    def describe(self) -> dict[str, Any]:
        """Return notes for a reader of the figures."""
        return {"method": self.method, "file_bytes": self.size, "file_system": _file_system(self.folder)}

    def measure(self, point: dict[str, Any]) -> list[dict[str, Any]]:
        """Return `repetitions` rows: seconds in which `streams` threads each read `bytes` in blocks, one after the
        other."""
        size, block, streams = int(point["bytes"]), int(point["block_bytes"]), int(point.get("streams", 1))
        buffers = [mmap.mmap(-1, block) for _ in range(streams)]  # page-aligned, as O_DIRECT requires
        try:
            loops = max(1, int(_SAMPLE_S / (_GUESS * -(-size // block))))
            self._together(size, block, buffers, 1)
            rows: list[dict[str, Any]] = []
            while len(rows) < int(point["repetitions"]):
                waited = waited_s()
                seconds = self._together(size, block, buffers, loops) / loops
                rows.append({"repetition": len(rows), "time_s": seconds, "waited_s": (waited_s() - waited) / loops})
            return rows
        finally:
            for buffer in buffers:
                buffer.close()

    def _together(self, size: int, block: int, buffers: list[mmap.mmap], loops: int) -> float:
        places = (self.size - size) // _ALIGN
        starts = [[self._random.randint(0, places) * _ALIGN for _ in range(loops)] for _ in buffers]
        if self.method != "O_DIRECT":
            os.posix_fadvise(self._file, 0, 0, os.POSIX_FADV_DONTNEED)
        threads = [
            threading.Thread(target=self._read, args=(size, block, buffer, places_of))
            for buffer, places_of in zip(buffers[1:], starts[1:], strict=True)
        ]
        began = time.perf_counter()
        for thread in threads:
            thread.start()
        self._read(size, block, buffers[0], starts[0])
        for thread in threads:
            thread.join()
        return time.perf_counter() - began

    def _read(self, size: int, block: int, buffer: mmap.mmap, starts: list[int]) -> None:
        view = [memoryview(buffer)]
        try:
            for start in starts:
                for at in range(start, start + size, block):
                    os.preadv(self._file, view, at)  # whole blocks, also where the last one goes past `size`
        finally:
            view[0].release()

    def close(self) -> None:
        """Close the file, which removes it."""
        os.close(self._file)


def _file_system(folder: str) -> str:
    """Return type and device of the mount that holds `folder`; "" if the system does not tell."""
    try:
        path = os.path.realpath(folder)
        with open("/proc/mounts", encoding="utf-8") as mounts:
            found = [line.split()[:3] for line in mounts]
    except OSError:
        return ""
    inside = [(len(where), f"{kind} on {device}") for device, where, kind in found
              if path == where or path.startswith(where.rstrip("/") + "/")]
    return max(inside, default=(0, ""))[1]
