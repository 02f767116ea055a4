from __future__ import annotations

import json
import math
import tracemalloc
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from long_runs import count, quick_and_full
from synthetic_records import by_hand, large_record, random_record

from hermes.core.record import STATUS_COMPLETED, STATUS_REJECTED
from hermes.results.distribution import Distribution
from hermes.results.figures.summary import grouped_reasons
from hermes.results.figures.usage import covered_ns, window_ns
from hermes.results.results import Results
from hermes.results.slo import SloConfig, Slowdowns, slo_table
from hermes.units import NS_PER_S

seeds = st.integers(0, 10**6)


def is_plain(value: Any) -> bool:
    """Survives JSON unchanged: numpy numbers, NaN and tuples do not."""
    if isinstance(value, dict):
        return all(type(key) is str and is_plain(item) for key, item in value.items())
    return value is None or type(value) in (str, int, bool) or (type(value) is float and math.isfinite(value))


def test_by_hand() -> None:
    summary = Results(by_hand()).summary
    assert summary["requests"] == {
        "total": 6, "completed": 4, "rejected": 1, "unfinished": 1, "preempted": 1,
        "reject_reasons": {"llm-a: needs 812 blocks, has 10": 1},
    }
    assert summary["makespan_s"] == pytest.approx(0.3)  # first arrival to the end: one request is unfinished
    assert summary["tokens"] == {"answers": 11, "output": 11, "prompt": 400, "cached": 32}
    assert summary["throughput"]["output_tokens_per_s"] == pytest.approx(11 / 0.3)
    assert summary["throughput"]["total_tokens_per_s"] == pytest.approx(411 / 0.3)
    assert summary["latency"]["ttft_s"]["mean"] == pytest.approx(0.060)
    assert summary["latency"]["itl_s"]["count"] == 7
    assert summary["steps"] == {
        "runs": 8, "steps": 10, "mean_batch": pytest.approx(1.1), "preemptions": 1, "out_of_range": 2,
        "out_of_range_share": pytest.approx(0.2),
    }
    assert summary["transfers"]["bytes"] == 1 << 20
    assert summary["stages"]["decode"]["wait_s"]["mean"] == pytest.approx(0.050)
    assert list(summary["stages"]) == ["generate", "prefill", "decode", "retrieve"]


def test_clients_by_hand() -> None:
    a, b, rag = Results(by_hand()).summary["clients"].values()
    assert a["stepping_s"] == pytest.approx(0.070)
    assert a["utilisation"] == pytest.approx(70 / 300)
    assert a["mean_batch"] == pytest.approx(8 / 7)
    assert (a["kv_peak_blocks"], a["kv_peak_share"]) == (10, 1.0)
    assert a["kv_mean_blocks"] == pytest.approx((7 * 10 + 7 * 20 + 9 * 10 + 10 * 10 + 8 * 10 + 7 * 10) / 70)
    assert a["mean_waiting"] == pytest.approx((0 + 10 + 25 + 70) / 300)
    assert (a["preemptions"], a["out_of_range_steps"]) == (1, 2)
    assert a["prefill_j"] == pytest.approx(0.040 * 1000)
    assert a["decode_j"] == pytest.approx(0.030 * 500)
    assert a["idle_j"] == pytest.approx(0.330 * 100)   # held from 0 on; the first request comes at 0.1 s
    assert b["stepping_s"] == pytest.approx(0.050)
    assert b["energy_j"] == 0.0
    assert rag["stepping_s"] == pytest.approx(0.035)  # no runs: its stage's service
    assert rag["energy_j"] == pytest.approx(0.035 * 20 + 0.365 * 10)
    assert (rag["mean_batch"], rag["kv_blocks"], rag["kv_mean_share"]) == (None, None, None)


def test_energy_by_hand() -> None:
    energy = Results(by_hand()).summary["energy"]
    assert energy["total_j"] == pytest.approx(88 + 4.35)
    assert energy["mean_w"] == pytest.approx(92.35 / 0.4)
    assert energy["per_output_token_j"] == pytest.approx(92.35 / 11)
    assert energy["per_request_j"] == pytest.approx(92.35 / 4)
    assert energy["clients_without_watts"] == 1


def test_no_watts_no_energy() -> None:
    record = by_hand()
    for client in record.clients:
        client.idle_w = client.prefill_w = client.decode_w = 0.0
    summary = Results(record).summary
    assert summary["energy"] is None
    assert "energy_j" not in summary["clients"]["llm-a"]


@quick_and_full(30, 100)
@given(seeds)
def test_invariants(seed: int) -> None:
    record, _ = random_record(seed)
    summary = Results(record, slo=SloConfig(ttft=1e-7)).summary
    assert is_plain(summary)
    assert json.loads(json.dumps(summary, allow_nan=False)) == summary
    requests = summary["requests"]
    assert requests["total"] == requests["completed"] + requests["rejected"] + requests["unfinished"]
    assert sum(requests["reject_reasons"].values()) == requests["rejected"]
    for stats in summary["latency"].values():
        ordered = [stats[name] for name in ("min", "p50", "p90", "p95", "p99", "max")]
        assert ordered == ([None] * 6 if stats["count"] == 0 else sorted(ordered))
    clients = list(summary["clients"].values())
    energy = summary["energy"]
    for state in ("idle_j", "prefill_j", "decode_j"):
        assert energy[state] == pytest.approx(sum(c[state] for c in clients))
    assert energy["total_j"] == pytest.approx(sum(c["energy_j"] for c in clients))
    for info, client in zip(record.clients, clients, strict=True):
        idle_s = max(window_ns(record)[1] / NS_PER_S - client["stepping_s"], 0)   # held from 0 on
        assert client["idle_j"] == pytest.approx(info.idle_w * idle_s, abs=1e-12)
    assert summary["steps"]["steps"] == sum(len(ends) for ends in record.step_ends)
    assert sum(c["steps"] for c in clients) == summary["steps"]["steps"]
    assert summary["goodput"]["requests"] <= requests["completed"]


@quick_and_full(10, 100)
@given(seeds)
def test_same_record_same_summary(seed: int) -> None:
    first, second = (Results(random_record(seed)[0]) for _ in range(2))
    assert json.dumps(first.summary) == json.dumps(second.summary)  # key order too
    assert first.to_text() == second.to_text()


def test_makespan_ends_with_the_last_completion() -> None:
    record = by_hand()
    record.status[4] = STATUS_REJECTED
    record.reject_reasons[4] = "no"
    assert Results(record).summary["makespan_s"] == pytest.approx(0.25)


def test_requests_that_never_arrived_do_not_count_as_time() -> None:
    record = by_hand()
    record.arrival_ns[4] = -1
    assert Results(record).summary["makespan_s"] == pytest.approx(0.3)
    assert np.isnan(Results(record).requests["arrival_s"][4])


def test_equal_client_names_stay_apart() -> None:
    record = by_hand()
    record.clients[1].name = "llm-a"
    assert list(Results(record).summary["clients"]) == ["llm-a", "llm-a#2", "rag"]


def test_reasons_that_differ_in_numbers_are_one() -> None:
    reasons = {1: "gpu-0: needs 812 blocks, has 640", 2: "gpu-1: needs 1,000 blocks, has 640", 3: "long", 9: "long"}
    assert grouped_reasons(reasons) == {"e.g. gpu-0: needs 812 blocks, has 640": 2, "long": 2}
    assert grouped_reasons({1: "needs 5 blocks"}) == {"needs 5 blocks": 1}
    gone = {1: "its client gave up: no first token within 2 s", 2: "its client gave up: no first token within 4 s"}
    assert grouped_reasons(gone) == {"its client gave up: e.g. no first token within 2 s": 2}


@given(st.lists(st.tuples(st.integers(0, 50), st.integers(0, 20)), max_size=20))
def test_covered_time(intervals: list[tuple[int, int]]) -> None:
    start, length = (np.array(column, dtype=np.int64) for column in zip(*intervals, strict=True)) if intervals else (
        np.empty(0, dtype=np.int64),) * 2
    points = {point for a, n in intervals for point in range(a, a + n)}
    assert covered_ns(start, start + length) == len(points)


PAPER = SloConfig(baseline_ttft=0.25, baseline_tpot=0.025)


def table(slo: SloConfig, ttft: float, tpot: float, rejected: int = 0, e2e: float = 1.0) -> dict[str, Any]:
    """Of one request."""
    values = {"ttft": ttft, "tpot": tpot, "e2e": e2e}
    return slo_table(slo, {name: Distribution(np.array([value])) for name, value in values.items()}, rejected)


class TestSlo:
    def test_without_limits_there_is_no_verdict(self) -> None:
        """A first run without `slo:` used to fail six limits that nobody had asked for."""
        summary = Results(by_hand()).summary
        assert summary["slo"] == {"pass": None}
        assert summary["goodput"]["requests"] is summary["goodput"]["share"] is None
        assert summary["headline"]["goodput_per_s"] is None
        assert "no SLO is set: --set slo.ttft" in Results(by_hand()).to_text()
        assert "FAIL" not in Results(by_hand()).to_text(verbose=True)

    def test_the_users_limits_decide(self) -> None:
        slo = SloConfig(ttft=0.2, tpot=0.05)
        found = table(slo, ttft=0.1, tpot=0.04)
        assert found == {
            "ttft": {"percentile": 99.0, "limit_s": 0.2, "value_s": 0.1, "share": 1.0, "pass": True},
            "tpot": {"percentile": 99.0, "limit_s": 0.05, "value_s": 0.04, "share": 1.0, "pass": True}, "pass": True}
        assert table(slo, ttft=0.1, tpot=0.06)["pass"] is False
        assert table(SloConfig(e2e=0.5), ttft=0.1, tpot=0.04)["pass"] is False
        text = Results(by_hand(), slo=SloConfig(ttft=0.1, tpot=0.02)).to_text(verbose=True)
        assert "TTFT p99" in text
        assert "TTFT p50" not in text

    def test_a_limit_holds_at_its_percentile(self) -> None:
        ten = Distribution(np.arange(1, 11) / 10)
        samples = {"ttft": ten, "tpot": ten, "e2e": ten}
        for percentile, passed in ((50, True), (90, True), (99, False)):
            found = slo_table(SloConfig(ttft=0.93, percentile=percentile), samples)
            assert found["ttft"]["value_s"] == pytest.approx(np.percentile(np.arange(1, 11) / 10, percentile))
            assert found["ttft"]["share"] == 0.9
            assert found["pass"] is passed

    def test_a_rejected_request_misses_its_limits(self) -> None:
        ten = Distribution(np.full(10, 0.1))
        samples = {"ttft": ten, "tpot": ten, "e2e": ten}
        slo = SloConfig(ttft=1.0, percentile=90)
        assert slo_table(slo, samples, rejected=1)["pass"] is True
        found = slo_table(slo, samples, rejected=2)["ttft"]
        assert (found["value_s"], found["pass"]) == (None, False)
        assert found["share"] == pytest.approx(10 / 12)

    def test_slowdowns_over_baselines_are_the_papers(self) -> None:
        found = table(PAPER, ttft=0.1, tpot=0.01)
        limits = {name: row["limit_s"] for name, row in found.items() if name != "pass"}
        assert limits == {"ttft_p50": 0.5, "ttft_p90": 0.75, "ttft_p99": 1.5,
                          "tpot_p50": 0.03125, "tpot_p90": pytest.approx(0.0375), "tpot_p99": 0.125}
        assert found["pass"] is True

    @pytest.mark.parametrize(("ttft", "tpot", "failing"), [
        (0.6, 0.01, {"ttft_p50"}), (0.8, 0.01, {"ttft_p50", "ttft_p90"}), (0.1, 0.035, {"tpot_p50"}),
        (2.0, 0.2, {"ttft_p50", "ttft_p90", "ttft_p99", "tpot_p50", "tpot_p90", "tpot_p99"}), (0.5, 0.03125, set()),
    ])
    def test_each_limit(self, ttft: float, tpot: float, failing: set[str]) -> None:
        found = table(PAPER, ttft, tpot)
        assert {name for name, row in found.items() if name != "pass" and not row["pass"]} == failing
        assert found["pass"] is (not failing)

    def test_single_tokens_have_no_tpot_to_miss(self) -> None:
        assert table(PAPER, 0.1, math.nan)["tpot_p99"] == {"limit_s": 0.125, "value_s": None, "pass": True}
        assert table(SloConfig(tpot=0.1), 0.1, math.nan)["tpot"]["pass"] is True

    def test_a_slowdown_needs_a_baseline(self) -> None:
        slowdown = {"p50": 1, "p90": 2, "p99": 3}
        with pytest.raises(ValueError, match="give baseline_ttft"):
            SloConfig(ttft_slowdown=slowdown)
        SloConfig(ttft_slowdown=slowdown, workloads={"chat": {"baseline_ttft": 1.0}})

    def test_goodput(self) -> None:
        record = by_hand()
        good = Results(record, slo=SloConfig(ttft=0.1)).summary["goodput"]
        assert (good["requests"], good["share"]) == (3, 0.5)
        assert good["limits"] == {"ttft_s": 0.1, "tpot_s": None, "e2e_s": None}
        assert good["requests_per_s"] == pytest.approx(3 / 0.3)
        assert good["output_tokens_per_s"] == pytest.approx(10 / 0.3)
        assert Results(record, slo=SloConfig(tpot=0.02)).summary["goodput"]["requests"] == 3  # request 5 has no TPOT
        assert Results(record, slo=SloConfig(e2e=0.12)).summary["goodput"]["requests"] == 3
        assert Results(record, slo=SloConfig(ttft=0.1, e2e=0.12)).summary["goodput"]["requests"] == 2

    def test_thresholds_default_to_the_table(self) -> None:
        slo = SloConfig(baseline_ttft="1 s", ttft_slowdown=Slowdowns(p50=1.0, p90=2.0, p99=3.0))
        assert slo.thresholds() == {"ttft_s": 3.0, "tpot_s": None, "e2e_s": None}
        assert SloConfig(tpot=0.1, baseline_ttft=1.0).thresholds() == {"ttft_s": None, "tpot_s": 0.1, "e2e_s": None}

    def test_units_and_strictness(self) -> None:
        assert SloConfig.model_validate({"ttft": "200 ms"}).ttft == 0.2
        for bad in ({"ttft": -1}, {"unknown": 1}, {"ttft_slowdown": {"p50": 0, "p90": 1, "p99": 1}}):
            with pytest.raises(ValueError):
                SloConfig.model_validate(bad)


@pytest.mark.long(quick=200_000)
def test_a_million_requests() -> None:
    n = count(200_000, 1_000_000)
    record = large_record(n)
    tracemalloc.start()
    try:
        summary = Results(record).summary
        peak = tracemalloc.get_traced_memory()[1] / n
    finally:
        tracemalloc.stop()
    assert peak < 600   # bytes a request, beyond the record: 520, and 690 where each figure keeps its columns
    assert summary["requests"]["completed"] == int((record.status == STATUS_COMPLETED).sum()) == n
    assert summary["latency"]["itl_s"]["count"] == int(record.output_tokens.sum()) - n
