"""The numbered invariants hold in random scenarios, in both modes."""

from __future__ import annotations

import invariants
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from outcomes import run
from random_scenarios import FAMILIES, scenarios

checks = [HealthCheck.too_slow, HealthCheck.data_too_large]
quick = settings(max_examples=40, deadline=None, derandomize=True, suppress_health_check=checks)
thorough = settings(max_examples=1500, deadline=None, suppress_health_check=checks)


@pytest.mark.parametrize("family", FAMILIES)
@quick
@given(data=st.data(), stepping=st.sampled_from(["runs", "every_step"]))
def test_invariants_hold(family: str, data: st.DataObject, stepping: str) -> None:
    scenario = data.draw(scenarios(family))
    invariants.check(run(scenario, stepping), scenario)


@pytest.mark.slow
@pytest.mark.parametrize("family", FAMILIES)
@thorough
@given(data=st.data(), stepping=st.sampled_from(["runs", "every_step"]))
def test_invariants_hold_thoroughly(family: str, data: st.DataObject, stepping: str) -> None:
    scenario = data.draw(scenarios(family, most=40))
    invariants.check(run(scenario, stepping), scenario)
