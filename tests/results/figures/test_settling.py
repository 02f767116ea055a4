"""Settling: runs that fill, grow, or are long enough."""

from __future__ import annotations

import numpy as np
import pytest
from test_steady import S, poisson, queue

import hermes
from hermes.core.record import RunRecord
from hermes.results.results import Results
from hermes.results.slo import SloConfig


def delays(n: int, rate: float, stay_s: np.ndarray, seed: int = 0) -> RunRecord:
    """Requests that nothing holds up: each stays for its own time."""
    record = queue(poisson(rate, n, seed), np.zeros(n))
    record.finish_ns = record.arrival_ns + np.round(stay_s * S).astype(np.int64)
    record.stages["end_ns"] = record.stages["first_token_ns"] = record.finish_ns
    record.end_ns = int(record.finish_ns.max())
    return record


def test_a_system_that_fills_is_not_a_queue_that_grows() -> None:
    """Heavy-tailed stays of 100 s on average, arrivals for 300 s: nothing waits, and nothing is told of the load."""
    stay = np.random.default_rng(5).lognormal(np.log(100) - 0.5, 1.0, 1500)
    summary = Results(delays(1500, 5.0, stay), slo=SloConfig(e2e=10_000.0)).summary
    assert summary["headline"]["stable"] is not False
    assert summary["settling"]["settled"] is False
    assert summary["slo"]["pass"]
    needed = summary["settling"]["needed_s"]
    longer = int(needed * 5)
    stay = np.random.default_rng(5).lognormal(np.log(100) - 0.5, 1.0, longer)
    assert Results(delays(longer, 5.0, stay), slo=SloConfig(e2e=10_000.0)).summary["settling"]["settled"]


def test_an_overload_with_long_service_is_a_queue_that_grows() -> None:
    """A server that serves 0.1/s is offered 0.15/s: requests wait, however long the service is."""
    n = 400
    record = queue(poisson(0.15, n, 2), np.full(n, 10.0))
    summary = Results(record, slo=SloConfig(e2e=1e6)).summary
    assert summary["settling"]["why"] == "the queue grows"
    assert summary["settling"]["needed_s"] is None   # a longer run would tell the same


def test_five_latencies_after_the_warm_up() -> None:
    """Stays of 10 s each: 45 s after the warm-up are too few, 55 s are enough."""
    for span, enough in ((54, False), (70, True)):
        n = span * 20
        record = queue(np.arange(n) / 20, np.zeros(n))
        record.finish_ns = record.arrival_ns + 10 * S
        record.stages["end_ns"] = record.stages["first_token_ns"] = record.finish_ns
        record.end_ns = int(record.finish_ns.max())
        found = Results(record).summary["settling"]
        assert found["settled"] is enough, found
        if not enough:
            assert "less than 5 x E2E p99" in found["why"]
            assert 60 < found["needed_s"] < 80


def test_the_share_beyond_a_limit_and_its_interval() -> None:
    """One request in fifty is slow: the share is 2%, and 95% of the intervals hold it."""
    hits = 0
    for seed in range(40):
        rng = np.random.default_rng(seed)
        stay = np.where(rng.random(4000) < 0.02, 3.0, 1.0)
        found = Results(delays(4000, 20.0, stay, seed), slo=SloConfig(e2e=2.0, percentile=98.0)).summary["settling"]
        beyond = found["beyond"]["e2e_p98"]
        hits += beyond["low"] <= 0.02 <= beyond["high"]
        assert beyond["allowed"] == pytest.approx(0.02)
        assert beyond["share"] == pytest.approx(0.02, abs=0.012)
    assert hits >= 34


def test_certain_misses_of_a_run_that_has_not_settled() -> None:
    stay = np.full(600, 60.0)
    found = Results(delays(600, 5.0, stay), slo=SloConfig(e2e=30.0)).summary["settling"]
    assert found["settled"] is False
    assert found["late_misses"] is True


def test_kv_that_grows_has_not_settled() -> None:
    """Contexts that get longer all the time, at a constant number of requests: only the KV blocks show it."""
    record = delays(2000, 20.0, np.full(2000, 1.0))
    edges = np.linspace(0, record.arrival_ns.max(), 401).astype(np.int64)
    zeros = np.zeros(400, dtype=np.int64)
    for growth, settled in ((1.0, True), (3.0, False)):
        blocks = np.linspace(100, 100 * growth, 400).astype(np.int64)
        record.runs = {**dict.fromkeys(record.runs, zeros), "start_ns": edges[:-1], "end_ns": edges[1:],
                       "used_blocks": blocks, "kv_block_ns": blocks * np.diff(edges), "num_steps": zeros}
        found = Results(record).summary["settling"]
        assert found["settled"] is settled, found
        assert settled or "KV blocks in use change by" in found["why"]


def test_run_says_that_a_verdict_is_of_an_unsettled_run() -> None:
    spec = {"workload": {"requests": 100, "arrivals": {"kind": "poisson", "rate": 10},
                         "lengths": {"kind": "fixed", "prompt": 100, "output": 2000}},
            "clients": [{"model": "llama-3.1-8b", "device": "h100-sxm"}], "slo": {"tpot": "50 ms"}}
    assert "SLO met, unsettled" in hermes.simulate(spec).to_text()
