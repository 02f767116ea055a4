"""AdaptiveRAG*: the best configuration of each class by measured F1, over several grids."""

from __future__ import annotations

import numpy as np
import pytest

from hermes.plugins.metis.baselines import GRIDS, SAMPLES, BestMeasured, work
from hermes.plugins.metis.datasets import dataset
from hermes.plugins.metis.decision import Configuration, Profile
from hermes.plugins.metis.measured import Queries
from hermes.plugins.metis.quality import FORMULAS

MODEL = FORMULAS["default"]
SIMPLE = Profile(False, False, 1, (30, 60))
HARD = Profile(True, True, 4, (60, 120))


def drawn(name):
    return Queries(dataset(name), None, ())


def made(name="musique", *, noise=0.0, grid="full", within=0.0, seed=1):
    return BestMeasured(drawn(name), MODEL, np.random.default_rng(7), np.random.default_rng(seed), noise=noise,
                        grid=grid, within=within)


def test_the_grids():
    count = {name: len(make()) for name, make in GRIDS.items()}
    assert count == {"full": 2 * 35 + 35 * 8, "words-120": 2 * 35 + 35 * 6, "coarse": 2 * 6 + 6 * 3, "chunks": 35}
    full = set(GRIDS["full"]())
    assert all(set(make()) <= full for make in GRIDS.values())
    assert {one.num_chunks for one in GRIDS["coarse"]()} == {1, 2, 4, 8, 16, 32}
    assert {one.method for one in GRIDS["chunks"]()} == {"stuff"}


@pytest.mark.parametrize("grid", GRIDS)
def test_without_noise_it_is_the_best_of_its_grid(grid):
    """By brute force over the sample queries of a class."""
    rng, one = np.random.default_rng(7), dataset("musique")
    queries = [one.draw(rng) for _ in range(SAMPLES)]
    mine = [q for q in queries if q.profile.joint and q.profile.complex]
    f1 = {config: np.mean([MODEL.f1(q, config) for q in mine]) for config in GRIDS[grid]()}
    assert f1[made(grid=grid).choose(HARD)] == pytest.approx(max(f1.values()), rel=1e-12)


def test_a_tolerance_takes_the_quicker():
    lengths = dataset("musique").lengths(20)
    best, near = (work(made(within=within).choose(HARD), lengths) for within in (0.0, 0.01))
    assert near < 0.8 * best


@pytest.mark.long
def test_prompts_longer_than_the_model_takes_are_left_out():
    """35 chunks of 1,000 tokens do not fit into 32,768: the answers would be missing, however well they were rated."""
    one = drawn("qmsum")
    chunks = {longest: {BestMeasured(one, MODEL, np.random.default_rng(7), np.random.default_rng(seed), noise=1.0,
                                     grid="chunks", within=0.0, longest=longest).choose(HARD).num_chunks
                        for seed in range(40)} for longest in (None, 32_768, 4_200)}
    assert max(chunks[None]) > 32 >= max(chunks[32_768])
    assert max(chunks[4_200]) <= 4


@pytest.mark.long
def test_noise_is_measured_anew_by_seed_and_shrinks_with_the_samples():
    """The more a single answer deviates, the more the choices differ by seed; on a simple class with many samples they
    stay good."""
    kinds = {noise: {str(made(noise=noise, seed=seed).choose(HARD)) for seed in range(12)} for noise in (0.0, 0.1)}
    assert len(kinds[0.0]) == 1
    assert 1 < len(kinds[0.1]) <= 12
    assert str(made(noise=0.3).choose(HARD)) == str(made(noise=0.3).choose(HARD))
    rng, one = np.random.default_rng(7), dataset("squad")
    simple = [q for q in (one.draw(rng) for _ in range(SAMPLES)) if not (q.profile.joint or q.profile.complex)]
    assert len(simple) > 100   # so that the mean of measured F1 deviates by less than 0.03

    def true_f1(config: Configuration) -> float:
        return float(np.mean([MODEL.f1(q, config) for q in simple]))

    best = true_f1(made("squad").choose(SIMPLE))
    assert all(true_f1(made("squad", noise=0.3, seed=seed).choose(SIMPLE)) > best - 0.15 for seed in range(6))


def test_a_class_without_samples_takes_that_of_the_nearest():
    rag = made("qmsum")
    rag._best.pop((False, True), None)
    assert rag.choose(Profile(False, True, 4, (60, 120))) == rag._best[False, False]
