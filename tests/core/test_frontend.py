"""Front-end latency: in TTFT and E2E once, in nothing else, and nobody waits for it."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from outcomes import assert_same, run
from profiles import quick
from random_scenarios import scenarios
from scenario_parts import UNIT_NS

import hermes
from hermes.results import Results

Data = dict[str, Any]
UNIT = UNIT_NS / 1e9


def scenario(frontend: Data | None, rows: list[list[int]], units: list[int], **more: Any) -> Data:
    client = {"name": "c", "hardware": {"kind": "test_ticks", "per_token": 8}, "memory": {"num_blocks": 40},
              "scheduler": {"kind": "chunked", "max_num_seqs": 3}}
    return {
        "clients": [client | ({} if frontend is None else {"frontend": frontend})],
        "workload": {"requests": len(rows), "arrivals": {"kind": "test_listed", "units": units},
                     "lengths": {"kind": "test_listed", "rows": [[p, o, 0, -1, -1, 0] for p, o in rows]}},
        **more,
    }


def results(data: Data, stepping: str = "runs") -> Results:
    return hermes.simulate({**data, "stepping": stepping})


@pytest.mark.feature("LLM clients", "Front-end latency; time of the serving stack: `hermes fit-overhead`")
@pytest.mark.parametrize("stepping", ["runs", "every_step"])
def test_it_is_in_ttft_and_e2e_once(stepping: str) -> None:
    rows, units = [[20, 5], [60, 9]], [0, 2000]   # far apart: no batch changes
    front = {"before": 3 * UNIT, "per_prompt_token": 0.5 * UNIT, "after": 7 * UNIT}
    plain, late = (results(scenario(f, rows, units), stepping) for f in (None, front))
    added = np.array([3 + 10 + 7, 3 + 30 + 7]) * UNIT
    for column in ("ttft_s", "e2e_s"):
        np.testing.assert_allclose(late.requests[column] - plain.requests[column], added, atol=1e-12)
    for column in ("first_token_s", "last_token_s", "finish_s"):
        np.testing.assert_allclose(late.requests[column] - plain.requests[column], added, atol=1e-12)
    np.testing.assert_allclose(late.requests["queue_s"] - plain.requests["queue_s"], added - 7 * UNIT, atol=1e-12)
    for column in ("tpot_s", "compute_s", "arrival_s"):
        np.testing.assert_allclose(late.requests[column], plain.requests[column], atol=1e-12)
    assert late.summary["latency"]["itl_s"] == plain.summary["latency"]["itl_s"]
    assert late.summary["breakdown"]["other_s"] == pytest.approx(7 * UNIT)   # in no stage
    busy = [float((r.record.runs["end_ns"] - r.record.runs["start_ns"]).sum()) for r in (plain, late)]
    assert busy[0] == busy[1]


@quick(25)
@given(
    rows=st.lists(st.tuples(st.integers(1, 40), st.integers(1, 12)), min_size=1, max_size=8), data=st.data(),
    before=st.integers(0, 30), after=st.integers(0, 30),
)
def test_the_engine_does_not_notice_it(
    rows: list[tuple[int, int]], data: st.DataObject, before: int, after: int,
) -> None:
    """As if everybody had come later, and had read the answer later: slots, KV and steps are the same."""
    gaps = data.draw(st.lists(st.integers(0, 40), min_size=len(rows), max_size=len(rows)))
    units = np.cumsum(gaps).tolist()
    pairs = [list(row) for row in rows]
    front = {"before": before * UNIT, "after": after * UNIT}
    late = run(scenario(front, pairs, units)).record
    shifted = run(scenario(None, pairs, [unit + before for unit in units])).record
    assert (late.finish_ns == shifted.finish_ns + after * UNIT_NS).all()
    for column in ("start_ns", "first_token_ns", "end_ns", "preemptions", "first_step", "last_step"):
        assert (late.stages[column] == shifted.stages[column]).all(), column
    for column in ("start_ns", "end_ns", "decode_seqs", "running", "used_blocks", "waiting"):
        assert (late.runs[column] == shifted.runs[column]).all(), column


@pytest.mark.drawn
@pytest.mark.parametrize("family", ["chunked", "mixed", "static", "disaggregated"])
@quick(8)
@given(data=st.data(), times=st.tuples(st.sampled_from([0, 1, 5]), st.sampled_from([0, 1]), st.sampled_from([0, 1, 7])))
def test_runs_equal_single_steps(family: str, data: st.DataObject, times: tuple[int, int, int]) -> None:
    """Also where a pipeline goes on when its front end is done, and others arrive at the same instant."""
    drawn = data.draw(scenarios(family))
    front = dict(zip(("before", "per_prompt_token", "after"), (time * UNIT for time in times), strict=True))
    drawn = {**drawn, "clients": [{**client, "frontend": front} for client in drawn["clients"]]}
    assert_same(run(drawn, "runs"), run(drawn, "every_step"))


def test_a_hand_over_has_the_front_end_of_either_side_once() -> None:
    def client(name: str, role: str, after: int) -> Data:
        return {"name": name, "role": role, "hardware": {"kind": "test_ticks"},
                "memory": {"num_blocks": 40, "kv_bytes_per_token": 1.0},
                "frontend": {"before": 5 * UNIT, "per_prompt_token": UNIT, "after": after * UNIT}}

    def times(afters: tuple[int, int]) -> tuple[float, float, float]:
        data = scenario(None, [[20, 5]], [0], first_token="prefill")
        data["clients"] = [client("p", "prefill", afters[0]), client("d", "decode", afters[1])]
        row = results(data).requests.iloc[0]
        return float(row.ttft_s), float(row.e2e_s), float(row.tpot_s)

    ttft, e2e, tpot = times((0, 0))
    data = scenario(None, [[20, 5]], [0], first_token="prefill")
    data["clients"] = [{k: v for k, v in client(n, r, 0).items() if k != "frontend"}
                       for n, r in (("p", "prefill"), ("d", "decode"))]
    plain = results(data).requests.iloc[0]
    assert (ttft - plain.ttft_s, e2e - plain.e2e_s) == pytest.approx((25 * UNIT, 25 * UNIT))   # tokenised once
    assert times((3, 9)) == pytest.approx((ttft + 3 * UNIT, e2e + 9 * UNIT, tpot))


def test_a_closed_loop_waits_for_it() -> None:
    data = scenario({"after": 11 * UNIT}, [[20, 5]] * 3, [])
    data["workload"]["arrivals"] = {"kind": "closed_loop", "users": 1}
    requests = results(data).requests
    np.testing.assert_allclose(requests["arrival_s"].iloc[1:].to_numpy(), requests["finish_s"].iloc[:-1].to_numpy())
