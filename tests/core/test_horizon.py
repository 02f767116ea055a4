"""A horizon cuts a simulation short, and changes nothing before it."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from invariants import every_arrival_is_accounted_for
from outcomes import Outcome, kv_means, run, stage_token_steps, step_rows
from profiles import quick
from random_scenarios import FAMILIES, scenarios

from hermes.api import simulate
from hermes.core.record import STATUS_COMPLETED, STATUS_REJECTED
from hermes.errors import HermesError


def assert_prefix(cut: Outcome, whole: Outcome, horizon_ns: int) -> None:
    """`cut` has what `whole` has up to the horizon, and nothing else."""
    a, b = cut.record, whole.record
    for ours, theirs in zip(a.step_ends, b.step_ends, strict=True):
        assert ours.tolist() == theirs[theirs <= horizon_ns].tolist(), "step_ends"
    for ours, theirs, name in ((a.stages, b.stages, "stages"), (a.transfers, b.transfers, "transfers")):
        ended = theirs["end_ns"] <= horizon_ns
        for column in ours:
            assert ours[column].tolist() == theirs[column][ended].tolist(), f"{name}.{column}"
    for row in range(len(a.stages["request"])):
        assert stage_token_steps(a, row).tolist() == stage_token_steps(b, row).tolist()
    done = (b.status == STATUS_COMPLETED) & (b.finish_ns <= horizon_ns)
    assert (a.status == STATUS_COMPLETED).tolist() == done.tolist()
    assert a.finish_ns.tolist() == np.where(done, b.finish_ns, -1).tolist()
    rejected = np.flatnonzero(a.status == STATUS_REJECTED)
    assert (b.status[rejected] == STATUS_REJECTED).all()
    assert a.reject_reasons == {i: b.reject_reasons[i] for i in rejected.tolist()}
    steps = step_rows(b)
    assert step_rows(a) == {key: steps[key] for key in steps if b.step_ends[key[0]][key[1]] <= horizon_ns}
    events = np.concatenate([b.arrival_ns, b.finish_ns, b.stages["end_ns"], b.transfers["end_ns"], *b.step_ends])
    assert a.end_ns == (horizon_ns if (a.status == 0).any() else events[events <= horizon_ns].max(initial=0))


@pytest.mark.drawn
@pytest.mark.parametrize("family", FAMILIES)
@quick(25)
@given(data=st.data(), share=st.one_of(st.floats(0, 1.2), st.sampled_from([0.0, 1.0])))
def test_a_horizon_cuts_both_modes_alike(family: str, data: st.DataObject, share: float) -> None:
    scenario = data.draw(scenarios(family))
    whole = run(scenario)
    # On a step's end as often as not: what ends at the horizon still counts.
    horizon_us = int(whole.record.end_ns * share) // 1000
    changes: dict[str, Any] = {"horizon": horizon_us / 1e6}
    runs, steps = run(scenario, "runs", **changes), run(scenario, "every_step", **changes)
    for outcome in (runs, steps):
        assert_prefix(outcome, whole, horizon_us * 1000)
        every_arrival_is_accounted_for(outcome.record, horizon=True)
    assert runs.loads == steps.loads
    assert kv_means(runs.record) == kv_means(steps.record)
    assert runs.record.arrival_ns.tolist() == steps.record.arrival_ns.tolist()


def test_a_run_beyond_the_end_of_the_clock_is_refused() -> None:
    data = {"workload": {"requests": 9, "arrivals": {"kind": "at_once"}, "lengths": {
        "kind": "fixed", "prompt": 9, "output": 9}}, "clients": [{"memory": {"num_blocks": 99}, "hardware": {
            "kind": "roofline", "profile": "mistral-7b-a40", "step_overhead": 1e9}}]}
    with pytest.raises(HermesError, match="146 years, the end of the clock"):
        simulate(data)
    assert simulate({**data, "horizon": "1 s"}).summary["requests"]["completed"] == 0
