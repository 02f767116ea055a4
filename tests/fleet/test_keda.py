"""KEDA: its own cases of the steps to and from no replica, by hand, and simulations."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from each import each

from hermes import simulate
from hermes.config import validate
from hermes.core.record import DRAINING, GONE, READY, STARTING
from hermes.core.scraped import Sample
from hermes.errors import InputError
from hermes.fleet.autoscalers import Pod
from hermes.fleet.keda import Activity, Keda, Trigger
from hermes.results.charts.fleet_charts import fleet_panels
from hermes.results.results import Results
from hermes.testing.fleet import AutoscalerContract

S = 1_000_000_000
TRIGGERS = [{"metric": "queue", "target": 4}]


def keda(**keys: Any) -> Keda:
    return validate(Keda, {"kind": "keda", "triggers": TRIGGERS, **keys})


@pytest.mark.feature("Plug-ins of research", "Autoscaler `keda`; groups without a replica (`start: 0`)")
@each("name, keys, current, active, expected", [
    ("TestScaleToMinReplicasWhenNotActive", {"min": 0}, 10, False, 0),
    ("TestScaleToMinReplicasFromLowerInitialReplicaCount", {"min": 5}, 1, False, 5),
    ("TestScaleFromMinReplicasWhenActive", {"min": 0}, 0, True, 1),
    ("TestScaleToIdleReplicasWhenNotActive", {"min": 5, "idle": 0}, 10, False, 0),
    ("TestScaleFromIdleToMinReplicasWhenActive", {"min": 5, "idle": 0}, 0, True, 5),
    ("TestEventWitTriggerInfo", {"min": 5, "idle": 0}, 2, True, 5),
])
def test_cases_of_keda(name: str, keys: dict[str, Any], current: int, active: bool, expected: int) -> None:
    """None of them has been active before, and the initial cooldown is 0."""
    assert keda(**keys).polled(30 * S, current, Activity(), active=active)[0] == expected


def test_replicas_above_the_first_are_left_to_the_hpa() -> None:
    assert keda().polled(30 * S, 3, Activity(), active=True) == (3, Activity(30 * S))
    assert keda(min=2).polled(30 * S, 3, Activity(), active=False)[0] == 3


def test_the_cooldown_counts_from_the_last_look_that_found_a_trigger_active() -> None:
    made, activity = keda(), Activity()
    current, activity = made.polled(60 * S, 0, activity, active=True)
    assert (current, activity) == (1, Activity(60 * S))
    # 360 s is not after 60 s + 300 s
    assert [made.polled(at * S, 1, activity, active=False)[0] for at in (90, 330, 360, 390)] == [1, 1, 1, 0]
    # before any activity the initial cooldown counts from the start
    waits = keda(initial_cooldown=60)
    assert [waits.polled(at * S, 1, Activity(), active=False)[0] for at in (0, 30, 60, 90)] == [1, 1, 1, 0]
    assert [keda().polled(at * S, 1, Activity(), active=False)[0] for at in (0, 30)] == [1, 0]


def test_values_are_sums_over_the_scraped_replicas() -> None:
    pods = [Pod("llm-0", True, sample=Sample(0, 3, 5, 0.5)), Pod("llm-1", True),
            Pod("llm-2", False, leaving=True, sample=Sample(0, 1, 2, 0.25))]

    def value(metric: str) -> float:
        return validate(Trigger, {"metric": metric, "target": 1}).value(pods, 7)

    assert [value(name) for name in ("queue", "waiting", "running", "kv_use")] == [7, 4, 7, 0.75]


# -- simulations -----------------------------------------------------------------------------------------------------


def run(autoscaler: dict[str, Any], *, start: int = 0, times: tuple[float, ...] = (), queue: bool = True,
        start_up: float = 20.0, **keys: Any) -> Results:
    return simulate({
        "workload": keys.pop("workload", {"requests": 20, "arrivals": {"kind": "poisson", "rate": 2},
                                          "lengths": {"kind": "fixed", "prompt": 64, "output": 200}}),
        "clients": [{"name": "llm", "count": 3, "model": "llama-3.1-8b", "device": "h100-sxm",
                     "fleet": {"start": start, "start_up": {"total": start_up},
                               "autoscaler": {"kind": "keda", "triggers": TRIGGERS, **autoscaler}}}],
        **({"gateway": {"queue": {"ttl": 120}}} if queue else {}), **keys})


def test_from_no_replica_and_back_by_hand() -> None:
    """20 requests of the first ten seconds wait at the gateway. The look at 30 s finds them and starts one replica; the
    HPA's sync at 30 s asks for 20 / 4 = 5, and gets the 3 that there can be. They are ready at 50 s, and the queue is
    empty: the sync at 45 s was the last to ask for 5, which still counts at 345 s; at 360 s the HPA would fall to 1.
    The look at 30 s was the last that found a trigger active: 330 s is not after 30 s + 300 s, 360 s is, and KEDA's
    look comes before the HPA's: all go. A request at 400 s is found at 420 s, and one at 841.3 s at 870 s."""
    results = run({}, workload=[
        {"name": "first", "requests": 20, "arrivals": {"kind": "poisson", "rate": 2},
         "lengths": {"kind": "fixed", "prompt": 64, "output": 200}},
        {"name": "last", "requests": 2, "arrivals": {"kind": "closed_loop", "users": 1, "think": 400},
         "lengths": {"kind": "fixed", "prompt": 64, "output": 200}}])
    assert (results.record.status == 1).all()
    rows = [(client, time / S, state, reason) for (client, _, time, state), reason in zip(
        results.record.membership.tolist(), results.record.membership_reasons, strict=True) if time]
    assert [row for row in rows if row[2] in (STARTING, DRAINING)] == [
        (0, 30.0, STARTING, "a trigger is active"),
        (1, 30.0, STARTING, "queue above target"), (2, 30.0, STARTING, "queue above target"),
        (2, 360.0, DRAINING, "no trigger is active"), (1, 360.0, DRAINING, "no trigger is active"),
        (0, 360.0, DRAINING, "no trigger is active"), (0, 420.0, STARTING, "a trigger is active"),
        (0, 750.0, DRAINING, "no trigger is active"), (0, 870.0, STARTING, "a trigger is active")]
    assert [at for _, at, state, _ in rows if state == READY] == [50.0] * 3 + [440.0, 890.0]


def test_without_a_queue_at_the_gateway_no_replica_is_refused_by_name() -> None:
    with pytest.raises(InputError, match="no request could wait") as found:
        run({"min": 1}, queue=False)
    assert found.value.field == "clients.0.fleet.start"
    with pytest.raises(InputError, match="no request could wait") as found:
        run({}, start=1, queue=False)
    assert found.value.field == "clients.0.fleet.autoscaler.min"
    assert (run({"min": 1}, start=1, queue=False).record.status == 1).all()


def test_a_static_group_without_a_replica_lets_requests_expire() -> None:
    results = run({}, gateway={"queue": {"ttl": 5}}, clients=[{
        "name": "llm", "count": 1, "model": "llama-3.1-8b", "device": "h100-sxm",
        "fleet": {"start": 0, "start_up": {"total": 1}}}])
    assert (results.record.status == 2).all()
    assert set(results.record.reject_reasons.values()) == {"expired: no replica was ready within 5 s"}
    assert fleet_panels([("run", results)])[0].layers, "a chart without any layer cannot be drawn"


def test_runs_decide_as_single_steps_do() -> None:
    keys = {"polling": 3.0, "cooldown": 7.0, "sync": 1.0, "scrape": 0.5,
            "triggers": [*TRIGGERS, {"metric": "running", "target": 3}]}
    load = {"requests": 60, "arrivals": {"kind": "mmpp", "rates": [8, 0.05], "dwells": [3, 20]},
            "lengths": {"kind": "fixed", "prompt": 64, "output": 200}}
    first, second = (run(keys, start_up=2.0, stepping=stepping, workload=load).record
                     for stepping in ("runs", "every_step"))
    assert np.array_equal(first.membership, second.membership)
    assert np.array_equal(first.finish_ns, second.finish_ns)
    assert (first.membership[:, 3] == GONE).sum() > 3


@each("keys, words", [
    ({"triggers": []}, "triggers"), ({"min": 3, "max": 2}, "max"), ({"max": 5}, "max"), ({"min": 5}, "min"),
    ({"idle": 0}, "idle"), ({"triggers": [{"metric": "cpu", "target": 1}]}, "metric"), ({"polling": 0}, "polling"),
])
def test_wrong_numbers_are_refused_by_name(keys: dict[str, Any], words: str) -> None:
    with pytest.raises(InputError, match=rf"autoscaler[\w.]*\.{words}"):
        run(keys)


class TestKeda(AutoscalerContract):
    def make(self) -> Keda:
        return validate(Keda, {"kind": "keda", "triggers": [{"metric": "running", "target": 2.0}], "polling": 0.4,
                               "sync": 0.2, "scrape": 0.1, "min": 1, "scale_down": {"window": 0.5, "period": 0.2}})


class TestKedaToZero(AutoscalerContract):
    def make(self) -> Keda:
        return validate(Keda, {"kind": "keda", "triggers": [{"metric": "queue", "target": 2.0}], "polling": 0.4,
                               "cooldown": 0.5, "sync": 0.2, "scrape": 0.1})
