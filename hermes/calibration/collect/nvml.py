"""Energy counter of an NVIDIA GPU, through the driver's own library (NVML) without any package.

Cards since Volta count millijoules: over a load, energy by time is the mean power, free of the averaging in the power
reading (up to a second on recent cards).
"""

from __future__ import annotations

import ctypes
from collections.abc import Callable
from typing import Any

__all__ = ["energy_counter"]

LIBRARIES = ("libnvidia-ml.so.1", "libnvidia-ml.so")


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
