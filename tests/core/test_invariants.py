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


@pytest.mark.parametrize("load", ["kv_tokens", "tokens_left"])
def test_the_least_loaded_of_many_is_found_while_steps_grow_longer(load: str) -> None:
    router = {"kind": "least_loaded", "load": load}
    lengths = {"kind": "independent", "prompt": {"kind": "lognormal", "mean": 10, "sigma": 1.0, "max": 100},
               "output": {"kind": "lognormal", "mean": 20, "sigma": 0.5, "max": 100}}
    scenario = {
        "clients": [{"count": 30, "hardware": {"kind": "test_ticks", "per_ctx": 2}, "memory": {"num_blocks": 100}}],
        "workload": [{"requests": 300, "arrivals": {"kind": "poisson", "rate": 1e5}, "lengths": lengths}],
        "router": {"kind": "test_probe", "router": router},
    }
    outcome = run(scenario)
    assert len({client for _, _, client, *_ in outcome.loads}) == 30
    invariants.routers_choose_by_the_loads_they_see(outcome, scenario)


@when_asked_for
@pytest.mark.parametrize("family", FAMILIES)
@thorough
@given(data=st.data(), stepping=modes)
def test_invariants_hold_thoroughly(family: str, data: st.DataObject, stepping: str) -> None:
    scenario = data.draw(scenarios(family, most=40))
    invariants.check(run(scenario, stepping), scenario)
