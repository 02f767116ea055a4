"""Time of element-wise kernels (norms, rotation, activation) on a card whose second-level cache holds their operands.

A kernel reads what the one before it wrote. As long as its operands fit in the cache, they come from there; the larger
they grow, the more of them have left it:

    time = bytes / memory rate * (in / faster + 1 - in),    in = 1 up to HELD of the cache, 0 from all of it on

Found on operator tables of an RTX PRO 6000 (Llama-3.1-8B: 11% on average over three kernels and 152 sizes); those of
Qwen3-32B, held out, are met within 10% (split over two cards) and 14% (whole).
"""

from __future__ import annotations

from hermes.hardware.descriptions.devices import DeviceDescription
from hermes.hardware.operators import Work
from hermes.units import NS_PER_S

__all__ = ["elementwise_ns"]

HELD = 0.5


def elementwise_ns(work: Work, device: DeviceDescription, rows: int) -> float:
    """Return the nanoseconds of a step's element-wise kernels for so many rows, without their launches.

    The device's description states its `cache`.
    """
    cache = device.cache
    assert cache is not None
    faster = cache.bandwidth / device.memory_bandwidth
    total = 0.0
    for size, count in work.elementwise:
        operands = size * rows
        held = min(max((cache.size - operands) / ((1.0 - HELD) * cache.size), 0.0), 1.0)
        total += count * operands * (held / faster + 1.0 - held)
    return total / device.memory_bandwidth * NS_PER_S
