"""The measured window, held against counting one step and one stage at a time."""

from __future__ import annotations

from itertools import pairwise

import numpy as np
import pytest
from pydantic import ValidationError

from hermes.api import simulate
from hermes.results.measure import MeasureConfig, busy_ns, measure, steps_within

SCENARIO = {
    "workload": [{"requests": 120, "arrivals": {"kind": "closed_loop", "users": 20},
                  "lengths": {"kind": "fixed", "prompt": 100, "output": 9},
                  "pipeline": [{"name": "embedding", "weight": 2}, {"name": "plain", "weight": 1}]}],
    "clients": [{"count": 2, "model": "mistral-7b", "hardware": {"kind": "roofline", "profile": "mistral-7b-a100-40gb"},
                 "scheduler": {"kind": "heterogeneous"}, "request_overhead": {"embed": "7 ms", "generate": "3 ms"}}],
}


@pytest.fixture(scope="module")
def record():
    return simulate(SCENARIO).record


def test_rates_latencies_and_utilisation_are_those_of_the_window(record) -> None:
    end = record.end_ns / 1e9
    config = MeasureConfig(start=0.3 * end, until=0.8 * end, weights={"generate": 1.7, "embed": 1.0})
    found = measure(record, config)
    low, high = round(config.start * 1e9), round(config.until * 1e9)
    seconds = (high - low) / 1e9
    stages = [i for i, t in enumerate(record.stages["end_ns"].tolist()) if low < t <= high]
    weighted = 0.0
    for kind, weight in (("embed", 1.0), ("generate", 1.7)):
        mine = [i for i in stages if record.stage_kinds[record.stages["kind"][i]] == kind]
        assert found["served"][kind]["completed"] == len(mine)
        took = [(record.stages["end_ns"][i] - record.stages["assigned_ns"][i]) / 1e9 for i in mine]
        assert found["served"][kind]["latency_s"]["mean"] == pytest.approx(np.mean(took))
        weighted += weight * len(mine)
    assert found["weighted_per_s"] == pytest.approx(weighted / seconds)
    runs = record.runs
    tokens = embedded = 0
    for row in range(len(runs["client"])):
        ends = record.step_ends[runs["client"][row]]
        for k in range(runs["num_steps"][row]):
            if low < ends[runs["first_step"][row] + k] <= high:
                tokens += int(runs["sampled"][row])
                embedded += int(runs["embedded"][row])
    assert found["tokens_per_s"] == pytest.approx(tokens / seconds)
    assert found["embeddings_per_s"] == pytest.approx(embedded / seconds)
    assert embedded == found["served"]["embed"]["completed"]
    assert 0 < found["hardware_stepping"] < 1


def test_the_whole_run_is_the_sum_of_its_parts(record) -> None:
    cuts = [0, record.end_ns // 3, record.end_ns // 2, record.end_ns]
    parts = list(pairwise(cuts))
    assert sum(steps_within(record, a, b) for a, b in parts).tolist() == record.runs["num_steps"].tolist()
    whole = busy_ns(record, 0, record.end_ns)
    assert sum(busy_ns(record, a, b) for a, b in parts).tolist() == whole.tolist()
    span = record.runs["end_ns"] - record.runs["start_ns"]
    assert whole.sum() == span.sum() - record.runs["overhead_ns"].sum()


def test_a_scenario_asks_for_it_and_the_summary_tells() -> None:
    results = simulate(SCENARIO | {"measure": {"start": 0.1, "weights": {"embed": 1}}})
    assert results.summary["measured"]["start_s"] == pytest.approx(0.1)
    assert "accelerators in a step" in results.to_text(verbose=True)
    assert "measured" not in simulate(SCENARIO).summary


def test_a_window_that_ends_before_it_starts_is_refused() -> None:
    with pytest.raises(ValidationError, match="after the start"):
        MeasureConfig(start=5.0, until=5.0)
