"""Collector of transfer times: `python -m hermes.calibration.collect.link PLAN.json JOURNAL.jsonl`.

A point is one path and one size; its rows are repetitions of that transfer, `time_s` each. Paths:

    host_to_device, device_to_host   memory `pinned` or `pageable`; CUDA events around one copy on an idle device
    memory_copy, memory_read         host memory, cold: every transfer touches another part of an arena that is larger
                                     than the caches; `streams` threads at the same time, each moving `bytes`
    disk_read                        sequential reads of `block_bytes`, past the operating system's page cache

`time_s` of one stream through memory is CPU time, of the other host paths wall clock. Imports: standard library, numpy,
and torch if a device is measured.
"""

from __future__ import annotations

import os
import platform
import sys
from typing import Any

import numpy as np

from hermes.calibration.collect.link_disk import DiskReader
from hermes.calibration.collect.link_memory import HostMemory
from hermes.calibration.collect.session import CollectorError, PointFailed, main
from hermes.core.noise import peak_rss_bytes

__all__ = ["LinkEngine", "cpu_name", "open_engine"]


def cpu_name() -> str:
    """Return the CPU's name as the system reports it."""
    try:
        with open("/proc/cpuinfo", encoding="utf-8", errors="replace") as file:
            for line in file:
                if line.startswith("model name"):
                    return " ".join(line.split(":", 1)[1].split())
    except OSError:
        pass
    return platform.processor() or platform.machine()


class LinkEngine:
    """All paths of one machine; opens only those with points in the plan."""

    def __init__(self, plan: dict[str, Any]) -> None:
        paths = {point["path"] for point in plan["points"]}
        largest = max(point["bytes"] for point in plan["points"])
        self._memory = HostMemory(plan["arena_bytes"]) if paths & {"memory_copy", "memory_read"} else None
        self._disk = DiskReader(plan["disk_dir"], largest) if "disk_read" in paths else None
        self._device: Any = None
        if paths & {"host_to_device", "device_to_host"}:
            try:
                from hermes.calibration.collect.link_cuda import DeviceLink
            except ImportError as error:
                raise CollectorError(f"measuring a device needs torch in {sys.executable} ({error})") from None
            self._device = DeviceLink(plan["device"], largest)

    def environment(self) -> dict[str, Any]:
        """Return machine, versions, and the way the disk was read."""
        out: dict[str, Any] = {
            "cpu": cpu_name(), "cores": len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else None,
            "system": platform.platform(), "python": platform.python_version(), "numpy": np.__version__,
        }
        if self._disk:
            out["disk"] = self._disk.describe()
        if self._device:
            out |= self._device.describe()
        return out

    def measure(self, point: dict[str, Any]) -> tuple[list[dict[str, Any]], dict[str, Any]]:
        """Return rows with `time_s` of one transfer, in order of time."""
        try:
            if point["path"] == "disk_read":
                assert self._disk is not None
                rows = self._disk.measure(point)
            elif point["path"].startswith("memory"):
                assert self._memory is not None
                rows = self._memory.measure(point)
            else:
                rows = self._device.measure(point)
        except (MemoryError, OSError) as error:
            raise PointFailed(f"{type(error).__name__}: {error}") from None
        return rows, {"peak_rss_bytes": peak_rss_bytes()}

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
