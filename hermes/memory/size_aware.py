"""Eviction policies that look at how large an entry is: a large one has to be worth its room.

- `tamm`, token-aware LRU: the entry with the least recency per token goes first. Recency is the number of the access at
  which the entry was last used; accesses are counted, time is not looked at, so shifting all times changes nothing.
- `gdsf`, greedy dual size frequency (Cherkasova, HP Labs 1998): the entry with the least `L + reads / size` goes first,
  where L is the rank of the last one that went, so that entries nobody reads any more age away.

Stores count bytes. KV of one model has a fixed number of bytes per token, so an order by bytes is an order by tokens.
"""

from __future__ import annotations

from collections.abc import Hashable

from hermes.memory.indexed_heap import IndexedHeap

__all__ = ["Gdsf", "Tamm"]


class Tamm:
    """The entry with the least recency per token."""

    def __init__(self) -> None:
        self._heap: IndexedHeap[Hashable] = IndexedHeap()
        self._bytes: dict[Hashable, int] = {}
        self._accesses = 0

    def _rank(self, key: Hashable) -> float:
        self._accesses += 1
        return self._accesses / max(1, self._bytes[key])

    def added(self, key: Hashable, num_bytes: int) -> None:
        self._bytes[key] = num_bytes
        self._heap.push(key, self._rank(key))

    def read(self, key: Hashable) -> None:
        self._heap.increase_key(key, self._rank(key))

    def removed(self, key: Hashable) -> None:
        self._heap.remove(key)
        del self._bytes[key]

    def victim(self) -> Hashable:
        return self._heap.peek()


class Gdsf:
    """The entry with the fewest reads per byte, entries nobody reads any more ageing away."""

    def __init__(self) -> None:
        self._heap: IndexedHeap[Hashable] = IndexedHeap()
        self._entries: dict[Hashable, tuple[int, int]] = {}   # bytes, reads
        self._age = 0.0

    def _rank(self, key: Hashable) -> float:
        num_bytes, reads = self._entries[key]
        return self._age + reads / max(1, num_bytes)

    def added(self, key: Hashable, num_bytes: int) -> None:
        self._entries[key] = num_bytes, 1
        self._heap.push(key, self._rank(key))

    def read(self, key: Hashable) -> None:
        num_bytes, reads = self._entries[key]
        self._entries[key] = num_bytes, reads + 1
        self._heap.update(key, self._rank(key))

    def removed(self, key: Hashable) -> None:
        self._heap.remove(key)
        del self._entries[key]

    def victim(self) -> Hashable:
        key = self._heap.peek()
        self._age = max(self._age, self._heap.key(key))
        return key
