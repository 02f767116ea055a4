"""What every backend of the terms collector gives: operators ready to run, and the time of one run. numpy only."""

from __future__ import annotations

import math
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Protocol

from hermes.calibration.collect.contention import waited_s

__all__ = ["Backend", "Operator", "copies_of", "cpu_rows", "host_cache_bytes"]

GUESSED_CACHE_BYTES = 64 * 2**20
MOST_COPIES = 2048
PROBES = 3


@dataclass
class Operator:
    """One operator at one size."""

    calls: list[Callable[[], Any]]
    """The operator on different copies of its cold operands; repetitions take them in turn."""
    notes: dict[str, Any] = field(default_factory=dict)
    """What a reader of the journal should know (which kernel, one launch or two)."""


class Backend(Protocol):
    """Operators of one library on one device."""

    def describe(self) -> dict[str, Any]:
        """Return versions, the device, kernels, notes. JSON."""
        ...

    def operator(self, point: dict[str, Any]) -> Operator:
        """Return the operator of a point, operands in place. Raises `PointFailed` where there is none."""
        ...

    def time(self, operator: Operator, repetitions: int, sample_s: float) -> tuple[list[dict[str, Any]], str]:
        """Return rows (`time_s` of one run each) and how they were timed."""
        ...

    def power(self, point: dict[str, Any], hold_s: float) -> dict[str, Any]:
        """Hold a load and return its row (`power_w`, `rate`). Raises `PointFailed` where watts are not available."""
        ...


def copies_of(operand_bytes: float, walk_bytes: float) -> int:
    """Return how many copies of an operand are together larger than `walk_bytes`, one at least."""
    return min(max(math.ceil(walk_bytes / max(operand_bytes, 1.0)), 1), MOST_COPIES)


def host_cache_bytes() -> int:
    """Return the size of the CPU's last-level cache; a guess where Linux does not say."""
    found = 0
    for path in Path("/sys/devices/system/cpu/cpu0/cache").glob("index*/size"):
        text = path.read_text(encoding="ascii", errors="replace").strip()
        unit = {"K": 2**10, "M": 2**20}.get(text[-1:], 1)
        if text.rstrip("KM").isdigit():
            found = max(found, int(text.rstrip("KM")) * unit)
    return found or GUESSED_CACHE_BYTES


def cpu_rows(operator: Operator, repetitions: int, sample_s: float) -> list[dict[str, Any]]:
    """Time an operator on this CPU: wall clock, CPU time of all threads, and time waited for a core, of one run."""
    calls, count = operator.calls, len(operator.calls)
    began = time.perf_counter()
    for index in range(PROBES):
        calls[index % count]()
    once = (time.perf_counter() - began) / PROBES
    loops = max(1, math.ceil(sample_s / max(once, 1e-9)))
    turn, rows = PROBES, []
    for repetition in range(-1, repetitions):   # the first does not count
        waited, cpu, wall = waited_s(), time.process_time(), time.perf_counter()
        for index in range(turn, turn + loops):
            calls[index % count]()
        wall = time.perf_counter() - wall
        cpu, waited = time.process_time() - cpu, waited_s() - waited
        turn += loops
        if repetition >= 0:
            rows.append({"repetition": repetition, "time_s": wall / loops, "cpu_time_s": cpu / loops,
                         "waited_s": waited / loops})
    return rows
