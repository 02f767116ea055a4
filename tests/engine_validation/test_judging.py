"""Rules about attempts, metrics and comparisons."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from hermes.calibration.engine_validation.contention import (
    CONTENDED_WINDOWS,
    LOST_SHARE,
    REFERENCE_OFF,
    WINDOW_S,
    judge,
)
from hermes.calibration.engine_validation.result import EngineResult, Times
from hermes.calibration.engine_validation.session import compared


def result(cpu_share, clock="wall", reference=(0.02, 0.02), step_s=0.1):
    """A run of windows in which the process had these shares of a CPU."""
    per_window = round(WINDOW_S / step_s)
    walls = [step_s] * (per_window * len(cpu_share))
    cpus = [step_s * share for share in cpu_share for _ in range(per_window)]
    return EngineResult.model_validate({
        "format": "hermes-online-result/1", "engine": "x", "engine_version": "1", "clock": clock,
        "workload_sha256": "0" * 64, "requests": [], "adding": {"wall_s": [], "cpu_s": []},
        "steps": {"end_s": np.cumsum(walls).tolist(), "wall_s": walls, "cpu_s": cpus},
        "load": [[0.0, 0.0, 10.0], [10.0, 9.0, 24.0]],
        "reference": {when: {"wall_s": s, "cpu_s": s, "steps": 33} for when, s in
                      zip(("before", "after"), reference, strict=True)},
    })


@given(st.lists(st.booleans(), min_size=1, max_size=40))
def test_wall_attempts_are_rejected_for_contended_windows(contended):
    shares = [1 - 2 * LOST_SHARE if bad else 1.0 for bad in contended]
    verdict = judge(result(shares), 0.02)
    assert verdict.windows in (len(contended), len(contended) + 1)   # rounding may begin a window with the last step
    assert verdict.accepted == (verdict.contended_windows <= CONTENDED_WINDOWS * verdict.windows)
    assert abs(verdict.contended_windows - sum(contended)) <= 1
    assert judge(result(shares, clock="cpu"), 0.02).accepted   # lost time is not on the CPU clock
    assert judge(result(shares), 0.02, on_cpu=False).accepted   # a GPU engine waits


@given(st.floats(-0.3, 0.3), st.floats(-0.3, 0.3), st.sampled_from(["cpu", "wall"]))
def test_a_machine_of_another_speed_is_rejected(before, after, clock):
    verdict = judge(result([1.0], clock, (0.02 * (1 + before), 0.02 * (1 + after))), 0.02)
    margin = min(abs(abs(x) - REFERENCE_OFF) for x in (before, after))
    if margin > 1e-9:
        assert verdict.accepted == (max(abs(before), abs(after)) <= REFERENCE_OFF)
        assert len(verdict.reasons) == (abs(before) > REFERENCE_OFF) + (abs(after) > REFERENCE_OFF)


def test_what_others_took():
    assert judge(result([1.0]), 0.02).others_share == pytest.approx(0.5)


def test_metrics_of_a_request_with_one_token():
    times = Times.of([0.0, 1.0], [0.5, 1.25], [1.5, 1.25], [11, 1])
    assert times.ttft.tolist() == [0.5, 0.25]
    assert times.e2e.tolist() == [1.5, 0.25]
    assert times.metric("tpot").tolist() == [0.1]


def test_errors_and_noise():
    ours = Times.of([0.0, 0.0], [1.1, 1.1], [2.1, 2.1], [2, 2])
    engine = [Times.of([0.0, 0.0], [f, f], [f + 1, f + 1], [2, 2]) for f in (0.9, 1.0, 1.1)]
    rows = {(row.metric, row.stat): row for row in compared(ours, engine)}
    assert len(rows) == 12
    assert rows["ttft", "mean"].error == pytest.approx(0.1)
    assert rows["ttft", "p99"].noise.cv == pytest.approx(0.1)
    assert rows["tpot", "mean"].error == pytest.approx(0.0)
    assert rows["tpot", "mean"].noise.verdict == "excellent"
    assert rows["e2e", "mean"].as_dict()["noise"]["class"] == "excellent"
    single = compared(ours, engine[:1])[0].as_dict()["noise"]
    assert single["ci95"] is None
    assert single["class"] == "single"


def test_metrics_that_no_request_has_are_left_out():
    one = Times.of([0.0], [1.0], [1.0], [1])
    assert {row.metric for row in compared(one, [one])} == {"ttft", "e2e"}
