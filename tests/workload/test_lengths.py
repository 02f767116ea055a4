"""Length models: the contract of each, and the distributions they promise."""

from __future__ import annotations

import math
from contextlib import suppress
from pathlib import Path

import numpy as np
import pandas as pd
import pytest
from hypothesis import given
from hypothesis import strategies as st
from pydantic import ValidationError

from hermes.arrays import IntArray
from hermes.config.streams import stream
from hermes.errors import InputError
from hermes.testing.workload import LengthModelContract, TokenCountsContract
from hermes.workload.base import TokenCounts
from hermes.workload.lengths import (
    LENGTHS,
    TOKEN_COUNTS,
    EmpiricalCounts,
    EmpiricalLengths,
    FixedCount,
    FixedLengths,
    IndependentLengths,
    LognormalCounts,
    NormalCounts,
    TraceLengths,
    UniformCounts,
)
from hermes.workload.profiles import load_workload_profile
from hermes.workload.stats import spearman
from hermes.workload.traces import write_trace


class TestFixedCount(TokenCountsContract):
    def make(self) -> FixedCount:
        return FixedCount(tokens=200)


class TestUniformCounts(TokenCountsContract):
    def make(self) -> UniformCounts:
        return UniformCounts(min=1400, max=2600)


class TestNormalCounts(TokenCountsContract):
    def make(self) -> NormalCounts:
        return NormalCounts(mean=100.0, std=80.0, max=150)


class TestLognormalCounts(TokenCountsContract):
    def make(self) -> LognormalCounts:
        return LognormalCounts(median=100.0, sigma=1.5)


class TestEmpiricalCounts(TokenCountsContract):
    def make(self) -> EmpiricalCounts:
        return EmpiricalCounts(profile="azure-code-2023", column="output")


class TestFixedLengths(LengthModelContract):
    def make(self) -> FixedLengths:
        return FixedLengths(prompt=1000, output=200)


class TestIndependentLengths(LengthModelContract):
    def make(self) -> IndependentLengths:
        return IndependentLengths.model_validate({
            "prompt": {"kind": "normal", "mean": 1000, "std": 200}, "output": {"kind": "fixed", "tokens": 200},
        })


class TestEmpiricalLengths(LengthModelContract):
    def make(self) -> EmpiricalLengths:
        return EmpiricalLengths(profile="azure-conv-2023")


class TestTraceLengths(LengthModelContract):
    @pytest.fixture(autouse=True)
    def _trace(self, tmp_path: Path) -> None:
        self.path = trace_file(tmp_path)

    def make(self) -> TraceLengths:
        return TraceLengths(path=str(self.path), repeat=True)


def trace_file(folder: Path) -> Path:
    frame = pd.DataFrame({
        "arrival_s": [0.0, 1.0, 2.0], "prompt_tokens": [600, 20, 30], "output_tokens": [1, 2, 3], "priority": [5, 0, 1],
        "session": [-1, 4, 4], "prefix_group": [0, -1, 0], "prefix_tokens": [100, 0, 30],
        "hash_ids": [[0, 1], [2], [3]],
    })
    write_trace(frame, folder / "trace.parquet", source="test")
    return folder / "trace.parquet"


def tokens(counts: TokenCounts, n: int = 200_000) -> IntArray:
    return counts.draw(n, stream(9, "test"))


@pytest.mark.feature("Workloads", (
    "Lengths `fixed`, `independent`, `empirical`, `trace`; counts `uniform`, `normal`, `lognormal`, "
    "`geometric`"))
def test_uniform_reaches_both_ends_equally() -> None:
    drawn = tokens(UniformCounts(min=3, max=6))
    np.testing.assert_allclose(np.bincount(drawn)[3:] / len(drawn), [0.25] * 4, rtol=0.02)


def test_normal() -> None:
    drawn = tokens(NormalCounts(mean=1000.0, std=200.0))
    assert drawn.mean() == pytest.approx(1000, abs=4 * 200 / math.sqrt(len(drawn)))
    assert drawn.std() == pytest.approx(200, rel=0.01)
    assert np.quantile(drawn, 0.9) == pytest.approx(1000 + 1.2816 * 200, abs=3)


def test_truncation_piles_nothing_up_at_the_bounds() -> None:
    drawn = tokens(NormalCounts(mean=100.0, std=50.0, min=90, max=110))
    counts = np.bincount(drawn)[90:]
    assert len(counts) == 21
    np.testing.assert_allclose(counts / counts.mean(), 1, atol=0.1)


@pytest.mark.parametrize("sigma", [0.1, 1.0, 2.0])
def test_lognormal(sigma: float) -> None:
    median = tokens(LognormalCounts(median=5000.0, sigma=sigma))
    assert np.log(median).mean() == pytest.approx(math.log(5000), abs=5 * sigma / math.sqrt(len(median)) + 1e-3)
    assert np.log(median).std() == pytest.approx(sigma, rel=0.02)
    mean = tokens(LognormalCounts(mean=5000.0, sigma=sigma))
    assert mean.mean() == pytest.approx(5000, rel=0.1)


def test_no_spread_at_all() -> None:
    assert set(tokens(NormalCounts(mean=10.0, std=0.0), 10).tolist()) == {10}
    assert set(tokens(LognormalCounts(median=10.0, sigma=0.0), 10).tolist()) == {10}


@given(
    mean=st.floats(1, 1e6), std=st.floats(0, 1e6), low=st.integers(1, 10**6), span=st.integers(0, 10**6),
    seed=st.integers(0, 2**32),
)
def test_bounds_always_hold(mean: float, std: float, low: int, span: int, seed: int) -> None:
    for counts in (
        NormalCounts(mean=mean, std=std, min=low, max=low + span),
        LognormalCounts(median=mean, sigma=min(std, 10.0), min=low, max=low + span),
    ):
        with suppress(InputError):  # hardly anything between the bounds
            drawn = counts.draw(20, stream(seed, "test"))
            assert drawn.min() >= low
            assert drawn.max() <= low + span


def test_marginals_of_a_profile() -> None:
    profile = load_workload_profile("azure-conv-2023")
    for column, table in (("prompt", profile.prompt_tokens), ("output", profile.output_tokens)):
        drawn = tokens(EmpiricalCounts.model_validate({"profile": "azure-conv-2023", "column": column}))
        assert drawn.mean() == pytest.approx(table.mean, rel=0.01)


def test_independent_columns_are_independent() -> None:
    same = {"kind": "uniform", "min": 1, "max": 10**6}
    drawn = IndependentLengths.model_validate({"prompt": same, "output": same}).draw(100_000, stream(1, "test"))
    correlation = spearman(drawn.prompt_tokens, drawn.output_tokens)
    assert correlation is not None
    assert abs(correlation) < 0.015


@pytest.mark.parametrize("rho", [-0.9, -0.3, 0.0, 0.5, 0.95])
def test_copula_gives_the_rank_correlation_asked_for(rho: float) -> None:
    smooth = {"mean": 5e5, "std": 0, "p50": 5e5, "p90": 9e5, "p99": 9.9e5, "levels": [0, 1], "values": [1, 10**6]}
    profile = type(load_workload_profile("azure-conv-2023")).model_validate({
        "format": "hermes-workload/1", "name": "x", "source": {}, "requests": 1, "spearman": rho,
        "arrivals": {"duration_s": 1, "rate_per_s": 1, "interarrival_cv": 1}, "prompt_tokens": smooth,
        "output_tokens": smooth,
    })
    model = EmpiricalLengths(profile="x")
    model._loaded = profile
    drawn = model.draw(200_000, stream(2, "test"))
    assert spearman(drawn.prompt_tokens, drawn.output_tokens) == pytest.approx(rho, abs=0.01)


def test_trace_rows_come_in_order_with_all_they_have(tmp_path: Path) -> None:
    model = TraceLengths(path=trace_file(tmp_path).name, repeat=True).bound(tmp_path)
    drawn = model.draw(4, stream(1, "test"))
    assert drawn.prompt_tokens.tolist() == [600, 20, 30, 600]
    assert drawn.output_tokens.tolist() == [1, 2, 3, 1]
    assert drawn.priority is not None
    assert drawn.priority.tolist() == [5, 0, 1, 5]
    assert drawn.session is not None
    assert drawn.session.tolist() == [-1, 4, 4, -1]
    assert drawn.hash_ids == [(0, 1), (2,), (3,), (0, 1)]
    with pytest.raises(InputError, match="at most 3 requests"):
        TraceLengths(path=str(tmp_path / "trace.parquet")).draw(4, stream(1, "test"))


@pytest.mark.parametrize(
    ("registry", "kind", "options"),
    [
        (TOKEN_COUNTS, "fixed", {"tokens": 0}), (TOKEN_COUNTS, "fixed", {"tokens": 1.5}),
        (TOKEN_COUNTS, "fixed", {"tokens": 2**50}), (TOKEN_COUNTS, "uniform", {"min": 5, "max": 4}),
        (TOKEN_COUNTS, "normal", {"mean": 10}), (TOKEN_COUNTS, "normal", {"mean": 10, "std": -1}),
        (TOKEN_COUNTS, "normal", {"mean": 10, "std": 1, "min": 9, "max": 8}),
        (TOKEN_COUNTS, "lognormal", {"sigma": 1}), (TOKEN_COUNTS, "lognormal", {"sigma": 1, "mean": 5, "median": 5}),
        (TOKEN_COUNTS, "lognormal", {"sigma": 11, "mean": 5}),
        (TOKEN_COUNTS, "empirical", {"profile": "azure-conv-2023"}),
        (LENGTHS, "fixed", {"prompt": 10}), (LENGTHS, "independent", {"prompt": {"kind": "fixed", "tokens": 1}}),
        (LENGTHS, "independent", {"prompt": {"kind": "fxed"}, "output": {"kind": "fixed", "tokens": 1}}),
        (LENGTHS, "empirical", {"profile": ""}), (LENGTHS, "trace", {}),
    ],
)
def test_refused_options(registry: object, kind: str, options: dict[str, object]) -> None:
    with pytest.raises(ValidationError):
        registry.get(kind).model_validate({"kind": kind, **options})  # type: ignore[attr-defined]


def test_bounds_that_leave_nothing() -> None:
    with pytest.raises(InputError, match="min: expected bounds with some of the distribution between them, found 500"):
        tokens(NormalCounts(mean=100.0, std=10.0, min=500, max=600))


def test_unknown_profile() -> None:
    with pytest.raises(InputError, match=r"profile: expected a workload profile: .*did you mean 'azure-conv-2023'"):
        EmpiricalLengths(profile="azure-conv-2032").bound(Path())
