"""Statistics of repeated measurements against scipy, and at the bounds of the classes."""

import math
import subprocess
import sys

import numpy as np
import pytest
from each import each
from hypothesis import given
from hypothesis import strategies as st
from scipy import stats

from hermes.core.noise import BOUNDS, classify, peak_rss_bytes, spread, t_quantile, tally

SAMPLES = st.lists(st.floats(1e-9, 1e6), min_size=2, max_size=60)


@each("samples", [*range(2, 32), 1000])
def test_t_quantiles_are_those_of_scipy(samples):
    assert t_quantile(samples) == pytest.approx(stats.t.ppf(0.975, samples - 1), rel=1e-12)


@given(SAMPLES)
def test_interval_is_that_of_scipy(values):
    found = spread(values)
    data = np.asarray(values)
    assert found.samples == len(values)
    assert found.mean == pytest.approx(data.mean())
    assert found.cv == pytest.approx(stats.variation(data, ddof=1), abs=1e-12)
    if found.cv > 1e-6:
        low, high = stats.t.interval(0.95, len(data) - 1, loc=data.mean(), scale=stats.sem(data))
        assert found.ci95 == pytest.approx((high - low) / 2, rel=1e-5)


@given(SAMPLES)
def test_percentiles_are_ordered_and_within_the_values(values):
    found = spread(values)
    assert min(values) <= found.p50 <= found.p95 <= found.p99 <= max(values)


@given(SAMPLES, st.floats(1e-3, 1e3))
def test_the_unit_does_not_matter(values, factor):
    """The class is a property of the ratios; mean and interval scale."""
    one, other = spread(values), spread([v * factor for v in values])
    assert other.cv == pytest.approx(one.cv, abs=1e-9)
    assert other.mean == pytest.approx(one.mean * factor)
    if one.cv > 1e-6:  # below, the deviation is rounding
        assert other.ci95 == pytest.approx(one.ci95 * factor, rel=1e-6)


@pytest.mark.parametrize(("bound", "above"), [(0.10, "good"), (0.20, "flaky"), (0.50, "rejected")])
def test_a_bound_belongs_to_the_worse_class(bound, above):
    below = {0.10: "excellent", 0.20: "good", 0.50: "flaky"}[bound]
    assert classify(np.nextafter(bound, 0)) == below
    assert classify(bound) == above


@given(st.floats(0, 10), st.floats(0, 10))
def test_a_larger_spread_is_never_a_better_class(a, b):
    order = [*(name for _, name in BOUNDS), "rejected"]
    assert order.index(classify(min(a, b))) <= order.index(classify(max(a, b)))


def test_one_sample_has_no_class():
    found = spread([2.0])
    assert (found.verdict, found.cv, found.ci95) == ("single", 0.0, math.inf)
    assert found.as_dict()["class"] == "single"


@pytest.mark.parametrize("values", [[], [0.0, 0.0], [-1.0], [1.0, math.nan], [1.0, math.inf]])
def test_what_has_no_spread_is_refused(values):
    with pytest.raises(ValueError):
        spread(values)


def test_tally_counts_best_first():
    assert tally(["flaky", "excellent", "single", "excellent"]) == "2 excellent, 1 flaky, 1 single"
    assert tally([]) == "none"


def test_peak_rss_grows_with_memory_in_use():
    """In a process of its own: the peak is of the whole life of a process."""
    code = (
        "import numpy as np; from hermes.core.noise import peak_rss_bytes as p;"
        "a = p(); x = np.ones(25_000_000); b = p(); del x; print(a, b, p())"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    before, during, after = (int(word) for word in done.stdout.split())
    assert 190e6 <= during - before <= 260e6
    assert after >= during - 2**21  # the kernel keeps the count in batches of pages
    assert peak_rss_bytes() > 10e6
