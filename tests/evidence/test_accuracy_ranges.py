"""Ranges of results: their powers, how many cells lie inside, and bars that must be there."""

from __future__ import annotations

import math

import pytest

from evidence.accuracy.served import Case, Row
from evidence.accuracy.table import SETS, Bars, Cell, cells_of, coverage, found_power, missed, outside
from hermes.hardware.trust import Trust

STEPS = Trust("near", 0.85, 1.15)


def cells(folder: str, powers: list[float], family: str = "ttft") -> list[Cell]:
    """Return cells whose measured times need these powers of the steps' range."""
    return [Cell({"campaign": folder, "card": "a"}, STEPS, family, 1.15**power) for power in powers]


def row(error: float, metric: str = "e2e", stat: str = "mean", card: str = "a", name: str = "one",
        trust: Trust | None = STEPS) -> Row:
    return Row(Case("set", name, "vllm", card, "m", trust), metric, stat, 1.0, 1.0 + error)


def test_the_power_of_a_cell_reaches_what_was_measured_on_either_side() -> None:
    assert Cell("a", STEPS, "ttft", 1.15**2).power == pytest.approx(2.0)
    assert Cell("a", STEPS, "ttft", 0.85**3).power == pytest.approx(3.0)
    assert Cell("a", STEPS, "ttft", 1.0).power == 0.0


def test_the_found_power_is_enough_for_most_and_never_surer_than_the_steps() -> None:
    many = [cell for name in "abc" for cell in cells(name, [1.5, 2.0, 2.5, 3.0])]
    power = found_power(many, "near", "ttft")
    assert 2.5 < power <= 3.0
    assert found_power(cells("a", [0.1, 0.2]), "near", "ttft") == 2.0, "a wait moves by more than the steps"
    assert found_power(cells("a", [0.1, 0.2], "times"), "near", "times") == 1.0
    assert math.isnan(found_power(many, "near", "times"))


def test_a_class_in_too_few_folders_takes_the_cells_of_all_classes() -> None:
    wide = [Cell(name, Trust("guess", 0.6, 1.6), "ttft", 1.6**4) for name in "abc"]
    assert found_power([*wide, *cells("d", [1.0])], "near", "ttft") > 3.0


@pytest.mark.feature("Hardware", (
    "Ranges of latencies by class, and how many cells of the accuracy page lie inside: `run`, `hermes "
    "accuracy`"))
def test_coverage_is_counted_with_the_scored_folder_left_out() -> None:
    found = {(one.value, one.family): one for one in coverage(
        [cell for name in "abcd" for cell in cells(name, [1.2, 1.2] if name != "d" else [9.0, 9.0])], "campaign")}
    assert found["all", "all"].cells == 8
    assert found["all", "all"].inside == pytest.approx(6 / 8), "the folder that is off does not widen its own range"
    assert [found[name, "all"].inside for name in "abcd"] == [1.0, 1.0, 1.0, 0.0]


def test_a_card_that_is_left_out_does_not_widen_its_own_range() -> None:
    """Campaigns a to c have a card each, d has both: with its folder left out, a's other figures stand for d's card."""
    many = [Cell({"campaign": name, "card": card}, STEPS, "ttft", 1.15**power) for name, card, power in (
        ("a", "old", 1.2), ("b", "old", 1.2), ("c", "old", 1.2), ("d", "new", 9.0), ("e", "new", 12.0))]
    by_card = {one.value: one.inside for one in coverage(many, "card")}
    by_campaign = {one.value: one.inside for one in coverage(many, "campaign")}
    assert by_card["new"] == 0.0
    assert by_campaign["d"] == 1.0, "the other campaign on this card has shown it"


def test_what_is_no_time_and_what_has_no_range_is_no_cell() -> None:
    rows = [row(0.1), row(0.1, trust=None), row(0.1, "watts"), row(0.25, "tokens/s")]
    found = cells_of({"inferencex": rows})
    assert [cell.family for cell in found] == ["times", "times"]
    assert found[0].of == {"campaign": "inferencex", "site": "inferencex", "card": "a", "engine": "vllm",
                           "precision": "16 bits"}
    assert {SETS[name].site for name in ("residency", "blis", "training")} == {"inference-sim"}
    assert found[0].ratio == pytest.approx(1 / 1.1), "measured over predicted"
    assert found[1].ratio == pytest.approx(1.25), "a rate too high is a time too short"


def test_a_card_of_a_set_without_a_bar_is_missed() -> None:
    bars = Bars.model_validate({"bars": [{"set": "set", "metric": "e2e", "stat": "mean", "card": "a", "worst": 0.2}]})
    assert missed(bars, [row(0.1)]) == []
    assert missed(bars, [row(0.1), row(0.1, card="b")]) == [{"set": "set", "card": "b", "of": "no bar"}]
    assert missed(bars, [row(0.3)])[0]["found"] == pytest.approx(0.3)


def test_a_bar_of_a_case_holds_for_that_case() -> None:
    bars = Bars.model_validate({"bars": [
        {"set": "set", "metric": "e2e", "stat": "mean", "worst": 0.5},
        {"set": "set", "metric": "e2e", "stat": "mean", "case": "two", "worst": 0.2}]})
    assert [miss["case"] for miss in missed(bars, [row(0.4), row(0.4, name="two")])] == ["two"]


def test_the_share_inside_has_a_bar_on_both_sides() -> None:
    bar = {"set": "s", "metric": "m", "stat": "mean", "worst": 1.0}
    bars = Bars.model_validate({"bars": [bar], "inside": [0.85, 0.95]})
    every = coverage([cell for name in "abcd" for cell in cells(name, [1.2] * 10)], "campaign")
    assert [one["found"] for one in outside(bars, every)] == [1.0], "too many inside: the ranges are too wide"
    few = coverage([cell for name in "abcd" for cell in cells(name, [1.2] * 9)], "campaign")
    assert outside(bars, few) == [], "of fewer than 40 figures no share is judged"


def test_the_page_says_what_each_set_gives() -> None:
    assert all(one.given for one in SETS.values())
