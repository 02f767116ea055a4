"""Branch and bound over layouts: the answer of a search of all of them, with fewer simulations."""

from __future__ import annotations

import math
from dataclasses import replace
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from hermes.explore.size import NEAR, Dearer, Kind, Sizing, Tried, _Searches, _Start, hourly
from hermes.explore.size.numbers import least_split
from hermes.explore.size.text import dearer

CLIENTS = [{"name": "llm", "model": "llama-3.1-8b"}]
MOST = 64
TP = {tp: Kind("h100-sxm", tp, 4.0) for tp in (1, 2, 4, 8)}


class Needed:
    """Stands in for `Trials`: so many mixed clients of a kind meet the SLO, with one prefill and one decode client more
    if they are split."""

    def __init__(self, needed: dict[Kind, int], far: bool = True) -> None:
        self.needed = {(kind.device, kind.tp): number for kind, number in needed.items()}
        self.far, self.ran, self.left = far, list[str](), 0
        self.scenario = type("S", (), {"seed": 0})()
        self.lengths: dict[str, float] = {}

    def run(self, wanted: Any, *, until_missed: float = 0.0) -> dict[str, Any]:
        out = {}
        for label, (settings, _) in wanted.items():
            clients = settings["clients"]
            number, first = sum(one["count"] for one in clients), clients[0]
            fewest = self.needed[first["device"], first["parallel"]["tp"]] + 2 * (len(clients) - 1)
            self.ran.append(label)
            self.lengths[label] = 1.0
            out[label] = {"slo.pass": number >= fewest, "settling.settled": True, "requests.total": 1000,
                          "headline.stable": not (self.far and number < fewest),
                          "cost.dollars_per_hour": 4.0 * number * first["parallel"]["tp"]}
        return out


def searched(needed: dict[Kind, int], bounds: dict[Kind, int], *, layouts: tuple[str, ...] = ("mixed",),
             far: bool = True) -> tuple[Sizing, Needed]:
    trials = Needed(needed, far)
    starts = {kind: _Start(number, 1.0, number, number + 1) for kind, number in bounds.items()}
    searches = _Searches(trials, CLIENTS, starts, MOST, layouts)  # type: ignore[arg-type]
    sizing = searches.extended(Sizing("x", None, {}, [], []))  # type: ignore[arg-type]
    return Sizing("x", None, {}, sizing.found, [], dearer=searches.dearer()), trials  # type: ignore[arg-type]


def test_a_layout_that_must_cost_more_is_not_simulated() -> None:
    found, trials = searched({TP[1]: 2, TP[4]: 1}, {TP[1]: 2, TP[4]: 1})
    assert trials.ran == ["2 x h100-sxm TP1", "1 x h100-sxm TP1"]   # $8; four devices cost $16
    assert [tried.label for tried in found.ranked] == ["2 x h100-sxm TP1"]
    assert found.dearer == [Dearer(TP[4], "mixed", 1, [])]
    assert dearer(found) == [("dearer", "h100-sxm: TP4 mixed at least $16/h (bound)")]


def test_near_alternatives_are_searched() -> None:
    """7 x $4 = $28; 4 x $8 = $32 is 14% more, 2 x $16 = $32 too, and 5 x $8 = $40 is not."""
    found, _ = searched({TP[1]: 7, TP[2]: 4, TP[4]: 2}, {TP[1]: 6, TP[2]: 3, TP[4]: 1})
    assert [hourly(tried) for tried in found.ranked] == [28.0, 32.0, 32.0]
    found, _ = searched({TP[1]: 7, TP[2]: 5}, {TP[1]: 6, TP[2]: 5})
    assert [hourly(tried) for tried in found.ranked] == [28.0]
    assert [one.cost for one in found.dearer] == [40.0]


def test_a_miss_raises_the_bound_if_other_seeds_could_not_change_it() -> None:
    """The two devices of TP2 miss by far, so that they need four at least."""
    sure, few = searched({TP[1]: 3, TP[2]: 5}, {TP[1]: 3, TP[2]: 1})
    assert [one.clients for one in sure.dearer] == [2]
    unsure, more = searched({TP[1]: 3, TP[2]: 5}, {TP[1]: 3, TP[2]: 1}, far=False)
    assert not unsure.dearer
    assert [hourly(tried) for tried in unsure.ranked] == [12.0, 40.0]
    assert len(more.ran) > len(few.ran)


def test_a_layout_that_can_never_meet_the_slo_waits_for_all_others() -> None:
    trials = Needed({TP[1]: 99, TP[2]: 3})
    starts = {TP[1]: _Start(1, 1.0, math.inf, math.inf), TP[2]: _Start(2, 1.0, 2, 3)}
    searches = _Searches(trials, CLIENTS, starts, MOST, ("mixed",))  # type: ignore[arg-type]
    sizing = searches.extended(Sizing("x", None, {}, [], []))  # type: ignore[arg-type]
    assert [tried.label for tried in sizing.ranked] == ["3 x h100-sxm TP2"]
    assert [(one.kind, one.clients) for one in searches.dearer()] == [(TP[1], math.inf)]
    assert dearer(Sizing("x", None, {}, [], [], dearer=searches.dearer())) == [  # type: ignore[arg-type]
        ("dearer", "h100-sxm: TP1 mixed never meets the SLO (bound)")]
    none = Needed({TP[1]: 99, TP[2]: 99})
    searches = _Searches(none, CLIENTS, starts, 8, ("mixed",))  # type: ignore[arg-type]
    sizing = searches.extended(Sizing("x", None, {}, [], []))  # type: ignore[arg-type]
    assert not searches.dearer()   # without an answer every layout says what it misses
    assert [one.tried[-1].misses for one in sizing.found] == ["the queue grows"] * 2


def test_a_split_is_searched_where_mixed_clients_cost_too_much() -> None:
    """The split of TP1 may need $8 at least, so that its mixed clients, which need five, are searched for its start.

    Two prefill and three decode clients miss by far, and so do all splits of two and three: four cost $16 at least.
    """
    trials = Needed({TP[1]: 5, TP[2]: 1})
    starts = {TP[1]: _Start(4, 1.0, 4, 2), TP[2]: _Start(1, 1.0, 1, 9)}
    searches = _Searches(trials, CLIENTS, starts, MOST, ("mixed", "pd"))  # type: ignore[arg-type]
    sizing = searches.extended(Sizing("x", None, {}, [], []))  # type: ignore[arg-type]
    assert sizing.ranked[0].label == "1 x h100-sxm TP2"
    assert {found.layout for found in sizing.found if found.kind == TP[1]} == {"mixed"}
    assert "2P/3D h100-sxm TP1" in trials.ran
    assert [(one.kind, one.layout, one.clients) for one in searches.dearer()] == [(TP[1], "pd", 4), (TP[2], "pd", 9)]


def test_layouts_of_stages_wait_for_the_others() -> None:
    """Of three stages of an H200 ($12 at least) the search begins when that of TP1 has its answer."""
    staged = Kind("h200", 1, 4.0, pp=3)
    _, trials = searched({TP[1]: 3, staged: 1}, {TP[1]: 1, staged: 1})
    assert trials.ran == ["1 x h100-sxm TP1", "2 x h100-sxm TP1", "3 x h100-sxm TP1", "1 x h200 TP1 PP3"]


@pytest.mark.parametrize(("far", "fewest"), [
    ((), 2), ([(1, 1)], 3), ([(2, 1)], 3), ([(2, 1), (1, 2)], 4), ([(2, 2)], 4), ([(3, 1), (2, 2), (1, 3)], 5)])
def test_splits_that_miss_by_far_raise_the_bound(far: list[tuple[int, int]], fewest: int) -> None:
    """By hand: with (2, 1) and (1, 2) go (1, 1) and all of three; of four, (2, 2) and others are left."""
    missing = [Tried(TP[1], one, "the queue grows", {"headline.stable": False}) for one in far]
    assert least_split(2, missing) == fewest
    assert least_split(9, missing) == 9
    assert least_split(math.inf, missing) == math.inf
    assert least_split(2, [replace(one, row={"requests.total": 1000}) for one in missing]) == 2   # within noise


KINDS = (TP[1], TP[2], TP[4], Kind("l40s", 1, 0.86), Kind("l40s", 4, 0.86), Kind("b300", 1))


@given(needed=st.lists(st.integers(1, 12), min_size=len(KINDS), max_size=len(KINDS)),
       less=st.lists(st.integers(0, 3), min_size=len(KINDS), max_size=len(KINDS)), far=st.booleans())
def test_the_answer_and_all_near_it_are_those_of_a_search_of_everything(needed: list[int], less: list[int],
                                                                        far: bool) -> None:
    fewest = dict(zip(KINDS, needed, strict=True))
    bounds = {kind: max(1, number - few) for (kind, number), few in zip(fewest.items(), less, strict=True)}
    found, _ = searched(fewest, bounds, far=far)
    costs = {kind: number * kind.devices * kind.price for kind, number in fewest.items() if kind.price}
    near = {kind for kind, cost in costs.items() if cost <= NEAR * min(costs.values())}
    answers = {tried.kind: sum(tried.clients) for tried in found.ranked}
    assert near <= answers.keys()
    assert all(number == fewest[kind] for kind, number in answers.items())
    assert [(tried.kind, tried.clients) for tried in found.unpriced] == [(KINDS[-1], (fewest[KINDS[-1]],))]
    assert all(one.clients <= fewest[one.kind] for one in found.dearer)
    assert len(found.found) + len(found.dearer) == len(KINDS)


def test_a_layout_without_a_price_has_a_bound_in_devices() -> None:
    sizing = Sizing("x", None, {}, [], [], dearer=[Dearer(Kind("b300", 2), "mixed", 2, [])])  # type: ignore[arg-type]
    assert dearer(sizing) == [("dearer", "b300: TP2 mixed at least 4 devices (bound)")]
