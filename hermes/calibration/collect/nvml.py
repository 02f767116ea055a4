"""Power of an NVIDIA GPU during a load, through the driver's own library (NVML) without any package.

Cards since Volta count millijoules: over a load, energy by time is the mean power, free of the averaging in the power
reading (up to a second on recent cards). If the counter stands still, readings are averaged instead.
"""

from __future__ import annotations

import ctypes
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

__all__ = ["Load", "PowerMeter"]

LIBRARIES = ("libnvidia-ml.so.1", "libnvidia-ml.so")
SAMPLE_EVERY_S = 0.02
SHORTEST_S = 0.2   # the counter moves every 20 to 100 ms


@dataclass
class Load:
    """A stretch of time that was measured."""

    mean_w: float | None = None
    method: str = ""


class PowerMeter:
    """One GPU's counters."""

    def __init__(self, library: Any, handle: Any) -> None:
        self._library, self._handle = library, handle

    @classmethod
    def open(cls, index: int = 0, uuid: str = "") -> PowerMeter | None:
        """Return the card with that UUID, or of that index; None without library, card or permission."""
        library: Any = None
        for name in LIBRARIES:
            try:
                library = ctypes.CDLL(name)
                break
            except OSError:
                continue
        if library is None or library.nvmlInit_v2() != 0:
            return None
        handle = ctypes.c_void_p()
        found = uuid and library.nvmlDeviceGetHandleByUUID(uuid.encode(), ctypes.byref(handle)) == 0
        if not found and library.nvmlDeviceGetHandleByIndex_v2(index, ctypes.byref(handle)) != 0:
            return None
        meter = cls(library, handle)
        return meter if meter.power_w() is not None else None

    def power_w(self) -> float | None:
        """Return the power reading."""
        value = ctypes.c_uint()
        failed = self._library.nvmlDeviceGetPowerUsage(self._handle, ctypes.byref(value))
        return None if failed else value.value / 1e3

    def energy_j(self) -> float | None:
        """Return the energy counter."""
        value = ctypes.c_ulonglong()
        failed = self._library.nvmlDeviceGetTotalEnergyConsumption(self._handle, ctypes.byref(value))
        return None if failed else value.value / 1e3

    @contextmanager
    def over(self) -> Iterator[Load]:
        """Measure the block; the result is filled in when it ends."""
        load, readings, stop = Load(), [], threading.Event()

        def sample() -> None:
            while not stop.is_set():
                watts = self.power_w()
                if watts is not None:
                    readings.append(watts)
                stop.wait(SAMPLE_EVERY_S)

        thread = threading.Thread(target=sample, daemon=True)
        before, began = self.energy_j(), time.perf_counter()
        thread.start()
        try:
            yield load
        finally:
            seconds, after = time.perf_counter() - began, self.energy_j()
            stop.set()
            thread.join()
        if before is not None and after is not None and after > before and seconds >= SHORTEST_S:
            load.mean_w, load.method = (after - before) / seconds, "NVML energy counter"
        elif readings:
            load.mean_w, load.method = sum(readings) / len(readings), "NVML power readings"
