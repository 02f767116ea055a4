"""Segments: ranges of blocks of a prefix cache that are taken, hashed, hit and freed together.

A *name* stands for the content of consecutive blocks: block `index` of a name has one content, and `(name, index)` is
its hash. A `Segment` is a range of such blocks with the same number of holders; without holders, its blocks are
adjacent in the free queue, the last block foremost. `SegmentIndex` finds the segment with a block's hash, `FreeQueue`
keeps the free segments in eviction order, and a `Chain` is what one sequence holds.

The pool (`hermes.memory.prefix`) counts the blocks.
"""

from __future__ import annotations

from collections.abc import Hashable, Iterable, Iterator
from typing import Any

__all__ = ["Chain", "FreeQueue", "Segment", "SegmentIndex"]


ENDLESS = 1 << 62   # blocks


class Segment:
    """Blocks `lo` to `hi` (exclusive) of the content `name`. If `name` is None: `hi` blocks without a hash.

    Attributes:
        refs: Sequences that hold it, each the whole of it.
        rest: The segment split off at `hi` while sequences held both; meaningless if no holder goes beyond `hi`.
        before, after: Neighbours in the free queue, nearer to its front and to its back.
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

    Attributes:
        parts: The segments as they were when the sequence got them; parts split off since follow as their `rest`.
        name, name_end: Content of block `end`, and the block up to which it extends.
        runs: Names after that one (`hermes.core.block_hashes.name_runs`); None if `name` is the sequence's own and has
            no end.
    """

    __slots__ = ("end", "name", "name_end", "own_name", "parts", "runs")

    def __init__(self, runs: Iterable[tuple[Hashable, int]], own_name: Hashable) -> None:
        self.end = 0
        self.own_name = own_name
        self.parts: list[Segment] = []
        self.rename(runs)

    def rename(self, runs: Iterable[tuple[Hashable, int]]) -> None:
        """Give the blocks from `end` on new names; `runs` begins with block 0."""
        self.name: Hashable
        self.runs: Iterator[tuple[Hashable, int]] | None
        if runs == ():
            self.name, self.name_end, self.runs = self.own_name, ENDLESS, None
        else:
            self.name, self.name_end, self.runs = None, 0, iter(runs)

    def next_name(self) -> None:
        """Set `name` to that of block `end`."""
        for name, end in self.runs or ():
            if end > self.end:
                self.name, self.name_end = name, end
                return
        self.name, self.name_end, self.runs = self.own_name, ENDLESS, None

    def segments(self) -> list[Segment]:
        """Return the present segments of blocks 0 to `end`, in order."""
        parts = self.parts
        if len(parts) == 1 and parts[0].hi == self.end:
            return parts
        found: list[Segment] = []
        first = 0
        for part in parts:
            while first < part.lo:   # the part before was split
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
    """Index from a name to its segment, or to a list of several in the order in which they were hashed.

    If several segments carry a block's hash, a lookup finds the oldest. Parts of a split segment are adjacent. (The
    pool adds new segments itself, as it checks at the same time whether the latest one can grow instead.)
    """

    def __init__(self) -> None:
        self.by_name: dict[Hashable, Any] = {}

    def add_part(self, segment: Segment, part: Segment) -> None:
        """Add `part`, which was split off `segment` and has the same age."""
        known = self.by_name[segment.name]
        if type(known) is list:
            known.insert(known.index(segment) + 1, part)
        else:
            self.by_name[segment.name] = [segment, part]

    def remove(self, segment: Segment) -> None:
        """Remove a segment whose blocks carry their hashes no longer."""
        known = self.by_name[segment.name]
        if known is segment:
            del self.by_name[segment.name]
            return
        known.remove(segment)
        if len(known) == 1:
            self.by_name[segment.name] = known[0]

    def match(self, name: Hashable, first: int, end: int, found: list[tuple[Segment, int, int]]) -> int:
        """Append the carriers of the hashes of blocks `first` to `end` to `found`, as (segment, from, to); return the
        first block without a carrier, or `end`."""
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
            to = end   # start of an older segment
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
    """Segments in the order in which their blocks are taken: a linked ring, closed by `ring`."""

    def __init__(self) -> None:
        self.ring = ring = Segment(None, 0, 0)
        ring.before = ring.after = ring

    def append(self, segment: Segment) -> None:
        """Append a segment at the back."""
        ring = self.ring
        last = ring.before
        segment.before, segment.after = last, ring
        last.after = ring.before = segment

    def put_before(self, segment: Segment, other: Segment) -> None:
        """Insert a segment before `other`, which is in the queue."""
        before = other.before
        segment.before, segment.after = before, other
        before.after = other.before = segment

    def remove(self, segment: Segment) -> None:
        """Remove a segment from any place."""
        segment.before.after, segment.after.before = segment.after, segment.before

    def __iter__(self) -> Iterator[Segment]:
        """Iterate from the front to the back."""
        segment = self.ring.after
        while segment is not self.ring:
            yield segment
            segment = segment.after
