"""A binary heap with an index of its items, so that an item's key can change in place.

`heapq` does not know the position of an item: a change of key needs a search, or leaves the old entry behind. Here each
item has its position, and `update`, `decrease_key`, `increase_key` and `remove` take O(log n) comparisons.
"""

from __future__ import annotations

from collections.abc import Hashable, Iterator
from typing import Any, Generic, TypeVar

__all__ = ["IndexedHeap"]

T = TypeVar("T", bound=Hashable)


class IndexedHeap(Generic[T]):
    """Items by key: the least first, or the greatest with `max_first`.

    Keys are any comparable values. Items of equal keys come out in the order in which they were added. Items are
    hashable and are in the heap once. A decreased key moves its item to the front of a min-heap, an increased one to
    the front of a max-heap.
    """

    def __init__(self, *, max_first: bool = False) -> None:
        self._max = max_first
        self._heap: list[tuple[Any, int, T]] = []   # (key, order of the key among equals, item)
        self._at: dict[T, int] = {}
        self._given = 0

    def __len__(self) -> int:
        return len(self._heap)

    def __contains__(self, item: object) -> bool:
        return item in self._at

    def __iter__(self) -> Iterator[T]:
        """Items in order, without removing them. O(n log n)."""
        entries = sorted(self._heap, key=lambda entry: entry[1])
        entries.sort(key=lambda entry: entry[0], reverse=self._max)   # stable: equal keys stay in order
        return (entry[2] for entry in entries)

    def key(self, item: T) -> Any:
        """Return the key of an item. Raises `KeyError` if it is not in the heap."""
        return self._heap[self._at[item]][0]

    def push(self, item: T, key: Any) -> None:
        """Add an item. Raises `ValueError` if it is in the heap already."""
        if item in self._at:
            raise ValueError(f"{item!r} is in the heap already; use update to change its key")
        self._given += 1
        self._heap.append((key, self._given, item))
        self._up(len(self._heap) - 1)

    def peek(self) -> T:
        """Return the first item. Raises `IndexError` if the heap is empty."""
        return self._heap[0][2]

    def pop(self) -> T:
        """Remove and return the first item. Raises `IndexError` if the heap is empty."""
        first = self._heap[0][2]
        self.remove(first)
        return first

    def remove(self, item: T) -> None:
        """Remove an item. Raises `KeyError` if it is not in the heap."""
        at = self._at.pop(item)
        last = self._heap.pop()
        if at < len(self._heap):
            self._heap[at] = last
            self._settle(at)

    def update(self, item: T, key: Any) -> None:
        """Give an item another key, as if added now. Raises `KeyError` if it is not in the heap."""
        at = self._at[item]
        self._given += 1
        self._heap[at] = (key, self._given, item)
        self._settle(at)

    def decrease_key(self, item: T, key: Any) -> None:
        """Like `update`, to a key that is not greater. Raises `ValueError` if it is, `KeyError` without the item."""
        if key > self.key(item):
            raise ValueError(f"the new key must not be above {self.key(item)!r}, got {key!r}")
        self.update(item, key)

    def increase_key(self, item: T, key: Any) -> None:
        """Like `update`, to a key that is not less. Raises `ValueError` if it is, `KeyError` without the item."""
        if key < self.key(item):
            raise ValueError(f"the new key must not be below {self.key(item)!r}, got {key!r}")
        self.update(item, key)

    def _before(self, a: tuple[Any, int, T], b: tuple[Any, int, T]) -> bool:
        if a[0] == b[0]:
            return a[1] < b[1]
        return bool(a[0] > b[0] if self._max else a[0] < b[0])

    def _settle(self, at: int) -> None:
        if at and self._before(self._heap[at], self._heap[(at - 1) >> 1]):
            self._up(at)
        else:
            self._down(at)

    def _up(self, at: int) -> None:
        heap, places = self._heap, self._at
        entry = heap[at]
        while at:
            above = (at - 1) >> 1
            if not self._before(entry, heap[above]):
                break
            heap[at] = heap[above]
            places[heap[at][2]] = at
            at = above
        heap[at] = entry
        places[entry[2]] = at

    def _down(self, at: int) -> None:
        heap, places = self._heap, self._at
        entry, size = heap[at], len(heap)
        while (below := 2 * at + 1) < size:
            if below + 1 < size and self._before(heap[below + 1], heap[below]):
                below += 1
            if not self._before(heap[below], entry):
                break
            heap[at] = heap[below]
            places[heap[at][2]] = at
            at = below
        heap[at] = entry
        places[entry[2]] = at
