"""Run mode equals every_step mode exactly: what a run of steps does at once, single steps do one after the other."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st
from outcomes import assert_same, run
from profiles import quick, thorough, when_asked_for
from random_scenarios import FAMILIES, scenarios


@pytest.mark.feature("LLM clients", "Client `llm` with runs of steps equal to single steps")
@pytest.mark.parametrize("family", FAMILIES)
@quick(40)
@given(data=st.data())
def test_runs_equal_single_steps(family: str, data: st.DataObject) -> None:
    scenario = data.draw(scenarios(family))
    assert_same(run(scenario, "runs"), run(scenario, "every_step"))


@when_asked_for
@pytest.mark.parametrize("family", FAMILIES)
@thorough
@given(data=st.data())
def test_runs_equal_single_steps_thoroughly(family: str, data: st.DataObject) -> None:
    scenario = data.draw(scenarios(family, most=40))
    assert_same(run(scenario, "runs"), run(scenario, "every_step"))
