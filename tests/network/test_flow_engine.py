"""Flows on the clock: finish times by hand, conservation, determinism."""

from __future__ import annotations

from collections.abc import Sequence
from fractions import Fraction

from hypothesis import given
from hypothesis import strategies as st
from long_runs import quick_and_full
from simpy.core import Environment

from hermes.core.clock import ARRIVAL, at
from hermes.network.flows import FlowEngine, serial_ns
from hermes.network.sharing import RATE_UNIT

S = 1_000_000_000

Flow = tuple[int, tuple[int, ...], int]     # (start in ns, links, bytes)
Change = tuple[int, int, float]     # (time in ns, link, bytes/s from then on)


def ends(bandwidths: list[float], flows: list[Flow]) -> tuple[list[int], list[int], FlowEngine]:
    """Each flow's end in ns, and the order in which they ended."""
    env = Environment()
    engine = FlowEngine(env, bandwidths)
    end, order = [-1] * len(flows), []

    def finish(index: int) -> None:
        assert end[index] == -1
        end[index] = int(env.now)
        order.append(index)

    for index, (time, links, num_bytes) in enumerate(flows):
        def start(_: object, index: int = index, links: tuple[int, ...] = links, num_bytes: int = num_bytes) -> None:
            engine.start(links, num_bytes, lambda: finish(index))

        at(env, time, ARRIVAL, start)
    env.run()
    return end, order, engine


def test_one_flow_takes_bytes_over_bandwidth() -> None:
    assert ends([100.0], [(0, (0,), 250)])[0] == [S * 5 // 2]


def test_a_flow_that_ends_leaves_its_share() -> None:
    # 100 B/s: both get 50 B/s; the first ends at 2 s; the other has 200 of its 300 bytes left, at 100 B/s
    assert ends([100.0], [(0, (0,), 100), (0, (0,), 300)])[0] == [2 * S, 4 * S]


def test_a_flow_that_comes_takes_its_share() -> None:
    # alone for 1 s (100 bytes); 50 B/s for 2 s (100 of 200); alone again for 1 s
    assert ends([100.0], [(0, (0,), 300), (S, (0,), 100)])[0] == [4 * S, 3 * S]


def test_three_flows_and_an_odd_third() -> None:
    # 33.3 B/s each; integer rates round down, the end rounds to the nearest nanosecond
    assert ends([100.0], [(0, (0,), 100)] * 3)[0] == [3 * S] * 3


def test_parking_lot_over_time() -> None:
    # 0: all four at 50 B/s. 2 s: the flow on link 0 ends; the long one is still stopped by links 1 and 2.
    # 4 s: those end; the long one has 300 of 500 bytes left and is alone: 3 s at 100 B/s.
    flows: list[Flow] = [(0, (0, 1, 2), 500), (0, (0,), 100), (0, (1,), 200), (0, (2,), 200)]
    assert ends([100.0] * 3, flows)[0] == [7 * S, 2 * S, 4 * S, 4 * S]


def test_a_bottleneck_that_moves() -> None:
    # link 0: 90 B/s, link 1: 60 B/s. A on both, B on 0, C on 1. A and C: 30; B: 60.
    # 1 s: C (30 bytes) is done. A and B: 45 (link 0). 3 s: A has had 30 + 90, B 60 + 90: B is done.
    # A is alone: 60 B/s (link 1) for its last 60 bytes.
    flows: list[Flow] = [(0, (0, 1), 180), (0, (0,), 150), (0, (1,), 30)]
    assert ends([90.0, 60.0], flows)[0] == [4 * S, 3 * S, 1 * S]


def test_equal_flows_end_in_the_order_they_started() -> None:
    flows: list[Flow] = [(0, (1,), 100), (0, (0,), 100), (0, (0, 1), 100), (0, (1,), 100), (0, (0,), 100)]
    end, order, _ = ends([100.0, 100.0], flows)
    assert end == [3 * S] * 5
    assert order == [0, 1, 2, 3, 4]


def test_a_flow_too_short_to_measure_ends_at_once() -> None:
    end, order, _ = ends([1e12], [(5, (0,), 10**9), (5, (0,), 1)])
    assert end == [5 + 1_000_000, 5]
    assert order == [1, 0]


def test_a_flow_started_where_another_ends() -> None:
    env = Environment()
    engine = FlowEngine(env, [100.0])
    log: list[int] = []
    engine.start((0,), 100, lambda: engine.start((0,), 200, lambda: log.append(int(env.now))))
    engine.start((0,), 500, lambda: log.append(int(env.now)))
    env.run()
    # 50 B/s each to 2 s, 50 B/s each to 6 s, then 100 B/s for the last 200
    assert log == [6 * S, 8 * S]


def test_a_flow_that_takes_the_place_of_another_leaves_the_rest_as_it_was() -> None:
    # link 0: 100 B/s for two flows. At 2 s the second ends, and its place is taken by a flow that link 1 stops at
    # 50 B/s: the level of link 0 stays 50 B/s, and its first flow still ends, 300 bytes at 50 B/s
    env = Environment()
    engine = FlowEngine(env, [100.0, 50.0, 1000.0])
    log: list[tuple[str, int]] = []

    def note(name: str) -> None:
        log.append((name, int(env.now)))

    engine.start((0,), 300, lambda: note("stays"))
    engine.start((0, 2), 100, lambda: engine.start((1, 0), 1000, lambda: note("replaces")))
    env.run()
    assert log == [("stays", 6 * S), ("replaces", 22 * S)]


def test_serial_ns_rounds_half_to_even() -> None:
    assert [serial_ns(work, 2) for work in (0, 1, 2, 3, 4, 5, 7)] == [0, 0, 1, 2, 2, 2, 4]


def test_idle_links_keep_no_history() -> None:
    _, _, engine = ends([100.0], [(i * 10 * S, (0,), 300) for i in range(50)])
    assert engine._served == [0]
    assert not engine._next[0]


@st.composite
def traffic(draw: st.DrawFn) -> tuple[list[float], list[Flow]]:
    num_links = draw(st.integers(1, 6))
    bandwidths = draw(st.lists(st.sampled_from([1.0, 7.0, 100.0, 1e3, 25e9]), min_size=num_links, max_size=num_links))
    flow = st.tuples(
        st.integers(0, 20).map(lambda tenth: tenth * S // 10),
        st.lists(st.integers(0, num_links - 1), min_size=1, max_size=num_links, unique=True).map(tuple),
        st.integers(1, 1000),
    )
    return bandwidths, draw(st.lists(flow, min_size=1, max_size=25))


def exact_ends(bandwidths: list[float], flows: list[Flow], changes: Sequence[Change] = ()) -> list[Fraction]:
    """The fluid model in exact arithmetic, everything anew at every event: the definition, slowly."""
    now, left, end = Fraction(0), dict[int, Fraction](), [Fraction(-1)] * len(flows)
    coming = sorted(range(len(flows)), key=lambda i: flows[i][0])
    ahead = sorted(changes, key=lambda one: one[0])
    capacity = [Fraction(b) for b in bandwidths]
    while coming or left:
        rate: dict[int, Fraction] = {}
        spare = list(capacity)
        while len(rate) < len(left):
            crossing = [[i for i in left if i not in rate and link in flows[i][1]] for link in range(len(spare))]
            level, full = min((spare[link] / len(c), link) for link, c in enumerate(crossing) if c)
            for i in crossing[full]:
                rate[i] = level
                for link in flows[i][1]:
                    spare[link] -= level
        then = min([now + left[i] / rate[i] for i in left if rate[i]] + [Fraction(flows[i][0], S) for i in coming[:1]]
                   + [Fraction(one[0], S) for one in ahead[:1]])
        for i in list(left):
            left[i] -= rate[i] * (then - now)
            if not left[i]:
                del left[i]
                end[i] = then
        now = then
        while coming and flows[coming[0]][0] <= now * S:
            i = coming.pop(0)
            left[i] = Fraction(flows[i][2])
        while ahead and ahead[0][0] <= now * S:
            _, link, bandwidth = ahead.pop(0)
            capacity[link] = Fraction(bandwidth)
    return end


@quick_and_full(37, 150)
@given(traffic())
def test_ends_are_those_of_the_exact_fluid_model(case: tuple[list[float], list[Flow]]) -> None:
    bandwidths, flows = case
    end, order, engine = ends(bandwidths, flows)
    exact = exact_ends(bandwidths, flows)
    for index, (got, want) in enumerate(zip(end, exact, strict=True)):
        # each end is within half a nanosecond, and what that leaves to others moves them by as little; a share of 1/n
        # is rounded down by less than one of its capacity/n units
        tolerance = len(flows) + want * S * len(flows) ** 2 / (RATE_UNIT * Fraction(min(bandwidths)))
        assert abs(got - want * S) <= tolerance, index
    assert [end[i] for i in order] == sorted(end)
    carried = [0] * len(bandwidths)
    for _, links, num_bytes in flows:
        for link in links:
            carried[link] += num_bytes
    assert engine.bytes_on() == carried
    assert engine.num_events == 2 * len(flows)
    assert not engine.rates()


@quick_and_full(12, 50)
@given(traffic())
def test_same_flows_same_ends(case: tuple[list[float], list[Flow]]) -> None:
    assert ends(*case)[:2] == ends(*case)[:2]


def test_flows_elsewhere_change_nothing() -> None:
    flows: list[Flow] = [(i * S // 7, (0, 1), 100 + i) for i in range(10)]
    noise: list[Flow] = [(i * S // 13, (2,), 50 + i) for i in range(30)]
    assert ends([100.0] * 3, flows)[0] == ends([100.0] * 3, flows + noise)[0][:10]
