"""When tokens come, in scenarios small enough to follow by hand. Every step takes one unit."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from outcomes import Outcome, run, stage_token_steps

Data = dict[str, Any]
MODES = ("runs", "every_step")


def scenario(rows: list[tuple[int, int, int, int]], blocks: int, **scheduler: Any) -> Data:
    """rows: (arrival in units, prompt, output, priority); blocks of one token."""
    return {
        "clients": [{
            "hardware": {"kind": "test_ticks", "per_token": 10**6, "per_ctx": 10**6},
            "scheduler": {"kind": "chunked", "async_scheduling": False, **scheduler},
            "memory": {"block_size": 1, "num_blocks": blocks, "prefix_caching": False},
        }],
        "workload": {
            "requests": len(rows), "arrivals": {"kind": "test_listed", "units": [row[0] for row in rows]},
            "lengths": {"kind": "test_listed", "rows": [[*row[1:], -1, -1, 0] for row in rows]},
        },
    }


def tokens(outcome: Outcome) -> dict[int, list[int]]:
    """By request: the units at which its tokens came."""
    record = outcome.record
    return {
        int(record.stages["request"][row]): (record.step_ends[0][stage_token_steps(record, row)] // 1000).tolist()
        for row in np.argsort(record.stages["request"])
    }


@pytest.mark.parametrize("mode", MODES)
def test_alone_a_token_comes_with_every_step(mode: str) -> None:
    outcome = run(scenario([(2, 5, 4, 0)], 100), mode)
    assert tokens(outcome) == {0: [3, 4, 5, 6]}
    stages = outcome.record.stages
    assert (stages["start_ns"][0], stages["first_token_ns"][0], stages["end_ns"][0]) == (2000, 3000, 6000)


@pytest.mark.parametrize("mode", MODES)
def test_an_arrival_at_a_step_end_joins_the_next_step(mode: str) -> None:
    assert tokens(run(scenario([(0, 5, 6, 0), (3, 5, 2, 0)], 100), mode)) == {0: [1, 2, 3, 4, 5, 6], 1: [4, 5]}


@pytest.mark.parametrize("mode", MODES)
def test_a_chunked_prompt_gives_its_token_with_the_last_chunk(mode: str) -> None:
    outcome = run(scenario([(0, 10, 2, 0)], 100, max_num_batched_tokens=4), mode)
    assert tokens(outcome) == {0: [3, 4]}


@pytest.mark.parametrize("mode", MODES)
def test_a_preempted_sequence_goes_on_where_it_was(mode: str) -> None:
    # Both hold 4 blocks after step 2; the younger makes room for the older, and computes its 6 tokens again in step 5.
    outcome = run(scenario([(0, 3, 5, 0), (1, 3, 4, 0)], 9), mode)
    assert tokens(outcome) == {0: [1, 2, 3, 4, 5], 1: [2, 3, 6, 7]}
    assert outcome.record.stages["preemptions"].tolist() == [0, 1]


@pytest.mark.parametrize("mode", MODES)
def test_a_step_that_only_preempts_takes_no_time_and_no_number(mode: str) -> None:
    # The first has no urgency: out of blocks in step 3 it preempts itself before anything was scheduled. The engine's
    # step is then empty, and the next one follows at once.
    outcome = run(scenario([(0, 3, 6, 1), (1, 3, 4, 0)], 9, policy="priority"), mode)
    assert tokens(outcome) == {0: [1, 2, 3, 6, 7, 8], 1: [2, 3, 4, 5]}


@pytest.mark.parametrize("mode", MODES)
@pytest.mark.parametrize(("engine", "third"), [("vllm-0.32", [3, 4, 6, 7]), ("vllm-0.33", [3, 4, 5, 6])])
def test_a_decode_behind_one_that_preempts_itself_misses_a_step_up_to_0_32(
    engine: str, third: list[int], mode: str,
) -> None:
    # In step 5 the first takes the tenth block; the second, least urgent, preempts itself, and the third gets nothing.
    data = scenario([(0, 1, 6, 0), (1, 1, 5, 2), (2, 1, 4, 1)], 10, policy="priority")
    data["clients"][0]["engine"] = engine
    outcome = run(data, mode)
    found = tokens(outcome)
    assert (found[0], found[2]) == ([1, 2, 3, 4, 5, 6], third)
    assert found[1] == [2, 3, 4, 7, 8]
    assert outcome.record.stages["preemptions"][np.argsort(outcome.record.stages["request"])].tolist() == [0, 1, 0]


@pytest.mark.parametrize("mode", MODES)
def test_decodes_stall_while_continuous_batching_prefills(mode: str) -> None:
    data = scenario([(0, 5, 4, 0), (2, 5, 3, 0)], 100)
    data["clients"][0]["scheduler"] = {"kind": "continuous"}
    assert tokens(run(data, mode)) == {0: [1, 2, 4, 5], 1: [3, 4, 5]}


@pytest.mark.parametrize("mode", MODES)
def test_a_static_batch_returns_together(mode: str) -> None:
    data = scenario([(0, 5, 2, 0), (0, 3, 5, 0), (1, 4, 1, 0)], 100)
    data["clients"][0]["scheduler"] = {"kind": "static"}
    outcome = run(data, mode)
    assert tokens(outcome) == {0: [1, 2], 1: [1, 2, 3, 4, 5], 2: [6]}
    assert outcome.record.stages["end_ns"].tolist() == [5000, 5000, 6000]
