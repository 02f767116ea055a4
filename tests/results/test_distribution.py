from __future__ import annotations

import math

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from hermes.results.distribution import Distribution

integers = st.integers(0, 10**12)
pairs = st.lists(st.tuples(integers, st.integers(1, 9)), min_size=1, max_size=40)
floats = st.lists(st.floats(0, 1e6) | st.just(math.nan), max_size=40)


@given(pairs, st.lists(st.floats(0, 100), min_size=1, max_size=6))
def test_weighted_equals_the_expanded_sample(sample: list[tuple[int, int]], percents: list[float]) -> None:
    values, weights = (np.array(column, dtype=np.int64) for column in zip(*sample, strict=True))
    weighted, expanded = Distribution(values, weights), np.repeat(values, weights)
    assert weighted.count == len(expanded)
    assert weighted.mean == pytest.approx(float(expanded.mean()), rel=1e-12)
    expected = np.percentile(expanded, percents)
    np.testing.assert_allclose(weighted.percentiles(percents), expected, rtol=1e-12, atol=1e-300)
    assert weighted.stats() == Distribution(expanded).stats()
    for limit in (int(expanded.min()), int(expanded.max()), float(expanded.mean())):
        assert weighted.share_up_to(limit) == float((expanded <= limit).mean())


@given(floats)
def test_statistics_are_ordered(values: list[float]) -> None:
    stats = Distribution(np.array(values, dtype=np.float64), divisor=1e9).stats()
    kept = [v for v in values if not math.isnan(v)]
    assert stats["count"] == len(kept)
    if not kept:
        assert all(stats[name] is None for name in ("mean", "p50", "p99", "min", "max"))
        return
    ordered = [stats[name] for name in ("min", "p50", "p90", "p95", "p99", "max")]
    assert ordered == sorted(ordered)
    assert stats["min"] <= stats["mean"] <= stats["max"]
    assert stats["max"] == max(kept) / 1e9


def test_nanoseconds_become_the_nearest_seconds() -> None:
    # 1.5e9 * 1e-9 is not 1.5 in floats; limits in scenarios are
    assert Distribution(np.array([1_500_000_000]), divisor=1e9).stats()["p50"] == 1.5


def test_cdf_ends_at_the_extremes() -> None:
    values, shares = Distribution(np.array([3, 1, 2])).cdf()
    assert (values[0], values[-1], shares[0], shares[-1]) == (1.0, 3.0, 0.0, 1.0)


def test_empty() -> None:
    empty = Distribution(np.empty(0, dtype=np.int64), np.empty(0, dtype=np.int64))
    assert math.isnan(empty.mean)
    assert math.isnan(empty.share_up_to(1))
    assert np.isnan(empty.percentiles([50])).all()
