"""Cancelled flows against the fluid model in exact arithmetic; bytes, shares and busy times are conserved."""

from __future__ import annotations

from fractions import Fraction
from functools import partial
from itertools import pairwise
from typing import Any, NamedTuple

import pytest
from hypothesis import given
from hypothesis import strategies as st
from long_runs import quick_and_full
from simpy.core import Environment

from hermes.core.clock import ARRIVAL, START, STEP_END, at
from hermes.network import Network
from hermes.network.components import Link
from hermes.network.flows import Flow, FlowEngine
from hermes.network.ideal import Ideal
from hermes.network.sharing import NO_LIMIT, RATE_UNIT
from hermes.network.topology import Topology, TopologyLink

S = 1_000_000_000


class Sent(NamedTuple):
    """A flow of the test. over_ns: limit of a stream, 0 for none; cancel_ns: -1 for a flow that is left to end."""

    start_ns: int
    links: tuple[int, ...]
    num_bytes: int
    over_ns: int
    cancel_ns: int
    priority: int     # of the cancel


class Exact(NamedTuple):
    """What became of a flow in the model: its end (ns), or the time of its cancel and the bytes sent until then."""

    end: Fraction
    cancelled: bool
    sent: Fraction


def fluid(bandwidths: list[float], flows: list[Sent]) -> list[Exact]:
    """The model, with everything anew at every start, end and cancel."""
    capacity = [Fraction(bandwidth) for bandwidth in bandwidths]
    paths: list[list[int]] = []
    for flow in flows:
        paths.append(list(flow.links))
        if flow.over_ns:    # a link of its own
            paths[-1].append(len(capacity))
            capacity.append(Fraction(flow.num_bytes * S, flow.over_ns))
    found = [Exact(Fraction(-1), False, Fraction(0))] * len(flows)
    times = sorted({flow.start_ns for flow in flows} | {flow.cancel_ns for flow in flows if flow.cancel_ns >= 0})
    now, left = Fraction(0), {}
    while times or left:
        rate: dict[int, Fraction] = {}
        spare = list(capacity)
        while len(rate) < len(left):
            crossing = [[i for i in left if i not in rate and link in paths[i]] for link in range(len(spare))]
            level, full = min((spare[link] / len(c), link) for link, c in enumerate(crossing) if c)
            for i in crossing[full]:
                rate[i] = level
                for link in paths[i]:
                    spare[link] -= level
        then = min([now + left[i] / rate[i] * S for i in left] + [Fraction(time) for time in times[:1]])
        for i in list(left):
            left[i] -= rate[i] * (then - now) / S
            if not left[i]:
                del left[i]
                found[i] = Exact(then, False, Fraction(flows[i].num_bytes))
        now = then
        if times and times[0] <= now:
            times.pop(0)
            for i, flow in enumerate(flows):
                if flow.start_ns == now:
                    left[i] = Fraction(flow.num_bytes)
            for i, flow in enumerate(flows):
                if flow.cancel_ns == now and i in left:
                    found[i] = Exact(now, True, flow.num_bytes - left.pop(i))
    return found


class Engine:
    """The flows on an engine: ends, cancels and bytes sent, as `fluid` returns them."""

    def __init__(self, bandwidths: list[float], flows: list[Sent]) -> None:
        self.env, self.flows = Environment(), flows
        self.engine = FlowEngine(self.env, bandwidths)
        self.handles: dict[int, Flow] = {}
        self.end: dict[int, int] = {}
        self.cancelled: dict[int, tuple[int, int]] = {}    # (time, bytes sent)
        for index, flow in enumerate(flows):
            at(self.env, flow.start_ns, ARRIVAL, partial(self._start, index))
            if flow.cancel_ns >= 0:
                at(self.env, flow.cancel_ns, flow.priority, partial(self._cancel, index))

    def _start(self, index: int, _: object) -> None:
        flow = self.flows[index]
        self.handles[index] = self.engine.start(flow.links, flow.num_bytes, partial(self._ended, index), flow.over_ns)

    def _ended(self, index: int) -> None:
        assert index not in self.end
        assert index not in self.cancelled, "cancelled flows do not end"
        self.end[index] = int(self.env.now)

    def _cancel(self, index: int, _: object) -> None:
        sent = self.engine.cancel(self.handles[index])
        assert self.engine.cancel(self.handles[index]) == 0
        if index in self.end:
            assert sent == 0
        else:
            self.cancelled[index] = int(self.env.now), sent


@st.composite
def traffic(draw: st.DrawFn) -> tuple[list[float], list[Sent]]:
    num_links = draw(st.integers(1, 5))
    bandwidths = draw(st.lists(st.sampled_from([1.0, 7.0, 100.0, 1e3, 25e9]), min_size=num_links, max_size=num_links))
    tenths = st.integers(0, 20).map(lambda tenth: tenth * S // 10)
    flows = []
    for _ in range(draw(st.integers(1, 20))):
        start = draw(tenths)
        links = draw(st.lists(st.integers(0, num_links - 1), min_size=1, max_size=num_links, unique=True))
        over_ns = draw(st.sampled_from([0, 0, 0, S // 2, 3 * S]))
        after = draw(st.one_of(st.none(), st.integers(0, 40).map(lambda tenth: tenth * S // 10), st.integers(0, S)))
        priority = draw(st.sampled_from([STEP_END, ARRIVAL, START]))
        if after == 0:
            priority = max(priority, ARRIVAL)    # after the start
        flows.append(Sent(start, tuple(links), draw(st.integers(1, 1000)), over_ns,
                          -1 if after is None else start + after, priority))
    return bandwidths, flows


@quick_and_full(20, 400)
@given(traffic())
def test_ends_and_bytes_are_those_of_the_exact_fluid_model(case: tuple[list[float], list[Sent]]) -> None:
    bandwidths, flows = case
    run = Engine(bandwidths, flows)
    run.env.run()
    slowest = min([*bandwidths, *(flow.num_bytes * S / flow.over_ns for flow in flows if flow.over_ns)])
    for index, (flow, exact) in enumerate(zip(flows, fluid(bandwidths, flows), strict=True)):
        # as for flows that end: half a nanosecond each, and the rounding of integer rates
        tolerance = len(flows) + (exact.end + S) * len(flows) ** 2 / (RATE_UNIT * Fraction(slowest))
        if index in run.end:
            assert abs(run.end[index] - exact.end) <= tolerance, index
            assert not exact.cancelled or flow.num_bytes - exact.sent <= tolerance * Fraction(max(bandwidths)) / S
        else:
            time, sent = run.cancelled[index]
            assert time == flow.cancel_ns
            assert exact.cancelled or abs(exact.end - time) <= tolerance
            assert 0 <= sent <= flow.num_bytes
            narrowest = Fraction(min(bandwidths[link] for link in flow.links))
            assert -1 - tolerance * narrowest / S <= sent - exact.sent <= tolerance * narrowest / S, index


@quick_and_full(20, 400)
@given(traffic())
def test_nothing_is_left_of_any_flow(case: tuple[list[float], list[Sent]]) -> None:
    bandwidths, flows = case
    run = Engine(bandwidths, flows)
    run.env.run()
    engine = run.engine
    share = engine.share
    assert not engine.rates()
    assert not any(engine._active)
    assert engine._alone == [None] * len(share.capacity)
    assert share.level == [NO_LIMIT] * len(share.capacity)
    assert not any(share.count)
    assert share._spare == share.capacity
    assert not any(engine._served)
    assert not engine._unsettled
    assert all(not path.ends and path.begun == 0 and path.flows == 0 for path in engine._paths.values())
    assert len(engine._limits) == len(share.capacity) - len(bandwidths), "each limit is free again"
    assert engine.num_events == 2 * len(flows)
    last = max([*run.end.values(), *(time for time, _ in run.cancelled.values())])
    for link, use in enumerate(engine.uses([str(link) for link in range(len(bandwidths))], bandwidths)):
        crossing = [index for index, flow in enumerate(flows) if link in flow.links]
        assert use.num_bytes == sum(
            flows[i].num_bytes if i in run.end else run.cancelled[i][1] for i in crossing)
        spans = sorted((flows[i].start_ns, run.end[i] if i in run.end else run.cancelled[i][0]) for i in crossing)
        busy = covered = 0
        for start, end in spans:
            busy += max(0, end - max(start, covered))
            covered = max(covered, end)
        assert use.busy_ns == busy
        assert 0 <= use.full_ns <= busy <= last
        # parts of a byte count over time, and not in whole bytes
        assert 0 <= use.sent_bytes[-1] - use.num_bytes + 1e-6 <= len(run.cancelled) + 2e-6
        for (before, less), (after, more) in pairwise(zip(use.times_ns, use.sent_bytes, strict=True)):
            assert less <= more + 1e-6
            assert more - less <= use.bandwidth * (after - before + 20) / 1e9 + 1e-6


@quick_and_full(20, 100)
@given(traffic(), st.integers(1, 10))
def test_rates_are_never_above_the_capacity_and_work_never_shrinks(
    case: tuple[list[float], list[Sent]], pace: int,
) -> None:
    bandwidths, flows = case
    run = Engine(bandwidths, flows)
    engine, env = run.engine, run.env
    before = [0] * len(bandwidths)
    step = 0
    while env.peek() < float("inf"):
        env.step()
        step += 1
        use = [0] * len(engine.share.capacity)
        for links, count, rate in engine.rates():
            for link in links:
                use[link] += count * rate
        assert all(u <= c for u, c in zip(use, engine.share.capacity, strict=True))
        if step % pace == 0:
            work = engine._work(int(env.now))[:len(bandwidths)]
            # a flow that ended in its nearest nanosecond may have counted half of one more
            assert all(w >= b - c * len(flows) for w, b, c in zip(work, before, engine.share.capacity, strict=False))
            before = work


NETWORKS: list[Any] = [
    Ideal(), Link(bandwidth=100.0, latency=0.3), Link(bandwidth=100.0, latency=0.3, shared=True),
    Link(bandwidth=100.0, shared=True),
    Topology(links=[TopologyLink(a="a", b="b", bandwidth=100.0, latency=0.2),
                    TopologyLink(a="b", b="c", bandwidth=70.0, latency=0.1, duplex="half")]),
]


@st.composite
def calls(draw: st.DrawFn) -> list[tuple[int, str, str, int, int, int, int]]:
    """(start, from, to, bytes, over_ns or -1 for a transfer, time from start to cancel or -1, priority)."""
    node = st.sampled_from("abc")
    call = st.tuples(
        st.integers(0, 20).map(lambda tenth: tenth * S // 10), node, node, st.integers(0, 200),
        st.sampled_from([-1, -1, 0, S // 3, S]),
        st.one_of(st.just(-1), st.integers(0, 40).map(lambda tenth: tenth * S // 10), st.integers(0, S)),
        st.sampled_from([ARRIVAL, START]),
    )
    return draw(st.lists(call, min_size=1, max_size=20))


@pytest.mark.parametrize("component", NETWORKS, ids=lambda component: component.kind)
@quick_and_full(10, 150)
@given(calls())
def test_networks_account_for_every_byte(
    component: Any, case: list[tuple[int, str, str, int, int, int, int]],
) -> None:
    env = Environment()
    network: Network = component.build(env, ["a", "b", "c"])
    handles: dict[int, object] = {}
    ended: dict[int, int] = {}
    stopped: dict[int, int] = {}     # cancelled before the end

    def end(index: int) -> None:
        assert index not in ended
        assert index not in stopped
        ended[index] = int(env.now)

    def start(index: int, _: object) -> None:
        _, src, dst, num_bytes, over_ns, _, _ = case[index]
        done = partial(end, index)
        handles[index] = (network.transfer(src, dst, num_bytes, done) if over_ns < 0
                          else network.stream(src, dst, num_bytes, over_ns, done))

    def cancel(index: int, _: object) -> None:
        num_bytes, before = case[index][3], network.bytes_cancelled
        left = network.cancel(handles[index])
        lost = network.bytes_cancelled - before
        assert 0 <= left <= num_bytes
        assert lost in (0, num_bytes)
        assert network.cancel(handles[index]) == 0
        assert network.bytes_cancelled == before + lost
        if index not in ended:
            stopped[index] = left
        elif case[index][4] < 0:
            assert (left, lost) == (0, 0)
        else:
            assert left == lost, "a stream that is out has left"

    for index, (time, *_, after, priority) in enumerate(case):
        at(env, time, ARRIVAL, partial(start, index))
        if after >= 0:
            at(env, time + after, priority, partial(cancel, index))
    while env.peek() < float("inf"):
        env.step()
        assert network.bytes_sent >= network.bytes_received + network.bytes_cancelled
    assert network.bytes_sent == network.bytes_received + network.bytes_cancelled
    assert sorted([*ended, *stopped]) == list(range(len(case)))
    for use in network.links():
        assert 0 <= use.num_bytes <= network.bytes_received + network.bytes_cancelled
