"""Max-min fair rates: by hand, and against the definition."""

from __future__ import annotations

import random

import pytest
from hypothesis import given
from hypothesis import strategies as st
from long_runs import quick_and_full

from hermes.network.sharing import NO_LIMIT, MaxMin, Stream, fair_levels


def rates(capacities: list[int], paths: list[tuple[int, ...]]) -> list[int]:
    """The rate of one flow on each path, asked of the incremental algorithm and of the one from scratch."""
    share = MaxMin(capacities)
    streams = [Stream(path) for path in paths]
    for stream in streams:
        share.change(stream, 1)
    share.settle()
    levels, bottlenecks = fair_levels(capacities, [(path, 1) for path in paths])
    assert [share.rate(s) for s in streams] == [levels[b] for b in bottlenecks]
    return [share.rate(s) for s in streams]


def test_two_flows_share_their_bottleneck() -> None:
    assert rates([100], [(0,), (0,)]) == [50, 50]


def test_parking_lot() -> None:
    # one flow over three links, and one on each: the long one gets half of each link, not less for being long
    assert rates([100, 100, 100], [(0, 1, 2), (0,), (1,), (2,)]) == [50, 50, 50, 50]


def test_parking_lot_with_unequal_links() -> None:
    # link 1 (60) is full first, at 30; what the long flow leaves of the others goes to their own flows
    assert rates([100, 60, 200], [(0, 1, 2), (0,), (1,), (2,)]) == [30, 70, 30, 170]


def test_textbook_network() -> None:
    # Bertsekas and Gallager, figure 6.13: three flows stopped by one link at 1/3, then the others at 2/3 and at 1
    third = 10**6
    assert rates([3 * third] * 4, [(0, 1, 2), (1, 2), (2,), (1,), (3,)]) == [third, third, third, third, 3 * third]


def test_two_bottlenecks_on_one_path() -> None:
    # link 0 (100) fills first, with two flows; link 1 (300) has 250 left for the two flows that only it stops
    assert rates([100, 300], [(0, 1), (0,), (1,), (1,)]) == [50, 50, 125, 125]


def test_water_filling_in_three_levels() -> None:
    # an uplink for three flows: the first's access link fills at 10, the second's at 20, and the third is stopped at 50
    # by the flow beside it on its access link, or at 30 by the uplink, which leaves that flow 70
    assert rates([90, 10, 20, 100], [(1, 0), (2, 0), (3, 0), (3,)]) == [10, 20, 50, 50]
    assert rates([60, 10, 20, 100], [(1, 0), (2, 0), (3, 0), (3,)]) == [10, 20, 30, 70]
    # three levels on one link: two flows at 10, one at 20, and two that share the rest of 120
    assert rates([120, 20, 20], [(1, 0), (1, 0), (2, 0), (0,), (0,)]) == [10, 10, 20, 40, 40]


def test_a_flow_with_a_slow_access_link_leaves_the_rest_to_the_others() -> None:
    assert rates([10, 100], [(0, 1), (1,), (1,)]) == [10, 45, 45]


def test_a_link_that_becomes_a_bottleneck_slows_flows_that_were_there() -> None:
    # link 0 stops nobody but the first flow until the second comes and is stopped by it too
    share = MaxMin([100, 30])
    first, second = Stream((0,)), Stream((0, 1))
    share.change(first, 1)
    share.settle()
    assert share.rate(first) == 100
    share.change(second, 1)
    changed, moved = share.settle()
    assert (share.rate(first), share.rate(second)) == (70, 30)
    assert changed == {0: 100, 1: NO_LIMIT}
    assert moved == {second: -1}
    share.change(first, 4)
    _, moved = share.settle()
    assert (share.rate(first), share.rate(second)) == (20, 20)
    assert moved == {second: 1}
    share.change(first, 0)
    share.settle()
    assert share.rate(second) == 30
    assert share.level == [NO_LIMIT, 30]


def test_other_components_are_not_touched() -> None:
    share = MaxMin([100, 100, 100])
    streams = [Stream((0, 1)), Stream((2,))]
    for stream in streams:
        share.change(stream, 1)
    share.settle()
    share.change(streams[0], 2)
    changed, moved = share.settle()
    assert 2 not in changed
    assert streams[1] not in moved


def test_remainders_do_not_overfill() -> None:
    assert rates([100], [(0,)] * 3) == [33, 33, 33]


def assert_max_min(share: MaxMin, streams: list[Stream]) -> None:
    """Feasible, and every flow has a bottleneck: a full link on which no flow is faster. Full but for the remainder of
    an integer division: less than one unit for each flow that the link stops."""
    used, fastest = [0] * len(share.capacity), [0] * len(share.capacity)
    for stream in streams:
        for link in stream.links:
            used[link] += stream.flows * share.rate(stream)
            fastest[link] = max(fastest[link], share.rate(stream))
    assert all(u <= c for u, c in zip(used, share.capacity, strict=True))
    for stream in streams:
        if stream.flows:
            link = stream.bottleneck
            assert link in stream.links
            assert share.rate(stream) == fastest[link]
            assert share.capacity[link] - used[link] < share.count[link]


@st.composite
def histories(draw: st.DrawFn) -> tuple[list[int], list[tuple[int, ...]], list[list[tuple[int, int]]]]:
    """Capacities, paths, and rounds of (path, number of flows from now on)."""
    num_links = draw(st.integers(1, 8))
    # few different capacities make ties, many make chains of bottlenecks
    capacity = st.one_of(st.sampled_from([10**6, 2 * 10**6]), st.integers(10**3, 10**9))
    capacities = draw(st.lists(capacity, min_size=num_links, max_size=num_links))
    paths = draw(st.lists(
        st.lists(st.integers(0, num_links - 1), min_size=1, max_size=num_links, unique=True).map(tuple),
        min_size=1, max_size=12, unique=True,
    ))
    change = st.tuples(st.integers(0, len(paths) - 1), st.integers(0, 5))
    return capacities, paths, draw(st.lists(st.lists(change, min_size=1, max_size=4), max_size=20))


@quick_and_full(80, 400)
@given(histories())
def test_rates_are_max_min_after_every_change(
    history: tuple[list[int], list[tuple[int, ...]], list[list[tuple[int, int]]]],
) -> None:
    capacities, paths, rounds = history
    share, scratch = MaxMin(capacities), MaxMin(capacities, effort=0)
    streams, anew = [Stream(path) for path in paths], [Stream(path) for path in paths]
    for changes in rounds:
        before = list(share.level), [s.bottleneck for s in streams]
        for index, flows in changes:
            share.change(streams[index], flows)
            scratch.change(anew[index], flows)
        changed, moved = share.settle()
        scratch.settle()
        assert_max_min(share, streams)
        assert_max_min(scratch, anew)
        # ties may be broken otherwise, which shows in the remainders of divisions only
        slack = sum(stream.flows for stream in streams) ** 2
        for one, other in zip(streams, anew, strict=True):
            assert abs(share.rate(one) - scratch.rate(other)) <= slack
        # what is reported as changed is the state before, and whatever is not reported did not change
        for link, level in enumerate(share.level):
            assert changed.get(link, level) == before[0][link]
        for index, stream in enumerate(streams):
            assert moved.get(stream, stream.bottleneck) == before[1][index]


@pytest.mark.parametrize("seed", range(3))
def test_a_thousand_flows_never_need_to_start_over(seed: int, monkeypatch: pytest.MonkeyPatch) -> None:
    def start_over(self: MaxMin) -> None:
        raise AssertionError("repairs went on for too long")

    monkeypatch.setattr(MaxMin, "_start_over", start_over)
    rng = random.Random(seed)
    capacities = [rng.choice([50, 100, 200]) * 10**9 for _ in range(100)]
    share = MaxMin(capacities)
    streams = [Stream(tuple(rng.sample(range(100), rng.randint(1, 5)))) for _ in range(600)]
    for _ in range(1000):
        stream = rng.choice(streams)
        share.change(stream, stream.flows + 1)
        share.settle()
    for _ in range(300):
        stream = rng.choice([s for s in streams if s.flows])
        share.change(stream, stream.flows - 1)
        share.settle()
        stream = rng.choice(streams)
        share.change(stream, stream.flows + 1)
        share.settle()
    assert_max_min(share, streams)
    levels, bottlenecks = fair_levels(capacities, [(s.links, s.flows) for s in streams if s.flows])
    for stream, link in zip([s for s in streams if s.flows], bottlenecks, strict=True):
        assert share.rate(stream) == pytest.approx(levels[link], rel=1e-9)
