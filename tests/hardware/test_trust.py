"""Classes of trust and their words."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from hermes.hardware.composed import Composed
from hermes.hardware.result_ranges import FAMILIES, MOST, family_of, result_range
from hermes.hardware.term_trust import deciding, in_total, of_other_engine
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


@pytest.mark.feature("Hardware", (
    "Class and range of each term and of a run's step times: `explain`, `sources` of a summary"))
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
    named = trust("llama-3.1-70b", "h100-sxm", tp=4, link={"latency": "10 us", "bandwidth": "300 GB/s"})["all_reduce"]
    assert named.kind == "guess", "one formula for every size and batch"
    assert named.high / named.low < four.high / four.low


def test_a_card_that_was_not_compared_has_near_tables() -> None:
    tables = {device: trust("llama-3.1-8b", device)["gate_up"].kind for device in ("h100-sxm", "h200", "a100-80gb")}
    assert tables == {"h100-sxm": "measured", "h200": "near", "a100-80gb": "near"}


def test_from_two_cards_on_nothing_is_better_than_near() -> None:
    """Their all-reduces are the site's: of a pair that others measured, half of the times were within 6%."""
    pair = trust("llama-3.1-70b", "h100-sxm", tp=2)
    assert "measured" not in {one.kind for one in pair.values()}
    assert trust("llama-3.1-70b", "h100-sxm", tp=1)["gate_up"] == MEASURED


def test_8_bit_experts_of_vllm_under_expert_parallelism_may_take_four_times() -> None:
    """Nobody knows which kernels run: a server took 1.9 times the tables' time, 4.6 times for prompts."""
    with_ep = trust("minimax-m2.5", "h200", tp=8, ep=8)["experts"]
    without = trust("minimax-m2.5", "h200", tp=8)["experts"]
    assert with_ep.high == 4.0
    assert without.high < 2.0


def test_models_of_kinds_that_no_server_was_compared_with_are_less_certain() -> None:
    found = trust("deepseek-v3", "h200", tp=8)
    assert found["experts"].kind == "guess"
    assert trust("llama-3.1-70b", "h200", tp=2)["gate_up"].kind == "near"


def test_a_sum_is_off_by_its_terms_to_the_same_side_and_of_the_class_as_wide() -> None:
    seconds, of = {"a": 0.9, "b": 0.1}, {"a": MEASURED, "b": GUESS}
    total = in_total(seconds, of)
    assert total.high == pytest.approx(0.9 * 1.06 + 0.1 * 1.6)
    assert total.kind == "near"
    assert in_total({"a": 0.97, "b": 0.03}, of).kind == "measured", "too little to count"
    assert in_total({"a": 0.5, "b": 0.5}, of).kind == "guess"
    assert deciding(seconds, of) == ["a", "b"], "each gives a good part of the range"
    assert deciding({"a": 0.99, "b": 0.01}, of) == ["a"]


def test_another_engines_host_is_a_guess_and_its_kernels_are_near() -> None:
    found = of_other_engine({"gate_up": MEASURED, "all_reduce": GUESS, "engine": NEAR})
    assert found == {"gate_up": NEAR, "all_reduce": GUESS, "engine": GUESS}


@given(low=st.floats(0.2, 1.0), high=st.floats(1.0, 5.0), kind=st.sampled_from(["measured", "near", "guess"]))
def test_no_kind_of_result_is_surer_than_a_mean(low: float, high: float, kind: Any) -> None:
    steps = Trust(kind, low, high)
    mean, *others = (result_range(steps, family) for family in FAMILIES)
    assert all(one.low <= mean.low and one.high >= mean.high for one in others)
    assert mean.low <= 1.0 <= mean.high
    for one in (mean, *others):
        far = max(1.0 - one.low, one.high - 1.0)
        assert far <= MOST.get(one.kind, far) + 1e-9


def test_what_comes_out_near_has_all_of_its_width() -> None:
    first = result_range(Trust("measured", 0.94, 1.06), "ttft")
    assert first == Trust("near", 0.85, 1.15), "1.06 to the power of 1.1 is 1.066"
    assert result_range(Trust("measured", 0.96, 1.04), "ttft").kind == "measured"


def test_percentiles_and_first_tokens_have_their_own_kind() -> None:
    assert [family_of(*of) for of in (("e2e", "mean"), ("tpot", "p99"), ("ttft", "p50"), ("ttft", "p99"))] == [
        "times", "times p99", "ttft", "ttft p99"]
