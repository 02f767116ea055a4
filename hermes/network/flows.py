"""Flows of bytes on shared links: they start, share bandwidth max-min fairly, and end or are cancelled.

The fluid model of a network: a flow is a number of bytes over a path of links, all of which it uses at the same rate.
Rates (`hermes.network.sharing`) change only when a flow starts, ends or is cancelled, or a link gets another capacity,
so these are the only events.

The engine keeps no counters per flow. Each link has a clock: the bytes it has served to a flow that it stops, at the
link's level. Each stream (the flows over one path) stores the offset of its own clock from that of its bottleneck. Each
flow stores the reading of its stream's clock at which it ends. A change of rates then costs one addition for each link
whose level changed and each stream whose bottleneck changed, and nothing for the other flows.

A flow alone on its links is kept apart: it has the rate of its narrowest link from its first byte to its last. When
another flow starts on one of its links, it joins the others, with the clocks that it would have had all along.

All numbers are integers: work is counted in rate units x nanoseconds, so that no bytes are lost or created. A flow ends
in the nanosecond nearest to the exact time (half to even, as everywhere in the kernel).
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from heapq import heapify, heappop, heappush
from typing import Any

from simpy.core import Environment

from hermes.core.clock import MAX_CLIENTS, START, TRANSFER, bind_at
from hermes.core.network import LinkUse, nothing
from hermes.network.sharing import NO_LIMIT, RATE_UNIT, MaxMin, Stream
from hermes.units import NS_PER_S

__all__ = ["WORK_PER_BYTE", "Flow", "FlowEngine", "capacity_of", "serial_ns"]

WORK_PER_BYTE = RATE_UNIT * NS_PER_S    # rate units x nanoseconds in a byte
_MAX_SAMPLES, _FIRST_SAMPLE_NS = 64, 10_000_000    # of the links' work: largest number, and first distance
_NEVER_NS = 1 << 61                      # beyond the end of any simulation: flows over a link that is gone
SETTLE = START + MAX_CLIENTS            # after all other events of an instant: one computation of rates for all of them


def capacity_of(bandwidth: float) -> int:
    """Return bytes/s as integer rate units."""
    return round(bandwidth * RATE_UNIT)


def serial_ns(work: int, rate: int) -> int:
    """Return the nanoseconds of `work` (rate units x ns) at `rate` (rate units), rounded half to even."""
    whole, rest = divmod(work, rate)
    twice = 2 * rest
    return whole + (twice > rate or (twice == rate and whole % 2 == 1))


class Flow:
    """A flow, from its start on: what `FlowEngine.cancel` takes.

    Attributes:
        num_bytes: All its bytes.
        ended: Called when the last byte has left.
        after: What `ended` returned, e.g. the event of the bytes' arrival; None until then.
        path: The path of the flow; None once `ended` was called, and once the flow was cancelled.
    """

    __slots__ = ("after", "ended", "num_bytes", "path")   # set by `FlowEngine.start`: a call less than `__init__`

    after: object
    ended: Callable[[], object]
    num_bytes: int
    path: _Path | None


class _Path(Stream):
    """A stream with its clock.

    Attributes:
        ends: Heap of (reading of the stream's clock at which a flow ends, flow number, flow).
        offset: The stream's clock minus that of its bottleneck.
        num_bytes: Bytes of the flows that ended.
        begun: Sum of the readings of the stream's clock at which the present flows began.
        limit: Index of a link that exists only to limit its one flow; -1 for none.
        narrowest: The (first) one of its links with the least capacity.
        alone_ns: Time since which its one flow is the only one on its links; -1 if it is not.
    """

    __slots__ = ("alone_ns", "begun", "ends", "index", "limit", "narrowest", "num_bytes", "offset")

    def __init__(self, links: tuple[int, ...], index: int, narrowest: int, limit: int = -1) -> None:
        super().__init__(links)
        self.narrowest = narrowest
        self.limit = limit
        self.index = index
        self.ends: list[tuple[int, int, Flow]] = []
        self.offset = 0
        self.num_bytes = 0
        self.begun = 0
        self.alone_ns = -1


class FlowEngine:
    """Flows over links with the given bandwidths (bytes/s), on the clock of `env`.

    Flows that start at the same time, or at the end of others, get their rates from one settlement at the end of that
    instant. Flows that end at the same time end in order of their start.
    """

    def __init__(self, env: Environment, bandwidths: Sequence[float]) -> None:
        self.env, self._at = env, bind_at(env)
        self.share = MaxMin([capacity_of(bandwidth) for bandwidth in bandwidths])
        self.num_events = 0                       # flows started, ended and cancelled
        num_links = len(bandwidths)
        self._served = [0] * num_links            # each link's clock ...
        self._since = [0] * num_links             # ... at this time
        self._paths: dict[tuple[int, ...], _Path] = {}
        self._alone: list[_Path | None] = [None] * num_links    # the path whose flow has the link to itself
        self._unsettled: dict[_Path, None] = {}   # paths on which flows started or ended
        self._settling = False
        self._resized: dict[int, int] = {}        # links that get another capacity at this instant
        # Per link: (reading of its clock at which a stream's first flow ends, stream). Outdated entries stay; an entry
        # is valid if it agrees with its stream.
        self._next: list[list[tuple[int, int, _Path]]] = [[] for _ in bandwidths]
        self._due: list[tuple[int, int, int]] = []     # (time of a link's next end, link, its stamp)
        self._stamp = [0] * num_links
        self._wake_ns: int | None = None
        # figures that `uses` reports
        self._active = [0] * num_links            # flows on the link
        self._busy = [0] * num_links              # ns with at least one flow ...
        self._busy_since = [0] * num_links        # ... until this time, if there is one
        self._full = [0] * num_links              # ns in which the link stopped flows ...
        self._full_since = [0] * num_links
        self._samples: list[tuple[int, list[int]]] = []     # (time, work of each link until then)
        self._sample_after_ns = _FIRST_SAMPLE_NS
        self._settled_ns = 0
        self._num_paths = 0
        self._limits: list[int] = []              # links that limited a flow and can be used again
        self._gone = [0] * num_links              # bytes of such flows, and of cancelled ones ...
        self._parts = [0] * num_links             # ... and the work of their parts of a byte

    def start(self, links: tuple[int, ...], num_bytes: int, ended: Callable[[], object], over_ns: int = 0,
              rate: int = 0) -> Flow:
        """Send `num_bytes` (> 0) over `links` (at least one). Call `ended()` when the last byte has left.

        over_ns: Nanoseconds in which the bytes become ready evenly; they limit the flow's rate.
        rate: Limit of the flow's rate in its place, in rate units; then there may be no links.
        """
        limit = -1
        if over_ns > 0:
            rate = max(1, num_bytes * WORK_PER_BYTE // over_ns)
        if rate:
            limit = self._limit(rate)
            links = (*links, limit)
        path = self._paths.get(links)
        if path is None:
            path = self._paths[links] = _Path(
                links, self._num_paths, min(links, key=self.share.capacity.__getitem__), limit
            )
            self._num_paths += 1
        now = int(self.env._now)
        active, shared = self._active, self._settling
        for link in links:
            if active[link]:
                shared = True
                other = self._alone[link]
                if other is not None:
                    self._join(other)
            else:
                self._busy_since[link] = now
            active[link] += 1
        self.num_events += 1
        clock = self._clock(path.bottleneck, now) + path.offset if path.flows else 0
        flow = Flow()
        flow.path, flow.num_bytes, flow.ended, flow.after = path, num_bytes, ended, None
        heappush(path.ends, (clock + num_bytes * WORK_PER_BYTE, self.num_events, flow))
        path.begun += clock
        if shared:
            self._unsettle(path)
        else:
            self._start_alone(path, now)
        return flow

    def resize(self, link: int, capacity: int) -> None:
        """Change the capacity (rate units) of a link from this instant on, 0 for one over which nothing moves."""
        alone = self._alone[link]
        if alone is not None:
            self._join(alone)
            self._unsettle(alone)
        self._resized[link] = capacity
        self._settle_now()

    def limit_of(self, flow: Flow) -> int:
        """Return the link that limits a flow which was started with a rate and has not ended."""
        assert flow.path is not None
        return flow.path.limit

    def cancel(self, flow: Flow) -> int:
        """Stop a flow and return its bytes that have left; 0 if `ended` was called, or the flow was cancelled before.

        `ended` is not called. The links count the bytes. Other flows get the flow's shares from the settlement at the
        end of this instant.
        """
        path, flow.path = flow.path, None
        if path is None:
            return 0
        flow.ended = nothing
        for index, (_, _, other) in enumerate(path.ends):
            if other is flow:
                return self._remove(path, index)
        return flow.num_bytes   # it ended at this time, and a flow that ended with it cancels it

    def _remove(self, path: _Path, index: int) -> int:
        """Remove a flow before its end; return the bytes that have left."""
        now = int(self.env._now)
        if path.alone_ns >= 0:
            self._join(path)
        ends = path.ends
        end, _, flow = ends[index]
        last = ends.pop()
        if index < len(ends):
            ends[index] = last
            heapify(ends)
        whole = flow.num_bytes * WORK_PER_BYTE
        clock = self._clock(path.bottleneck, now) + path.offset if path.flows else 0
        work = min(clock - (end - whole), whole)    # its end is in whole nanoseconds, and may be later than exact
        path.begun -= end - whole
        num_bytes, part = divmod(work, WORK_PER_BYTE)
        for link in path.links:
            self._gone[link] += num_bytes
            self._parts[link] += part
            self._active[link] -= 1
            if not self._active[link]:
                self._busy[link] += now - self._busy_since[link]
        self.num_events += 1
        self._unsettle(path)
        if ends and path.flows:    # the next may end at this time, before the settlement
            heappush(self._next[path.bottleneck], (ends[0][0] - path.offset, path.index, path))
        return num_bytes

    def _start_alone(self, path: _Path, now: int) -> None:
        """Start a flow that is alone on its path, on links that no flow left at this time."""
        self._rates_change(now)
        path.alone_ns = now
        alone = self._alone
        for link in path.links:
            alone[link] = path
        link = path.bottleneck = path.narrowest
        self._stamp[link] += 1
        end = now + serial_ns(path.ends[0][0], max(1, self.share.capacity[link]))
        heappush(self._due, (end, link, self._stamp[link]))
        self._sleep()

    def _join(self, path: _Path) -> None:
        """Move a flow that was alone to the others, with the clocks that it would have had all along."""
        since, path.alone_ns, path.bottleneck = path.alone_ns, -1, -1
        for link in path.links:
            self._alone[link] = None
        self.share.change(path, 1)
        self.share.settle()
        link = path.bottleneck
        self._served[link] = path.offset = 0
        self._since[link] = self._full_since[link] = since
        heappush(self._next[link], (path.ends[0][0], path.index, path))

    def _limit(self, rate: int) -> int:
        """Return a link of that rate for one flow."""
        if self._limits:
            link = self._limits.pop()
            self._resized.pop(link, None)
            self.share.resize(link, rate)
            return link
        for column in (self._served, self._since, self._stamp, self._active, self._busy, self._busy_since, self._full,
                       self._full_since, self._gone, self._parts):
            column.append(0)
        self._next.append([])
        self._alone.append(None)
        return self.share.add_link(rate)

    def _drop(self, path: _Path) -> None:
        """Forget the path of a limited flow that has ended or was cancelled."""
        del self._paths[path.links]
        for link in path.links:
            self._gone[link] += path.num_bytes
        self._limits.append(path.limit)

    def rates(self) -> list[tuple[tuple[int, ...], int, int]]:
        """Return (links, flows, rate of each in rate units) of the paths in use, as last settled."""
        return [(p.links, p.flows or 1, self._rate(p)) for p in self._paths.values() if p.bottleneck >= 0]

    def _rate(self, path: _Path) -> int:
        """Return the rate of each of the path's flows; the path must have flows."""
        return self.share.rate(path) if path.flows else max(1, self.share.capacity[path.bottleneck])

    def bytes_on(self) -> list[int]:
        """Return the bytes of the flows that ended, and those that cancelled ones had sent, per link."""
        total = list(self._gone)
        for path in self._paths.values():
            for link in path.links:
                total[link] += path.num_bytes
        return total

    def uses(self, names: Sequence[str], bandwidths: Sequence[float]) -> list[LinkUse]:
        """Return the use of each link so far; `names` and `bandwidths` are those of reports."""
        now, last = int(self.env._now), self._settled_ns
        samples = [*self._samples]
        if samples and not any(self._active) and samples[-1][0] < last < now:   # nothing has moved since
            samples.append((last, self._work(now)))
        if self.num_events:
            samples.append((now, self._work(now)))
        times = tuple(time for time, _ in samples)
        level, whole = self.share.level, self.bytes_on()
        alone = [0] * len(level)
        for path in self._paths.values():
            if path.alone_ns >= 0:
                alone[path.bottleneck] = now - path.alone_ns
        return [
            LinkUse(
                name, bandwidth, whole[link],
                self._busy[link] + (now - self._busy_since[link] if self._active[link] else 0),
                self._full[link] + (now - self._full_since[link] if level[link] < NO_LIMIT else 0) + alone[link],
                times, tuple(work[link] / WORK_PER_BYTE for _, work in samples),
            )
            for link, (name, bandwidth) in enumerate(zip(names, bandwidths, strict=True))
        ]

    def _work(self, now: int, ago: int = 0) -> list[int]:
        """Return the work of each link until `ago` nanoseconds before now, not before the last settlement."""
        total = [num_bytes * WORK_PER_BYTE + part for num_bytes, part in zip(self._gone, self._parts, strict=True)]
        for path in self._paths.values():
            work = path.num_bytes * WORK_PER_BYTE
            if path.bottleneck >= 0:
                if path.alone_ns >= 0:
                    clock = (now - path.alone_ns) * self._rate(path)
                else:
                    clock = self._clock(path.bottleneck, now) + path.offset
                work += len(path.ends) * clock - path.begun
                if ago:
                    work -= (path.flows or 1) * self._rate(path) * ago
            for link in path.links:
                total[link] += work
        return total

    def _rates_change(self, now: int) -> None:
        """Prepare for a change of rates, the first since `_settled_ns`."""
        if not self._samples or now - self._samples[-1][0] >= self._sample_after_ns:
            self._sample(now)
        self._settled_ns = now

    def _sample(self, now: int) -> None:
        """Store the work of each link before rates change; halve the samples when there are too many."""
        samples, last = self._samples, self._settled_ns
        if samples and last > samples[-1][0]:     # rates have not changed since that sample
            samples.append((last, self._work(now, now - last)))
        samples.append((now, self._work(now)))
        if len(samples) > _MAX_SAMPLES:
            del samples[1::2]
            self._sample_after_ns *= 2

    def _clock(self, link: int, now: int) -> int:
        level = self.share.level[link]
        return self._served[link] + (level * (now - self._since[link]) if level < NO_LIMIT else 0)

    def _unsettle(self, path: _Path) -> None:
        self._unsettled[path] = None
        self._settle_now()

    def _settle_now(self) -> None:
        """Compute rates at the end of this instant."""
        if not self._settling:
            self._settling = True
            self._at(int(self.env._now), SETTLE, self._settle)

    def _settle(self, _: Any) -> None:
        """Compute new rates for the present flows."""
        now = int(self.env._now)
        share, served, since = self.share, self._served, self._since
        self._rates_change(now)
        self._settling = False
        unsettled, self._unsettled = self._unsettled, {}
        if self._resized:
            self._resize()
        left: dict[int, int] = {}     # links that a flow left: their next end is to be found, at an equal level too
        for path in unsettled:
            if path.bottleneck >= 0:
                left[path.bottleneck] = 0
            share.change(path, len(path.ends))
        changed, moved = share.settle()
        for link, level in changed.items():
            if level < NO_LIMIT:
                served[link] += level * (now - since[link])
                if share.level[link] >= NO_LIMIT:
                    self._full[link] += now - self._full_since[link]
            else:
                self._full_since[link] = now
            since[link] = now
        for stream, before in moved.items():
            assert isinstance(stream, _Path)
            link = stream.bottleneck
            if link >= 0:
                clock = self._clock(before, now) + stream.offset if before >= 0 else 0
                stream.offset = clock - self._clock(link, now)
                unsettled[stream] = None
        touched = changed | left
        for path in unsettled:
            if path.ends:
                link = path.bottleneck
                heappush(self._next[link], (path.ends[0][0] - path.offset, path.index, path))
                touched[link] = 0
        for link in touched:
            if share.count[link]:
                self._predict(link)
            else:    # no stream refers to its clock: keep the numbers small
                served[link] = 0
                self._next[link].clear()
                self._stamp[link] += 1
        for path in unsettled:
            if path.limit >= 0 and not path.ends:
                self._drop(path)
        self._sleep()

    def _resize(self) -> None:
        """Give links their new capacities."""
        resized, self._resized = self._resized, {}
        for link, capacity in resized.items():
            self.share.resize(link, capacity)
        for path in self._paths.values():
            if any(link in resized for link in path.links):
                path.narrowest = min(path.links, key=self.share.capacity.__getitem__)

    def _predict(self, link: int) -> None:
        """Store the end of the first of the flows that the link stops."""
        entries = self._next[link]
        while True:
            reading, _, path = entries[0]
            if path.bottleneck == link and path.ends and path.ends[0][0] - path.offset == reading:
                break
            heappop(entries)
        time = self._since[link] + serial_ns(reading - self._served[link], self.share.level[link])
        self._stamp[link] += 1
        heappush(self._due, (time, link, self._stamp[link]))

    def _sleep(self) -> None:
        """Schedule a wake-up at the end of the next flow, unless an earlier one is scheduled."""
        due = self._due
        while due and due[0][2] != self._stamp[due[0][1]]:
            heappop(due)
        if due and due[0][0] < _NEVER_NS and (self._wake_ns is None or due[0][0] < self._wake_ns):
            self._wake_ns = due[0][0]
            self._at(due[0][0], TRANSFER, self._wake)

    def _wake(self, _: Any) -> None:
        """End the flows that are due."""
        now = int(self.env._now)
        if now != self._wake_ns:
            return    # an earlier wake-up was scheduled after this one, and has scheduled the next
        self._wake_ns = None
        ended: list[tuple[int, Flow]] = []
        while self._due and self._due[0][0] <= now:
            _, link, stamp = heappop(self._due)
            if stamp == self._stamp[link]:
                self._end(link, now, ended)
        if len(ended) > 1:
            ended.sort(key=lambda flow: flow[0])
        self.num_events += len(ended)
        for _, flow in ended:
            call, flow.ended, flow.path = flow.ended, nothing, None    # forget the callback: it may refer to the flow
            flow.after = call()
        self._sleep()

    def _end(self, link: int, now: int, ended: list[tuple[int, Flow]]) -> None:
        """Remove the flows that end now from the link; the settlement that follows schedules the link's next end."""
        alone = self._alone[link]
        if alone is not None:
            self._end_alone(alone, now, ended)
            return
        entries = self._next[link]
        level, served, since = self.share.level[link], self._served[link], self._since[link]
        while entries:
            reading, _, path = entries[0]
            if path.bottleneck != link or not path.ends or path.ends[0][0] - path.offset != reading:
                heappop(entries)
                continue
            if since + serial_ns(reading - served, level) > now:
                break
            heappop(entries)
            reading, number, flow = heappop(path.ends)
            path.num_bytes += flow.num_bytes
            path.begun -= reading - flow.num_bytes * WORK_PER_BYTE
            for crossed in path.links:
                self._active[crossed] -= 1
                if not self._active[crossed]:
                    self._busy[crossed] += now - self._busy_since[crossed]
            ended.append((number, flow))
            self._unsettle(path)
            if path.ends:
                heappush(entries, (path.ends[0][0] - path.offset, path.index, path))

    def _end_alone(self, path: _Path, now: int, ended: list[tuple[int, Flow]]) -> None:
        """Remove a flow from the links that it had to itself."""
        _work, number, flow = path.ends.pop()
        path.num_bytes += flow.num_bytes
        path.begun = 0
        self._rates_change(now)
        self._full[path.bottleneck] += now - path.alone_ns
        path.alone_ns = path.bottleneck = -1
        for link in path.links:
            self._alone[link] = None
            self._active[link] = 0
            self._busy[link] += now - self._busy_since[link]
        ended.append((number, flow))
        if path.limit >= 0:
            self._drop(path)
