"""Kubernetes' horizontal pod autoscaler: its own table of tests, the rules by hand, and simulations."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from each import each
from found_parts import part_of
from hypothesis import given
from hypothesis import strategies as st
from long_runs import quick_and_full

from hermes import simulate
from hermes.config import validate
from hermes.core.clock import Acting
from hermes.core.record import DRAINING, READY, STARTING
from hermes.errors import InputError
from hermes.fleet.autoscalers import AutoscalerView, Pod, Sample
from hermes.fleet.fleet import Fleet
from hermes.fleet.hpa import Controller, Hpa, ScaleDown, ScaleUp
from hermes.fleet.hpa_rules import (
    Limits,
    PodValue,
    milli,
    replicas_by_average,
    replicas_by_pods,
    replicas_by_value,
)
from hermes.results.results import Results
from hermes.scenario import load_scenario
from hermes.scenario.build import build
from hermes.testing.fleet import AutoscalerContract

S = 1_000_000_000


def pods(*values: int | None, pending: int = 0, leaving: int = 0) -> list[PodValue]:
    return ([PodValue(value) for value in values] + [PodValue(None, pending=True)] * pending
            + [PodValue(10**9, leaving=True)] * leaving)


# -- Kubernetes' own cases: replica_calculator_test.go, "CM" for custom metrics --------------------------------------


@pytest.mark.feature("Plug-ins of research", "Autoscaler `hpa`")
@each("name, counted, target, current, expected", [
    ("ScaleUpCM", pods(20000, 10000, 30000), 15000, 3, 4),
    ("ScaleUpCMUnreadyHotCpuNoLessScale", pods(50000, 10000, 30000), 15000, 3, 6),
    ("ScaleUpCMUnreadyHotCpuScaleWouldScaleDown", pods(50000, 15000, 30000), 15000, 3, 7),
    ("ScaleDownCM", pods(12000, 12000, 12000, 12000, 12000), 20000, 5, 3),
    ("ToleranceCM", pods(20000, 21000, 21000), 20000, 3, 3),
])
def test_cases_of_kubernetes_on_pods_metrics(
        name: str, counted: list[PodValue], target: int, current: int, expected: int) -> None:
    """Pods that are not ready count like others: readiness is looked at for CPU alone."""
    assert replicas_by_pods(counted, target, current, 0.1) == expected


@each("name, total, target, current, ready, expected", [
    ("ScaleUpCMObject", 20000, 15000, 3, 3, 4),
    ("ScaleUpCMObjectIgnoresUnreadyPods", 50000, 10000, 3, 1, 5),
    ("ScaleUpCMExternal", 8600, 4400, 1, 1, 2),
    ("ScaleUpCMExternalIgnoresUnreadyPods", 8600, 4400, 3, 1, 2),
    ("ScaleDownCMObject", 12000, 20000, 5, 5, 3),
    ("ScaleDownCMExternal", 8600, 14334, 5, 5, 3),
    ("ToleranceCMObject", 20666, 20000, 3, 3, 3),
    ("ToleranceCMExternal", 8600, 8888, 3, 3, 3),
])
def test_cases_of_kubernetes_on_values(
        name: str, total: int, target: int, current: int, ready: int, expected: int) -> None:
    assert replicas_by_value(total, target, current, ready, 0.1) == expected


@each("name, total, target, current, expected", [
    ("ScaleUpCMPerPodObject", 20000, 5000, 3, 4),
    ("ScaleUpPerPodCMExternal", 8600, 2150, 3, 4),
    ("ScaleDownPerPodCMObject", 6000, 2000, 5, 3),
    ("ScaleDownPerPodCMExternal", 8600, 2867, 5, 3),
    ("TolerancePerPodCMObject", 20166, 5000, 4, 4),
    ("TolerancePerPodCMExternal", 8600, 2900, 3, 3),
])
def test_cases_of_kubernetes_on_average_values(
        name: str, total: int, target: int, current: int, expected: int) -> None:
    assert replicas_by_average(total, target, current, 0.1) == expected


# -- pods without a value, by hand -----------------------------------------------------------------------------------


@each("why, counted, current, expected", [
    # MissingMetricsNoChangeGt: 1.9 times the target on one of two pods is 0.95 on both
    ("missing on the way up count 0: within the tolerance", pods(1900, None), 2, 2),
    # MissingMetricsNoChangeLt: (600 + 1000) / 2 = 0.8 of the target on both, ceil(1.6)
    ("missing on the way down count the target", pods(600, None), 2, 2),
    ("and still fall if enough is spare", pods(100, 100, 100, None), 4, 2),   # 325/1000 x 4 = 1.3
    ("missing on the way up lessen the rise", pods(3000, 3000, None), 3, 6),   # 2.0 x 3
    ("the direction would flip from up to down", pods(1500, None, None), 3, 3),   # 0.5
    ("from up to down within no tolerance", pods(1200, None), 2, 2),   # 0.6
    ("at the target the missing count 0", pods(1000, 1000, 1000, None), 4, 3),   # 0.75 x 4: as the code does
    # MissingMetricsUnreadyChange and -ScaleUp with a pending pod: left out below the target, 0 above
    ("pending is left out on the way down", pods(450, pending=1), 2, 1),
    ("pending counts 0 on the way up", pods(2000, pending=1), 2, 2),   # 1.0 of both
    ("pending and missing on the way up", pods(8000, None, pending=2), 4, 8),   # 8000/4 = 2.0 x 4
    ("pending is left out below, missing counts the target", pods(500, None, pending=3), 5, 2),   # 0.75 x 2
    ("leaving pods do not count", pods(2000, leaving=3), 1, 2),
    # DuringRollingUpdateWithMaxSurge: three pods, two wanted
    ("more pods than wanted: down, and yet more than there are", pods(600, 600, None), 2, 2),   # 0.733 x 3 = 3
    ("fewer pods than wanted: up, and yet fewer than there are", pods(3000, None), 4, 4),   # 1.5 x 2 = 3
])
def test_pods_without_a_value(why: str, counted: list[PodValue], current: int, expected: int) -> None:
    assert replicas_by_pods(counted, 1000, current, 0.1) == expected


def test_without_any_value_there_is_no_recommendation() -> None:
    assert replicas_by_pods(pods(None, None, pending=1, leaving=1), 1000, 2, 0.1) is None


def test_the_mean_is_rounded_down_to_thousandths() -> None:
    assert milli(0.8999) == 899
    # 1099.67 would be outside, 1099 is within a tolerance of 0.0995
    assert replicas_by_pods(pods(1099, 1100, 1100), 1000, 3, 0.0995) == 3
    assert replicas_by_pods(pods(1100, 1100, 1100), 1000, 3, 0.0995) == 4


@each("low, high, current, expected", [(900, 1100, 5, 5), (899, 1101, 5, None)])
def test_the_tolerance_includes_its_ends(low: int, high: int, current: int, expected: int | None) -> None:
    assert replicas_by_pods(pods(*[low] * 5), 1000, current, 0.1) == 5   # 0.899 x 5 = 4.5 -> 5
    assert replicas_by_pods(pods(*[high] * 5), 1000, current, 0.1) == (expected or 6)
    assert replicas_by_pods(pods(*[low] * 20), 1000, 20, 0.1) == (20 if expected else 18)


# -- windows and limits ----------------------------------------------------------------------------------------------


def controller(count: int = 100, **keys: Any) -> Controller:
    data = {"kind": "hpa", "metrics": [{"metric": "waiting", "target": 1}], **keys}
    return Controller(validate(Hpa, data), count)


def ready(*values: int, kv: float = 0.0) -> list[Pod]:
    return [Pod(f"llm-{i}", True, sample=Sample(0, value, value, kv)) for i, value in enumerate(values)]


def play(made: Controller, current: int, asked: list[int]) -> list[int]:
    """Return the replicas after each sync of 15 s, if the metric asks for so many at each."""
    out = []
    for round_, wanted in enumerate(asked):
        # a total of `wanted` times the target, as AverageValue
        found, _ = made.decide(round_ * 15 * S, current, ready(wanted))
        current = found
        out.append(current)
    return out


TOTAL = [{"metric": "waiting", "type": "external", "target": 1}]
RULED = {"metrics": TOTAL, "scale_up": {}}   # a `behavior` with the defaults of both sides


def test_without_behaviour_replicas_rise_to_twice_as_many_or_4_at_each_sync() -> None:
    """horizontal.go, calculateScaleUpLimit: max(2 x 1, 4) = 4, then 8, 16. With `behavior` 1 + 4 and 5 x 2."""
    assert play(controller(metrics=TOTAL), 1, [50] * 5) == [4, 8, 16, 32, 50]
    assert play(controller(**RULED), 1, [50] * 5) == [5, 10, 20, 40, 50]
    assert play(controller(metrics=TOTAL, max=7), 1, [50] * 3) == [4, 7, 7]


def test_without_behaviour_the_highest_of_300_s_counts_both_ways() -> None:
    """stabilizeRecommendation: one that is just 300 s old is not before the cut-off, so that 6 holds until 300 s, one
    sync longer than with `behavior`. 9 at one sync is limited to max(2 x 2, 4) = 4, and goes on to 8 and 9 although
    only 3 are asked for by then."""
    assert play(controller(metrics=TOTAL), 6, [2] * 23) == [6] * 21 + [2] * 2
    assert play(controller(**RULED), 6, [2] * 23) == [6] * 20 + [2] * 3
    assert play(controller(metrics=TOTAL), 2, [9, 3, 3, 3]) == [4, 8, 9, 9]
    assert play(controller(**RULED), 2, [9, 3, 3, 3]) == [6, 6, 6, 6]
    assert play(controller(metrics=TOTAL, min=4), 6, [2] * 22)[-1] == 4


def test_one_side_of_the_behaviour_has_the_defaults_of_the_other() -> None:
    half = validate(Hpa, {"kind": "hpa", "metrics": TOTAL, "scale_down": {"window": 60}})
    assert half.scale_up == validate(ScaleUp, {})
    assert validate(Hpa, {"kind": "hpa", "metrics": TOTAL}).scale_up is None


def test_replicas_fall_to_the_highest_recommendation_of_300_s() -> None:
    """The first recommendation is the current number: 6 until 300 s have passed, and 5 s later it is out of the window.
    """
    found = play(controller(**RULED), 6, [2] * 25)
    assert found[:20] == [6] * 20   # 0 .. 285 s
    assert found[20:] == [2] * 5    # at 300 s the first one is not after the cut-off
    # a higher recommendation in between holds for 300 s more
    found = play(controller(**RULED), 6, [2] * 10 + [4] + [2] * 30)
    assert found[:20] == [6] * 20
    assert found[20:30] == [4] * 10   # 4 was asked at 150 s
    assert found[30:] == [2] * 11


def test_replicas_rise_to_the_lowest_recommendation_of_the_window() -> None:
    found = play(controller(metrics=TOTAL, scale_up={"window": 60}), 2, [5, 6, 7, 8, 9, 9, 9, 9])
    # until 60 s the first recommendation, 2, counts; then the lowest of the last 60 s
    assert found == [2, 2, 2, 2, 6, 7, 8, 9]
    assert play(controller(**RULED), 2, [5, 9]) == [5, 9]   # by default there is no window


def test_replicas_rise_by_the_larger_of_100_percent_and_4_a_period() -> None:
    assert play(controller(30, **RULED), 1, [50] * 5) == [5, 10, 20, 30, 30]
    assert play(controller(**RULED, max=7), 1, [50] * 3) == [5, 7, 7]


def test_limits_count_from_the_start_of_the_period() -> None:
    """At most 2 in 60 s: 1 + 2 at once, and the next two when 60 s have passed."""
    slow = controller(metrics=TOTAL, scale_up={"pods": 2, "period": 60})
    assert play(slow, 1, [50] * 9) == [3, 3, 3, 3, 5, 5, 5, 5, 7]
    # what went down within the period counts too: 5 - 0 + 3 = 8 at its start
    both = controller(metrics=TOTAL, scale_up={"pods": 1, "period": 60}, scale_down={"window": 0})
    assert play(both, 8, [5, 50]) == [5, 9]


def test_replicas_fall_by_the_limits() -> None:
    slow = controller(metrics=TOTAL, scale_down={"window": 0, "pods": 1, "period": 30})
    assert play(slow, 6, [1] * 7) == [5, 5, 4, 4, 3, 3, 2]
    half = controller(metrics=TOTAL, scale_down={"window": 0, "percent": 50, "period": 15})
    assert play(half, 7, [1] * 4) == [3, 1, 1, 1]   # int(3.5), int(1.5)
    either = controller(metrics=TOTAL, scale_down={"window": 0, "percent": 10, "pods": 3, "period": 15})
    assert play(either, 50, [1] * 3) == [45, 40, 36]   # int(40 x 0.9) = 36 and 40 - 3 = 37
    assert play(controller(metrics=TOTAL, min=4, scale_down={"window": 0}), 6, [1, 1]) == [4, 4]


def test_limits_of_one_kind_stand_alone() -> None:
    assert validate(ScaleUp, {}).limits == Limits(4, 100.0, 15 * S)
    assert validate(ScaleUp, {"pods": 2}).limits == Limits(2, None, 15 * S)
    assert validate(ScaleDown, {"pods": 2}).limits == Limits(2, None, 15 * S)
    assert validate(ScaleDown, {}).limits == Limits(None, 100.0, 15 * S)
    made = validate(Hpa, {"kind": "hpa", "metrics": TOTAL, "scale_up": {"pods": 2}})
    assert Hpa.model_validate(made.model_dump()) == made


def test_numbers_outside_min_and_max_are_put_right_without_a_metric() -> None:
    assert controller(max=3).decide(0, 5, [])[0] == 3
    assert controller(min=3).decide(0, 1, [])[0] == 3


# -- several metrics -------------------------------------------------------------------------------------------------


BOTH = [{"metric": "waiting", "target": 4}, {"metric": "kv_use", "target": 0.5}]
DOWN_AT_ONCE = {"window": 0}


def test_the_metric_that_asks_for_most_decides() -> None:
    made = controller(metrics=BOTH, scale_down=DOWN_AT_ONCE)
    assert made.decide(0, 2, ready(8, 8, kv=0.6)) == (4, "waiting above target")        # 4 and 3
    assert made.decide(15 * S, 2, ready(2, 2, kv=1.0)) == (4, "kv_use above target")    # 1 and 4
    assert made.decide(60 * S, 4, ready(1, 1, 1, 1, kv=0.1)) == (1, "all metrics below target")


class OneInvalid(Controller):
    """Of two metrics the second has no value: a metric of a scrape is either there or not for all of its values, so it
    takes a stand-in."""

    def __init__(self, **keys: Any) -> None:
        config = validate(Hpa, {"kind": "hpa", "metrics": BOTH, "scale_down": DOWN_AT_ONCE, **keys})
        super().__init__(config, 10)
        first = config.metrics[0]

        class Invalid:
            metric = "kv_use"

            def replicas(self, *given: Any) -> None:
                return None

        self._config = config.model_copy(update={"metrics": [first, Invalid()]})


def test_with_an_invalid_metric_replicas_rise_and_do_not_fall() -> None:
    assert OneInvalid().decide(0, 2, ready(8, 8)) == (4, "waiting above target")
    made = OneInvalid()
    assert made.decide(0, 4, ready(1, 1, 1, 1)) == (4, "a metric has no value")
    assert controller(metrics=BOTH).decide(0, 2, [Pod("llm-0", True), Pod("llm-1", False)]) == (
        2, "no metric has a value")


def test_metrics_of_both_types_count_the_pods_that_they_should() -> None:
    """Three are ready, of which one has no sample yet; one starts, one waits for a slot, and one drains."""
    there = [*ready(6, 6), Pod("llm-2", True), Pod("llm-3", False), Pod("", False, pending=True),
             Pod("llm-5", False, leaving=True, sample=Sample(0, 12, 0, 0.0))]

    def asked(**metric: Any) -> int:
        return controller(metrics=[{"metric": "waiting", **metric}]).decide(0, 5, there)[0]

    assert asked(target=1) == 10                                          # 12/5 -> 2.4 x 5 = 12, 10 allowed
    assert asked(target=2) == 6                                           # 2.4/2 = 1.2 x 5
    assert asked(target=8) == 5                                           # (6 + 6 + 8 + 8)/4 = 7 of 8: 3.5 -> 4, window
    assert asked(target=4, type="external") == 6                          # 24/4
    assert asked(target=10, type="external", average=False) == 8          # 2.4 x 3 ready
    assert asked(target=23, type="object", average=False) == 5            # within the tolerance


# -- what a user writes ----------------------------------------------------------------------------------------------


@each("keys, words", [
    ({"metrics": []}, "metrics"),
    ({"metrics": [{"metric": "cpu", "target": 1}]}, "metric"),
    ({"metrics": [{"metric": "waiting", "target": 0}]}, "target"),
    ({"metrics": [{"metric": "waiting", "target": 1, "average": False}]}, "average"),
    ({"min": 3, "max": 2}, "max"),
    ({"max": 5}, "max"),
    ({"min": 5}, "min"),
    ({"period": 0}, "period"),
    ({"scale_down": {"percent": 120}}, "percent"),
])
def test_wrong_numbers_are_refused_by_name(keys: dict[str, Any], words: str) -> None:
    with pytest.raises(InputError, match=rf"autoscaler[\w.]*\.{words}"):
        run({"metrics": [{"metric": "waiting", "target": 4}]} | keys)


# -- simulations -----------------------------------------------------------------------------------------------------


def run(autoscaler: dict[str, Any], *, rate: float = 40.0, requests: int = 300, start: int = 1, **keys: Any) -> Results:
    return simulate({
        "workload": {"requests": requests, "arrivals": {"kind": "poisson", "rate": rate},
                     "lengths": {"kind": "fixed", "prompt": 64, "output": 32}},
        "clients": [{"name": "llm", "count": 4, "memory": {"num_blocks": 60},
                     "hardware": {"kind": "roofline", "model": "llama-3.1-8b", "device": "h100-sxm"},
                     "fleet": {"start": start, "start_up": {"total": keys.pop("start_up", 0.5)},
                               "autoscaler": {"kind": "hpa", **autoscaler}}}], **keys})


QUICK = {"period": 0.5, "scrape": 0.1, "metrics": [{"metric": "running", "target": 3}],
         "scale_up": {"period": 1.0}, "scale_down": {"window": 1.0, "period": 1.0}}


def test_replicas_follow_the_load_up_and_down() -> None:
    results = run(QUICK, rate=60, requests=600, workload={
        "requests": 600, "arrivals": {"kind": "mmpp", "rates": [150, 5], "dwells": [3, 6]},
        "lengths": {"kind": "fixed", "prompt": 64, "output": 32}})
    rows = results.record.membership
    assert (results.record.status == 1).all()
    assert (rows[:, 3] == DRAINING).any()
    started = rows[(rows[:, 3] == STARTING)]
    assert len(started)
    assert set((started[:, 2] % (S // 2)).tolist()) == {0}, "decisions are at multiples of the period"
    reasons = {why for why, state in zip(results.record.membership_reasons, rows[:, 3].tolist(), strict=True)
               if state in (STARTING, DRAINING)}
    assert reasons <= {"running above target", "all metrics below target", "slot free"}


def test_the_first_decision_that_sees_a_sample_by_hand() -> None:
    """Requests of 2 s one after another: one runs all the time. With a target of half a sequence, the ratio is 2 at the
    first sync after the first scrape that shows it, and 1 from then on: with a second pod that starts, (1 + 0)/2 is the
    target."""
    results = simulate({
        "workload": {"requests": 3, "arrivals": {"kind": "closed_loop", "users": 1},
                     "lengths": {"kind": "fixed", "prompt": 64, "output": 400}},
        "clients": [{"name": "llm", "count": 4, "model": "llama-3.1-8b", "device": "h100-sxm",
                     "fleet": {"start": 1, "start_up": {"total": 100.0}, "autoscaler": {
                         "kind": "hpa", "period": 0.5, "scrape": 0.25,
                         "metrics": [{"metric": "running", "target": 0.5}]}}}]})
    started = [(client, time / S) for client, _, time, state in results.record.membership.tolist() if state == STARTING]
    assert started == [(1, 0.5)]


def test_a_starting_replica_counts_as_missing() -> None:
    """8 sequences run on one replica. For a target of 2 the first sync asks for 4; while three start, (8 + 0 + 0 + 0)/4
    is the target, and nothing changes."""
    results = simulate({
        "workload": {"requests": 40, "arrivals": {"kind": "closed_loop", "users": 8},
                     "lengths": {"kind": "fixed", "prompt": 64, "output": 400}},
        "clients": [{"name": "llm", "count": 8, "model": "llama-3.1-8b", "device": "h100-sxm",
                     "fleet": {"start": 1, "start_up": {"total": 100.0}, "autoscaler": {
                         "kind": "hpa", "period": 0.5, "scrape": 0.25,
                         "metrics": [{"metric": "running", "target": 2}]}}}]})
    started = [(client, time / S) for client, _, time, state in results.record.membership.tolist() if state == STARTING]
    assert started == [(1, 0.5), (2, 0.5), (3, 0.5)]


def test_a_new_replica_in_an_old_slot_has_no_old_sample() -> None:
    """The view of an autoscaler that looks every 10 ms: a replica's samples are not older than the replica."""
    seen: list[tuple[float, list[Pod]]] = []

    simulation = build(load_scenario({
        "workload": {"requests": 300, "arrivals": {"kind": "poisson", "rate": 60},
                     "lengths": {"kind": "fixed", "prompt": 64, "output": 32}},
        "clients": [{"name": "llm", "count": 2, "memory": {"num_blocks": 60},
                     "hardware": {"kind": "roofline", "model": "llama-3.1-8b", "device": "h100-sxm"},
                     "fleet": {"start": 2, "start_up": {"total": 0.3}, "autoscaler": {
                         "kind": "schedule", "changes": [
                             {"at": 1.0, "replicas": 1}, {"at": 1.5, "replicas": 2}, {"at": 2.5, "replicas": 1},
                             {"at": 2.501, "replicas": 2}]}}}]}))
    fleet = part_of(simulation.coordinator.parts, Fleet)
    view: AutoscalerView = fleet._acting[0][1]

    def looking() -> Any:
        view.watch(0.2)
        for n in range(1, 480):
            yield view.until(n * 0.01)
            seen.append((view.now_s, view.pods()))

    Acting(simulation.env, looking())
    record = simulation.run()
    ups = [(time / S, client) for client, _, time, state in record.membership.tolist() if state == READY]
    assert len(ups) == 4
    old = False
    for now, there in seen:
        assert sum(not pod.pending for pod in there) <= 2
        for pod in there:
            if pod.sample is None:
                continue
            up = max(time for time, client in ups if f"llm-{client}" == pod.name and time <= now)
            assert up <= pod.sample.at_ns / S <= now
            assert now - pod.sample.at_ns / S < 0.2 + 1e-9
            assert pod.ready or pod.leaving
            old |= up > 1
    assert old, "the new replica was scraped"
    states = {(pod.ready, pod.pending, pod.leaving) for _, there in seen for pod in there}
    assert states == {(True, False, False), (False, False, False), (False, False, True), (False, True, False)}
    starting = [pod for _, there in seen for pod in there if not pod.ready and not pod.leaving]
    assert all(pod.sample is None for pod in starting)


@quick_and_full(4, 60, thorough=240, derandomize=True)
@given(data=st.data())
def test_runs_decide_as_single_steps_do(data: st.DataObject) -> None:
    metrics = data.draw(st.lists(st.fixed_dictionaries({
        "metric": st.sampled_from(["waiting", "running", "kv_use"]), "type": st.sampled_from(["pods", "external"]),
        "target": st.sampled_from([0.1, 0.5, 2.0, 6.0])}), min_size=1, max_size=2))
    autoscaler = {"metrics": metrics, "period": data.draw(st.sampled_from([0.05, 0.3])),
                  "scrape": data.draw(st.sampled_from([0.01, 0.2])),
                  "scale_down": {"window": data.draw(st.sampled_from([0.0, 0.7])), "period": 0.1},
                  "scale_up": {"pods": data.draw(st.sampled_from([1, 4])), "period": 0.1}}
    keys = {"rate": data.draw(st.sampled_from([5.0, 40.0, 200.0])), "requests": 80,
            "seed": data.draw(st.integers(0, 3)), "start": data.draw(st.integers(1, 4)),
            "start_up": data.draw(st.sampled_from([0.0, 0.05, 0.4])),
            "router": data.draw(st.sampled_from([{"kind": "round_robin"}, {
                "kind": "least_loaded", "load": "requests", "view": {"kind": "scraped", "period": 0.03}}]))}
    first, second = (run(autoscaler, **keys, stepping=stepping).record for stepping in ("runs", "every_step"))
    assert np.array_equal(first.membership, second.membership)
    assert first.membership_reasons == second.membership_reasons
    assert np.array_equal(first.finish_ns, second.finish_ns)


class TestHpa(AutoscalerContract):
    def make(self) -> Hpa:
        return validate(Hpa, {"kind": "hpa", "metrics": [{"metric": "running", "target": 2.0}], "period": 0.2, "min": 2,
                              "scrape": 0.1, "scale_down": {"window": 0.5, "period": 0.2}})
