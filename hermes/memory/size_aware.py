"""Size-aware eviction policies: a large entry must be used more to stay.

- `tamm`, token-aware LRU: evict the entry with the least recency per token. Recency is the place in the order of last
  use, or another reading of it (`hermes.memory.recency`). No reading reads the time, so that shifting all times has no
  effect.
- `gdsf`, greedy dual size frequency (Cherkasova, HP Labs 1998): evict the entry with the least `L + reads / size`. L is
  the rank of the last evicted entry, so that entries without further reads age.

Stores count bytes. KV of one model has a fixed number of bytes per token, so an order by bytes is an order by tokens.
"""

from __future__ import annotations

from collections.abc import Hashable

from hermes.memory.eviction import Recency
from hermes.memory.indexed_heap import IndexedHeap
from hermes.memory.recency import RecencyOrder

__all__ = ["Gdsf", "Tamm"]


class Tamm:
    """Evict the entry with the least recency per token.

    Args:
        recency: Meaning of recency, `hermes.memory.recency`.
    """

    def __init__(self, recency: Recency = "rank") -> None:
        self._order = RecencyOrder(recency)

    def added(self, key: Hashable, num_bytes: int) -> None:
        self._order.tick()
        self._order.add(key, num_bytes)

    def read(self, key: Hashable) -> None:
        self._order.tick()
        self._order.touch(key)

    def removed(self, key: Hashable) -> None:
        self._order.remove(key)

    def victim(self) -> Hashable:
        return self._order.first()


class Gdsf:
    """Evict the entry with the fewest reads per byte; entries without further reads age."""

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
