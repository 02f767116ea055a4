"""A log of what a prefix cache gains and loses, kept for routers that see a cache by its events.

A pool without a log (`BlockPool.log` is None) notes nothing. Blocks that only one sequence can have are left out, since
no other looks them up. A block taken during a run of steps is noted at the start of its step, whenever the pool takes
it.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Hashable
from typing import Any, NamedTuple

__all__ = ["CacheEvent", "CacheLog"]


class CacheEvent(NamedTuple):
    """Blocks `lo` to `hi` (exclusive) of a name that a cache gained (`stored`) or lost at `time_ns`."""

    time_ns: int
    stored: bool
    name: Hashable
    lo: int
    hi: int


class CacheLog:
    """See the module's docstring.

    Args:
        now_ns: Returns the simulated time.
        start_of: Returns the start in ns of a step of a plan, the first of which is 0.

    Attributes:
        readers: Of each reader the events that it has not taken, in order.
        step_ns: Start of the step whose blocks are taken, -1 for now.
    """

    def __init__(self, now_ns: Callable[[], int], start_of: Callable[[Any, int], int]) -> None:   # Any: a plan
        self._now_ns, self.start_of = now_ns, start_of
        self.step_ns = -1
        self.readers: list[deque[CacheEvent]] = []

    def note(self, stored: bool, name: Hashable, lo: int, hi: int) -> None:   # one of two kinds
        """Note blocks of a name."""
        if type(name) is not int and hi > lo:   # a number names a sequence
            time_ns = self._now_ns() if self.step_ns < 0 else self.step_ns
            event = CacheEvent(time_ns, stored, name, lo, hi)
            for reader in self.readers:
                reader.append(event)
