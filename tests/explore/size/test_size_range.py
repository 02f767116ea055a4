"""How far the answer of `hermes size` moves with step times at the ends of their range."""

from __future__ import annotations

from typing import Any

import pytest

import hermes
from hermes.explore.objective import missed
from hermes.explore.size import size
from hermes.explore.size.layouts import Splits
from hermes.explore.size.size_range import _numbers
from hermes.explore.size.text import lines, plain
from hermes.explore.sweep.figures import figures

ASKED: dict[str, Any] = {
    "name": "range",
    "workload": {"requests": 3000, "arrivals": {"kind": "poisson", "rate": 150},
                 "lengths": {"kind": "fixed", "prompt": 1000, "output": 60}},
    "clients": [{"model": "llama-3.1-8b"}], "router": {"kind": "least_loaded", "load": "requests"},
    "slo": {"ttft": "1 s", "tpot": "40 ms"},
}


@pytest.fixture(scope="module")
def sized() -> Any:
    return size(ASKED, devices=["gaudi-3"], tps=(1,), layouts=("mixed",), max_devices=64)


def verdict(clients: int, factor: float) -> str | None:
    """Return what so many cards miss with steps so many times as long, by a simulation of its own."""
    client = {**ASKED["clients"][0], "device": "gaudi-3", "count": clients,
              "adjust": {"prompts": factor, "decodes": factor}}
    results = hermes.simulate({**ASKED, "clients": [client], "workload": {**ASKED["workload"], "requests": 9000}})
    return missed(figures(results))


@pytest.mark.long
def test_a_guess_has_fewer_clients_at_its_fast_end_and_more_at_its_slow_end(sized: Any) -> None:
    steps, best = sized.steps, sized.meets[0]
    assert steps.kind == "guess"
    assert steps.fewest < best.clients[0] < steps.most
    text = dict(lines(sized))
    assert f"({steps.fewest} to {steps.most})" in text["answer"]
    assert text["range"].endswith(f"(guess): {steps.fewest} to {steps.most} clients")
    assert plain(sized)["steps"]["most"] == steps.most


@pytest.mark.feature("Hardware", "Sizing with step times at the ends of their range: `hermes size`, \"28 (26 to 32)\"")
@pytest.mark.long
def test_the_ends_are_what_simulations_of_their_own_say(sized: Any) -> None:
    steps = sized.steps
    assert verdict(steps.most, steps.high) is None
    assert verdict(steps.most - 1, steps.high) is not None
    assert verdict(steps.fewest - 1, steps.low) is not None


@pytest.mark.long
def test_more_than_the_devices_allowed_is_said() -> None:
    tight = size(ASKED, devices=["gaudi-3"], tps=(1,), layouts=("mixed",), max_devices=5)
    assert tight.steps is not None
    assert tight.steps.most is None
    assert "to more than are allowed)" in dict(lines(tight))["answer"]


@pytest.mark.long
def test_a_layout_of_ranks_is_not_searched_again() -> None:
    few = ASKED | {"workload": ASKED["workload"] | {"requests": 800, "arrivals": {"kind": "poisson", "rate": 40}}}
    staged = size(few, devices=["gaudi-3"], tps=(1,), splits=Splits((2,)), layouts=("mixed",), max_devices=64)
    assert staged.steps.why
    assert "not searched again: step times of ranks and stages" in dict(lines(staged))["range"]


def test_both_phases_keep_their_proportions() -> None:
    class Best:
        clients = (4, 2)

    assert [_numbers(Best(), total) for total in (2, 3, 6, 12)] == [(1, 1), (2, 1), (4, 2), (8, 4)]  # type: ignore[arg-type]
