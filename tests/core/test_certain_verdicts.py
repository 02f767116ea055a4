"""A run that is ended since it certainly misses its SLO has the whole run's verdict (`hermes.explore.certain_miss`)."""

from __future__ import annotations

import time
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from profiles import quick, thorough, when_asked_for
from random_scenarios import FAMILIES, scenarios

import hermes
from hermes.api import run_built
from hermes.explore.certain_miss import CertainMiss, certain_miss
from hermes.results import Results
from hermes.scenario import load_scenario
from hermes.scenario.build import build

ANY = -1.0   # ends a run at once when its verdict is certain, whatever its second half says


def ended(scenario: dict[str, Any]) -> tuple[Results, CertainMiss | None]:
    checked = load_scenario(scenario)
    part = certain_miss(checked, ANY)
    simulation = build(checked, listeners=[] if part is None else [part])
    return run_built(checked, simulation, time.perf_counter()), part


def judged_alike(scenario: dict[str, Any], metric: str, share: float, percentile: float) -> None:
    """The limit is one that a share of the requests of the whole run keep."""
    free = hermes.simulate({**scenario, "slo": {}})
    done = free.record.finish_ns >= 0
    values = {"ttft": free.metrics.ttft_ns[done] / 1e9, "tpot": free.metrics.tpot_s[done],
              "e2e": free.metrics.e2e_ns[done] / 1e9}[metric]
    values = np.sort(values[~np.isnan(values) & (values > 0)])
    if not len(values):
        return
    limit = max(float(values[int(share * (len(values) - 1))]), 1e-9)
    slo = {metric: limit, "percentile": percentile}
    results, part = ended({**scenario, "slo": slo})
    if part is None:
        return
    whole = hermes.simulate({**scenario, "slo": slo})
    if part.found:
        assert whole.summary["slo"]["pass"] is False
        assert whole.summary["slo"][metric]["pass"] is False
    else:   # the run is the same to the last step
        assert np.array_equal(results.record.finish_ns, whole.record.finish_ns)
        assert all(map(np.array_equal, results.record.step_ends, whole.record.step_ends))
        assert results.summary["slo"] == whole.summary["slo"]


SHARES = st.floats(0.0, 1.0)
PERCENTILES = st.sampled_from([50.0, 90.0, 99.0, 100.0])


@quick(25)
@given(st.data())
@pytest.mark.parametrize("family", [one for one in FAMILIES if one != "elastic"])
def test_the_verdict_is_that_of_the_whole_run(family: str, data: st.DataObject) -> None:
    judged_alike(data.draw(scenarios(family)), data.draw(st.sampled_from(["ttft", "tpot", "e2e"])), data.draw(SHARES),
                 data.draw(PERCENTILES))


@when_asked_for
@thorough
@given(st.data())
@pytest.mark.parametrize("family", [one for one in FAMILIES if one != "elastic"])
def test_the_verdict_is_that_of_the_whole_run_thoroughly(family: str, data: st.DataObject) -> None:
    judged_alike(data.draw(scenarios(family)), data.draw(st.sampled_from(["ttft", "tpot", "e2e"])), data.draw(SHARES),
                 data.draw(PERCENTILES))
