"""What attempts that came to nothing have cost is wasted, and no output."""

from __future__ import annotations

from typing import Any

import pytest

from hermes import simulate

SCENARIO: dict[str, Any] = {
    "workload": {"requests": 120, "arrivals": {"kind": "poisson", "rate": 30},
                 "lengths": {"kind": "fixed", "prompt": 100, "output": 80}},
    "clients": [{"name": "llm", "count": 2, "model": "llama-3.1-8b", "device": "h100-sxm",
                 "fleet": {"start": 2, "start_up": {"total": 0.5}, "crashes": [{"at": 2.0, "replica": 0}]}}],
    "gateway": {"retries": 9, "backoff": 1.0, "max_backoff": 9.0, "begun": "restart"}, "measure": {},
}


def test_tokens_of_lost_attempts_are_no_output() -> None:
    results = simulate(SCENARIO)
    record, summary = results.record, results.summary
    lost = ~record.kept
    wasted = int(record.stages["output_tokens"][lost].sum())
    assert wasted > 100
    assert summary["attempts"]["wasted"]["failed"]["output_tokens"] == wasted
    assert summary["requests"]["completed"] == 120
    assert summary["tokens"]["output"] == 120 * 80
    head = summary["headline"]
    seconds = head["until_s"] - head["start_s"]
    assert head["output_tokens_per_s"] * seconds == pytest.approx(120 * 80, rel=1e-9)
    assert head["answer_tokens_per_s"] * seconds == pytest.approx(120 * 80, rel=1e-9)
    measured = summary["measured"]
    assert measured["tokens_per_s"] * (measured["until_s"] - measured["start_s"]) == pytest.approx(120 * 80, rel=1e-9)


def test_joules_of_lost_attempts_are_a_part_of_all() -> None:
    summary = simulate(SCENARIO).summary
    joules = summary["attempts"]["wasted"]["failed"]["energy_j"]
    energy = summary["energy"]
    assert 0 < joules < energy["prefill_j"] + energy["decode_j"]
    rows = simulate(SCENARIO).stages
    assert joules == pytest.approx(rows["energy_j"][rows["outcome"] == "failed"].sum(), rel=1e-12)
    assert set(rows["attempt"]) >= {1, 2}
