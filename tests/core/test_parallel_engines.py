"""Engines of ranks and stages with what a deployment adds: nothing is lost or held, and both modes agree."""

from __future__ import annotations

from itertools import pairwise
from typing import Any

import numpy as np
from hypothesis import given
from hypothesis import strategies as st
from outcomes import Outcome, assert_same, run
from profiles import quick, thorough, when_asked_for

from hermes.core.record import STATUS_COMPLETED, STATUS_REJECTED

Data = dict[str, Any]


@st.composite
def engines(draw: st.DrawFn) -> Data:
    """A scenario of one or two engines of a mixture, each of several ranks or stages."""
    ranks, stages = draw(st.sampled_from([(2, 1), (1, 2), (1, 3), (2, 2), (4, 1), (2, 3)]))
    client: Data = {
        "name": "llm", "model": "mixtral-8x7b", "device": "h100-sxm", "parallel": {"dp": ranks, "pp": stages},
        "frontend": {"before": draw(st.sampled_from([0.0, 0.002])), "after": draw(st.sampled_from([0.0, 0.001]))},
        "memory": {"num_blocks": stages * draw(st.sampled_from([24, 60, 2000])), "block_size": 16,
                   "prefix_caching": draw(st.booleans())},
        "scheduler": {"kind": "chunked", "max_num_batched_tokens": draw(st.sampled_from([64, 256])),
                      "max_num_seqs": draw(st.sampled_from([2, 8, 64])), "async_scheduling": draw(st.booleans())},
    }
    workload: Data = {
        "requests": draw(st.integers(1, 40)),
        "arrivals": draw(st.sampled_from([{"kind": "at_once"}, {"kind": "gamma", "rate": 60, "cv": 2}])),
        "lengths": {"kind": "independent", "prompt": {"kind": "uniform", "min": 1, "max": 200},
                    "output": {"kind": "uniform", "min": 1, "max": 40}},
        "prefixes": {"groups": 3, "tokens": 32},
    }
    if draw(st.booleans()):
        client["request_overhead"] = {"mode": draw(st.sampled_from(["serial", "serial", "overlapped"])),
                                      "generate": draw(st.sampled_from([0.0005, 0.02]))}
    if draw(st.booleans()):
        client["adjust"] = {"prompts": draw(st.sampled_from([0.7, 1.6])), "decodes": draw(st.sampled_from([1.0, 1.3]))}
    if draw(st.booleans()):
        client["scheduler"]["max_loras"] = 2
        workload["adapters"] = {"count": 4, "fraction": 0.7}
        if draw(st.booleans()):
            client["adapter_bytes"] = "200 MB"
    if draw(st.integers(0, 2)) == 0:
        client["scheduler"][draw(st.sampled_from(["max_num_queued_reqs", "max_num_queued_tokens"]))] = 6
    if draw(st.integers(0, 2)) == 0:
        workload["patience"] = {"first_token": draw(st.sampled_from([0.01, 0.08])), "total": 0.4}
    client["count"] = draw(st.sampled_from([1, 2, "1P1D"]))
    return {"seed": draw(st.integers(0, 3)), "workload": workload, "clients": [client],
            "kv_transfer": draw(st.sampled_from(["full", "layerwise"])),
            "first_token": draw(st.sampled_from(["decode", "prefill"]))}


def check(scenario: Data) -> None:
    runs, steps = run(scenario), run(scenario, "every_step")
    assert_same(runs, steps)
    assert_nothing_is_lost(runs)
    assert_engines_step_as_one(runs, scenario["clients"][0]["parallel"]["dp"])


def assert_nothing_is_lost(outcome: Outcome) -> None:
    record = outcome.record
    assert set(record.status.tolist()) <= {STATUS_COMPLETED, STATUS_REJECTED}
    assert len(record.reject_reasons) == (record.status == STATUS_REJECTED).sum()
    for client in outcome.simulation.clients:
        client.scheduler.plan(1)   # an asynchronous engine gives blocks back with its next plan
        assert client.scheduler.pool.free_blocks == client.scheduler.pool.num_blocks, client.name
        assert not client.scheduler.running, client.name
        assert (client.num_assigned, client.input_tokens, client.output_tokens, client.emitted) == (0, 0, 0, 0)


def assert_engines_step_as_one(outcome: Outcome, ranks: int) -> None:
    """Ranks of one batch begin and end their steps together, and no rank takes two at once."""
    runs = outcome.record.runs
    batch = runs["client"] // ranks
    for number in np.unique(batch):
        mine = batch == number
        spans = sorted(set(zip(runs["start_ns"][mine].tolist(), runs["end_ns"][mine].tolist(), strict=True)))
        assert all(start >= end for (_, end), (start, _) in pairwise(spans))


@quick(25)
@given(scenario=engines())
def test_engines_of_ranks_and_stages(scenario: Data) -> None:
    check(scenario)


@when_asked_for
@thorough
@given(scenario=engines())
def test_engines_of_ranks_and_stages_thoroughly(scenario: Data) -> None:
    check(scenario)
