"""Collector of transfer times: `python -m hermes.calibration.collect.link PLAN.json JOURNAL.jsonl`.

A point is one path and one size; its rows are repetitions of that transfer, `time_s` each. Paths:

    host_to_device, device_to_host   memory `pinned` or `pageable`; CUDA events around one copy on an idle device
    memory_copy                      host memory, cold: every copy touches another part of an arena larger than the
                                     caches; by CPU time
    disk_read                        one read past the operating system's page cache, from a file of random bytes; by
                                     wall clock. Caches of the device, or of a virtual machine's host, may answer

The file is unlinked while it is open: none is left behind however the process ends. Imports: standard library, numpy,
and torch if a device is measured.
"""

from __future__ import annotations

import importlib
import mmap
import os
import random
import shutil
import sys
import tempfile
import time
from collections.abc import Callable
from typing import Any

import numpy as np

from hermes.calibration.collect.counters import waited_s
from hermes.calibration.collect.session import Collector, CollectorError, PointFailed, machine, main, need_unix
from hermes.core.noise import peak_rss_bytes

__all__ = ["LinkEngine", "open_engine"]

_ALIGN = 4096
_SAMPLE_BYTES = 10 * 2**20   # a repetition moves at least so much: small copies are repeated within it
_LARGE = 64 * 2**20          # smaller copies of a device and reads are repeated five times as often


class Disk:
    """A file of random bytes, so that no compression helps, read with O_DIRECT or after dropping its pages."""

    def __init__(self, folder: str, largest: int) -> None:
        """Raises `OSError` if the file cannot be written, and `CollectorError` on macOS and Windows."""
        if not hasattr(os, "posix_fadvise"):
            raise CollectorError("disk: reads past the page cache are measured on Linux; leave it out of `paths`")
        self.size = max(largest, 64 * 2**20)
        self._random, self._buffer = random.Random(0), mmap.mmap(-1, largest)   # page-aligned, as O_DIRECT requires
        if shutil.disk_usage(folder).free < self.size + 2**30:
            raise OSError(f"{folder}: the test file needs {self.size} bytes, and 1 GiB to spare")
        write, path = tempfile.mkstemp(prefix="hermes-link-", dir=folder)
        try:
            self._file, self.method = os.open(path, os.O_RDONLY | getattr(os, "O_DIRECT", 0)), "O_DIRECT"
        except OSError:   # tmpfs, some network file systems
            self._file, self.method = os.open(path, os.O_RDONLY), "posix_fadvise(DONTNEED)"
        finally:
            os.unlink(path)
        rng = np.random.default_rng(0)
        with os.fdopen(write, "wb", buffering=0) as out:
            for start in range(0, self.size, 2**24):
                out.write(rng.bytes(min(self.size - start, 2**24)))
            os.fsync(out.fileno())

    def read(self, point: dict[str, Any]) -> dict[str, float]:
        """Read the point's bytes at a random place of the file."""
        size = int(point["bytes"])
        place = self._random.randint(0, (self.size - size) // _ALIGN) * _ALIGN
        if self.method != "O_DIRECT":
            os.posix_fadvise(self._file, 0, 0, os.POSIX_FADV_DONTNEED)
        with memoryview(self._buffer) as whole, whole[:size] as view:
            waited, began = waited_s(), time.perf_counter()
            done = 0
            while done < size:   # one call reads at most 2 GiB
                done += os.preadv(self._file, [view[done:]], place + done)
            seconds = time.perf_counter() - began
        return {"time_s": seconds, "waited_s": waited_s() - waited}

    def close(self) -> None:
        """Close the file, which removes it."""
        self._buffer.close()
        os.close(self._file)


class Memory:
    """Two arenas of host memory, several times as large as the last-level cache."""

    def __init__(self, size: int) -> None:
        need_unix("memory")
        # both are written: every page is there
        self._source, self._target = np.ones(size, np.uint8), np.full(size, 2, np.uint8)
        self._at = 0

    def copy(self, point: dict[str, Any]) -> dict[str, float]:
        """Copy the point's bytes, as often as a repetition needs; each time other ones."""
        size = int(point["bytes"])
        places, loops = len(self._source) // size, max(1, _SAMPLE_BYTES // size)
        starts = [(self._at + n) % places * size for n in range(loops)]
        self._at += loops
        cpu, began = time.thread_time(), time.perf_counter()
        for start in starts:
            np.copyto(self._target[start:start + size], self._source[start:start + size])
        # a thread that copies is on a core or waits for one; the wait is no memory time
        cpu, wall = time.thread_time() - cpu, time.perf_counter() - began
        return {"time_s": cpu / loops, "wall_s": wall / loops, "waited_s": 0.0}


class Device:
    """Buffers of the host, pinned and pageable, and one of a CUDA device."""

    def __init__(self, name: str, largest: int) -> None:
        """Raises `CollectorError` where there is no such device, or not enough memory on it."""
        try:
            self._torch: Any = importlib.import_module("torch")
        except ImportError as error:
            raise CollectorError(f"measuring a device needs torch in {sys.executable} ({error})") from None
        torch = self._torch
        if not torch.cuda.is_available():
            raise CollectorError("torch sees no CUDA device; measure the host alone with device: cpu")
        try:
            self._device = torch.zeros(largest, dtype=torch.uint8, device=name)
            self._host = {kind: torch.ones(largest, dtype=torch.uint8, pin_memory=kind == "pinned")
                          for kind in ("pinned", "pageable")}   # written: no page is mapped while a copy is timed
        except RuntimeError as error:
            raise CollectorError(f"no room for {largest} bytes on {name} and twice on the host: {error}") from None
        properties = torch.cuda.get_device_properties(self._device.device)
        self.about = {"device": properties.name, "device_memory_bytes": properties.total_memory,
                      "torch": str(torch.__version__), "cuda": torch.version.cuda}
        self._at = 0

    def copy(self, point: dict[str, Any]) -> dict[str, float]:
        """Copy once; small copies walk through the buffers, so that a pageable source is not always in a cache."""
        cuda, size = self._torch.cuda, int(point["bytes"])
        start = self._at % (len(self._device) // size) * size
        self._at += 1
        pair = self._device[start:start + size], self._host[point["memory"]][start:start + size]
        target, source = pair if point["path"] == "host_to_device" else pair[::-1]
        begin, end = cuda.Event(enable_timing=True), cuda.Event(enable_timing=True)
        cuda.synchronize()
        began = time.perf_counter()
        begin.record()
        target.copy_(source, non_blocking=True)
        end.record()
        end.synchronize()
        return {"time_s": begin.elapsed_time(end) / 1e3, "host_time_s": time.perf_counter() - began}


class LinkEngine(Collector):
    """All paths of one machine; opens only those with points in the plan."""

    def __init__(self, plan: dict[str, Any]) -> None:
        super().__init__(plan)
        largest: dict[str, int] = {}
        for point in plan["points"]:
            kind = {"memory_copy": "memory", "disk_read": "disk"}.get(point["path"], "device")
            largest[kind] = max(largest.get(kind, 0), int(point["bytes"]))
        self._disk = Disk(plan["disk_dir"], largest["disk"]) if "disk" in largest else None
        self._device = Device(plan["device"], largest["device"]) if "device" in largest else None
        self._calls: dict[str, Callable[[dict[str, Any]], dict[str, float]]] = {}
        if "memory" in largest:
            self._calls["memory_copy"] = Memory(plan["arena_bytes"]).copy
        if self._disk:
            self._calls["disk_read"] = self._disk.read
        if self._device:
            self._calls |= dict.fromkeys(("host_to_device", "device_to_host"), self._device.copy)

    def environment(self) -> dict[str, Any]:
        """Return machine, versions, and the way the disk was read."""
        disk = {"disk": {"method": self._disk.method, "file_bytes": self._disk.size}} if self._disk else {}
        return machine() | disk | (self._device.about if self._device else {})

    def measure(self, point: dict[str, Any]) -> tuple[list[dict[str, Any]], dict[str, Any]]:
        """Return rows with `time_s` of one transfer, in order of time; the first transfer is not among them."""
        call, count = self._calls[point["path"]], int(point["repetitions"])
        if point["path"] != "memory_copy" and point["bytes"] < _LARGE:
            count *= 5
        try:
            rows = [call(point) for _ in range(count + 1)][1:]
        except (MemoryError, OSError) as error:
            raise PointFailed(f"{type(error).__name__}: {error}") from None
        return [{"repetition": n, **row} for n, row in enumerate(rows)], {"peak_rss_bytes": peak_rss_bytes()}

    def close(self) -> None:
        """Remove the test file."""
        if self._disk:
            self._disk.close()


def open_engine(plan: dict[str, Any]) -> LinkEngine:
    """Interface of the session. Raises `CollectorError`."""
    try:
        return LinkEngine(plan)
    except (OSError, MemoryError) as error:
        raise CollectorError(f"{type(error).__name__}: {error}") from None


if __name__ == "__main__":
    sys.exit(main(open_engine))
