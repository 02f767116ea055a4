"""The numbered invariants hold in random scenarios, in both modes."""

from __future__ import annotations

import invariants
import pytest
from hypothesis import given
from hypothesis import strategies as st
from outcomes import run
from profiles import quick, thorough, when_asked_for
from random_scenarios import FAMILIES, scenarios

modes = st.sampled_from(["runs", "every_step"])


@pytest.mark.parametrize("family", FAMILIES)
@quick(40)
@given(data=st.data(), stepping=modes)
def test_invariants_hold(family: str, data: st.DataObject, stepping: str) -> None:
    scenario = data.draw(scenarios(family))
    invariants.check(run(scenario, stepping), scenario)


@when_asked_for
@pytest.mark.parametrize("family", FAMILIES)
@thorough
@given(data=st.data(), stepping=modes)
def test_invariants_hold_thoroughly(family: str, data: st.DataObject, stepping: str) -> None:
    scenario = data.draw(scenarios(family, most=40))
    invariants.check(run(scenario, stepping), scenario)
