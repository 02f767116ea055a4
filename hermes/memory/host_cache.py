"""Host memory that holds copies of KV blocks, with the bookkeeping of vLLM's CPU offloading (0.32.0).

The unit is a *chunk* of one or several blocks, identified by a key that stands for all text up to its end. A chunk is
written, then ready, and pinned while loads read it. Stores take free chunks first, then evict ready ones that no load
reads. The eviction order is a policy: `lru`, or `arc` (adaptive replacement: Megiddo and Modha, FAST 2003). Recency
changes when a chunk is stored and when a request that used it ends (`end`), not when it is looked up or loaded. So the
chunks of one request lie together in the order, those of its beginning as the most recent. From 0.33 on `lru` also
moves a chunk when a request first looks it up to load it or offers it (`RankedOrder`).

Sources: vllm/v1/kv_offload/cpu/manager.py (CPUOffloadingManager), cpu/policies/lru.py, cpu/policies/arc.py.
docs/background/kv-offload.md lists the rules.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Collection, Hashable, Iterable, Iterator, Sequence
from heapq import heapify, heappop, heappush

__all__ = ["ArcOrder", "HostCache", "LruOrder", "RankedOrder", "RequestChunks"]

Key = Hashable
Order = OrderedDict[Key, None]

MOST_COUNTED = 64_000   # keys whose offers are counted, with `store_threshold`


class RequestChunks:
    """The chunks that one request has used.

    Attributes:
        places: Number of each chunk in the request's text.
        stored: Chunks that it stored.
        reused: Ready chunks that it found: loaded, or offered although they were there.
        missed: Chunks that it wanted to store and that were not there.
        rank: When it first used one, among all requests (`RankedOrder`); 0: not yet.
    """

    __slots__ = ("missed", "places", "rank", "reused", "stored")

    def __init__(self) -> None:
        self.places: dict[Key, int] = {}
        self.stored: set[Key] = set()
        self.reused: set[Key] = set()
        self.missed: set[Key] = set()
        self.rank = 0

    def in_order(self) -> list[Key]:
        """Return the chunks from the beginning of the text on."""
        return sorted(self.places, key=self.places.__getitem__)


class LruOrder:
    """Least recently used first."""

    def __init__(self, capacity: int) -> None:
        self._order: Order = OrderedDict()

    def insert(self, key: Key, used: RequestChunks) -> None:
        self._order[key] = None

    def missed(self, keys: Sequence[Key]) -> None:
        """Note that a request wants to store chunks that are not there."""

    def accessed(self, keys: Sequence[Key], used: RequestChunks) -> None:
        """Note chunks that a request uses for the first time, whether they are there or not."""

    def ended(self, used: RequestChunks) -> None:
        """Note that a request has ended: what it used becomes recent, its first chunk most of all."""
        for key in reversed(used.in_order()):
            if key in self._order:
                self._order.move_to_end(key)

    def victims(self, count: int, kept: Collection[Key]) -> list[Key] | None:
        """Take `count` chunks that are not in `kept` out of the order; None, without any change, if there are fewer."""
        found: list[Key] = []
        for key in self._order:
            if key not in kept:
                found.append(key)
                if len(found) == count:
                    break
        else:
            return None
        for key in found:
            del self._order[key]
        return found


class RankedOrder:
    """Least recently used first, as vLLM 0.33 does it: a request under way moves what it uses as well.

    All chunks that a request uses have its rank until it ends, those at the end of its text before those at the
    beginning. A request has the rank of its first use. When it ends, its chunks get ranks anew, one by one.
    """

    def __init__(self, capacity: int) -> None:
        self._ranks: dict[Key, tuple[int, int]] = {}
        self._heap: list[tuple[tuple[int, int], int, Key]] = []   # also of ranks that are no longer those of their keys
        self._latest = self._pushed = 0

    def insert(self, key: Key, used: RequestChunks) -> None:
        self._set(key, (self._rank_of(used), -used.places[key]))

    def missed(self, keys: Sequence[Key]) -> None:
        """Do nothing: a miss changes no rank."""

    def accessed(self, keys: Sequence[Key], used: RequestChunks) -> None:
        rank = self._rank_of(used)
        for key in keys:
            if key in self._ranks and self._ranks[key] < (rank, -used.places[key]):
                self._set(key, (rank, -used.places[key]))

    def ended(self, used: RequestChunks) -> None:
        for key in reversed(used.in_order()):
            if key in self._ranks:
                self._latest += 1
                self._set(key, (self._latest, 0))

    def victims(self, count: int, kept: Collection[Key]) -> list[Key] | None:
        found: list[tuple[tuple[int, int], int, Key]] = []
        passed: list[tuple[tuple[int, int], int, Key]] = []
        while self._heap and len(found) < count:
            entry = heappop(self._heap)
            rank, _order, key = entry
            if self._ranks.get(key) == rank:
                (passed if key in kept else found).append(entry)
        for entry in passed if len(found) == count else passed + found:
            heappush(self._heap, entry)
        if len(found) < count:
            return None
        for _rank, _order, key in found:
            del self._ranks[key]
        return [key for _rank, _order, key in found]

    def _rank_of(self, used: RequestChunks) -> int:
        if not used.rank:
            self._latest += 1
            used.rank = self._latest
        return used.rank

    def _set(self, key: Key, rank: tuple[int, int]) -> None:
        self._ranks[key] = rank
        self._pushed += 1
        heappush(self._heap, (rank, self._pushed, key))
        if len(self._heap) > 64 + 4 * len(self._ranks):
            self._heap = [entry for entry in self._heap if self._ranks.get(entry[2]) == entry[0]]
            heapify(self._heap)


class ArcOrder:
    """Adaptive replacement: chunks that one request used (`once`) and more did (`again`), and the room of either.

    Attributes:
        once, again: Chunks in the cache.
        once_gone, again_gone: Keys evicted from either, at most `capacity` of each.
        target: Size that `once` may have before `again` is evicted from. A store of a key in `once_gone` raises it, one
            in `again_gone` lowers it.
    """

    def __init__(self, capacity: int) -> None:
        self.capacity = capacity
        self.once: Order = OrderedDict()
        self.again: Order = OrderedDict()
        self.once_gone: Order = OrderedDict()
        self.again_gone: Order = OrderedDict()
        self.target = 0.0

    def insert(self, key: Key, used: RequestChunks) -> None:
        self.once[key] = None
        self.once_gone.pop(key, None)
        self.again_gone.pop(key, None)

    def missed(self, keys: Sequence[Key]) -> None:
        for key in reversed(keys):
            if key in self.once_gone:
                more = max(1.0, len(self.again_gone) / len(self.once_gone))
                self.target = min(self.target + more, self.capacity)
                self.once_gone.move_to_end(key)
            elif key in self.again_gone:
                less = max(1.0, len(self.once_gone) / len(self.again_gone))
                self.target = max(self.target - less, 0.0)
                self.again_gone.move_to_end(key)

    def accessed(self, keys: Sequence[Key], used: RequestChunks) -> None:
        """Do nothing: a chunk moves when the request ends."""

    def ended(self, used: RequestChunks) -> None:
        for key in reversed(used.in_order()):
            if key in used.reused:
                if key in self.once:
                    del self.once[key]
                    self.again[key] = None
                elif key in self.again:
                    self.again.move_to_end(key)
            elif key in used.stored:   # a store is no second use
                for part in (self.once, self.again):
                    if key in part:
                        part.move_to_end(key)

    def victims(self, count: int, kept: Collection[Key]) -> list[Key] | None:
        once: Iterator[Key] = (key for key in self.once if key not in kept)
        again: Iterator[Key] = (key for key in self.again if key not in kept)
        left = len(self.once)
        found: list[tuple[Key, bool]] = []
        for _ in range(count):
            key = next(once, None) if left >= int(self.target) else None
            from_once = key is not None
            if key is None:
                key = next(again, None)
            if key is None:
                key = next(once, None)
                from_once = True
            if key is None:
                return None
            left -= from_once
            found.append((key, from_once))
        for key, from_once in found:
            if from_once:
                del self.once[key]
                self.once_gone[key] = None
            else:
                del self.again[key]
                self.again_gone[key] = None
        for gone in (self.once_gone, self.again_gone):
            while len(gone) > self.capacity:
                gone.popitem(last=False)
        return [key for key, _ in found]


class HostCache:
    """Chunks in host memory.

    Args:
        capacity: Chunks that fit.
        policy: Eviction order, `lru` or `arc`.
        store_threshold: Number of offers of a chunk after which it is stored; up to 1 at once.
        ranked: `lru` as in vLLM 0.33 (`RankedOrder`), else as in 0.32.

    Attributes:
        used: Chunks in the cache, those being written included.
        evictable: Ready chunks that no load reads.
        peak: Most chunks so far.
        hits, misses: Chunks that requests found when they were admitted, and the first ones that they did not find.
        evictions, refused: Chunks evicted, and chunks that found no room when a request first offered them.
    """

    def __init__(
        self, capacity: int, policy: str = "lru", store_threshold: int = 0, *, ranked: bool = False
    ) -> None:
        self.capacity, self.policy, self.store_threshold = capacity, policy, store_threshold
        lru = RankedOrder if ranked else LruOrder
        self._order: LruOrder | RankedOrder | ArcOrder = ArcOrder(capacity) if policy == "arc" else lru(capacity)
        self._readers: dict[Key, int] = {}   # chunk -> loads that read it, -1 while it is written
        self._busy: set[Key] = set()         # chunks being written or read
        self._offers: OrderedDict[Key, int] = OrderedDict()
        self.peak = self.hits = self.misses = self.evictions = self.refused = 0

    @property
    def used(self) -> int:
        return len(self._readers)

    @property
    def evictable(self) -> int:
        return len(self._readers) - len(self._busy)

    def ready(self, key: Key) -> bool | None:
        """Return whether a chunk can be read; False while it is written, None if it is not there."""
        readers = self._readers.get(key)
        return None if readers is None else readers >= 0

    def load(self, keys: Sequence[Key], first: int, used: RequestChunks) -> None:
        """Pin chunks that a load reads: those from number `first` on of a request."""
        for key in keys:
            self._readers[key] += 1
            self._busy.add(key)
        self._note(keys, first, used, keys)

    def loaded(self, keys: Iterable[Key]) -> None:
        """Unpin the chunks of a load that is complete."""
        for key in keys:
            self._readers[key] -= 1
            if not self._readers[key]:
                self._busy.discard(key)

    def store(self, keys: Sequence[Key], first: int, used: RequestChunks) -> list[Key] | None:
        """Make room for the chunks that are not there; return them, or None (and store nothing) if there is no room.

        keys: Chunks of one request from number `first` on. They are not evicted for each other.
        """
        if self.store_threshold >= 2:
            self._count(keys)
        new = [key for key in keys if key not in self._readers]
        there = [key for key in keys if self._readers.get(key, -1) >= 0]
        if self.store_threshold >= 2:
            new = [key for key in new if self._offers.get(key, 0) >= self.store_threshold]
        unseen = [key for key in new if key not in used.missed]
        if unseen:
            self._order.missed(unseen)
            used.missed.update(unseen)
        wanted = {*new, *there}
        self._note(keys, first, used, there, wanted)
        if not new:
            return new
        short = len(new) - (self.capacity - len(self._readers))
        if short > 0:
            gone = self._order.victims(short, {*keys, *self._busy}) if short <= self.evictable else None
            if gone is None:
                self.refused += len(unseen)   # a request offers them again and again
                return None
            for key in gone:
                del self._readers[key]
            self.evictions += len(gone)
        for key in new:
            self._readers[key] = -1
            self._busy.add(key)
            self._order.insert(key, used)
        self.peak = max(self.peak, len(self._readers))
        used.stored.update(new)
        return new

    def stored(self, keys: Iterable[Key]) -> None:
        """Mark the chunks of a store that is complete as ready."""
        for key in keys:
            self._readers[key] = 0
            self._busy.discard(key)

    def end(self, used: RequestChunks) -> None:
        """Note that a request has ended."""
        self._order.ended(used)

    def _note(
        self, keys: Sequence[Key], first: int, used: RequestChunks, reused: Iterable[Key],
        wanted: Collection[Key] | None = None,
    ) -> None:
        new = []
        for place, key in enumerate(keys, first):
            if (wanted is None or key in wanted) and key not in used.places:
                used.places[key] = place
                new.append(key)
        if new:
            self._order.accessed(new, used)
        used.reused.update([key for key in reused if key not in used.stored])

    def _count(self, keys: Sequence[Key]) -> None:
        """Count an offer of chunks. The counts of those offered longest ago are dropped first, not those of `keys`."""
        offers = self._offers
        known = [key for key in keys if key in offers]
        for key in known:
            offers[key] += 1
            offers.move_to_end(key)
        others = len(offers) - len(set(known))
        for key in keys:
            if key in offers:
                continue
            if len(offers) >= MOST_COUNTED:
                if not others:
                    continue
                offers.popitem(last=False)
                others -= 1
            offers[key] = 1
