"""Segments: ranges of blocks of a prefix cache that are taken, hashed, hit and freed together.

A *name* stands for the content of consecutive blocks: block `index` of a name is one content, `(name, index)` is its
hash. A `Segment` is a range of such blocks that have the same number of holders and, if that is none, lie next to each
other in the free queue, last block foremost. `SegmentIndex` finds the segment that carries a block's hash,
`FreeQueue` keeps the free segments in eviction order, and a `Chain` is what one sequence holds.

Nothing here counts blocks; that is the pool's (`hermes.memory.prefix`).
"""

from __future__ import annotations

from collections.abc import Hashable, Iterable, Iterator
from typing import Any

__all__ = ["Chain", "FreeQueue", "Segment", "SegmentIndex"]


ENDLESS = 1 << 62   # blocks


class Segment:
    """Blocks `lo` to `hi` (exclusive) of the content `name`. `name` None: `hi` blocks without a hash.

    refs: sequences that hold it, each of them whole
    rest: the segment that was split off at `hi` while sequences held both; meaningless where no holder goes beyond `hi`
    before, after: its neighbours in the free queue, nearer to its front and to its back
    """

    __slots__ = ("after", "before", "hi", "lo", "name", "refs", "rest")

    before: Segment
    after: Segment

    def __init__(self, name: Hashable, lo: int, hi: int) -> None:
        self.name = name
        self.lo = lo
        self.hi = hi
        self.refs = 0
        self.rest: Segment | None = None


class Chain:
    """The hashed blocks of one sequence: blocks 0 to `end` (exclusive) of its text, in order.

    parts: the segments as they were when the sequence got them; what was split off since follows as their `rest`
    name, name_end: content of block `end`, and up to which block it goes
    runs: what follows that name (`hermes.core.block_hashes.name_runs`); None where `name` is the sequence's own and
        has no end
    """

    __slots__ = ("end", "name", "name_end", "own_name", "parts", "runs")

    def __init__(self, runs: Iterable[tuple[Hashable, int]], own_name: Hashable) -> None:
        self.end = 0
        self.own_name = own_name
        self.parts: list[Segment] = []
        self.rename(runs)

    def rename(self, runs: Iterable[tuple[Hashable, int]]) -> None:
        """The blocks from `end` on have these names; `runs` begins with block 0."""
        self.name: Hashable
        self.runs: Iterator[tuple[Hashable, int]] | None
        if runs == ():
            self.name, self.name_end, self.runs = self.own_name, ENDLESS, None
        else:
            self.name, self.name_end, self.runs = None, 0, iter(runs)

    def next_name(self) -> None:
        """Let `name` be that of block `end`."""
        for name, end in self.runs or ():
            if end > self.end:
                self.name, self.name_end = name, end
                return
        self.name, self.name_end, self.runs = self.own_name, ENDLESS, None

    def segments(self) -> list[Segment]:
        """The segments of blocks 0 to `end` as they are now, in order."""
        parts = self.parts
        if len(parts) == 1 and parts[0].hi == self.end:
            return parts
        found: list[Segment] = []
        first = 0
        for part in parts:
            while first < part.lo:   # the one before was split
                split = found[-1].rest
                assert split is not None
                found.append(split)
                first = split.hi
            found.append(part)
            first = part.hi
        while first < self.end:
            split = found[-1].rest
            assert split is not None
            found.append(split)
            first = split.hi
        return found


class SegmentIndex:
    """Name -> the segment of that name, or a list of several in the order in which they were hashed.

    Of several segments that carry a block's hash the oldest counts. Segments that were split stay side by side. (The
    pool adds new ones itself: it asks at the same time whether the latest one grows instead.)
    """

    def __init__(self) -> None:
        self.by_name: dict[Hashable, Any] = {}

    def add_part(self, segment: Segment, part: Segment) -> None:
        """`part` was split off `segment`: it is as old."""
        known = self.by_name[segment.name]
        if type(known) is list:
            known.insert(known.index(segment) + 1, part)
        else:
            self.by_name[segment.name] = [segment, part]

    def remove(self, segment: Segment) -> None:
        """Its blocks carry their hashes no longer."""
        known = self.by_name[segment.name]
        if known is segment:
            del self.by_name[segment.name]
            return
        known.remove(segment)
        if len(known) == 1:
            self.by_name[segment.name] = known[0]

    def match(self, name: Hashable, first: int, end: int, found: list[tuple[Segment, int, int]]) -> int:
        """Append what carries the hashes of blocks `first` to `end`, as (segment, from, to); returns the first block
        that nothing carries, or `end`."""
        known = self.by_name.get(name)
        if known is None:
            return first
        if type(known) is not list:
            if known.lo <= first < known.hi:
                to = known.hi if known.hi < end else end
                found.append((known, first, to))
                return int(to)
            return first
        while first < end:
            to = end   # where an older segment begins
            for segment in known:
                if segment.lo > first:
                    if segment.lo < to:
                        to = segment.lo
                elif first < segment.hi:
                    if segment.hi < to:
                        to = segment.hi
                    break
            else:
                return first
            found.append((segment, first, to))
            first = to
        return first


class FreeQueue:
    """Segments in the order in which their blocks are taken: a ring, closed by `ring`."""

    def __init__(self) -> None:
        self.ring = ring = Segment(None, 0, 0)
        ring.before = ring.after = ring

    def append(self, segment: Segment) -> None:
        """To the back."""
        ring = self.ring
        last = ring.before
        segment.before, segment.after = last, ring
        last.after = ring.before = segment

    def put_before(self, segment: Segment, other: Segment) -> None:
        """Just before `other`, which is in the queue."""
        before = other.before
        segment.before, segment.after = before, other
        before.after = other.before = segment

    def remove(self, segment: Segment) -> None:
        """From anywhere."""
        segment.before.after, segment.after.before = segment.after, segment.before

    def __iter__(self) -> Iterator[Segment]:
        """From the front to the back."""
        segment = self.ring.after
        while segment is not self.ring:
            yield segment
            segment = segment.after
