"""Conversations on the clock: a turn waits for the answer before it, and the engine finds what was said."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from outcomes import Outcome, run
from scenario_parts import UNIT_NS

STEADY = {"kind": "test_ticks", "base": 1, "per_token": 10**6, "per_ctx": 10**6}   # every small step takes a unit


def scenario(lengths: dict[str, Any], *, block_size: int = 4, requests: int = 12, arrivals: Any = None,
             **client: Any) -> dict[str, Any]:
    return {
        "workload": [{
            "name": "w", "requests": requests, "arrivals": arrivals or {"kind": "poisson", "rate": 1e5},
            "lengths": {"kind": "conversations", "think_time": 7e-6, **lengths},
        }],
        "clients": [{
            "name": "c", "hardware": STEADY, "scheduler": {"kind": "chunked", "async_scheduling": False},
            "memory": {"block_size": block_size, "num_blocks": 100_000 // block_size, "prefix_caching": True}, **client,
        }],
    }


def cached(outcome: Outcome) -> list[int]:
    """Prompt tokens found, by request."""
    stages = outcome.record.stages
    order = np.argsort(stages["request"], kind="stable")
    return [int(n) for n in stages["cached_tokens"][order]]


@pytest.mark.feature("Workloads", "Conversations: `conversations`")
def test_two_turns_by_hand() -> None:
    outcome = run(scenario({"turns": 2, "message": 10, "output": 4, "system_tokens": 6}, requests=2,
                           arrivals={"kind": "test_listed", "units": [5]}))
    record = outcome.record
    assert record.prompt_tokens.tolist() == [16, 30]      # 6 + 10; 16 + 4 + 10
    # One step for the prompt, three for the rest of the answer; 7 units to think.
    assert (record.arrival_ns // UNIT_NS).tolist() == [5, 16]
    assert (record.finish_ns // UNIT_NS).tolist() == [9, 20]
    # 20 tokens were said, 19 of them have KV: four whole blocks of 4.
    assert cached(outcome) == [0, 16]


@settings(max_examples=25, deadline=None)
@given(
    block_size=st.integers(1, 20), asynchronous=st.booleans(), turns=st.integers(1, 5), message=st.integers(1, 9),
    output=st.integers(1, 9), system=st.integers(0, 30), seed=st.integers(0, 9), offset=st.sampled_from([0.0, 3e-6]),
)
def test_a_turn_computes_what_no_turn_before_has(
    block_size: int, asynchronous: bool, turns: int, message: int, output: int, system: int, seed: int, offset: float,
) -> None:
    """With room for everything. Planned a step ahead, the engine may not get to hash the block that an answer's last
    step fills."""
    data = scenario({"turns": turns, "system_tokens": system, "think_time": offset,
                     "message": {"kind": "uniform", "min": 1, "max": message},
                     "output": {"kind": "uniform", "min": 1, "max": output}}, block_size=block_size)
    data["clients"][0]["scheduler"]["async_scheduling"] = asynchronous
    record = (outcome := run(data, seed=seed)).record
    prompts, outputs, found = record.prompt_tokens, record.output_tokens, cached(outcome)
    table = outcome.simulation.streams[0].table
    assert table.turn is not None
    for i in range(1, len(prompts)):
        if table.turn[i]:
            assert record.arrival_ns[i] == record.finish_ns[i - 1] + round(offset * 1e9)
            assert prompts[i] > prompts[i - 1] + outputs[i - 1]
            known = int(prompts[i - 1] + outputs[i - 1] - 1)
            assert found[i] in {n // block_size * block_size for n in (known, known - asynchronous)}
        else:
            assert found[i] in (0, min(system, prompts[i] - 1) // block_size * block_size)


def test_users_of_a_closed_loop_hold_one_conversation_after_the_other() -> None:
    arrivals = {"kind": "closed_loop", "users": 2, "think": 50e-6}
    outcome = run(scenario({"turns": 3, "message": 5, "output": 3}, arrivals=arrivals))
    start, end, session = outcome.record.arrival_ns, outcome.record.finish_ns, outcome.record.session
    assert session.tolist() == [0, 0, 0, 1, 1, 1, 2, 2, 2, 3, 3, 3]
    assert start[[0, 3]].tolist() == [50_000, 50_000]
    assert sorted(start[[6, 9]].tolist()) == sorted((end[[2, 5]] + 50_000).tolist())
    for turn in (1, 2, 4, 5, 7, 8, 10, 11):
        assert start[turn] == end[turn - 1] + 7_000


def test_the_first_branch_goes_on() -> None:
    """Answers side by side differ: only the first is found by the next turn."""
    data = scenario({"turns": 2, "message": 8, "output": 9}, requests=2, block_size=1)
    data["workload"][0] |= {"branches": 3, "branch_spread": 0.8}
    outcome = run(data)
    record, table = outcome.record, outcome.simulation.streams[0].table
    assert table.branch_tokens is not None
    first = int(table.branch_tokens[0, 0])
    assert record.prompt_tokens.tolist() == [8, 8 + first + 8]
    stages = record.stages
    assert stages["cached_tokens"][stages["request"] == 1].max() == 8 + first - 1


def test_another_text_in_the_prompt_is_not_taken_for_the_conversation() -> None:
    """A draft between prompt and answer: the next turn finds the prompt, neither draft nor answer."""
    data = scenario({"turns": 2, "message": 8, "output": 6}, requests=2, block_size=1)
    data["workload"][0]["pipeline"] = "test_draft"
    outcome = run(data)
    stages = outcome.record.stages
    assert stages["cached_tokens"][stages["request"] == 1].tolist()[0] == 8


@pytest.mark.feature("Workloads", "A limit of the requests in flight")
@pytest.mark.parametrize("lengths", [
    {"kind": "fixed", "prompt": 10, "output": 4}, {"kind": "conversations", "turns": 2, "message": 10, "output": 4},
])
def test_so_many_are_in_flight_and_no_more(lengths: dict[str, Any]) -> None:
    data = scenario({}, requests=10, arrivals={"kind": "at_once", "max_in_flight": 2})
    data["workload"][0]["lengths"] = lengths if lengths["kind"] == "fixed" else {**lengths, "think_time": 9e-6}
    record = run(data).record
    start, end = record.arrival_ns, record.finish_ns
    for moment in start.tolist():
        assert ((start <= moment) & (end > moment)).sum() <= 2
    assert (end - start).max() == 4 * UNIT_NS       # nothing waits inside
    due = np.rint(record.notes["scheduled_s"] * 1e9)
    assert (due <= start).all()
    if lengths["kind"] == "fixed":
        assert (start // UNIT_NS).tolist() == [0, 0, 4, 4, 8, 8, 12, 12, 16, 16]
        assert not due.any()
    else:
        assert (due[1::2] == end[::2] + 9 * UNIT_NS).all()
        assert (due < start).any()


def test_a_gate_that_is_wide_enough_changes_nothing() -> None:
    lengths = {"turns": 3, "message": 10, "output": 4}
    plain = run(scenario(lengths)).record
    gated = run(scenario(lengths, arrivals={"kind": "poisson", "rate": 1e5, "max_in_flight": 12})).record
    assert plain.arrival_ns.tolist() == gated.arrival_ns.tolist()
    assert plain.finish_ns.tolist() == gated.finish_ns.tolist()


def test_turns_cut_off_by_the_horizon_never_arrived() -> None:
    data = scenario({"turns": 4, "message": 10, "output": 4}, requests=4, arrivals={"kind": "at_once"})
    record = run(data, horizon=8e-6).record
    assert record.arrival_ns.tolist() == [0, -1, -1, -1]
