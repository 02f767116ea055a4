"""Run mode equals every_step mode exactly: what a run of steps does at once, single steps do one after the other."""

from __future__ import annotations

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from outcomes import assert_same, run
from random_scenarios import FAMILIES, scenarios

checks = [HealthCheck.too_slow, HealthCheck.data_too_large]
quick = settings(max_examples=40, deadline=None, derandomize=True, suppress_health_check=checks)
thorough = settings(max_examples=1500, deadline=None, suppress_health_check=checks)


@pytest.mark.parametrize("family", FAMILIES)
@quick
@given(data=st.data())
def test_runs_equal_single_steps(family: str, data: st.DataObject) -> None:
    scenario = data.draw(scenarios(family))
    assert_same(run(scenario, "runs"), run(scenario, "every_step"))


@pytest.mark.slow
@pytest.mark.parametrize("family", FAMILIES)
@thorough
@given(data=st.data())
def test_runs_equal_single_steps_thoroughly(family: str, data: st.DataObject) -> None:
    scenario = data.draw(scenarios(family, most=40))
    assert_same(run(scenario, "runs"), run(scenario, "every_step"))
