"""Loads judged by several seeds together: by hand, without a simulation."""

import math
import random

import pytest

from hermes.explore.capacity.capacity_pooled import judged, pooled

ALLOWED, HALF = 0.01, 0.004   # of 10,000 requests of one seed


def row(share, requests=10_000, **more):
    half = HALF * (10_000 / requests) ** 0.5
    name = "settling.beyond.tpot_p99"
    return {"requests.total": round(requests), "slo.pass": share <= ALLOWED, "slo.tpot.pass": share <= ALLOWED,
            "settling.settled": True, f"{name}.share": share, f"{name}.low": share - half,
            f"{name}.high": share + half, f"{name}.allowed": ALLOWED, **more}


def test_the_requests_of_all_seeds_decide():
    """Shares of 1.1, 0.8 and 0.8%: 0.9% together, +-0.4/sqrt(3) = 0.23%: met, within noise."""
    assert judged([row(0.011), row(0.008), row(0.008)]) == (True, False)
    assert judged([row(0.011), row(0.005), row(0.005)]) == (True, True)    # 0.7% +-0.23%
    assert judged([row(0.009), row(0.014), row(0.014)]) == (False, True)   # 1.23% +-0.23%
    assert judged([row(0.009)]) == (True, False)


def test_what_no_share_expresses_decides_too():
    grows = row(0.005) | {"headline.stable": False}
    assert judged([grows, grows, row(0.005)]) == (False, False)
    assert judged([grows, grows, grows]) == (False, True)
    assert judged([row(0.001), row(0.001), row(0.001) | {"requests.unfinished": 3}]) == (True, False)
    unsettled = row(0.001) | {"settling.settled": False, "settling.why": "short"}
    assert judged([unsettled]) == (False, True)
    unlucky = row(0.014) | {"headline.stable": False, "headline.changes": True}   # an outage is none of a load's doing
    assert judged([unlucky, row(0.002), row(0.002)]) == judged([row(0.014), row(0.002), row(0.002)]) == (True, True)


def searched(luck, seeds, within=2, requests=3000, most=12):
    """Search where the share is 1% at level 10.5, and 0.1% more by level; luck: what each seed adds, in shares at 3,000
    requests."""
    calls = []

    def simulate(some, times, suffix, level):
        length = requests * times
        calls.append((level, some, round(length), suffix))
        return [row(max(0.01 + 0.001 * (level - 10.5) + luck[seed] * (requests / length) ** 0.5, 0.0), length)
                for seed in some]

    return pooled(simulate, 4, requests, range(seeds), most, -700, within), calls


def test_an_unlucky_seed_does_not_make_the_answer_smaller():
    """Alone, the first seed would have ended at level 5."""
    found, calls = searched([0.006, -0.003, -0.003], 3)
    assert (found.level, found.beyond) == (10, 11)
    assert found.low < 10 < found.high
    # 0.4% at 10,000 requests is 0.2%, two levels, at 3 x 13,333; twice as many: 3 x 26,667, 0.141% of 1.15% at the
    # load that is simulated: 1.4 levels by 9% a level there, 1.0 by 12% a level from the lowest simulated one on
    assert found.low < 10.5 < found.high
    assert 1.0 <= (found.high - found.low) / 2 <= 1.4
    short, sure, answer = ({length for _, some, length, _ in calls if test(length, len(some))} for test in (
        lambda length, _: length == 3000, lambda length, some: length > 9000 and some == 3,
        lambda _, some: some == 1))
    assert short == {3000}                         # as the first seed's
    assert list(sure) == [pytest.approx(26_667, rel=0.1)]   # as short simulations see it
    assert answer == {9000}                        # the answer, and the next load: three times as long
    assert max(len(some) for _, some, _, _ in calls) == 3


def test_the_other_seeds_come_where_the_interval_is_wide():
    found, calls = searched([0.0] * 5, 5, within=1)
    assert list(found.seeds) == list(range(5))
    long = [(length, len(some)) for _, some, length, _ in calls if length > 9000]
    assert (long[0], long[-1]) == ((27_000, 3), (27_000, 5))
    narrow, calls = searched([0.0] * 5, 5, within=6)
    assert list(narrow.seeds) == [0, 1, 2]
    assert {length for _, _, length, _ in calls} == {3000, 9000}


def test_one_seed_has_an_interval_too():
    found, _ = searched([0.0], 1, within=6)
    assert found.low < found.level < found.high


def test_a_search_says_whether_it_came_to_its_end():
    assert searched([0.0], 1)[0].complete
    cut, _ = searched([0.0], 1, most=2, requests=10**9)   # levels 4 and 6 of 10
    assert (cut.level, cut.beyond, cut.complete) == (6, None, False)


def test_a_trace_is_as_long_as_it_is():
    _, calls = searched([0.0] * 3, 3, requests=10**9)
    assert {suffix for _, _, _, suffix in calls} == {""}
    assert {length for _, _, length, _ in calls} == {10**9}


@pytest.mark.parametrize("common", [0.6, 0.85])
def test_the_interval_holds_the_answer_as_often_as_it_says(common):
    """Shares that grow by 9% a level through the allowed one at level 10.3, and noise of 30% for a seed of 8,000
    requests, of which `common` is that of the seed at all levels (0.6 to 0.9 for the quickstart)."""
    held = []
    for number in range(300):
        drawn = {}

        def noise(*key, number=number, drawn=drawn):
            return drawn.setdefault(key, random.Random(str((number, key))).gauss(0, 1))

        def simulate(some, times, suffix, level, noise=noise):
            rows = []
            for seed in some:
                sd = 0.3 * math.sqrt(8000 / (2500 * times))
                luck = math.sqrt(common) * noise(seed, suffix) + math.sqrt(1 - common) * noise(seed, suffix, level)
                share = ALLOWED * math.exp(0.09 * (level - 10.3)) * max(1 + sd * luck, 0.0)
                half = 1.96 * sd * share
                rows.append(row(share, 2500 * times) | {"settling.beyond.tpot_p99.low": share - half,
                                                        "settling.beyond.tpot_p99.high": share + half})
            return rows

        found = pooled(simulate, 10 + round(3 * noise("start")), 2500, range(5), 12, -700, 2)
        held.append(found.low <= 10.3 <= found.high)
    assert 0.93 <= sum(held) / len(held) <= 0.99


def test_where_a_growing_queue_decides_loads_are_simulated_outwards():
    def simulate(some, times, suffix, level):
        return [row(0.001) | {"headline.stable": level < 7 or (level == 7 and seed == 0)} for seed in some]

    found = pooled(simulate, 4, 3000, range(3), 12, -700, 2)
    assert (found.level, found.beyond, found.low, found.high) == (6, 7, 6, 8)   # two of three grow at 7: not certain
