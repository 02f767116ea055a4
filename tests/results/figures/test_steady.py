"""The steady state: queues whose answer is known, and runs that have none."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from synthetic_records import columns

import hermes
from hermes.core.record import (
    RUN_FIELDS,
    STAGE_FIELDS,
    STATUS_COMPLETED,
    STATUS_REJECTED,
    TRANSFER_FIELDS,
    ClientInfo,
    Offered,
    RunRecord,
)
from hermes.results.figures.steady import _has_trend, mser
from hermes.results.measure import MeasureConfig
from hermes.results.results import Results
from hermes.results.slo import SloConfig

S = 10**9


def queue(arrival_s: Any, service_s: Any, **more: Any) -> RunRecord:
    """A single server, first come first served, that costs $3,600 an hour and draws 10 W, 100 W while it serves."""
    arrival, service = (np.round(np.asarray(values) * S).astype(np.int64) for values in (arrival_s, service_s))
    end, free = np.zeros_like(arrival), 0
    for i, (time, work) in enumerate(zip(arrival.tolist(), service.tolist(), strict=True)):
        free = end[i] = max(free, time) + work
    n = len(arrival)
    zeros, rows = np.zeros(n, dtype=np.int64), np.arange(n)
    stages = columns(STAGE_FIELDS, []) | {
        "request": rows, "assigned_ns": arrival, "start_ns": end - service, "end_ns": end, "first_token_ns": end,
        "output_tokens": zeros + 10, "prompt_tokens": zeros + 90, "first_step": zeros - 1, "last_step": zeros - 1,
        "fork": zeros - 1, "branch": zeros - 1,
    }
    stages = {name: stages[name] if len(stages[name]) else zeros for name in STAGE_FIELDS}
    return RunRecord(
        clients=[ClientInfo("one", "service", "service", idle_w=10.0, prefill_w=100.0, price_per_hour=3600.0)],
        stage_kinds=["generate"], arrival_ns=arrival, prompt_tokens=zeros + 90, output_tokens=zeros + 10,
        priority=zeros, session=more.pop("session", zeros - 1), status=np.full(n, STATUS_COMPLETED, dtype=np.int8),
        finish_ns=end, reject_reasons={}, stages=stages, runs=columns(RUN_FIELDS, []),
        transfers=columns(TRANSFER_FIELDS, []), step_ends=[np.empty(0, dtype=np.int64)], gaps={},
        out_of_range_steps=[0], end_ns=int(end.max()), **more,
    )


def poisson(rate: float, n: int, seed: int) -> np.ndarray:
    return np.cumsum(np.random.default_rng(seed).exponential(1 / rate, n))


def test_a_queue_serves_what_is_offered() -> None:
    """M/M/1 at 80%: 20/s within its interval, most of the time; what a token takes follows from the load."""
    hits = 0
    for seed in range(20):
        service = np.random.default_rng(1000 + seed).exponential(1 / 25, 4000)
        found = Results(queue(poisson(20.0, 4000, seed), service)).summary["headline"]
        assert found["window"] == "steady"
        assert found["stable"] is not False
        hits += found["served_low_per_s"] <= 20.0 <= found["served_high_per_s"]
        assert found["served_per_s"] == pytest.approx(found["offered_per_s"], rel=0.03)
        assert found["output_tokens_per_s"] == pytest.approx(10 * found["served_per_s"])
        assert found["total_tokens_per_s"] == pytest.approx(100 * found["served_per_s"])
        assert found["per_million_tokens_dollars"] == pytest.approx(1e6 / found["total_tokens_per_s"])
        watts = found["per_output_token_j"] * found["output_tokens_per_s"]
        assert watts == pytest.approx(10 + 0.8 * 90, rel=0.15)
    assert hits >= 16


@pytest.mark.feature("Results, sweeps, studies", "Steady state")
def test_warm_up_and_drain_are_left_out() -> None:
    """Requests that take 30 s, at 20/s for 100 s: over the whole run 15/s are served."""
    arrival = np.arange(2000) / 20
    record = queue(arrival, np.zeros(2000))
    record.finish_ns = record.arrival_ns + 30 * S
    record.stages["end_ns"] = record.finish_ns
    record.end_ns = int(record.finish_ns.max())
    summary = Results(record).summary
    found = summary["headline"]
    assert found["window"] == "steady"
    assert 29.9 <= found["start_s"] <= 31
    assert found["until_s"] == pytest.approx(99.95)
    assert found["served_per_s"] == pytest.approx(20.0, rel=1e-3)
    assert summary["throughput"]["requests_per_s"] == pytest.approx(2000 / 129.95)
    assert "offered 20/s, served 20/s" in Results(record).to_text()


def test_a_queue_that_grows_has_no_rate() -> None:
    for rate in (28.0, 60.0):
        results = Results(queue(poisson(rate, 4000, 3), np.full(4000, 0.04)))   # 25/s at most
        found = results.summary["headline"]
        assert (found["window"], found["stable"], found["why"]) == ("whole", False, "the queue grows")
        text = results.to_text()
        assert "served: not stable, the queue grows" in text
        assert "$" not in text


def test_runs_without_a_steady_state_say_so() -> None:
    short = Results(queue(poisson(20.0, 50, 1), np.full(50, 0.01)))
    assert short.summary["headline"]["window"] == "whole"
    assert "too short" in short.summary["headline"]["why"]
    assert "whole run (too short" in short.to_text()
    once = Results(queue(np.zeros(500), np.full(500, 0.01)))
    assert once.summary["headline"]["why"] == "all requests arrive at once"
    assert once.summary["headline"]["offered_per_s"] is None
    assert once.summary["headline"]["served_per_s"] == pytest.approx(100.0)
    assert once.summary["binds"]["what"] == "compute"   # a service that is busy, and everything waits for it
    slow = queue(np.arange(300) / 10, np.zeros(300))
    slow.finish_ns = slow.arrival_ns + 60 * S   # none is done when the last one comes
    assert "too short" in Results(slow).summary["headline"]["why"]


def test_conversations_end_when_no_more_begin() -> None:
    """300 conversations from 0 to 300 s, a turn every 20 s, three turns: the last begin turns until 340 s."""
    begin = np.arange(300.0)
    arrival = np.concatenate([begin, begin + 20, begin + 40])
    order = np.argsort(arrival, kind="stable")
    record = queue(arrival[order], np.full(900, 0.01), session=np.tile(np.arange(300), 3)[order])
    found = Results(record).summary["headline"]
    assert found["window"] == "steady"
    assert 38 <= found["start_s"] <= 48
    assert 290 <= found["until_s"] <= 303
    assert found["served_per_s"] == pytest.approx(3.0, rel=0.02)


def test_workloads_that_begin_and_end_at_other_times() -> None:
    """The steady state is where all of them arrive."""
    arrival = np.concatenate([np.arange(1000) / 10, 20 + np.arange(600) / 10])
    order = np.argsort(arrival, kind="stable")
    labels = {"workload": (np.repeat([0, 1], [1000, 600])[order], ["a", "b"])}
    found = Results(queue(arrival[order], np.full(1600, 0.01), labels=labels)).summary["headline"]
    assert found["start_s"] >= 20
    assert found["until_s"] == pytest.approx(79.9)
    assert found["served_per_s"] == pytest.approx(20.0, rel=0.02)


def test_a_request_lost_outside_the_steady_state_makes_it_the_whole_run() -> None:
    """2,000 requests at 20/s, the first of them rejected: no window may leave it out. Nothing else is unsteady."""
    arrival, service = np.arange(2000) / 20, np.full(2000, 0.01)
    for lost, window in ((0, "whole"), (1000, "steady")):
        record = queue(arrival, service)
        record.status[lost], record.finish_ns[lost], record.reject_reasons[lost] = STATUS_REJECTED, -1, "too long"
        results = Results(record, slo=SloConfig(e2e=1.0))
        found = results.summary["headline"]
        assert (found["window"], results.summary["settling"]["settled"]) == (window, True)
        assert found["goodput_share"] == pytest.approx(1999 / 2000)
        assert "(99.95%)" in results.to_text()
        assert ("1 lost outside the steady state" in results.to_text()) == (window == "whole")


def test_slow_requests_of_the_warm_up_are_in_the_share() -> None:
    """The verdict and the share are of the same requests: 40 of 2,000 are slow, before the steady state."""
    service = np.concatenate([np.full(40, 0.5), np.full(1960, 0.001)])
    results = Results(queue(np.arange(2000) / 20, service), slo=SloConfig(e2e=0.4))
    found = results.summary["headline"]
    share = (results.requests["e2e_s"] <= 0.4).mean()
    assert (found["window"], results.summary["slo"]["pass"]) == ("steady", False)
    assert found["goodput_share"] == pytest.approx(share)
    assert found["goodput_per_s"] == pytest.approx(found["served_per_s"] * share)


@pytest.mark.parametrize(("rates", "changes"), [
    ((20,) * 20, False), ((10,) * 10 + (30,) * 10, True), (tuple(range(10, 30)), True),
    ((20,) * 9 + (200,) + (20,) * 10, True), ((5, 35) * 10, True)])
def test_a_trace_with_a_trend_is_judged_as_a_whole(rates: tuple[int, ...], changes: bool) -> None:
    """Poisson arrivals at these rates, 10 s each; their times alone say it."""
    rng = np.random.default_rng(7)
    arrival = np.concatenate([10 * i + np.sort(rng.uniform(0, 10, rate * 10)) for i, rate in enumerate(rates)])
    record = queue(arrival, np.full(len(arrival), 0.001), offered=Offered(changes=None))
    summary = Results(record).summary
    assert (summary["headline"]["why"] == "the rate of arrivals changes") == changes
    assert summary["settling"]["settled"]


def test_poisson_and_bursty_renewals_have_no_trend() -> None:
    rng = np.random.default_rng(3)
    found = [_has_trend(np.round(np.cumsum(rng.gamma(1 / cv**2, cv**2 / 20, 4000)) * S).astype(np.int64))
             for cv in (0.5, 1.0, 2.0) for _ in range(100)]
    assert sum(found) <= 3


def test_the_users_window_wins() -> None:
    record = queue(np.arange(2000) / 20, np.full(2000, 0.01))
    found = Results(record, measure=MeasureConfig(start=50.0, until=60.0)).summary["headline"]
    assert (found["window"], found["start_s"], found["until_s"]) == ("measured", 50.0, 60.0)
    assert found["served_per_s"] == pytest.approx(20.0)


def test_a_closed_loop_ends_with_the_first_user_who_finds_no_request() -> None:
    results = hermes.simulate({
        "workload": {"requests": 1000, "arrivals": {"kind": "closed_loop", "users": 20, "think": "500 ms"},
                     "lengths": {"kind": "fixed", "prompt": 100, "output": 3}},
        "clients": [{"name": "llm", "memory": {"num_blocks": 5000},
                     "hardware": {"kind": "polynomial", "profile": "splitwise-2023-llama-2-70b-h100-tp8"}}],
    })
    found, record = results.summary["headline"], results.record
    assert found["window"] == "steady"
    assert record.out_of_requests_ns > 0
    assert found["until_s"] == pytest.approx(min(record.out_of_requests_ns, record.arrival_ns.max()) / S)
    cycle = 0.5 + results.summary["latency"]["e2e_s"]["mean"]
    assert found["served_per_s"] == pytest.approx(20 / cycle, rel=0.02)


def test_mser_finds_a_level_after_a_ramp() -> None:
    rng = np.random.default_rng(0)
    series = np.concatenate([np.linspace(0, 10, 20), np.full(80, 10.0)]) + rng.normal(0, 0.1, 100)
    first, last = mser(series)
    assert 17 <= first <= 22
    assert last == 100
    falling = np.concatenate([series, np.linspace(10, 0, 20)])
    first, last = mser(falling, both_ends=True)
    assert 17 <= first <= 22
    assert 98 <= last <= 103
    assert mser(np.full(100, 3.0)) == (0, 100)
    assert mser(np.arange(100.0))[0] == 50   # the last that is looked at: it never settles


def test_the_drain_of_conversations_is_no_steady_state() -> None:
    """300 conversations begin in 300 s and last for 400 s each: they are never as many as they would become, and most
    of the time in which their number hardly changes lies after the last one began."""
    begin = np.arange(300.0)
    arrival = np.concatenate([begin + 50 * turn for turn in range(9)])
    order = np.argsort(arrival, kind="stable")
    record = queue(arrival[order], np.full(len(arrival), 0.01), session=np.tile(np.arange(300), 9)[order])
    summary = Results(record).summary
    assert summary["headline"]["window"] == "whole"
    assert summary["settling"]["settled"] is False
