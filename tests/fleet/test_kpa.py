"""AIBrix's KPA: its own cases, a panic by hand, what differs from the documented rules, and simulations."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from each import each

from hermes import simulate
from hermes.config import validate
from hermes.core.record import DRAINING, STARTING
from hermes.errors import InputError
from hermes.fleet.aibrix_rules import Panic, Rates, Recommendations, Window, in_panic, kpa_replicas
from hermes.fleet.kpa import Kpa
from hermes.results.results import Results
from hermes.testing.fleet import AutoscalerContract

S = 1_000_000_000
RATES = Rates()


@each("name, current, stable, panic, panics, rates, expected", [
    ("stable_mode_basic_scaling", 2, 20, 20, False, RATES, 2),
    ("panic_mode_scaling_up", 2, 30, 40, True, RATES, 4),
    ("scale_to_zero", 1, 0, 0, False, RATES, 0),          # floor(1 / 2); the controller's `min` comes after it
    ("max_scale_up_rate_limit", 2, 100, 100, False, Rates(1.5, 2.0), 3),
    ("max_scale_down_rate_limit", 4, 5, 5, False, RATES, 2),
    ("the larger of both in a panic", 4, 60, 50, True, RATES, 6),
    ("no panic: the short window does not count", 2, 20, 40, False, RATES, 2),
])
def test_cases_of_kpa(name: str, current: int, stable: float, panic: float, panics: bool, rates: Rates,
                      expected: int) -> None:
    """algorithm/kpa_test.go, target 10."""
    assert kpa_replicas(stable, panic, 10, current, rates, panics=panics) == expected


def test_panic_mode_no_scale_down_is_documented_only() -> None:
    """Five replicas, of which the windows ask for two: at most by half, to 2, as executed. As documented, the most of
    the panic stay."""
    asked = kpa_replicas(20, 20, 10, 5, RATES, panics=True)
    assert asked == 2
    held = Panic(2.0, 180 * S)
    assert held.look(0, 100, 10, 5)   # 10 / 5 is the threshold
    assert held.held(asked) == 5


@each("stable, panic, expected", [(10, 20, False), (10, 20.1, True), (0, 0, True), (-1, 0, True), (10, 1, False)])
def test_a_panic_as_executed_is_a_ratio_of_means(stable: float, panic: float, expected: bool) -> None:
    assert in_panic(stable, panic, 2.0) is expected


def test_windows_take_the_mean_of_what_is_younger() -> None:
    """TestComputeDesiredReplicasConfiguresMetricWindowsFromPodAutoscalerSpec: 10 at 0 s and 70 at 60 s."""
    long, short = Window(120 * S), Window(30 * S)
    for at, value in ((0, 10.0), (60, 70.0)):
        long.add(at * S, value)
        short.add(at * S, value)
    assert (long.mean(), short.mean()) == (40.0, 70.0)
    long.add(120 * S, 70.0)   # the first one is 120 s old
    assert long.mean() == 50.0
    long.add(121 * S, 70.0)
    assert long.mean() == 70.0


def test_going_down_the_lowest_of_the_window_counts_as_executed() -> None:
    executed, intended = (Recommendations(0, 300 * S, intended=intended) for intended in (False, True))
    played = [(0, 8, 6), (10, 8, 2), (20, 8, 7), (30, 8, 8), (40, 8, 9), (311, 8, 7)]
    assert [executed.settled(at * S, current, asked) for at, current, asked in played] == [6, 2, 2, 8, 9, 7]
    # as intended the highest: 9 at 40 s holds the 8
    assert [intended.settled(at * S, current, asked) for at, current, asked in played] == [6, 6, 7, 8, 9, 8]


@pytest.mark.feature("Plug-ins of research", "Autoscalers `kpa`, `apa`")
def test_a_panic_by_hand() -> None:
    """One value every 10 s, a target of 10, two replicas. 17 values of 5 and one of 170: the means are
    (85 + 170) / 18 = 14.2 over 180 s and (6 x 5 + 170) / 7 = 28.6 over 60 s, a ratio of 2.02. In this panic
    ceil(2.86) = 3 replicas; without, ceil(1.42) = 2. With n replicas and the sum instead of the mean there would be
    twice as many."""
    config = validate(Kpa, {"kind": "kpa", "metric": "running", "target": 10})
    decider = config.decider()
    for n in range(17):
        assert decider.asks(n * 10 * S, 2, [5.0, 5.0]) == 1
    assert decider.asks(170 * S, 2, [180.0, 160.0]) == 3
    calm = validate(Kpa, {"kind": "kpa", "metric": "running", "target": 10, "panic_threshold": 2.1}).decider()
    for n in range(17):
        calm.asks(n * 10 * S, 2, [5.0, 5.0])
    assert calm.asks(170 * S, 2, [180.0, 160.0]) == 2


def test_a_panic_as_documented_by_hand() -> None:
    """Sums of 10, then 290. The short window's mean (6 x 10 + 290) / 7 = 50 asks for 5 of 2 replicas,
    2.5 times as many: panic, but at most twice as many at once, and 5 at the next look. When the burst has left the
    short window, 60 s later, the most of the panic stay; it ends when no look has found one for 180 s."""
    decider = validate(Kpa, {"kind": "kpa", "metric": "running", "target": 10, "intended": True}).decider()
    for n in range(17):
        assert decider.asks(n * 10 * S, 2, [5.0, 5.0]) == 1
    assert decider.asks(170 * S, 2, [160.0, 130.0]) == 4
    assert decider.asks(180 * S, 4, [2.5] * 4) == 5   # 5 / 4 is no panic, yet the one that began at 170 s lasts
    assert [decider.asks(at * S, 5, [2.0] * 5) for at in range(190, 351, 10)] == [5] * 17
    assert decider.asks(360 * S, 5, [2.0] * 5) == 2   # the burst has left the long window, too; at most by half


def test_nothing_changes_within_the_tolerance_by_hand() -> None:
    """A target of 20: 21 sequences on one replica are 1.05 times it. 23 are 1.15 times: ceil(1.15) = 2. On two
    replicas a mean of 19 is 0.95 times the target, and stays at 2; without a tolerance ceil(0.95) = 1."""
    def asks(current: int, values: list[float], **keys: Any) -> int:
        config = {"kind": "kpa", "metric": "running", "target": 20, **keys}
        return validate(Kpa, config).decider().asks(0, current, values)

    assert [asks(1, [21.0]), asks(1, [22.0]), asks(1, [23.0]), asks(2, [19.0, 19.0])] == [1, 1, 2, 2]
    assert asks(2, [19.0, 19.0], down_tolerance=0) == 1
    assert asks(1, [21.0], intended=True) == 2   # as documented


def test_21_sequences_keep_one_replica() -> None:
    """They are within the tolerance of a target of 20: one replica for the whole run, none started (before: 3)."""
    results = simulate({
        "workload": {"requests": 600, "arrivals": {"kind": "closed_loop", "users": 21},
                     "lengths": {"kind": "fixed", "prompt": 512, "output": 500}},
        "clients": [{"name": "llm", "count": 4, "model": "llama-3.1-8b", "device": "h100-sxm",
                     "fleet": {"start": 1, "start_up": {"total": 50},
                               "autoscaler": {"kind": "kpa", "metric": "running", "target": 20}}}],
        "router": {"kind": "least_loaded", "load": "requests"}})
    assert not (results.record.membership[:, 3] == STARTING).any()


# -- simulations -----------------------------------------------------------------------------------------------------


def run(autoscaler: dict[str, Any], rate: float = 60.0, **keys: Any) -> Results:
    return simulate({
        "workload": {"requests": 600, "arrivals": {"kind": "mmpp", "rates": [2.5 * rate, 5], "dwells": [3, 6]},
                     "lengths": {"kind": "fixed", "prompt": 64, "output": 32}},
        "clients": [{"name": "llm", "count": 4, "memory": {"num_blocks": 60},
                     "hardware": {"kind": "roofline", "model": "llama-3.1-8b", "device": "h100-sxm"},
                     "fleet": {"start": keys.pop("start", 1), "start_up": {"total": 0.3}, "autoscaler": {
                         "metric": "running", "target": 3, **autoscaler}}}], **keys})


QUICK = {"kind": "kpa", "period": 0.2, "window": 2.0, "panic_window": 0.6, "down_cooldown": 2.0}


@each("intended", [False, True])
def test_replicas_follow_the_load_and_runs_decide_as_single_steps_do(intended: bool) -> None:
    first, second = (run({**QUICK, "intended": intended}, stepping=stepping).record
                     for stepping in ("runs", "every_step"))
    assert (first.status == 1).all()
    assert np.array_equal(first.membership, second.membership)
    assert np.array_equal(first.finish_ns, second.finish_ns)
    states = first.membership[:, 3]
    assert (states == STARTING).any()
    assert (states == DRAINING).any()
    decisions = first.membership[states == STARTING][:, 2]
    assert set((decisions % (S // 5)).tolist()) == {0}


def test_the_value_without_n_starves_as_executed() -> None:
    """Eight sequences on two replicas, a target of 2: the mean of 4 asks for ceil(4 / 2) = 2, and nothing changes. As
    documented the sum asks for 4."""
    def at_most(intended: bool) -> int:
        results = run({**QUICK, "target": 2, "intended": intended, "min": 2}, start=2,
                      workload={"requests": 400, "arrivals": {"kind": "closed_loop", "users": 8},
                                "lengths": {"kind": "fixed", "prompt": 64, "output": 64}},
                      router={"kind": "least_loaded", "load": "requests"})
        return int(results.summary["fleet"]["llm"]["ready_most"])

    assert (at_most(False), at_most(True)) == (2, 4)


@each("keys, words", [
    ({"metric": "cpu"}, "metric"), ({"target": 0}, "target"), ({"min": 3, "max": 2}, "max"), ({"max": 5}, "max"),
    ({"min": 5}, "min"), ({"period": 0}, "period"), ({"max_scale_up_rate": 0.5}, "max_scale_up_rate"),
])
def test_wrong_numbers_are_refused_by_name(keys: dict[str, Any], words: str) -> None:
    with pytest.raises(InputError, match=rf"autoscaler[\w.]*\.{words}"):
        run({"kind": "kpa", **keys})


class TestKpa(AutoscalerContract):
    def make(self) -> Kpa:
        return validate(Kpa, {**QUICK, "metric": "running", "target": 2.0})


class TestKpaAsIntended(AutoscalerContract):
    def make(self) -> Kpa:
        return validate(Kpa, {**QUICK, "metric": "running", "target": 2.0, "intended": True})
