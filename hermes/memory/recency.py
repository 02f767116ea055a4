"""Order of entries by recency per size, the rank of token-aware LRU (TAMM): the entry with the least goes first.

The paper does not define recency. Three readings, none of which reads a clock:

- `rank`: the entry's place in the order of last use, 1 for the least recently used one.
- `age`: 1 / accesses since its last use.
- `counter`: the number of the access that last used it. It grows for ever, so that sizes decide in the end.

With `rank` and `age` an access changes the recency of many entries at once. Entries therefore lie in slots in order of
last use, `_BLOCK` slots to a block. A block keeps its first entry, and how far its offset (`rank`: entries in earlier
blocks, which only falls) or the number of accesses (`age`) may move until another entry of the block is first. So an
access costs O(1), and a search looks at one entry per block, and at all entries of the few blocks that changed:
O(n / _BLOCK + _BLOCK), in numpy.
"""

from __future__ import annotations

from collections.abc import Hashable
from typing import Any

import numpy as np

from hermes.memory.eviction import Recency

__all__ = ["RecencyOrder"]

_BLOCK = 256
_MARGIN = 1e-9   # relative; a search looks again a little earlier than the float says


class RecencyOrder:
    """Entries with sizes, in order of last use. `tick` starts the next access; `add` uses an entry in it."""

    _next: int                              # slot of the next entry
    # by slot; a size of 0 is a gap
    _keys: list[Hashable]
    _sizes: Any
    _uses: Any
    # by block: number of entries, slot and place of the first, and `_limit`
    _live: Any
    _first: Any
    _places: Any
    _limits: Any
    _changed: set[int]                      # blocks whose first entry must be found again
    _found: tuple[int, Hashable] | None     # access of the latest search, and what it found

    def __init__(self, recency: Recency = "rank") -> None:
        self.recency = recency
        self._now = 0
        self._slot: dict[Hashable, int] = {}
        self._reserve(1)

    def __len__(self) -> int:
        return len(self._slot)

    def __contains__(self, key: object) -> bool:
        return key in self._slot

    def tick(self) -> None:
        """Start the next access."""
        self._now += 1

    def add(self, key: Hashable, size: int) -> None:
        """Add an entry, used by this access."""
        if self._next == len(self._sizes):
            self._compact()
        slot, self._next = self._next, self._next + 1
        self._slot[key], self._keys[slot] = slot, key
        self._sizes[slot], self._uses[slot] = max(1, size), self._now
        block = slot // _BLOCK
        self._live[block] += 1
        self._changed.add(block)
        self._found = None

    def touch(self, key: Hashable) -> None:
        """Use an entry in this access."""
        size = int(self._sizes[self._slot[key]])
        self.remove(key)
        self.add(key, size)

    def remove(self, key: Hashable) -> None:
        slot = self._slot.pop(key)
        self._sizes[slot], self._keys[slot] = 0, None
        block = slot // _BLOCK
        self._live[block] -= 1
        if self.recency == "rank" or slot == self._first[block]:
            self._changed.add(block)
        self._found = None

    def first(self) -> Hashable:
        """Return the entry with the least recency per size; among equals the least recently used one. Raises
        `IndexError` if there is none."""
        if not self._slot:
            raise IndexError("no entry")
        if self._found is None or self._found[0] != self._now:
            self._found = self._now, self._search()
        return self._found[1]

    # -- search --------------------------------------------------------------------------------------------------

    def _search(self) -> Hashable:
        blocks = -(-self._next // _BLOCK)
        live = self._live[:blocks]
        before = np.cumsum(live) - live
        stale = set(np.flatnonzero((live > 0) & self._overtaken(before)).tolist())
        for block in stale | self._changed:
            self._find(block, int(before[block]))
        self._changed.clear()
        some = np.flatnonzero(live > 0)
        first = self._first[some]
        scores = self._scores(before[some] + self._places[some], self._uses[first], self._sizes[first])
        return self._keys[int(first[int(np.argmin(scores))])]

    def _scores(self, places: Any, uses: Any, sizes: Any) -> Any:
        """Recency per size of entries, up to a monotone map for `age`."""
        if self.recency == "rank":
            return places / sizes
        if self.recency == "age":
            return (uses - (self._now + 1)) * sizes
        return uses / sizes

    def _overtaken(self, before: Any) -> Any:
        """Whether another entry of each block may have become its first."""
        limits = self._limits[: len(before)]
        if self.recency == "rank":
            return before <= limits
        return limits <= self._now + 1

    def _find(self, block: int, before: int) -> None:
        """Find the first entry of a block, and until when it is."""
        at = block * _BLOCK
        slots = at + np.flatnonzero(self._sizes[at:at + _BLOCK])
        if not len(slots):
            return
        uses, sizes, places = self._uses[slots], self._sizes[slots], np.arange(1, len(slots) + 1)
        first = int(np.argmin(self._scores(before + places, uses, sizes)))
        self._first[block], self._places[block] = slots[first], first + 1
        self._limits[block] = self._limit(places, uses, sizes, first)

    def _limit(self, places: Any, uses: Any, sizes: Any, first: int) -> float:
        """Return the offset (`rank`) or access (`age`) from which on another entry may have less recency per size.

        rank: (b + p) / s < (b + q) / t for s < t where b < -p + (q - p) s / (t - s).
        age: (n - u) s > (n - v) t for s > t where n > u + (u - v) t / (s - t).
        """
        if self.recency == "counter":
            return np.inf
        size = sizes[first]
        if self.recency == "rank":
            other = sizes < size
            place, rivals = places[other], sizes[other]
            at = (places[first] - place) * rivals / (size - rivals) - place
            return float(at.max() + _MARGIN * (1 + abs(at.max()))) if len(at) else -np.inf
        other = sizes > size
        use, rivals = uses[other], sizes[other]
        at = use + (use - uses[first]) * size / (rivals - size)
        return float(at.min() - _MARGIN * (1 + abs(at.min()))) if len(at) else np.inf

    # -- slots ---------------------------------------------------------------------------------------------------

    def _compact(self) -> None:
        """Close the gaps between entries, in arrays with room for as many more."""
        slots = np.flatnonzero(self._sizes)
        keys, sizes, uses = [self._keys[slot] for slot in slots.tolist()], self._sizes[slots], self._uses[slots]
        count = len(slots)
        self._reserve(1 + 2 * count // _BLOCK)
        self._keys[:count], self._sizes[:count], self._uses[:count] = keys, sizes, uses
        self._slot = {key: slot for slot, key in enumerate(keys)}
        self._next = count
        self._live += np.bincount(np.arange(count) // _BLOCK, minlength=len(self._live))
        self._changed = set(range(-(-count // _BLOCK)))

    def _reserve(self, blocks: int) -> None:
        slots = blocks * _BLOCK
        self._next = 0
        self._keys = [None] * slots
        self._sizes, self._uses = np.zeros(slots), np.zeros(slots)
        self._live, self._first, self._places = (np.zeros(blocks, dtype=np.int64) for _ in range(3))
        self._limits = np.full(blocks, -np.inf if self.recency == "rank" else np.inf)
        self._changed, self._found = set(), None
