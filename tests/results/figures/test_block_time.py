"""KV memory over time: what single steps add up to, whatever the stepping."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import hermes
from hermes.clients.block_time import blocks_taken
from hermes.results.files.export import write_results

SCENARIO = {
    "workload": {"requests": 12, "arrivals": {"kind": "poisson", "rate": 4.0},
                 "lengths": {"kind": "fixed", "prompt": 30, "output": 300}},
    "clients": [{"name": "llm", "hardware": {"kind": "polynomial", "profile": "splitwise-2023-llama-2-70b-h100-tp8"},
                 "memory": {"num_blocks": 5000, "block_size": 16}}],
}


def test_runs_of_steps_have_the_mean_of_single_steps(tmp_path: Path) -> None:
    """Answers ten times as long as their prompts: at a run's end a sequence has far more blocks than on average."""
    runs, steps = (hermes.simulate(SCENARIO, stepping=mode) for mode in ("runs", "every_step"))
    ours, theirs = (results.summary["clients"]["llm"] for results in (runs, steps))
    assert runs.summary["steps"]["runs"] < steps.summary["steps"]["runs"] / 5
    assert ours["kv_mean_blocks"] == theirs["kv_mean_blocks"]
    assert ours["kv_peak_blocks"] == theirs["kv_peak_blocks"]
    # the blocks at the end of each run, for the whole of it
    record = runs.record.runs
    span = record["end_ns"] - record["start_ns"]
    assert (record["used_blocks"] * span).sum() > 1.1 * record["kv_block_ns"].sum()
    series = runs.client_timeseries("llm", bins=3)
    assert series["kv_blocks"].mean() == pytest.approx(
        ours["kv_mean_blocks"] * ours["stepping_s"] / runs.summary["makespan_s"])
    write_results(runs, tmp_path)
    np.testing.assert_array_equal(hermes.open_run(tmp_path).record.runs["kv_block_ns"], record["kv_block_ns"])


@settings(max_examples=50)
@given(st.lists(st.tuples(st.integers(0, 30), st.integers(0, 30), st.integers(1, 50)), max_size=8), st.integers(1, 9))
def test_a_sequence_takes_a_block_when_its_last_one_is_full(rows: list[tuple[int, int, int]], size: int) -> None:
    spans = np.array([(first, first + ticks, before) for first, ticks, before in rows], dtype=np.int64).reshape(-1, 3)
    wanted = np.zeros(60, dtype=np.int64)
    for first, stop, before in spans.tolist():
        for tick in range(first, stop):
            wanted[tick] += (before + tick - first) % size == 0
    assert blocks_taken(spans, size, 60).tolist() == wanted.tolist()
