"""Run mode equals every_step mode exactly: whatever a run of steps does at once, single steps do one after the other."""

from __future__ import annotations

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from outcomes import assert_same, run
from random_scenarios import installed, scenarios

FAMILIES = (*installed("chunked", "continuous", "static", "mixed"), "any", "disaggregated")
quick = settings(
    max_examples=60, deadline=None, derandomize=True, suppress_health_check=[HealthCheck.too_slow, HealthCheck.data_too_large]
)


@pytest.mark.parametrize("family", FAMILIES)
@quick
@given(data=st.data())
def test_runs_equal_single_steps(family: str, data: st.DataObject) -> None:
    scenario = data.draw(scenarios(family))
    assert_same(run(scenario, "runs"), run(scenario, "every_step"))
