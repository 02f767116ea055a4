"""Clients that give up: their requests leave the engine as vLLM's abort takes them out.

The schedules with aborts that were recorded from vLLM are replayed in `schedulers/test_conformance.py`.
"""

import pytest

from hermes.api import simulate
from hermes.scenario import load_scenario
from hermes.scenario.build import build


def scenario(patience, rate=12, client=None, **scheduler):
    return {
        "name": "patience", "seed": 2,
        "workload": {"requests": 150, "arrivals": {"kind": "poisson", "rate": rate}, "patience": patience,
                     "lengths": {"kind": "independent", "prompt": {"kind": "uniform", "min": 20, "max": 1500},
                                 "output": {"kind": "uniform", "min": 2, "max": 220}}},
        "clients": [{"model": "llama-3.1-8b", "device": "l40s", "memory": {"num_blocks": 800},
                     "scheduler": {"kind": "chunked", "max_num_seqs": 24, **scheduler}, **(client or {})}]}


DRAFTS = {"method": "eagle", "num_speculative_tokens": 2, "acceptance_rate": 0.5}
BOTH = [{"async_scheduling": True}, {"async_scheduling": False}, {"policy": "priority"}, {"speculative": DRAFTS}]
PLAIN = {"kind": "continuous"}
LIMITS = [{"first_token": 3}, {"total": 8}, {"first_token": 2, "total": 6}]


@pytest.mark.feature("LLM clients", (
    "Clients that give up: `patience` of a workload, cancelled as vLLM's and SGLang's aborts do"))
@pytest.mark.drawn
@pytest.mark.parametrize("scheduler", [*BOTH, PLAIN], ids=str)
@pytest.mark.parametrize("patience", LIMITS, ids=str)
def test_nobody_waits_longer_and_nothing_is_lost(patience, scheduler):
    given = scenario(patience, **scheduler)
    results, again = simulate(given), simulate(given, stepping="every_step")
    assert results.requests.drop(columns="energy_j").equals(again.requests.drop(columns="energy_j"))
    counts = results.summary["requests"]
    assert counts["completed"] + counts["rejected"] == 150
    assert counts["rejected"] > 20
    assert all(reason.startswith("its client gave up: ") for reason in counts["reject_reasons"])
    assert results.requests.ttft_s.max() < patience.get("first_token", 100) + 0.01   # the front end's delay comes after
    assert results.requests.e2e_s.max() < patience.get("total", 100)
    simulation = build(load_scenario(given))
    simulation.run()
    [client] = simulation.clients
    pool = client.scheduler.pool
    client.scheduler.plan(1)   # an asynchronous engine gives blocks back with its next plan
    assert pool.free_blocks == pool.num_blocks
    assert not client.scheduler.running
    assert client.emitted == 0


def test_what_was_computed_for_those_who_gave_up_counts_as_work():
    results = simulate(scenario({"total": 6}))
    stages = results.record.stages
    of_given_up = results.record.status[stages["request"]] == 2
    assert stages["output_tokens"][of_given_up].max() > 10
    assert int(stages["output_tokens"].sum()) == int((results.record.runs["sampled"]
                                                      * results.record.runs["num_steps"]).sum())


def test_patience_shortens_the_queue_of_an_overloaded_engine():
    without, limited = simulate(scenario(None)), simulate(scenario({"first_token": 3}))
    assert without.requests.ttft_s.quantile(0.9) > 10
    assert limited.requests.ttft_s.quantile(0.9) < 3.01
    assert limited.summary["headline"]["output_tokens_per_s"] > 0.8 * without.summary["headline"]["output_tokens_per_s"]


def test_a_request_may_be_given_up_before_the_engine_has_it():
    late = {"frontend": {"before": "2 s"}}
    results = simulate(scenario({"first_token": 1}, rate=1, client=late))
    assert results.summary["requests"]["rejected"] == 150
    assert not len(results.record.runs["client"])


def test_patience_that_nobody_needs_changes_nothing():
    plain, patient = simulate(scenario(None, rate=2)), simulate(scenario({"first_token": 60, "total": 600}, rate=2))
    assert plain.requests.equals(patient.requests)


def test_patience_that_ends_while_the_last_token_is_on_its_way_cancels_nothing():
    given = scenario({"total": 3}, client={"frontend": {"after": 2.5}}, rate=1)
    simulation = build(load_scenario(given))
    record = simulation.run()
    gave_up = sum(reason.startswith("its client gave up") for reason in record.reject_reasons.values())
    assert gave_up > 50
    assert len(set(record.stages["request"].tolist())) == len(record.stages["request"]), "one row for each"
    [client] = simulation.clients
    assert client.emitted == 0
    assert client.input_tokens == client.output_tokens == 0, "its loads are back at zero"


def test_the_run_ends_with_its_last_event_and_not_with_patience_that_was_not_needed():
    record = build(load_scenario(scenario({"total": 500}, rate=2))).run()
    assert record.end_ns == max(int(record.finish_ns.max()), int(record.step_ends[0][-1]))


def test_a_request_given_up_while_the_serving_stack_has_it_never_reaches_the_engine():
    slow = {"request_overhead": {"mode": "overlapped", "generate": "1 s"}}   # one request after another
    results = simulate(scenario({"first_token": 2.5}, client=slow))
    rows, given_up = results.stages, results.record.status == 2
    assert given_up.sum() > 100
    assert rows["request"].is_unique
    assert rows[given_up[rows["request"]]]["start_s"].isna().all()
    assert rows["output_tokens"].sum() == results.requests["output_tokens"][~given_up].sum()
