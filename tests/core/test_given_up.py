"""Requests that their clients give up, wherever they are, in random scenarios of every scheduler and role."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from found_parts import handoff_of
from hypothesis import given
from hypothesis import strategies as st
from invariants import (
    blocks_are_conserved,
    every_arrival_is_accounted_for,
    gates_hold,
    nothing_is_left_behind,
)
from outcomes import Outcome, assert_same, run, stage_token_steps
from profiles import quick, thorough, when_asked_for
from random_scenarios import FAMILIES, Data, scenarios

from hermes.core.record import STATUS_COMPLETED


def sglang() -> st.SearchStrategy[Data]:
    return st.fixed_dictionaries({
        "kind": st.just("sglang"), "disable_overlap_schedule": st.booleans(),
        "chunked_prefill_size": st.sampled_from([-1, 16, 64]), "max_running_requests": st.sampled_from([2, 5, 64]),
        "schedule_conservativeness": st.sampled_from([0.1, 1.0]), "schedule_policy": st.sampled_from(["fcfs", "lpm"]),
    })


@st.composite
def impatient(draw: st.DrawFn, family: str, most: int = 24) -> Data:
    """A random scenario whose clients give up after as many units as its steps, transfers and gaps take."""
    data = draw(scenarios("continuous" if family == "sglang" else family, most))
    if family == "sglang":
        for client in data["clients"]:
            client["scheduler"] = draw(sglang())
        for workload in data["workload"]:
            workload.pop("branches", None)
            workload.pop("branch_spread", None)
    slow = any(client["hardware"]["kind"] == "polynomial" for client in data["clients"])
    for workload in data["workload"]:
        for name in draw(st.sampled_from([("total",), ("first_token",), ("first_token", "total")])):
            units = draw(st.sampled_from([1, 2, 4, 7, 15, 40, 200]))
            workload.setdefault("patience", {})[name] = units * (1e-2 if slow else 1e-6)
    return data


def check(outcome: Outcome) -> None:
    record, simulation = outcome.record, outcome.simulation
    every_arrival_is_accounted_for(record)
    no_clock_runs_backwards_where_it_ran(outcome)
    for client in simulation.clients:
        client.scheduler.plan(1)   # an asynchronous engine gives blocks back with its next plan
    blocks_are_conserved(outcome)
    nothing_is_left_behind(outcome)
    gates_hold(outcome)
    kv_arrives_whole_or_not_at_all(outcome)
    every_token_is_in_a_row(outcome)
    assert all(client.emitted == client.input_tokens == client.output_tokens == 0 for client in simulation.clients)


def no_clock_runs_backwards_where_it_ran(outcome: Outcome) -> None:
    stages = outcome.record.stages
    for before, after in (("assigned_ns", "start_ns"), ("start_ns", "first_token_ns"), ("first_token_ns", "end_ns")):
        both = (stages[before] >= 0) & (stages[after] >= 0)
        assert (stages[before][both] <= stages[after][both]).all(), after
    assert (stages["assigned_ns"] <= stages["end_ns"]).all()


def kv_arrives_whole_or_not_at_all(outcome: Outcome) -> None:
    record, handoff = outcome.record, handoff_of(outcome.simulation)
    networks = {outcome.simulation.network} | (set() if handoff is None else {handoff.network})
    sent = sum(network.bytes_sent for network in networks)
    assert sent == sum(network.bytes_received for network in networks) == int(record.transfers["bytes"].sum())
    if handoff is None:
        return
    assert not handoff._twins
    assert not handoff._ahead
    assert not handoff._given_up
    assert not any(handoff._intake.values())
    assert not any(handoff._leaving.values())
    assert not any(handoff._moving.values())


def every_token_is_in_a_row(outcome: Outcome) -> None:
    """What was computed for those who gave up counts as work; a completed request has all its tokens."""
    record = outcome.record
    stages, runs = record.stages, record.runs
    prefills = stages["kind"] == record.stage_kinds.index("prefill")
    for row in range(len(stages["request"])):
        steps = stage_token_steps(record, row)
        assert len(steps) == stages["output_tokens"][row]
        assert (np.diff(steps) > 0).all()
    if not prefills.any():   # otherwise a prefill's token may be thrown away
        assert int(stages["output_tokens"].sum()) == int((runs["sampled"] * runs["num_steps"]).sum())
    single = record.status == STATUS_COMPLETED
    for stream in outcome.simulation.streams:
        if stream.table.branch_tokens is not None or stream.only_stage is None:
            single[stream.first_id:stream.first_id + len(stream.table)] = False
    tokens = np.bincount(stages["request"], stages["output_tokens"], minlength=len(single)).astype(np.int64)
    assert (tokens == record.output_tokens)[single].all()


@pytest.mark.drawn
@pytest.mark.parametrize("family", [*FAMILIES, "sglang"])
@quick(40)
@given(data=st.data())
def test_nothing_is_left_of_requests_that_were_given_up(family: str, data: st.DataObject) -> None:
    scenario = data.draw(impatient(family))
    outcome = run(scenario)
    check(outcome)
    assert_same(outcome, run(scenario, "every_step"))


@when_asked_for
@pytest.mark.parametrize("family", [*FAMILIES, "sglang"])
@thorough
@given(data=st.data())
def test_nothing_is_left_of_requests_that_were_given_up_thoroughly(family: str, data: st.DataObject) -> None:
    scenario: Any = data.draw(impatient(family, most=40))
    outcome = run(scenario)
    check(outcome)
    assert_same(outcome, run(scenario, "every_step"))
