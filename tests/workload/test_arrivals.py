"""Arrival processes: the contract of each, and the statistics each is chosen for."""

from __future__ import annotations

import math
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest
from hypothesis import given
from hypothesis import strategies as st
from pydantic import ValidationError

from hermes.arrays import IntArray
from hermes.config.streams import stream
from hermes.errors import InputError
from hermes.testing.workload import ArrivalProcessContract
from hermes.workload.arrivals import (
    ARRIVALS,
    AtOnce,
    ClosedLoop,
    Gamma,
    MarkovModulated,
    Normal,
    Poisson,
    Profile,
    TraceArrivals,
    Uniform,
)
from hermes.workload.base import ArrivalProcess
from hermes.workload.traces import write_trace


class TestPoisson(ArrivalProcessContract):
    mean_rate_per_s = 40.0

    def make(self) -> Poisson:
        return Poisson(rate=40.0)


class TestUniform(ArrivalProcessContract):
    mean_rate_per_s = 3.0

    def make(self) -> Uniform:
        return Uniform(rate=3.0)


class TestEvenlySpaced(ArrivalProcessContract):
    mean_rate_per_s = 3.0
    rate_tolerance = 1e-6

    def make(self) -> Uniform:
        return Uniform(rate=3.0, spread=0.0)


class TestNormal(ArrivalProcessContract):
    mean_rate_per_s = 10.0
    rate_tolerance = 0.01

    def make(self) -> Normal:
        return Normal(rate=10.0)


class TestWideNormal(ArrivalProcessContract):
    """Truncation at zero must not lower the rate."""

    mean_rate_per_s = 10.0

    def make(self) -> Normal:
        return Normal(rate=10.0, cv=3.0)


class TestGamma(ArrivalProcessContract):
    mean_rate_per_s = 10.0
    rate_tolerance = 0.1

    def make(self) -> Gamma:
        return Gamma(rate=10.0, cv=4.0)


class TestMarkovModulated(ArrivalProcessContract):
    mean_rate_per_s = (5 * 30 + 80 * 3) / 33
    rate_tolerance = 0.1
    rate_n = 400_000

    def make(self) -> MarkovModulated:
        return MarkovModulated(rates=[5.0, 80.0], dwells=[30.0, 3.0])


class TestOnOff(ArrivalProcessContract):
    mean_rate_per_s = 50 / 3
    rate_tolerance = 0.1

    def make(self) -> MarkovModulated:
        return MarkovModulated(rates=[0.0, 50.0], dwells=[2.0, 1.0])


class TestProfile(ArrivalProcessContract):
    mean_rate_per_s = (5 + 0 + 80) / 3

    def make(self) -> Profile:
        return Profile(rates=[5.0, 0.0, 80.0], every=20.0)


class TestAtOnce(ArrivalProcessContract):
    def make(self) -> AtOnce:
        return AtOnce(at=1.5)

    def test_the_moment(self) -> None:
        assert set(self.drawn(5)["times_ns"].tolist()) == {1_500_000_000}


class TestRepeatedTrace(ArrivalProcessContract):
    mean_rate_per_s = 8.0

    @pytest.fixture(autouse=True)
    def _trace(self, tmp_path: Path) -> None:
        self.path = trace_file(tmp_path, [3.0, 4.0, 4.0, 6.0])

    def make(self) -> TraceArrivals:
        return TraceArrivals(path=str(self.path), rate=8.0, repeat=True)


def trace_file(folder: Path, arrivals: list[float]) -> Path:
    tokens = np.arange(1, len(arrivals) + 1)
    frame = pd.DataFrame({"arrival_s": arrivals, "prompt_tokens": tokens, "output_tokens": tokens})
    write_trace(frame, folder / "trace.parquet", source="test")
    return folder / "trace.parquet"


def gaps_s(process: ArrivalProcess, n: int, seed: int = 3) -> Any:
    return np.diff(process.times_ns(n, stream(seed, "test")) / 1e9, prepend=0.0)


def times(process: ArrivalProcess, n: int = 100) -> IntArray:
    return process.times_ns(n, stream(0, "test"))


def test_every_kind_has_its_literal() -> None:
    assert set(ARRIVALS.names()) >= {
        "at_once", "closed_loop", "gamma", "mmpp", "normal", "poisson", "profile", "trace", "uniform"
    }
    for name in ("at_once", "closed_loop", "gamma", "mmpp", "normal", "poisson", "profile", "trace", "uniform"):
        assert ARRIVALS.get(name).model_fields["kind"].default == name


@pytest.mark.feature("Workloads", (
    "Arrivals `poisson`, `uniform`, `normal`, `gamma`, `mmpp`, `profile` (rates of a day), `at_once`, `trace`"))
@pytest.mark.parametrize(
    ("process", "cv"),
    [
        (Poisson(rate=7.0), 1.0), (Uniform(rate=7.0), 1 / math.sqrt(3)),
        (Uniform(rate=7.0, spread=0.5), 0.5 / math.sqrt(3)),
        (Uniform(rate=7.0, spread=0.0), 0.0), (Normal(rate=7.0, cv=0.2), 0.2), (Gamma(rate=7.0, cv=0.3), 0.3),
        (Gamma(rate=7.0, cv=1.0), 1.0), (Gamma(rate=7.0, cv=2.5), 2.5),
    ],
    ids=str,
)
def test_mean_and_variation_of_the_gaps(process: ArrivalProcess, cv: float) -> None:
    n = 200_000
    gaps = gaps_s(process, n)
    # Four standard errors of the mean; those of the cv are a few times larger for heavy tails.
    assert gaps.mean() == pytest.approx(1 / 7, rel=4 * cv / math.sqrt(n) + 1e-6)
    assert gaps.std() / gaps.mean() == pytest.approx(cv, rel=0.02, abs=1e-6)


def test_poisson_counts_are_poisson() -> None:
    at = Poisson(rate=20.0).times_ns(200_000, stream(5, "test")) / 1e9
    counts = np.bincount(at[at < 9_000].astype(int), minlength=9_000)
    assert counts.mean() == pytest.approx(20, rel=0.01)
    assert counts.var() / counts.mean() == pytest.approx(1, abs=4 * math.sqrt(2 / len(counts)))


def test_mmpp_is_as_bursty_as_theory_says() -> None:
    # Index of dispersion for counts in long windows (Fischer & Meier-Hellstern 1993, The MMPP cookbook):
    # 1 + 2 q1 q2 (r1 - r2)^2 / ((q1 + q2)^2 (r1 q2 + r2 q1)), with q the rates of leaving a state.
    process = MarkovModulated(rates=[10.0, 60.0], dwells=[2.0, 1.0])
    q1, q2, r1, r2 = 1 / 2, 1 / 1, 10.0, 60.0
    theory = 1 + 2 * q1 * q2 * (r1 - r2) ** 2 / ((q1 + q2) ** 2 * (r1 * q2 + r2 * q1))
    at = process.times_ns(2_000_000, stream(5, "test")) / 1e9
    window = 50.0
    counts = np.bincount((at / window).astype(int))[:-1]
    assert counts.mean() / window == pytest.approx((2 * 10 + 60) / 3, rel=0.02)
    assert counts.var() / counts.mean() == pytest.approx(theory, rel=0.15)


def test_mmpp_with_equal_rates_is_poisson() -> None:
    gaps = gaps_s(MarkovModulated(rates=[10.0, 10.0], dwells=[1.0, 5.0]), 100_000)
    assert gaps.mean() == pytest.approx(0.1, rel=0.02)
    assert gaps.std() / gaps.mean() == pytest.approx(1, abs=0.02)
    assert abs(np.corrcoef(gaps[1:], gaps[:-1])[0, 1]) < 0.015


def test_mmpp_first_state_is_stationary() -> None:
    process = MarkovModulated(rates=[1e6, 1e-3], dwells=[1.0, 3.0])
    busy = [process.times_ns(1, stream(seed, "test"))[0] < 1_000_000 for seed in range(800)]
    assert np.mean(busy) == pytest.approx(0.25, abs=4 * math.sqrt(0.25 * 0.75 / 800))


def test_a_profile_gives_each_period_its_rate() -> None:
    at = Profile(rates=[2.0, 0.0, 10.0], every=50.0).times_ns(120_000, stream(5, "test")) / 1e9
    turns = int(at[-1] // 150.0)
    counts = np.bincount((at[at < turns * 150.0] // 50.0).astype(int), minlength=3 * turns).reshape(turns, 3)
    assert turns == pytest.approx(200, abs=3)
    for period, mean in enumerate((100, 0, 500)):   # four standard errors
        assert counts[:, period].mean() == pytest.approx(mean, abs=4 * math.sqrt(mean / turns))
        # Poisson counts: the variance is the mean, so that each turn of the profile is drawn anew
        assert counts[:, period].var() == pytest.approx(mean, abs=4 * mean * math.sqrt(2 / turns))


def test_a_profile_of_one_rate_is_poisson() -> None:
    assert times(Profile(rates=[7.0], every=1e6)) == pytest.approx(times(Poisson(rate=7.0)), abs=2)
    assert times(Profile(rates=[7.0, 7.0], every=0.01)) == pytest.approx(times(Poisson(rate=7.0)), abs=20)


def test_a_rate_of_zero_at_either_end_of_a_profile() -> None:
    at = times(Profile(rates=[0.0, 4.0, 0.0], every=10.0), 1000) / 1e9 % 30
    assert at.min() >= 10
    assert at.max() <= 20


@given(
    rates=st.lists(st.floats(0, 1e4), min_size=1, max_size=5), every=st.floats(1e-3, 1e5),
    n=st.integers(0, 300), more=st.integers(0, 300), seed=st.integers(0, 2**32),
)
def test_a_profile_always_gives_ordered_times(rates: list[float], every: float, n: int, more: int, seed: int) -> None:
    if math.fsum(rates) * every < 0.01:
        with pytest.raises(ValidationError, match="turn of the profile"):
            Profile(rates=rates, every=every)
        return
    at = Profile(rates=rates, every=every).times_ns(n + more, stream(seed, "test"))
    assert at.shape == (n + more,)
    assert (np.diff(at, prepend=0) >= 0).all()
    # longer draws begin with shorter ones, on which `duration` relies
    assert (Profile(rates=rates, every=every).times_ns(n, stream(seed, "test")) == at[:n]).all()


@given(
    rates=st.lists(st.floats(0, 1e4), min_size=2, max_size=2),
    dwells=st.lists(st.floats(1e-3, 1e3), min_size=2, max_size=2),
    n=st.integers(0, 300), seed=st.integers(0, 2**32),
)
def test_mmpp_always_gives_ordered_times(rates: list[float], dwells: list[float], n: int, seed: int) -> None:
    if sum(r * d for r, d in zip(rates, dwells, strict=True)) < 0.01:
        with pytest.raises(ValidationError, match="pair of spells"):
            MarkovModulated(rates=rates, dwells=dwells)
        return
    at = MarkovModulated(rates=rates, dwells=dwells).times_ns(n, stream(seed, "test"))
    assert at.shape == (n,)
    assert (np.diff(at, prepend=0) >= 0).all()


@given(rate=st.floats(1e-3, 1e9), cv=st.floats(0.01, 100), seed=st.integers(0, 2**32))
def test_renewal_processes_always_give_ordered_times(rate: float, cv: float, seed: int) -> None:
    for process in (Poisson(rate=rate), Uniform(rate=rate), Normal(rate=rate, cv=cv), Gamma(rate=rate, cv=cv)):
        at = process.times_ns(50, stream(seed, "test"))
        assert (np.diff(at, prepend=0) >= 0).all()


class TestTrace:
    def test_counts_from_the_first_arrival(self, tmp_path: Path) -> None:
        process = TraceArrivals(path="trace.parquet").bound(trace_file(tmp_path, [3.0, 4.0, 4.5]).parent)
        assert times(process, 3).tolist() == [0, 10**9, 1_500_000_000]
        assert times(process, 2).tolist() == [0, 10**9]
        assert process.available() == 3

    def test_scale_makes_it_denser(self, tmp_path: Path) -> None:
        path = trace_file(tmp_path, [0.0, 1.0, 4.0])
        assert times(TraceArrivals(path=str(path), scale=2.0), 3).tolist() == [0, 500_000_000, 2_000_000_000]
        assert times(TraceArrivals(path=str(path), rate=1.0), 3).tolist() == [0, 500_000_000, 2_000_000_000]

    def test_more_requests_than_rows(self, tmp_path: Path) -> None:
        path = trace_file(tmp_path, [0.0, 1.0, 4.0])
        with pytest.raises(InputError, match=r"trace.parquet: expected at most 3 requests.*found 4"):
            times(TraceArrivals(path=str(path)), 4)
        repeated = times(TraceArrivals(path=str(path), repeat=True), 5)
        assert (repeated / 1e9).tolist() == [0, 1, 4, 6, 7]  # 4 s and a mean gap of 2 s later

    def test_a_single_moment_has_no_rate(self, tmp_path: Path) -> None:
        path = trace_file(tmp_path, [1.0, 1.0])
        for process in (TraceArrivals(path=str(path), rate=1.0), TraceArrivals(path=str(path), repeat=True)):
            with pytest.raises(InputError, match="arrive at one time"):
                times(process, 3 if process.repeat else 2)
        assert times(TraceArrivals(path=str(path)), 2).tolist() == [0, 0]

    def test_scale_and_rate_exclude_each_other(self) -> None:
        with pytest.raises(ValidationError, match="scale and rate exclude each other"):
            TraceArrivals(path="x", scale=2.0, rate=1.0)


class TestClosedLoop:
    def test_fixed(self) -> None:
        think = ClosedLoop.model_validate({"users": 3, "think": "20 ms"}).think_ns(4, stream(1, "x"))
        assert think.tolist() == [20_000_000] * 4

    def test_exponential(self) -> None:
        think = ClosedLoop(users=3, think=2.0, think_distribution="exponential").think_ns(100_000, stream(1, "x")) / 1e9
        assert think.mean() == pytest.approx(2, rel=0.02)
        assert think.std() / think.mean() == pytest.approx(1, rel=0.02)

    def test_no_thinking_by_default(self) -> None:
        assert ClosedLoop(users=1).think_ns(3, stream(1, "x")).tolist() == [0, 0, 0]


@pytest.mark.parametrize(
    ("kind", "options"),
    [
        ("poisson", {}), ("poisson", {"rate": 0}), ("poisson", {"rate": "-1 /s"}), ("poisson", {"rate": "40 s"}),
        ("poisson", {"rate": 1.0, "cv": 1.0}), ("uniform", {"rate": 1.0, "spread": 1.5}),
        ("gamma", {"rate": 1.0, "cv": 0.0}),
        ("normal", {"rate": float("nan")}), ("mmpp", {"rates": [1.0], "dwells": [1.0, 1.0]}),
        ("mmpp", {"rates": [1.0, 2.0], "dwells": [0.0, 1.0]}), ("mmpp", {"rates": [0.0, 0.0], "dwells": [1.0, 1.0]}),
        ("profile", {"rates": []}), ("profile", {"rates": [0.0]}), ("profile", {"rates": [1.0], "every": 0.0}),
        ("at_once", {"at": -1.0}), ("closed_loop", {"users": 0}), ("closed_loop", {"users": 1, "think": "1 token"}),
        ("trace", {"path": ""}), ("trace", {"path": "x", "scale": 0.0}),
    ],
)
def test_refused_options(kind: str, options: dict[str, object]) -> None:
    with pytest.raises(ValidationError):
        ARRIVALS.get(kind).model_validate({"kind": kind, **options})


def test_units() -> None:
    assert Poisson.model_validate({"rate": "120 /min"}).rate == pytest.approx(2.0)


def test_times_past_the_clock_are_refused() -> None:
    with pytest.raises(InputError, match="292 years"):
        times(Poisson(rate=1e-9), 100)
