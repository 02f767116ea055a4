"""Max-min fair rates of flows over shared links, updated as flows start and end.

Progressive filling: the rates of all flows grow together; when a link is full, the flows through it stop growing. A
flow's *bottleneck* is the link that stopped it: it is full, and no flow on it is faster. Rates for which every flow has
a bottleneck are max-min fair, and there is only one such set (Bertsekas and Gallager, Data Networks, 6.5.2).

So the state is one number per link: its *level*, the rate of the flows that it stops. With 1,000 flows over four racks,
the end of one flow changes the rates of hundreds of flows, but the levels of only ten or twenty links and the
bottlenecks of two or three flows. `MaxMin` therefore repairs levels link by link, lowest first. It touches flows (in
fact streams: all flows over one path) only when they change their bottleneck. Links that no change reaches, such as
those of other connected components, cost nothing.

Rates are integers (`RATE_UNIT` of them are one byte/s): sums are exact, rounding never puts a link over its capacity,
repairs leave no residue that accumulates, and their ripples end in the last digit.

This module has no notion of time; `hermes.network.flows` moves the bytes.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from heapq import heapify, heappop, heappush

__all__ = ["NO_LIMIT", "RATE_UNIT", "MaxMin", "Stream", "fair_levels"]

RATE_UNIT = 1 << 32    # rate units in one byte/s: a share of 1 byte/s is exact to ten digits
NO_LIMIT = 1 << 100    # level of a link that stops no flow; above every capacity


class Stream:
    """The flows over one path. All have the same rate: the level of the stream's bottleneck.

    Attributes:
        links: Indices of the links on the path, each at most once.
        flows: Number of flows that share.
        bottleneck: Index of the link that stops them; -1 without flows.
    """

    __slots__ = ("bottleneck", "flows", "links")

    def __init__(self, links: tuple[int, ...]) -> None:
        self.links = links
        self.flows = 0
        self.bottleneck = -1


class MaxMin:
    """Max-min fair shares of `capacities` (integer rate units, one per link).

    Call `change` for every stream whose number of flows changed, then `settle` once. `level[link]` is the rate of every
    stream whose bottleneck is `link`. After `settle`, `changed` holds the old level of every link whose level changed,
    and `moved` the old bottleneck of every stream whose bottleneck changed, since the last `settle`.

    effort: Link repairs per link in one `settle` after which it starts from scratch instead (0: always). Repairs
    proceed upwards in level and end by themselves; this bounds the cost of an unforeseen tie.
    """

    def __init__(self, capacities: Sequence[int], effort: int = 8) -> None:
        num_links = len(capacities)
        self.capacity = list(capacities)
        self.effort = effort
        self.level = [NO_LIMIT] * num_links
        self.count = [0] * num_links           # flows that the link stops
        self.changed: dict[int, int] = {}
        self.moved: dict[Stream, int] = {}
        # capacity that a link leaves to the flows that it stops; negative only until its repair
        self._spare = list(capacities)
        self._stopped: list[dict[Stream, None]] = [{} for _ in capacities]
        # flows stopped by `a` that also cross `b`: _out[a][b] == _in[b][a]
        self._out: list[dict[int, int]] = [{} for _ in capacities]
        self._in: list[dict[int, int]] = [{} for _ in capacities]
        self._queue: list[tuple[int, int]] = []     # (lowest level at which the link may differ, link)
        self._queued = bytearray(num_links)
        self._exceeded = bytearray(num_links)       # a stream through the link may be faster than the link's level

    def add_link(self, capacity: int) -> int:
        """Add a link and return its index."""
        for column, value in ((self.capacity, capacity), (self.level, NO_LIMIT), (self.count, 0),
                              (self._spare, capacity)):
            column.append(value)
        self._stopped.append({})
        self._out.append({})
        self._in.append({})
        self._queued.append(0)
        self._exceeded.append(0)
        return len(self.capacity) - 1

    def resize(self, link: int, capacity: int) -> None:
        """Change the capacity of a link. With 0 each of its flows has the least rate, 1."""
        self._spare[link] += capacity - self.capacity[link]
        self.capacity[link] = capacity
        self._mark(link, 0)

    def rate(self, stream: Stream) -> int:
        """Return the rate of each flow of the stream; 0 without flows."""
        return self.level[stream.bottleneck] if stream.flows else 0

    def change(self, stream: Stream, flows: int) -> None:
        """Set the number of flows of a stream."""
        delta = flows - stream.flows
        if not delta:
            return
        if not stream.flows:
            self.moved.setdefault(stream, -1)
            self._place(stream, flows)
        elif not flows:
            self.moved.setdefault(stream, stream.bottleneck)
            del self._stopped[stream.bottleneck][stream]
            self._add(stream, stream.bottleneck, -stream.flows)
            stream.bottleneck, stream.flows = -1, 0
        else:
            stream.flows = flows
            self._add(stream, stream.bottleneck, delta)

    def settle(self) -> tuple[dict[int, int], dict[Stream, int]]:
        """Repair all levels. Return (and reset) `changed` and `moved`."""
        work = self.effort * len(self.capacity)
        queue, queued = self._queue, self._queued
        while queue:
            if work <= 0:
                self._start_over()
                break
            _, link = heappop(queue)
            queued[link] = 0
            work -= 1
            self._repair(link)
        changed, moved = self.changed, self.moved
        self.changed, self.moved = {}, {}
        return changed, moved

    def _place(self, stream: Stream, flows: int) -> None:
        """Give a new stream the bottleneck that would allow it least if no other stream changed."""
        best, least = -1, NO_LIMIT
        for link in stream.links:
            share = self._spare[link] // (self.count[link] + flows)
            if share < least:
                best, least = link, share
        stops_first = not self.count[best]
        if stops_first:
            self._set_level(best, max(1, least))
        stream.flows, stream.bottleneck = flows, best
        self._stopped[best][stream] = None
        self._add(stream, best, flows)
        if stops_first:
            self._mark(best, NO_LIMIT)   # the link stopped no flow before: others may be faster than its level

    def _set_level(self, link: int, level: int) -> None:
        self.changed.setdefault(link, self.level[link])
        self.level[link] = level

    def _add(self, stream: Stream, link: int, flows: int) -> None:
        """Let `link` stop `flows` more (or fewer) flows over the stream's path, at its present level."""
        level = self.level[link]
        for other in stream.links:
            if other != link:
                self._cross(link, other, flows)
                self._spare[other] -= flows * level
                self._mark(other, level)
        self.count[link] += flows
        if not self.count[link]:
            self._set_level(link, NO_LIMIT)
        self._mark(link, 0)

    def _mark(self, link: int, faster: int) -> None:
        """Queue a link whose use changed; `faster` is the rate of the stream that changed it."""
        old = self.level[link]
        count = self.count[link]
        spare = self._spare[link]
        new = spare // count if count else NO_LIMIT if spare >= 0 else 0
        if faster > old:
            self._exceeded[link] = 1
        elif new == old:
            return
        if not self._queued[link]:
            self._queued[link] = 1
            heappush(self._queue, (min(old, new), link))

    def _repair(self, link: int) -> None:
        """Set the level of one link to what the streams stopped elsewhere leave."""
        level, count = self.level, self.count[link]
        old = level[link]
        spare = self._spare[link]
        new = spare // count if count else NO_LIMIT if spare >= 0 else 0
        joins = []
        if new < old or self._exceeded[link]:
            self._exceeded[link] = 0
            flows = self._in[link]
            joins = [other for other in flows if level[other] > new]
            if joins:
                # stop streams here that were stopped elsewhere at a higher level, the fastest first
                joins.sort(key=lambda other: (-level[other], other))
                num_joins = 0
                for other in joins:
                    if level[other] <= new:
                        break
                    count += flows[other]
                    spare += flows[other] * level[other]
                    new = spare // count
                    num_joins += 1
                del joins[num_joins:]
                lowest = min(old, new)
                if self._queue and self._queue[0][0] < lowest:
                    # the link's place is known only now: lower links come first and may change its input
                    self._exceeded[link] = self._queued[link] = 1
                    heappush(self._queue, (lowest, link))
                    return
        new = max(new, 1)
        if new != old:
            self._set_level(link, new)
            if self.count[link]:
                self._push(link, new - old, new)
        for other in joins:
            self._take(link, other)

    def _push(self, link: int, rise: int, new: int) -> None:
        """Tell the other links of the streams that `link` stops that these are faster by `rise`."""
        spare, level, count = self._spare, self.level, self.count
        queue, queued, exceeded = self._queue, self._queued, self._exceeded
        for other, flows in self._out[link].items():
            spare[other] = left = spare[other] - flows * rise
            stopped = count[other]
            if stopped:
                old = level[other]
                if new > old:
                    exceeded[other] = 1
                if not queued[other]:
                    share = left // stopped
                    if share != old or new > old:
                        queued[other] = 1
                        heappush(queue, (share if share < old else old, other))
            elif left < 0 and not queued[other]:
                queued[other] = 1
                heappush(queue, (0, other))

    def _take(self, link: int, other: int) -> None:
        """Move the streams through `link` that `other` stopped to `link`."""
        streams = [stream for stream in self._stopped[other] if link in stream.links]
        moved, stopped, stopped_before = self.moved, self._stopped[link], self._stopped[other]
        crossing: dict[int, int] = {}
        for stream in streams:
            del stopped_before[stream]
            stopped[stream] = None
            moved.setdefault(stream, other)
            stream.bottleneck = link
            for third in stream.links:
                crossing[third] = crossing.get(third, 0) + stream.flows
        flows, level = crossing.pop(link), self.level[link]
        del crossing[other]
        rise = level - self.level[other]
        for third, num in crossing.items():
            self._cross(other, third, -num)
            self._cross(link, third, num)
            self._spare[third] -= num * rise
            self._mark(third, level)
        self._cross(other, link, -flows)
        self._cross(link, other, flows)
        self._spare[link] += flows * self.level[other]
        self._spare[other] -= flows * level
        self.count[link] += flows
        self.count[other] -= flows
        if not self.count[other]:
            self._set_level(other, NO_LIMIT)
        self._mark(other, level)
        self._mark(link, 0)

    def _cross(self, link: int, other: int, flows: int) -> None:
        """Add `flows` to the flows that `link` stops and that cross `other`."""
        out = self._out[link]
        left = out.get(other, 0) + flows
        if left:
            out[other] = self._in[other][link] = left
        else:
            del out[other], self._in[other][link]

    def _start_over(self) -> None:
        """Compute all levels and bottlenecks from scratch by progressive filling."""
        streams = [stream for stopped in self._stopped for stream in stopped]
        levels, bottlenecks = fair_levels(self.capacity, [(s.links, s.flows) for s in streams])
        self._queue.clear()
        self._queued = bytearray(len(levels))
        self._exceeded = bytearray(len(levels))
        for link, new in enumerate(levels):
            if new != self.level[link]:
                self._set_level(link, new)
            self.count[link], self._spare[link] = 0, self.capacity[link]
            for table in (self._stopped[link], self._out[link], self._in[link]):
                table.clear()
        for stream, link in zip(streams, bottlenecks, strict=True):
            if stream.bottleneck != link:
                self.moved.setdefault(stream, stream.bottleneck)
                stream.bottleneck = link
            self._stopped[link][stream] = None
            self.count[link] += stream.flows
            for other in stream.links:
                if other != link:
                    self._spare[other] -= stream.flows * levels[link]
                    self._out[link][other] = self._out[link].get(other, 0) + stream.flows
                    self._in[other][link] = self._out[link][other]


def fair_levels(
    capacities: Sequence[int], paths: Iterable[tuple[Sequence[int], int]]
) -> tuple[list[int], list[int]]:
    """Compute fair levels by progressive filling from scratch.

    paths: (links, number of flows) of each stream. Returns the level of each link (`NO_LIMIT` if it stops no flow) and
    the bottleneck of each stream. Links fill in order of level, then index.
    """
    streams = list(paths)
    through: list[list[int]] = [[] for _ in capacities]
    spare, growing = list(capacities), [0] * len(capacities)
    for index, (links, flows) in enumerate(streams):
        for link in links:
            through[link].append(index)
            growing[link] += flows
    levels = [NO_LIMIT] * len(spare)
    bottlenecks = [-1] * len(streams)
    queue = [(spare[link] // growing[link], link) for link in range(len(spare)) if growing[link]]
    heapify(queue)
    while queue:
        level, link = heappop(queue)
        if not growing[link]:
            continue
        if spare[link] // growing[link] > level:    # flows were stopped elsewhere since, so it fills later
            heappush(queue, (spare[link] // growing[link], link))
            continue
        levels[link] = level = max(1, level)
        for index in through[link]:
            if bottlenecks[index] < 0:
                bottlenecks[index] = link
                links, flows = streams[index]
                for other in links:
                    spare[other] -= flows * level
                    growing[other] -= flows
    return levels, bottlenecks
