"""Admission by frequency: estimate how often entries were requested lately, for admission to stores and warming.

TinyLFU (Einziger, Friedman and Manes, ACM TOS 13, 2017): a full store takes a new entry only if it was requested more
often than the entry that would be evicted. A Count-Min sketch counts requests. Its counts halve after every `sample`
accesses, so that they describe the recent past.
"""

from __future__ import annotations

from collections.abc import Hashable

from hermes.memory.indexed_heap import IndexedHeap
from hermes.memory.sketch import CountMinSketch

__all__ = ["Frequency", "HotKeys"]


class Frequency:
    """Estimated number of requests of keys in about the last `sample` accesses."""

    def __init__(self, sample: int = 10_000, width: int = 2048, depth: int = 4) -> None:
        if sample < 1:
            raise ValueError(f"sample must be at least 1 access, got {sample}")
        self.sample, self._sketch = sample, CountMinSketch(width, depth)
        self._since = 0

    def seen(self, key: Hashable) -> int:
        """Count a request of a key; return its count."""
        self._since += 1
        if self._since >= self.sample:
            self._sketch.halve()
            self._since //= 2
        return self._sketch.add(key)

    def count(self, key: Hashable) -> int:
        """Return an estimate of how often a key was requested lately."""
        return self._sketch.estimate(key)

    def prefers(self, key: Hashable, victim: Hashable) -> bool:
        """Whether `key` was requested more often than `victim`."""
        return self.count(key) > self.count(victim)


class HotKeys:
    """The `num_keys` most requested keys, as estimated by a sketch; counts age as in `Frequency`."""

    def __init__(self, num_keys: int, sample: int = 10_000) -> None:
        if num_keys < 1:
            raise ValueError(f"num_keys must be at least 1, got {num_keys}")
        self.num_keys, self._counts = num_keys, Frequency(sample)
        self._heap: IndexedHeap[Hashable] = IndexedHeap()

    def seen(self, key: Hashable) -> None:
        """Count a request of a key."""
        count = self._counts.seen(key)
        if key in self._heap:
            self._heap.update(key, count)
        elif len(self._heap) < self.num_keys:
            self._heap.push(key, count)
        else:
            coldest = self._heap.peek()   # its count may have aged since
            now = self._counts.count(coldest)
            if count > now:
                self._heap.pop()
                self._heap.push(key, count)
            elif now < self._heap.key(coldest):
                self._heap.decrease_key(coldest, now)

    def keys(self) -> list[Hashable]:
        """The keys, hottest first."""
        return list(self._heap)[::-1]
