"""The generative model of overlap: limits, monotony, byte budgets, fits."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from hermes.errors import InputError
from hermes.plugins.telerag.overlap import (
    FAMILIES,
    fit_bias,
    fit_strength,
    fit_strength_and_spread,
    lognormal_sizes,
    make_family,
    overlap_curve,
    overlap_within,
)

SIZES = lognormal_sizes(256, 10**9, 0.5, np.random.default_rng(0))
NAMES = sorted(FAMILIES.names())


def test_sizes_add_up():
    assert SIZES.sum() == 10**9
    assert np.log(SIZES).std() == pytest.approx(0.5, rel=0.02)


@pytest.mark.parametrize("name", NAMES)
@settings(max_examples=8, deadline=None)
@given(strength=st.floats(0.0, 1.0), bias=st.floats(-0.2, 0.2), seed=st.integers(0, 9))
def test_overlap_rises_with_the_budget(name, strength, bias, seed):
    family = make_family(name)
    curve = overlap_curve(family, strength, bias, SIZES, range(0, 257, 16), [8, 32], queries=16, seed=seed)
    assert (np.diff(curve.overlap, axis=0) >= 0).all()
    assert (curve.overlap[0] == 0).all()
    assert (curve.overlap[-1] == 1).all()
    shares = [overlap_within(family, strength, bias, SIZES, budget, 32, queries=16, seed=seed)[0]
              for budget in range(0, 10**9, 10**8)]
    assert (np.diff(shares) >= 0).all()


@pytest.mark.parametrize("name", NAMES)
def test_limits(name):
    family = make_family(name)
    same = overlap_curve(family, 0.0, 0.0, SIZES, [32, 64], [32, 128], queries=16)
    assert same.overlap == pytest.approx(np.array([[1, 0.25], [1, 0.5]]))
    falling = [overlap_curve(family, s, 0.0, SIZES, [32], [32], queries=64).overlap[0, 0] for s in (0, 0.1, 0.3, 0.9)]
    assert (np.diff(falling) < 0).all()


@pytest.mark.parametrize("name", ["gaussian", "redraw"])
def test_the_strongest_rewrite_forgets_the_query(name):
    overlap = overlap_curve(make_family(name), 1.0, 0.0, SIZES, [64], [32], queries=200).overlap[0, 0]
    assert overlap == pytest.approx(0.25, abs=0.05)   # a quarter of the clusters, wherever the query is


@pytest.mark.feature("Plug-ins of research", "TeleRAG's overlap families `gaussian`, `moved`, `noise`, `redraw`")
@pytest.mark.parametrize("name", NAMES)
def test_fits_give_what_was_asked_for(name):
    family = make_family(name)
    bias = fit_bias(family, SIZES, 1.1 * SIZES.mean(), 32, queries=48)
    strength = fit_strength(family, 0.75, bias, SIZES, 32, 32, queries=48)
    found = overlap_curve(family, strength, bias, SIZES, [32], [32], queries=48).overlap[0, 0]
    assert found == pytest.approx(0.75, abs=0.005)
    with pytest.raises(InputError):
        fit_strength(family, 1.5, bias, SIZES, 32, 32, queries=8)


@pytest.mark.drawn
@pytest.mark.parametrize("name", ["gaussian", "moved", "noise"])
def test_two_cells_give_strength_and_spread(name):
    """Drawn with a known spread, found again from two cells of the curve."""
    family = make_family(name, spread=1.2)
    drawn = overlap_curve(family, 0.2, 0.0, SIZES, [32, 128], [32], queries=256, seed=3).overlap[:, 0]
    strength, spread = fit_strength_and_spread(name, {}, ((32, drawn[0]), (128, drawn[1])), 32, 0.0, SIZES,
                                               queries=256, seed=4)
    again = overlap_curve(make_family(name, spread=spread), strength, 0.0, SIZES, [32, 128], [32], queries=256, seed=4)
    assert again.overlap[:, 0] == pytest.approx(drawn, abs=0.005)
    assert spread == pytest.approx(1.2, abs=0.35)


def test_equal_rewrites_have_no_spread():
    drawn = overlap_curve(make_family("gaussian"), 0.1, 0.0, SIZES, [32, 128], [32], queries=256).overlap[:, 0]
    cells = (32, drawn[0]), (128, min(1.0, drawn[1] + 0.01))
    assert fit_strength_and_spread("gaussian", {}, cells, 32, 0.0, SIZES, queries=256)[1] == 0


def test_standard_errors_are_those_of_means():
    """Means over many draws scatter as each says of itself."""
    family = make_family("gaussian")
    curves = [overlap_curve(family, 0.1, 0.0, SIZES, [32], [32], queries=40, seed=seed) for seed in range(60)]
    scatter = np.std([curve.overlap[0, 0] for curve in curves])
    assert np.mean([curve.error[0, 0] for curve in curves]) == pytest.approx(scatter, rel=0.4)


def test_two_clusters_by_hand():
    """One of two clusters is probed, scores independent: half of the rewrites want the one that was fetched."""
    sizes = np.array([10, 10])
    found = overlap_curve(make_family("gaussian"), 1.0, 0.0, sizes, [1], [1], queries=4000).overlap[0, 0]
    assert found == pytest.approx(0.5, abs=0.03)


def test_unknown_names_and_shapes():
    with pytest.raises(InputError, match="gaussian"):
        make_family("gausian")
    with pytest.raises(InputError, match="dimensions"):
        make_family("gaussian", dimensions=3)
