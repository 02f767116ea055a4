"""Who goes when a store is full: eviction policies by name.

A policy sees entries come, be read and go, and names the next victim. It never decides whether an entry fits.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Hashable
from heapq import heapify, heappop, heappush
from typing import Any, Literal, Protocol

from hermes.config.registry import Registry

__all__ = ["EVICTION", "EvictionPolicy", "Fifo", "Lfu", "Lru", "PrefixEviction"]

EVICTION: Registry[Any] = Registry("eviction", "an eviction policy", {
    "gdsf": "hermes.memory.size_aware:Gdsf",
    "tamm": "hermes.memory.size_aware:Tamm",
})
PrefixEviction = Literal["lru", "tamm", "gdsf", "lfu", "fifo"]
"""Policies of a prefix cache on the device (`hermes.memory.ranked`)."""


class EvictionPolicy(Protocol):
    """Called by a store: `added` and `removed` once per entry, `read` at each hit, `victim` while room is needed.

    Recency is a counter of these calls, never a clock. `victim` is asked only while there is an entry; it names one
    that is in the store, and does not remove it.
    """

    def added(self, key: Hashable, num_bytes: int) -> None:
        """An entry has come in."""
        ...

    def read(self, key: Hashable) -> None:
        """An entry was found."""
        ...

    def removed(self, key: Hashable) -> None:
        """An entry has gone (evicted, or replaced by one of another size)."""
        ...

    def victim(self) -> Hashable:
        """The entry to go next."""
        ...


@EVICTION.register("lru")
class Lru:
    """The entry that was not read for the longest time."""

    def __init__(self) -> None:
        self._order: OrderedDict[Hashable, None] = OrderedDict()

    def added(self, key: Hashable, num_bytes: int) -> None:
        self._order[key] = None

    def read(self, key: Hashable) -> None:
        self._order.move_to_end(key)

    def removed(self, key: Hashable) -> None:
        del self._order[key]

    def victim(self) -> Hashable:
        return next(iter(self._order))


@EVICTION.register("fifo")
class Fifo(Lru):
    """The entry that came first."""

    def read(self, key: Hashable) -> None:
        pass


@EVICTION.register("lfu")
class Lfu:
    """The entry read least often; among equals the one that was not read for the longest time."""

    def __init__(self) -> None:
        self._heap: list[tuple[int, int, Hashable]] = []   # entries of earlier reads stay until they come up
        self._rank: dict[Hashable, tuple[int, int]] = {}
        self._count = 0

    def _push(self, key: Hashable, reads: int) -> None:
        self._count += 1
        self._rank[key] = reads, self._count
        heappush(self._heap, (reads, self._count, key))
        if len(self._heap) > 4 * len(self._rank) + 64:
            self._heap = [(reads, count, key) for key, (reads, count) in self._rank.items()]
            heapify(self._heap)

    def added(self, key: Hashable, num_bytes: int) -> None:
        self._push(key, 1)

    def read(self, key: Hashable) -> None:
        self._push(key, self._rank[key][0] + 1)

    def removed(self, key: Hashable) -> None:
        del self._rank[key]

    def victim(self) -> Hashable:
        while True:
            reads, count, key = self._heap[0]
            if self._rank.get(key) == (reads, count):
                return key
            heappop(self._heap)
