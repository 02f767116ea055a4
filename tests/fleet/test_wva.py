"""llm-d's Workload Variant Autoscaler: its own cases, a round with a pending variant, and simulations."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from each import each

from hermes import simulate
from hermes.config import validate
from hermes.core.record import DRAINING, GONE, READY, STARTING
from hermes.errors import InputError
from hermes.fleet.wva import Wva
from hermes.fleet.wva_rules import Analysis, Replica, Thresholds, Variant, analyse, targets
from hermes.results.results import Results
from hermes.testing.fleet import AutoscalerContract

S = 1_000_000_000
LIMITS = Thresholds()


def replicas(*values: tuple[float, int]) -> list[Replica]:
    return [Replica(*one) for one in values]


# -- WVA's own cases: internal/saturation/analyzer_test.go ------------------------------------------------------------


@pytest.mark.feature("Plug-ins of research", "Autoscaler `wva`; autoscalers of several groups (`autoscalers`)")
@each("name, values, up, down", [
    ("scale up due to low KV spare Saturation", [(0.75, 2), (0.76, 2)], True, False),          # spare 0.045
    ("scale up due to low queue spare Saturation", [(0.50, 3), (0.50, 3)], True, False),       # spare 2
    ("no scale up - healthy Saturation", [(0.50, 1), (0.50, 1)], False, False),                # without one: -0.2
    ("scale down safe - adequate headroom", [(0.20, 1), (0.30, 1), (0.25, 1)], False, True),   # 0.8 - 0.375, 5 - 1.5
    ("scale down unsafe - insufficient headroom", [(0.70, 2), (0.75, 2)], True, False),
    ("scale down unsafe - only one non-saturated replica", [(0.50, 2)], False, False),
    ("TestAnalyzeModelSaturation_EmptyMetrics", [], False, False),
    ("TestAnalyzeModelSaturation_AllSaturated", [(0.85, 2), (0.50, 6), (0.90, 7)], True, False),
])
def test_cases_of_the_analyser(name: str, values: list[tuple[float, int]], up: bool, down: bool) -> None:
    found = analyse(replicas(*values), LIMITS)
    assert (found.up, found.down) == (up, down)


def test_saturated_replicas_do_not_count() -> None:
    """TestAnalyzeVariant_SaturatedReplicas: the third alone is not saturated."""
    found = analyse(replicas((0.85, 2), (0.50, 6), (0.60, 2)), LIMITS)
    assert (found.unsaturated, found.spare_queue) == (1, 3.0)
    assert found.spare_kv == pytest.approx(0.2)
    assert analyse(replicas((0.85, 2), (0.80, 0)), LIMITS)[:3] == (0, 0.0, 0.0)


UP, DOWN = Analysis(6, 0.05, 4.0, True, False), Analysis(6, 0.6, 4.0, False, True)


def variant(name: str, cost: float, current: int, desired: int | None = None, reporting: int | None = None,
            pending: int = 0) -> Variant:
    return Variant(name, cost, current, desired, current if reporting is None else reporting, pending)


THREE = [variant("v1-expensive", 20, 2), variant("v2-cheap", 5, 2), variant("v3-medium", 15, 2)]


@each("name, found, variants, expected", [
    ("TestCalculatesaturationTargets_ScaleUpCheapest", UP, THREE, [2, 3, 2]),
    ("TestCalculatesaturationTargets_ScaleDownMostExpensive", DOWN, THREE, [1, 2, 2]),
    ("TestCalculatesaturationTargets_ModelLevelTransitionBlocking", UP,
     [variant("v1-expensive", 20, 2, 4), variant("v2-cheap", 5, 2)], [4, 2]),
    ("TestCalculatesaturationTargets_PendingReplicasBlocksScaling", UP,
     [variant("v1-expensive", 20, 3, reporting=2, pending=1), variant("v2-cheap", 5, 2)], [3, 2]),
    ("nobody falls below 1", DOWN, [variant("a", 20, 1), variant("b", 5, 2)], [1, 1]),
    ("all have one", DOWN, [variant("a", 20, 1), variant("b", 5, 1)], [1, 1]),
    ("equal costs up: the first by name", UP, [variant("b", 5, 2), variant("a", 5, 2)], [2, 3]),
    ("equal costs down: the last by name", DOWN, [variant("b", 5, 2), variant("a", 5, 2)], [1, 2]),
    ("a draining replica still reports", UP, [variant("a", 5, 1, reporting=2)], [1]),
    ("up goes before down", Analysis(2, 0.05, 4.0, True, True), [variant("a", 5, 2)], [3]),
    ("neither", Analysis(2, 0.3, 4.0, False, False), [variant("a", 5, 2, desired=2)], [2]),
])
def test_targets(name: str, found: Analysis, variants: list[Variant], expected: list[int]) -> None:
    assert targets(found, variants) == {one.name: n for one, n in zip(variants, expected, strict=True)}


# -- simulations -----------------------------------------------------------------------------------------------------


def group(name: str, count: int, start: int, blocks: int = 60, start_up: float = 20.0) -> dict[str, Any]:
    return {"name": name, "count": count, "memory": {"num_blocks": blocks},
            "hardware": {"kind": "roofline", "model": "llama-3.1-8b", "device": "h100-sxm"},
            "fleet": {"start": start, "start_up": {"total": start_up}}}


def run(keys: dict[str, Any], groups: list[dict[str, Any]], users: int = 12, requests: int = 600,
        **more: Any) -> Results:
    return simulate({
        "workload": {"requests": requests, "arrivals": {"kind": "closed_loop", "users": users},
                     "lengths": {"kind": "fixed", "prompt": 64, "output": 400}},
        "clients": groups,
        "autoscalers": [{"groups": [one["name"] for one in groups], "autoscaler": {"kind": "wva", **keys}}],
        "router": {"kind": "least_loaded", "load": "requests"}, **more})


def decided(results: Results) -> list[tuple[str, float, int, str]]:
    names = [info.name for info in results.record.clients]
    return [(names[client], time / S, state, reason) for (client, _, time, state), reason in zip(
        results.record.membership.tolist(), results.record.membership_reasons, strict=True)
        if state in (STARTING, DRAINING, READY) and time]


def test_a_round_with_a_pending_variant_by_hand() -> None:
    """12 sequences on a dear and a cheap replica: each has 6 that grow to 29 blocks, of which 60 hold two. Within each
    minute KV use exceeds 0.8: both are saturated. The round at 0 s sees no replica. That at 60 s publishes 2 for
    `cheap`; the HPA takes the lowest recommendation of 240 s, the first of which was the number at 0 s: it acts at
    240 s. Rounds until then find the model in transition. That of 300 s sees the new replica report, and publishes 3:
    the last sync that found 2 was that of 285 s, and the HPA acts 240 s later."""
    keys = {"costs": {"dear": 2.0, "cheap": 1.0}}
    results = run(keys, [group("dear", 3, 1), group("cheap", 3, 1)], requests=2500)
    assert decided(results)[:4] == [
        ("cheap-1", 240.0, STARTING, "saturated"), ("cheap-1", 260.0, READY, "started"),
        ("cheap-2", 525.0, STARTING, "saturated"), ("cheap-2", 545.0, READY, "started")]


def test_a_pending_replica_keeps_the_model_as_it_is_by_hand() -> None:
    """The same with a start-up of 100 s: the round at 300 s finds that one of two reports; that of 360 s
    finds both. The HPA acts at 585 s, 240 s after the sync at 345 s."""
    results = run({"costs": {"dear": 2.0, "cheap": 1.0}},
                  [group("dear", 3, 1), group("cheap", 3, 1, start_up=100.0)], requests=2500)
    assert [row[:3] for row in decided(results)[:3]] == [
        ("cheap-1", 240.0, STARTING), ("cheap-1", 340.0, READY), ("cheap-2", 585.0, STARTING)]


def test_the_dearest_goes_first_by_hand() -> None:
    """One sequence on four replicas: at 60 s all four have reported, and `dear` loses one. The HPA falls to the highest
    recommendation of 240 s, the first of which is the number at 0 s. The round at 300 s takes one of `cheap`, since
    `dear` has one left: 2 was asked for until 285 s, and counts until 525 s."""
    results = run({}, [group("dear", 2, 2) | {"price_per_hour": 3.0}, group("cheap", 2, 2) | {"price_per_hour": 1.0}],
                  users=1, requests=300)
    assert decided(results) == [("dear-1", 240.0, DRAINING, "spare capacity"),
                                ("cheap-1", 525.0, DRAINING, "spare capacity")]


QUICK = {"interval": 2.0, "window": 2.0, "scrape": 0.5, "sync": 0.5, "tolerance": 0.0,
         "scale_up": {"window": 1.0, "pods": 10, "period": 5.0},
         "scale_down": {"window": 1.0, "pods": 10, "period": 5.0}}


def test_to_no_replica_and_back() -> None:
    """`retention` after the last request ended all variants go; a request starts one of each at the next 100 ms."""
    results = run({**QUICK, "scale_to_zero": True, "retention": 10}, [group("a", 2, 1, start_up=1), group(
        "b", 2, 1, start_up=1)], gateway={"queue": {"ttl": 60}}, workload={
            "requests": 4, "arrivals": {"kind": "closed_loop", "users": 1, "think": 30},
            "lengths": {"kind": "fixed", "prompt": 64, "output": 100}})
    assert (results.record.status == 1).all()
    rows = decided(results)
    woken = [(name, at) for name, at, state, reason in rows if reason == "requests wait at the gateway"]
    arrivals = results.requests.arrival_s.tolist()
    assert {name for name, _ in woken} == {"a-0", "b-0"}
    for _, at in woken:
        assert round(at * 10) / 10 == pytest.approx(at, abs=1e-9)
        assert min(abs(at - arrived) for arrived in arrivals if arrived <= at) <= 0.1 + 1e-9
    gone = results.record.membership[results.record.membership[:, 3] == GONE]
    assert (gone[:, 2] > 0).sum() >= 4


def test_runs_decide_as_single_steps_do() -> None:
    load = {"requests": 200, "arrivals": {"kind": "mmpp", "rates": [30, 1], "dwells": [4, 8]},
            "lengths": {"kind": "fixed", "prompt": 64, "output": 200}}
    first, second = (run(QUICK, [group("a", 3, 1, start_up=0.5), group("b", 3, 2, start_up=1.0)], workload=load,
                         stepping=stepping).record for stepping in ("runs", "every_step"))
    assert np.array_equal(first.membership, second.membership)
    assert np.array_equal(first.finish_ns, second.finish_ns)
    assert (first.membership[:, 3] == STARTING).any()
    assert (first.membership[:, 3] == DRAINING).any()


def test_numbers_beyond_a_group_are_not_published() -> None:
    """One replica of at most one stays saturated: nothing blocks the other variant for ever."""
    results = run({**QUICK, "costs": {"a": 1.0, "b": 2.0}}, [group("a", 1, 1), group("b", 2, 1, start_up=1)],
                  requests=200)
    assert not [row for row in decided(results) if row[0].startswith("a")]
    assert (results.record.status == 1).all()


# -- what a user writes ----------------------------------------------------------------------------------------------


@each("change, words, field", [
    ({"groups": ["a", "c"]}, "a group of clients that has a `fleet`: a, b", "autoscalers.0.groups.1"),
    ({"groups": ["a", "a"]}, "'a' has an autoscaler already", "autoscalers.0.groups.1"),
    ({"autoscaler": {"kind": "static"}}, "`static` scales one group", "autoscalers.0.autoscaler.kind"),
    ({"autoscaler": {"kind": "wva", "costs": {"x": 1}}}, "one of its groups: a, b", "autoscalers.0.autoscaler.costs"),
    ({"autoscaler": {"kind": "wva", "max": 3}}, "at most 2 replicas", "autoscalers.0.autoscaler.max"),
    ({"autoscaler": {"kind": "wva", "scale_to_zero": True}}, "give `gateway.queue`",
     "autoscalers.0.autoscaler.scale_to_zero"),
])
def test_wrong_autoscalers_of_groups_are_refused_by_name(change: dict[str, Any], words: str, field: str) -> None:
    with pytest.raises(InputError, match=words) as found:
        run({}, [group("a", 2, 1), group("b", 2, 1)], autoscalers=[
            {"groups": ["a", "b"], "autoscaler": {"kind": "wva"}} | change])
    assert found.value.field == field


def test_a_group_has_one_autoscaler() -> None:
    own = group("a", 2, 1)
    own["fleet"]["autoscaler"] = {"kind": "wva"}
    with pytest.raises(InputError, match="leave one of the two out"):
        run({}, [own])
    with pytest.raises(InputError, match="none has one"):
        run({}, [{key: value for key, value in group("a", 2, 1).items() if key != "fleet"}])


class TestWva(AutoscalerContract):
    def make(self) -> Wva:
        return validate(Wva, {"kind": "wva", **QUICK, "interval": 0.4, "window": 0.4, "scrape": 0.1, "sync": 0.1,
                              "kv_spare": 0.6})


class TestWvaToZero(AutoscalerContract):
    def make(self) -> Wva:
        return validate(Wva, {"kind": "wva", **QUICK, "interval": 0.4, "window": 0.4, "scrape": 0.1, "sync": 0.1,
                              "scale_to_zero": True, "retention": 0.8})
