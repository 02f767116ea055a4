"""Counters of the machine: how long this process waited for a core, and the joules of an NVIDIA GPU.

Waiting is the clearest sign of other load on the machine. Linux counts, per thread, the nanoseconds it was ready to run
and did not (`schedstat`). A wall-clock measurement is contended if that was more than `LIMIT` of its time: it is kept,
marked, and left out of statistics and fits. The rule is fixed beforehand and the same for all collectors that use it.

Cards since Volta count millijoules, which the driver's own library (NVML) reads without any package: over a load,
energy by time is the mean power, free of the averaging in the power reading (up to a second on recent cards). Standard
library only.
"""

from __future__ import annotations

import ctypes
import os
from collections.abc import Callable, Mapping, Sequence
from typing import Any

__all__ = ["LIMIT", "contended", "energy_counter", "steady", "waited_s"]

LIMIT = 0.05
"""Largest share of a measurement that its threads may have waited for a core."""

LIBRARIES = ("libnvidia-ml.so.1", "libnvidia-ml.so")


def waited_s() -> float:
    """Return seconds that all threads of this process have waited for a core so far; 0 if the system does not count
    them."""
    total = 0
    try:
        for task in os.listdir("/proc/self/task"):
            try:
                with open(f"/proc/self/task/{task}/schedstat", encoding="ascii") as file:
                    total += int(file.read().split()[1])
            except (OSError, IndexError, ValueError):  # the thread has just ended
                continue
    except OSError:
        return 0.0
    return total / 1e9


def contended(row: Mapping[str, Any]) -> bool:
    """Whether other load on the machine disturbed a row (`time_s`, `waited_s`)."""
    return bool(row.get("waited_s", 0.0) > LIMIT * row["time_s"])


def steady(rows: Sequence[dict[str, Any]]) -> list[dict[str, Any]]:
    """Return the rows that were not contended; if fewer than two are, the contended ones, or all."""
    found = [row for row in rows if not contended(row)]
    return found if len(found) > 1 else [row for row in rows if contended(row)] or list(rows)


def energy_counter(uuid: str = "") -> Callable[[], float] | None:
    """Return a function that reads the joules of the card with that UUID, or of the first card; None without library,
    card, permission or counter."""
    library: Any = None
    for name in LIBRARIES:
        try:
            library = ctypes.CDLL(name)
            break
        except OSError:
            continue
    if library is None or library.nvmlInit_v2() != 0:
        return None
    handle, value = ctypes.c_void_p(), ctypes.c_ulonglong()
    found = uuid and library.nvmlDeviceGetHandleByUUID(uuid.encode(), ctypes.byref(handle)) == 0
    if not found and library.nvmlDeviceGetHandleByIndex_v2(0, ctypes.byref(handle)) != 0:
        return None
    if library.nvmlDeviceGetTotalEnergyConsumption(handle, ctypes.byref(value)) != 0:
        return None

    def joules() -> float:
        library.nvmlDeviceGetTotalEnergyConsumption(handle, ctypes.byref(value))
        return value.value / 1e3

    return joules
