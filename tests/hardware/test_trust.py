"""Classes of trust and their words."""

from __future__ import annotations

from typing import Any

import pytest

from hermes.hardware.composed import Composed
from hermes.hardware.term_trust import in_total
from hermes.hardware.trust import GUESS, MEASURED, NEAR, Trust, worst


def test_words_name_the_class_and_both_ends() -> None:
    assert Trust("near", 0.9, 1.25).text() == "near, -10 to +25%"


def test_the_least_certain_class_decides() -> None:
    assert worst(("measured", "guess", "near")) == "guess"
    assert worst(("measured",)) == "measured"


def test_classes_widen_as_certainty_falls() -> None:
    widths = [trust.high / trust.low for trust in (MEASURED, NEAR, GUESS)]
    assert widths == sorted(widths)


def trust(model: str, device: str, **options: Any) -> dict[str, Trust]:
    return Composed(model=model, device=device, **options).build().trust_of()


def test_terms_of_the_cards_own_tables_are_measured_and_those_of_generic_factors_a_guess() -> None:
    own, none = trust("llama-3.1-8b", "h100-sxm"), trust("llama-3.1-8b", "mi300x")
    assert own["gate_up"] == own["attention_of_decodes"] == MEASURED
    assert own["engine"].kind == own["decodes_beside_prompt"].kind == "near"
    assert {one.kind for one in none.values()} == {"guess"}
    assert trust("llama-3.1-8b", "h100-sxm", kernels="h200")["gate_up"].kind == "near", "tables of a relative"


def test_all_reduces_of_four_cards_have_the_range_of_sites() -> None:
    assert trust("llama-3.1-70b", "h100-sxm", tp=2)["all_reduce"].kind == "near"
    four = trust("llama-3.1-70b", "h100-sxm", tp=4)["all_reduce"]
    assert (four.kind, four.high >= 4) == ("guess", True)
    given = trust("llama-3.1-70b", "h100-sxm", tp=4, link={"latency": "10 us", "bandwidth": "300 GB/s"})
    assert given["all_reduce"].kind == "near"


def test_a_sum_is_off_by_its_terms_and_as_certain_as_those_that_count() -> None:
    seconds, of = {"a": 0.9, "b": 0.1}, {"a": MEASURED, "b": GUESS}
    total = in_total(seconds, of)
    assert total.kind == "guess"
    assert total.high == pytest.approx(0.9 * 1.06 + 0.1 * 1.6)
    assert in_total({"a": 0.95, "b": 0.05}, of).kind == "measured", "too little to count"
