"""KV stores outside the device: capacity, eviction, and the expected time of a hierarchy of stores.

`expected_s` is the HERMES formula (arXiv 2504.09775v3, section on KV retrieval):

    f(size, n) = hit_n * (lookup_n + size / bandwidth_n) + (1 - hit_n) * f(size, n + 1)

Past the last level the context is recomputed. A lookup is charged only if it hits. `hit_s` and `drawn_level` are the
same hierarchy fetch by fetch: the mean of drawn fetches is the formula's.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable, Iterable, Sequence
from typing import Any, NamedTuple

from hermes.memory.admission import Frequency

__all__ = ["Level", "Store", "drawn_level", "expected_s", "find_chain", "hit_s"]


class Level(NamedTuple):
    """One level of a hierarchy: seconds per lookup, bytes/s, and the share of requests that find their entry."""

    lookup_s: float
    bandwidth: float
    hit_rate: float


def expected_s(
    num_bytes: float, levels: Sequence[Level], recompute_s: float, exposed: Callable[[float], float] | None = None,
) -> float:
    """Return the expected seconds to get `num_bytes` of KV from a hierarchy; `recompute_s` if no level has them.

    exposed: If reads overlap with the prefill, a function from bytes/s to the bytes of a read that delay it.
    """
    seconds = recompute_s
    for level in reversed(levels):
        seconds = level.hit_rate * hit_s(num_bytes, level, exposed) + (1 - level.hit_rate) * seconds
    return seconds


def hit_s(num_bytes: float, level: Level, exposed: Callable[[float], float] | None = None) -> float:
    """Return the seconds of a fetch of `num_bytes` that hits `level`: lookup_n + size / bandwidth_n, for one reader
    alone. exposed: as for `expected_s`."""
    waited = num_bytes if exposed is None else exposed(level.bandwidth)
    return level.lookup_s + waited / level.bandwidth


def drawn_level(levels: Sequence[Level], draw: Callable[[], float]) -> int:
    """Return the index of the level that has an entry, drawn with the hit rates; `len(levels)` if none has it.

    draw: Returns numbers of [0, 1), independent and uniform. Called once per level asked, nearest first.
    """
    return next((depth for depth, level in enumerate(levels) if draw() < level.hit_rate), len(levels))


class Store:
    """Entries of known size within a capacity. An entry larger than the capacity is refused.

    Args:
        frequency: Admission filter of a full store (`admits`), None to admit all entries.
    """

    def __init__(self, capacity_bytes: int, policy: Any, frequency: Frequency | None = None) -> None:
        self.capacity_bytes, self.policy, self.frequency = capacity_bytes, policy, frequency
        self.not_admitted = 0
        self.used_bytes = 0
        self.entries: dict[Hashable, int] = {}
        self.hits = self.misses = self.evictions = self.refused = 0
        self.peak_bytes = 0

    def get(self, key: Hashable) -> int | None:
        """Return the bytes under `key`, or None. Counts as a read."""
        num_bytes = self.entries.get(key)
        if num_bytes is None:
            self.missed([key])
            return None
        if self.frequency is not None:
            self.frequency.seen(key)
        self.hits += 1
        self.policy.read(key)
        return num_bytes

    def missed(self, keys: Sequence[Hashable]) -> None:
        """Count keys that were looked up in vain."""
        self.misses += len(keys)
        if self.frequency is not None:
            for key in keys:
                self.frequency.seen(key)

    def admits(self, key: Hashable, num_bytes: int) -> bool:
        """Whether an entry may come in: there is room, or it was requested more often than the first victim. `put` does
        not check this."""
        if self.frequency is None or key in self.entries or self.used_bytes + num_bytes <= self.capacity_bytes:
            return True
        if self.entries and not self.frequency.prefers(key, self.policy.victim()):
            self.not_admitted += 1
            return False
        return True

    def __contains__(self, key: Hashable) -> bool:
        return key in self.entries

    def put(self, key: Hashable, num_bytes: int) -> list[tuple[Hashable, int]] | None:
        """Store an entry (in place of an older one of that key). Return the evicted entries with their sizes, in order;
        None, without any change, if it is larger than the store."""
        if num_bytes > self.capacity_bytes:
            self.refused += 1
            return None
        if key in self.entries:
            self._remove(key)
        evicted: list[tuple[Hashable, int]] = []
        while self.used_bytes + num_bytes > self.capacity_bytes:
            victim = self.policy.victim()
            evicted.append((victim, self.entries[victim]))
            self._remove(victim)
        self.evictions += len(evicted)
        self.entries[key] = num_bytes
        self.used_bytes += num_bytes
        self.peak_bytes = max(self.peak_bytes, self.used_bytes)
        self.policy.added(key, num_bytes)
        return evicted

    def clear(self) -> None:
        """Remove all entries; they do not count as evicted."""
        for key in list(self.entries):
            self._remove(key)

    def _remove(self, key: Hashable) -> None:
        self.used_bytes -= self.entries.pop(key)
        self.policy.removed(key)


def find_chain(stores: Sequence[Store], keys: Iterable[Hashable]) -> list[int]:
    """Return, for each leading block of a prompt that some store has, the index of the nearest such store.

    keys: Chained hashes of the prompt's blocks: a block is of use only if all blocks before it are found. Blocks after
    the first missing one count as missed in all stores, since they must be computed.
    """
    chain = list(keys)
    found: list[int] = []
    for key in chain:
        depth = next((depth for depth, store in enumerate(stores) if key in store), None)
        if depth is None:
            break
        found.append(depth)
    # Read the last block first, so that the head of a chain, without which the rest is useless, is evicted last.
    for key, depth in zip(reversed(chain[:len(found)]), reversed(found), strict=True):
        stores[depth].get(key)
        for nearer in stores[:depth]:
            nearer.missed([key])
    for store in stores:
        store.missed(chain[len(found):])
    return found
