"""Dollars per million tokens: of answers, and of all that the stages of the requests generate."""

from __future__ import annotations

import re
from typing import Any

import numpy as np
import pytest

from hermes.api import simulate
from hermes.results import Results
from hermes.results.brief import brief
from hermes.results.metrics import stage_token_steps, tokens_within

GRAPH = {"stages": {
    "rewrite": {"kind": "generate", "prompt": "prompt", "output": 30},
    "answer": {"kind": "generate", "prompt": "prompt", "output": "output", "after": "rewrite"},
}}


def run(pipeline: str = "plain", rate: float = 10, **more: Any) -> Results:
    scheduler = more.pop("scheduler", {"kind": "chunked"})
    return simulate({
        "seed": 1, "pipelines": {"two": GRAPH},
        "workload": {"requests": 600, "arrivals": {"kind": "poisson", "rate": rate}, "pipeline": pipeline,
                     "lengths": {"kind": "fixed", "prompt": 300, "output": 10}, **more},
        "clients": [{"name": "gpu", "model": "llama-3.1-8b", "device": "h100-sxm", "price_per_hour": 3.6,
                     "memory": {"num_blocks": 2000}, "scheduler": scheduler}]})


def test_the_answer_pays_for_the_rewrite() -> None:
    results = run("two")
    summary = results.summary
    assert summary["tokens"]["answers"] == 600 * 10
    assert summary["tokens"]["output"] == 600 * 40
    cost = summary["cost"]
    assert cost["per_million_answer_tokens_dollars"] == pytest.approx(cost["total_dollars"] / 6000 * 1e6)
    assert cost["per_million_output_tokens_dollars"] == pytest.approx(cost["total_dollars"] / 24000 * 1e6)
    head = summary["headline"]
    assert head["window"] == "steady"
    assert head["answer_tokens_per_s"] == pytest.approx(head["output_tokens_per_s"] / 4, rel=0.03)
    by_hand = 3.6 / 3600 / head["answer_tokens_per_s"] * 1e6   # $/s over tokens/s
    assert head["per_million_answer_tokens_dollars"] == pytest.approx(by_hand)
    text = results.to_text(verbose=True)
    assert text.index("/M answer tokens") < text.index("/M generated")
    names = list(head)
    assert names.index("per_million_answer_tokens_dollars") < names.index("per_million_output_tokens_dollars")


def test_both_are_printed_answers_first() -> None:
    results = run("two")
    cost = dict(brief(results.summary, results.meta))["cost"]
    assert re.match(r"\$[\d.]+/M answer tokens, \$[\d.]+/M generated ", cost)


def test_both_are_equal_where_a_request_is_one_generation() -> None:
    head = run().summary["headline"]
    assert head["per_million_answer_tokens_dollars"] == head["per_million_output_tokens_dollars"]


def test_tokens_of_those_who_gave_up_are_no_answers() -> None:
    results = run(rate=300, patience={"total": 1.0})
    assert results.summary["requests"]["rejected"] > 20
    head = results.summary["headline"]
    assert 0 < head["answer_tokens_per_s"] < head["output_tokens_per_s"]
    length = head["until_s"] - head["start_s"]
    assert results.summary["tokens"]["answers"] == 10 * results.summary["requests"]["completed"]
    assert head["window"] == "whole"
    assert head["answer_tokens_per_s"] * length == pytest.approx(results.summary["tokens"]["answers"])


@pytest.mark.parametrize("scheduler", ["chunked", "continuous", "static", "mixed"])
def test_tokens_of_a_window_are_those_whose_steps_end_in_it(scheduler: str) -> None:
    """Counted by stage, as the kernel keeps them, and token by token."""
    more = {"max_num_batched_tokens": 512} if scheduler != "static" else {}
    results = run("two", rate=40, scheduler={"kind": scheduler, "max_num_seqs": 8, **more})
    record = results.record
    rows = np.flatnonzero(record.stages["output_tokens"] > 0)
    for start, end in ((0, 2**60), (10**9, 9 * 10**9), (5 * 10**9, 5 * 10**9 + 10**7)):
        ends = [record.step_ends[int(record.stages["client"][row])][stage_token_steps(record, int(row))]
                for row in rows]
        every = np.concatenate(ends)
        assert tokens_within(record, rows, start, end) == int(((every > start) & (every <= end)).sum())
