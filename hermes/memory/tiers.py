"""Stores of KV outside the device: capacity, eviction, and the expected cost of a hierarchy of them.

`expected_s` is the HERMES formula (arXiv 2504.09775v3, section on KV retrieval):

    f(size, n) = hit_n * (lookup_n + size / bandwidth_n) + (1 - hit_n) * f(size, n + 1)

and past the last level the context is recomputed. A lookup is charged only where it hits.
"""

from __future__ import annotations

from collections.abc import Hashable, Sequence
from typing import Any, NamedTuple

__all__ = ["Level", "Store", "expected_s"]


class Level(NamedTuple):
    """What one level of a hierarchy costs: seconds per lookup, bytes/s, share of the requests that find theirs."""

    lookup_s: float
    bandwidth: float
    hit_rate: float


def expected_s(num_bytes: float, levels: Sequence[Level], recompute_s: float) -> float:
    """Expected seconds to get `num_bytes` of KV from a hierarchy; `recompute_s` where no level has them."""
    seconds = recompute_s
    for level in reversed(levels):
        found = level.lookup_s + num_bytes / level.bandwidth
        seconds = level.hit_rate * found + (1 - level.hit_rate) * seconds
    return seconds


class Store:
    """Entries of known size within a capacity. Never holds more; an entry larger than that is refused."""

    def __init__(self, capacity_bytes: int, policy: Any) -> None:
        self.capacity_bytes, self.policy = capacity_bytes, policy
        self.used_bytes = 0
        self.entries: dict[Hashable, int] = {}
        self.hits = self.misses = self.evictions = self.refused = 0
        self.peak_bytes = 0

    def get(self, key: Hashable) -> int | None:
        """Bytes under `key`, or None. Counts as a read."""
        num_bytes = self.entries.get(key)
        if num_bytes is None:
            self.misses += 1
            return None
        self.hits += 1
        self.policy.read(key)
        return num_bytes

    def put(self, key: Hashable, num_bytes: int) -> bool:
        """Keep an entry (in place of an older one of that key), evicting others for it; False if it is too large."""
        if num_bytes > self.capacity_bytes:
            self.refused += 1
            return False
        if key in self.entries:
            self._remove(key)
        while self.used_bytes + num_bytes > self.capacity_bytes:
            self._remove(self.policy.victim())
            self.evictions += 1
        self.entries[key] = num_bytes
        self.used_bytes += num_bytes
        self.peak_bytes = max(self.peak_bytes, self.used_bytes)
        self.policy.added(key, num_bytes)
        return True

    def _remove(self, key: Hashable) -> None:
        self.used_bytes -= self.entries.pop(key)
        self.policy.removed(key)
