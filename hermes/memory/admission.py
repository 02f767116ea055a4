"""Which entries are worth room, by how often they were asked for lately: counts in a sketch, for admission and warming.

TinyLFU (Einziger, Friedman and Manes, ACM TOS 13, 2017): a full store takes a new entry only if it was asked for more
often than the one that would go. Counts are a Count-Min sketch's and halve after every `sample` accesses, so that they
speak of the recent past.
"""

from __future__ import annotations

from collections.abc import Hashable

from hermes.memory.indexed_heap import IndexedHeap
from hermes.memory.sketch import CountMinSketch

__all__ = ["Frequency", "HotKeys"]


class Frequency:
    """How often keys were seen in about the last `sample` accesses."""

    def __init__(self, sample: int = 10_000, width: int = 2048, depth: int = 4) -> None:
        if sample < 1:
            raise ValueError(f"a sample of at least one access: {sample}")
        self.sample, self._sketch = sample, CountMinSketch(width, depth)
        self._since = 0

    def seen(self, key: Hashable) -> int:
        """A key is asked for; its count now."""
        self._since += 1
        if self._since >= self.sample:
            self._sketch.halve()
            self._since //= 2
        return self._sketch.add(key)

    def count(self, key: Hashable) -> int:
        """Estimate of how often a key was seen lately."""
        return self._sketch.estimate(key)

    def prefers(self, key: Hashable, victim: Hashable) -> bool:
        """Whether `key` was asked for more often than `victim`."""
        return self.count(key) > self.count(victim)


class HotKeys:
    """The `num_keys` keys that were asked for most, as far as a sketch can tell; counts age as in `Frequency`."""

    def __init__(self, num_keys: int, sample: int = 10_000) -> None:
        if num_keys < 1:
            raise ValueError(f"at least one key: {num_keys}")
        self.num_keys, self._counts = num_keys, Frequency(sample)
        self._heap: IndexedHeap[Hashable] = IndexedHeap()

    def seen(self, key: Hashable) -> None:
        """A key is asked for."""
        count = self._counts.seen(key)
        if key in self._heap:
            self._heap.update(key, count)
        elif len(self._heap) < self.num_keys:
            self._heap.push(key, count)
        else:
            coldest = self._heap.peek()   # its count may have aged meanwhile
            now = self._counts.count(coldest)
            if count > now:
                self._heap.pop()
                self._heap.push(key, count)
            elif now < self._heap.key(coldest):
                self._heap.decrease_key(coldest, now)

    def keys(self) -> list[Hashable]:
        """The keys, hottest first."""
        return list(self._heap)[::-1]
