from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from synthetic_records import MS, by_hand, columns, random_record, stage

from hermes.core.record import RUN_FIELDS, STAGE_FIELDS, TRANSFER_FIELDS, ClientInfo, RunRecord
from hermes.errors import InputError
from hermes.results.results import Results

NAN = float("nan")
seeds = st.integers(0, 10**6)


@pytest.mark.feature("Results, sweeps, studies", "Latency, goodput, SLO of pipelines and workloads")
def test_by_hand() -> None:
    requests = Results(by_hand()).requests
    expected = {
        "ttft_s": [0.010, 0.080, 0.035, NAN, NAN, 0.115],
        "tpot_s": [0.010, 0.015, 0.110 / 3, NAN, NAN, NAN],
        "e2e_s": [0.030, 0.110, 0.145, NAN, NAN, 0.115],
        # request 2 waits 25 ms, then 50 ms of which 30 ms transfer; request 3 is rejected
        "queue_s": [0.0, 0.070, 0.045, NAN, 0.0, 0.020],
        "compute_s": [0.030, 0.040, 0.070, NAN, 0.0, 0.045],
        "communication_s": [0.0, 0.0, 0.030, 0.0, 0.0, 0.0],
    }
    for name, values in expected.items():
        np.testing.assert_allclose(requests[name], values, rtol=1e-12, err_msg=name)
    assert requests["emitted_tokens"].tolist() == [3, 3, 4, 0, 0, 1]
    assert requests["preemptions"].tolist() == [0, 1, 0, 0, 0, 0]
    assert requests["cached_tokens"].tolist() == [32, 0, 0, 0, 0, 0]
    assert requests["stages"].tolist() == [1, 1, 2, 0, 0, 2]
    assert requests["status"].tolist() == ["completed"] * 3 + ["rejected", "unfinished", "completed"]
    assert requests["reject_reason"].tolist()[3] == "llm-a: needs 812 blocks, has 10"


def test_breakdown_adds_up_where_stages_follow_each_other() -> None:
    requests = Results(by_hand()).requests
    parts = requests["queue_s"] + requests["compute_s"] + requests["communication_s"]
    np.testing.assert_allclose(parts[:3], requests["e2e_s"][:3])


def test_token_times_by_hand() -> None:
    results = Results(by_hand())
    times = {0: [110, 120, 130], 1: [220, 230, 250], 2: [240, 300, 320, 350], 3: [], 4: [], 5: [220]}
    for request, expected in times.items():
        np.testing.assert_allclose(results.token_times_s(request), np.array(expected) / 1e3)


def test_itl_by_hand() -> None:
    results = Results(by_hand())
    gaps = [10, 10, 10, 20, 60, 20, 30]
    everything = results.itl_s()
    assert everything.count == len(gaps)
    assert everything.stats()["max"] == pytest.approx(0.060)
    np.testing.assert_allclose(everything.percentiles([0, 50, 99]), np.percentile(gaps, [0, 50, 99]) / 1e3)
    assert results.itl_s([2]).count == 3
    assert results.itl_s(np.array([True] + [False] * 5)).count == 2
    assert results.itl_s([3, 5]).count == 0


@given(seeds)
def test_pooled_itl_and_requests_equal_brute_force(seed: int) -> None:
    record, branches = random_record(seed)
    results = Results(record)
    gaps = np.concatenate([np.empty(0), *(np.diff(times) for answer in branches for times in answer)])
    pooled = results.itl_s()
    assert pooled.count == len(gaps)
    if len(gaps):
        percents = [0, 1, 50, 90, 99, 100]
        np.testing.assert_allclose(pooled.percentiles(percents), np.percentile(gaps, percents) / 1e9, rtol=1e-12)
        assert pooled.mean == pytest.approx(gaps.mean() / 1e9, rel=1e-12)
    for request, answer in enumerate(branches):
        tokens = sorted(time for times in answer for time in times)
        np.testing.assert_allclose(results.token_times_s(request), np.array(tokens) / 1e9, rtol=1e-12)
        row = results.requests.iloc[request]
        if not answer:
            assert np.isnan([row.ttft_s, row.tpot_s, row.e2e_s]).all()
            continue
        assert row.ttft_s == pytest.approx((tokens[0] - record.arrival_ns[request]) / 1e9, rel=1e-12)
        longest = max(len(times) for times in answer if times[-1] == tokens[-1])
        expected = (tokens[-1] - tokens[0]) / (longest - 1) / 1e9 if longest > 1 else NAN
        np.testing.assert_allclose(row.tpot_s, expected, rtol=1e-12)


@given(seeds, st.integers(0, 11))
def test_pooled_itl_is_the_sum_of_its_requests(seed: int, cut: int) -> None:
    record, _ = random_record(seed)
    results = Results(record)
    low = np.arange(12) < cut
    assert results.itl_s(low).count + results.itl_s(~low).count == results.itl_s().count


def _record(stages: list[dict[str, int]], step_ends: list[int], finish: int) -> RunRecord:
    one = np.array([1])
    return RunRecord(
        clients=[ClientInfo("a", "llm")], stage_kinds=["generate", "prefill", "decode", "embed"], arrival_ns=one * 0,
        prompt_tokens=one, output_tokens=one, priority=one * 0, session=one * 0, status=one.astype(np.int8),
        finish_ns=one * finish * MS, reject_reasons={}, stages=columns(STAGE_FIELDS, stages),
        runs=columns(RUN_FIELDS, []), transfers=columns(TRANSFER_FIELDS, []),
        step_ends=[np.array(step_ends, dtype=np.int64) * MS], gaps={}, out_of_range_steps=[0], end_ns=finish * MS,
    )


def test_only_the_last_llm_stage_is_the_answer() -> None:
    """A rewritten query comes first; a filter that gives no token comes last."""
    record = _record([
        stage(0, 0, 0, 0, 0, 10, 20, (0, 1)), stage(0, 0, 0, 20, 30, 40, 60, (2, 4)),
        stage(0, 3, 0, 60, 60, -1, 90, (-1, -1), tokens=0),
    ], [10, 20, 40, 50, 60], 90)
    row = Results(record).requests.iloc[0]
    assert (row.ttft_s, row.tpot_s, row.e2e_s) == (0.040, 0.010, 0.090)
    assert row.emitted_tokens == 5
    assert Results(record).itl_s().count == 2
    assert len(Results(record).token_times_s(0, all_stages=True)) == 5


def test_parallel_branches_are_one_answer() -> None:
    """TPOT is of the branch that ends last, not of all branches' tokens together."""
    record = _record([
        stage(0, 0, 0, 0, 0, 10, 20, (0, 1)), stage(0, 0, 0, 0, 0, 10, 40, (0, 3)),
    ], [10, 20, 30, 40], 40)
    row = Results(record).requests.iloc[0]
    assert (row.ttft_s, row.tpot_s) == (0.010, 0.010)
    assert Results(record).itl_s().count == 1 + 3


def test_branches_after_one_prefill() -> None:
    record = _record([
        stage(0, 1, 0, 0, 0, 10, 10, (0, 0)), stage(0, 2, 0, 10, 10, 20, 30, (1, 2)),
        stage(0, 2, 0, 10, 10, 20, 40, (1, 3)),
    ], [10, 20, 30, 40], 40)
    row = Results(record).requests.iloc[0]
    assert (row.ttft_s, row.tpot_s) == (0.010, 0.010)
    assert Results(record).itl_s().count == 2 + 3  # each branch continues the prefill's token


def test_stage_without_steps_ends_with_its_last_token() -> None:
    """A client of another kind may give tokens without working in steps."""
    record = _record([stage(0, 0, 0, 0, 5, 10, 40, (-1, -1), tokens=4)], [], 40)
    row = Results(record).requests.iloc[0]
    assert (row.ttft_s, row.tpot_s) == (0.010, 0.010)
    assert len(Results(record).token_times_s(0)) == 0


def test_decodes_that_pause_while_others_prefill() -> None:
    """Continuous batching: the steps of client a at 20 and 40 ms computed prompts of others."""
    record = _record([stage(0, 0, 0, 0, 0, 10, 50, (0, 4), tokens=3)], [10, 20, 30, 40, 50], 50)
    record.decode_steps = [np.array([2, 4])]
    results = Results(record)
    np.testing.assert_allclose(results.token_times_s(0), [0.010, 0.030, 0.050])
    assert results.itl_s().stats()["p50"] == 0.020
    assert results.itl_s().count == 2


def test_no_requests() -> None:
    record = by_hand()
    empty = np.empty(0, dtype=np.int64)
    nothing = RunRecord(
        record.clients, record.stage_kinds, empty, empty, empty, empty, empty, empty.astype(np.int8), empty, {},
        columns(STAGE_FIELDS, []), columns(RUN_FIELDS, []), columns(TRANSFER_FIELDS, []), [empty] * 3, {}, [0] * 3, 0,
    )
    results = Results(nothing)
    assert results.summary["latency"]["ttft_s"]["p50"] is None
    assert results.summary["throughput"]["requests_per_s"] is None
    assert results.summary["slo"]["pass"] is None
    assert len(results.requests) == 0
    assert "0 of 0 requests" in repr(results)
    assert results.to_text()
    assert results._repr_html_()


@pytest.mark.parametrize("request_id", [-1, 6])
def test_unknown_request(request_id: int) -> None:
    with pytest.raises(InputError, match="request id below 6"):
        Results(by_hand()).token_times_s(request_id)
    with pytest.raises(InputError, match="request id below 6"):
        Results(by_hand()).itl_s([request_id])
