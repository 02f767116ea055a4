"""Eviction policies by name: the entry that leaves a full store.

A store reports to its policy the entries that it adds, reads and removes, and asks for the next victim. The store
decides whether an entry fits. The prefix cache on a device has orders of its own under the same names
(`hermes.memory.prefix_eviction`): it ranks blocks that no sequence holds by the sequences that held them, which an
entry of a store does not know, so a registered policy is for tiers alone.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Hashable
from heapq import heapify, heappop, heappush
from typing import Any, Literal, Protocol

from hermes.config.registry import Registry

__all__ = ["EVICTION", "EvictionPolicy", "Fifo", "Lfu", "Lru", "PrefixEviction", "Recency"]

EVICTION: Registry[Any] = Registry("eviction", "an eviction policy", {
    "gdsf": "hermes.memory.size_aware:Gdsf",
    "tamm": "hermes.memory.size_aware:Tamm",
})
PrefixEviction = Literal["lru", "tamm", "gdsf", "lfu", "fifo"]
"""Orders of eviction of a prefix cache on the device (`hermes.memory.prefix_eviction`)."""
Recency = Literal["rank", "age", "counter"]
"""Readings of recency in token-aware LRU, `tamm` (`hermes.memory.recency`)."""


class EvictionPolicy(Protocol):
    """Policy of one store, which calls `added` and `removed` once per entry, `read` at each hit, `victim` to make room.

    Recency is a counter of these calls, never a clock. The store asks for a `victim` only while it has an entry. The
    policy returns an entry of the store, and does not remove it.
    """

    def added(self, key: Hashable, num_bytes: int) -> None:
        """An entry was added."""
        ...

    def read(self, key: Hashable) -> None:
        """An entry was found."""
        ...

    def removed(self, key: Hashable) -> None:
        """An entry was removed (evicted, or replaced by one of another size)."""
        ...

    def victim(self) -> Hashable:
        """Return the entry to evict next."""
        ...


@EVICTION.register("lru")
class Lru:
    """Evict the least recently read entry."""

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
    """Evict the entry that was added first."""

    def read(self, key: Hashable) -> None:
        pass


@EVICTION.register("lfu")
class Lfu:
    """Evict the least often read entry; among equals the least recently read one."""

    def __init__(self) -> None:
        self._heap: list[tuple[int, int, Hashable]] = []   # outdated entries stay until they reach the top
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
