"""Embeddings and generations in one batch: runs of steps equal single steps, nothing is lost, whatever the mix."""

from __future__ import annotations

import invariants
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from outcomes import Outcome, assert_same, run
from profiles import quick
from random_scenarios import Data, hardware, memories, workloads

from hermes.core.record import STATUS_COMPLETED

milliseconds = st.sampled_from([0.0, 1e-6, 3e-6, 2.5e-5])


@st.composite
def engines(draw: st.DrawFn, name: str, serves: list[str]) -> Data:
    places = draw(st.sampled_from([1, 2, 3, 5, 64]))
    batches = draw(st.sampled_from(["mixed", "mixed", "drain", "alternate"]))
    return {
        "name": name, "count": draw(st.integers(1, 2)), "hardware": draw(hardware), "memory": draw(memories()),
        "scheduler": {
            "kind": "heterogeneous", "serves": serves, "max_num_seqs": places, "batches": batches,
            "max_num_batched_tokens": places + draw(st.sampled_from([0, 1, 7, 100])),
            "slots": draw(st.sampled_from(["fcfs", "ibs"])) if batches == "mixed" else "fcfs",
            "reservation": draw(st.sampled_from(["on_demand", "up_front"])),
        },
        "request_overhead": draw(st.none() | st.fixed_dictionaries({
            "mode": st.sampled_from(["serial", "overlapped"]), "embed": milliseconds, "generate": milliseconds,
        })),
    }


@st.composite
def mixes(draw: st.DrawFn) -> Data:
    if draw(st.integers(0, 3)):
        clients = [draw(engines("both", ["embed", "generate"]))]
    else:
        clients = [draw(engines("embeds", ["embed"])), draw(engines("generates", ["generate"]))]
    workload = draw(workloads("w", 25)) | {"pipeline": draw(st.sampled_from([
        "plain", "embedding", [{"name": "plain", "weight": 1}, {"name": "embedding", "weight": 1}],
        [{"name": "plain", "weight": 1}, {"name": "embedding", "weight": 6}],
    ]))}
    if len(clients) == 2:
        workload["pipeline"] = [{"name": "plain"}, {"name": "embedding"}]
    return {"seed": draw(st.integers(0, 5)), "clients": clients, "workload": [workload]}


def check(outcome: Outcome) -> None:
    record = outcome.record
    invariants.every_arrival_is_accounted_for(record)
    invariants.blocks_are_conserved(outcome)
    stages, runs = record.stages, record.runs
    embeds = stages["kind"] == (record.stage_kinds.index("embed") if "embed" in record.stage_kinds else -1)
    generations = stages["kind"] == record.stage_kinds.index("generate")
    assert (embeds | generations).all()
    completed = np.flatnonzero(record.status == STATUS_COMPLETED)
    assert sorted(stages["request"].tolist()) == completed.tolist(), "every completed request was served once"
    # what the step log says was served is what the stages say
    assert int((runs["embedded"] * runs["num_steps"]).sum()) == int(embeds.sum())
    assert int((runs["sampled"] * runs["num_steps"]).sum()) == int(stages["output_tokens"].sum())
    assert (stages["output_tokens"][generations]
            == record.output_tokens[stages["request"][generations]]).all()
    assert (stages["output_tokens"][embeds] == 0).all()
    assert (stages["first_token_ns"][embeds] == -1).all()
    if not (runs["preempted"]).any():
        asked = int(record.prompt_tokens[stages["request"][embeds]].sum())
        assert int((runs["embed_tokens"] * runs["num_steps"]).sum()) == asked
    assert (stages["start_ns"] >= stages["assigned_ns"]).all()
    assert (stages["end_ns"] > stages["start_ns"]).all()
    for client, ends in enumerate(record.step_ends):   # an embedding ends with a step of its client
        assert np.isin(stages["end_ns"][embeds & (stages["client"] == client)], ends).all()


@pytest.mark.feature("LLM clients", "Scheduler `heterogeneous` (Orthrus) with slots `fcfs`, `ibs`")
@quick(60)
@given(scenario=mixes())
def test_runs_equal_single_steps_and_nothing_is_lost(scenario: Data) -> None:
    runs = run(scenario, "runs")
    check(runs)
    assert_same(runs, run(scenario, "every_step"))


def test_a_generation_that_another_client_takes_over_comes_from_a_heterogeneous_batch() -> None:
    memory = {"num_blocks": 100, "kv_bytes_per_token": 1.0}
    scenario = {
        "clients": [
            {"name": "p", "role": "prefill", "hardware": {"kind": "test_ticks"}, "memory": memory,
             "scheduler": {"kind": "heterogeneous"}},
            {"name": "d", "role": "decode", "hardware": {"kind": "test_ticks"}, "memory": memory},
        ],
        "workload": [{"requests": 20, "arrivals": {"kind": "at_once"},
                      "lengths": {"kind": "fixed", "prompt": 7, "output": 5},
                      "pipeline": [{"name": "plain"}, {"name": "embedding"}]}],
    }
    runs = run(scenario, "runs")
    assert (runs.record.status == STATUS_COMPLETED).all()
    assert_same(runs, run(scenario, "every_step"))
