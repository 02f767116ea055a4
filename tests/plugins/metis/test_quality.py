"""The quality model shows what was measured: every qualitative fact of the method's description, one by one."""

from __future__ import annotations

import itertools
import math

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from hermes.hardware.descriptions.files import names_in
from hermes.plugins.metis.datasets import Query, dataset
from hermes.plugins.metis.decision import METHODS, Configuration, Profile, summary_tokens
from hermes.plugins.metis.quality import FORMULAS

DATASETS = names_in("rag_datasets")
MODEL = FORMULAS["default"]
SIMPLE = Profile(False, False, 1, (30, 60))
JOINT = Profile(True, False, 3, (30, 60))
HARD = Profile(True, True, 4, (60, 120))
WORDS = (1, 4, 8, 15, 30, 60, 90, 150, 300)
GRID = [Configuration(m, k, w) for m in METHODS for k in (1, 2, 3, 4, 5, 6, 8, 10, 12, 15, 20, 25, 30, 35)
        for w in (WORDS if m == "map_reduce" else (0,))]


def query(profile, ranks):
    return Query(profile, tuple(ranks), tuple(ranks))


def drawn(name, n=200, seed=7):
    return [dataset(name).draw(np.random.default_rng([seed, i])) for i in range(n)]


@pytest.mark.parametrize("model", FORMULAS.values(), ids=list(FORMULAS))
def test_many_configurations_at_once_are_those_one_by_one(model):
    for one in drawn("qmsum", 20):
        assert model.f1_of_each(one, GRID) == [model.f1(one, config) for config in GRID]


def test_simple_queries_need_one_method_and_one_or_two_chunks():
    queries = [q for q in drawn("squad", 600) if not q.profile.joint and not q.profile.complex and len(q.ranks) == 1]
    mean = {(m, k): np.mean([MODEL.f1(q, Configuration(m, k, 100 if m == "map_reduce" else 0))
                             for q in queries]) for m in METHODS for k in range(1, 36)}
    best = max(mean.values())
    assert max(mean["map_rerank", 1], mean["map_rerank", 2]) > 0.97 * best
    assert max(mean.values()) - max(v for (m, _), v in mean.items() if m == "map_rerank") < 0.01


def test_joint_reasoning_gains_about_35_percent_from_seeing_chunks_together():
    ranks = (1, 2, 3)
    apart = MODEL.f1(query(JOINT, ranks), Configuration("map_rerank", 3))
    for other in (Configuration("stuff", 3), Configuration("map_reduce", 3, 60)):
        assert MODEL.f1(query(JOINT, ranks), other) / apart == pytest.approx(1.35, abs=0.02)


def test_complex_queries_gain_about_30_percent_from_map_reduce():
    ranks = (1, 2, 3, 4)
    stuffed = MODEL.f1(query(HARD, ranks), Configuration("stuff", 4))
    assert MODEL.f1(query(HARD, ranks), Configuration("map_reduce", 4, 120)) / stuffed == pytest.approx(1.30, abs=0.02)


def test_irrelevant_chunks_cost_as_much_apart_as_together_if_so_declared():
    model = FORMULAS["diluted-mappers"]
    assert model.diluted(10, "map_reduce") == model.diluted(10, "stuff") == MODEL.diluted(10, "stuff")
    assert MODEL.diluted(10, "map_reduce") == pytest.approx((1 + MODEL.diluted(10, "stuff")) / 2)


@pytest.mark.long
def test_quality_rises_to_a_point_with_chunks_then_falls_by_up_to_a_fifth():
    curve = [MODEL.f1(query(JOINT, (1, 3, 5)), Configuration("stuff", k)) for k in range(1, 36)]
    top = int(np.argmax(curve))
    assert top + 1 == 5   # the rank of the last needed piece
    assert all(b < a for a, b in itertools.pairwise(curve[top:]))
    assert 0.12 < 1 - curve[-1] / curve[top] <= 0.20
    # of several queries together: it rises, then falls
    mean = [np.mean([MODEL.f1(q, Configuration("stuff", k)) for q in drawn("finsec")])
            for k in range(1, 36)]
    assert 4 <= int(np.argmax(mean)) + 1 <= 25
    assert mean[0] < 0.9 * max(mean)
    assert mean[-1] < max(mean)


@pytest.mark.parametrize(("profile", "low", "high"), [(SIMPLE, 10, 20), (HARD, 70, 100)])
def test_summaries_saturate_where_measured(profile, low, high):
    """95% of the best between the two lengths, in tokens."""
    ranks = tuple(range(1, profile.pieces + 1))
    best = MODEL.f1(query(profile, ranks), Configuration("map_reduce", profile.pieces, 300))
    enough = next(w for w in range(1, 301)
                  if MODEL.f1(query(profile, ranks), Configuration("map_reduce", profile.pieces, w)) >= 0.95 * best)
    assert low <= summary_tokens(enough) <= high


def _service_s(name, config):
    """A delay by hand, of a query alone: 0.2 ms a prompt token, 15 ms a token of the longest answers in a row."""
    lengths = dataset(name).lengths(20)
    mapper, last = lengths.mapper(config), lengths.last(config)
    prompt = last[0] + (config.num_chunks * mapper[0] if config.method != "stuff" else 0)
    return 0.0002 * prompt + 0.015 * (mapper[1] + last[1])


@pytest.mark.parametrize("name", ["musique", "finsec", "qmsum"])
def test_the_best_choice_per_query_beats_any_fixed_one_of_like_delay(name):
    """By 10% of F1 at least: per query the quickest within 2% of its best."""
    queries = drawn(name)
    f1 = np.array([[MODEL.f1(q, c) for c in GRID] for q in queries])
    delay = np.array([_service_s(name, c) for c in GRID])
    each = np.where(f1 >= 0.98 * f1.max(axis=1, keepdims=True), delay, math.inf).argmin(axis=1)
    own_f1, own_delay = f1[np.arange(len(queries)), each].mean(), delay[each].mean()
    like = [f1[:, i].mean() for i in range(len(GRID)) if delay[i] <= 1.05 * own_delay]
    assert own_f1 > 1.10 * max(like)


@pytest.mark.parametrize("name", ["squad", "musique", "finsec", "qmsum"])
def test_n_to_2n_chunks_are_the_inputs_of_the_table(name):
    one = dataset(name)
    most = 2.5 if name == "musique" else 2
    assert one.input_tokens[0] <= one.counts[0] * one.chunk_tokens + one.question_tokens[0]
    assert most * one.counts[-1] * one.chunk_tokens <= one.input_tokens[1]


@pytest.mark.parametrize("name", ["squad", "musique", "finsec", "qmsum"])
def test_3n_chunks_stay_within_the_inputs_of_the_table(name):
    """The second set: as many pieces as the profile may have for the longest inputs, and otherwise the first."""
    first, one = dataset(name), dataset(f"{name}-3n")
    longest = 3 * one.counts[-1] * one.chunk_tokens
    assert 0.9 * one.input_tokens[1] <= longest <= one.input_tokens[1]
    assert max(dataset(f"{each}-3n").counts[-1] for each in ("squad", "musique", "finsec", "qmsum")) == 10
    changed = {"name", "chunk_tokens", "pieces", "provenance"}
    assert first.model_dump(exclude=changed) == one.model_dump(exclude=changed)


@pytest.mark.drawn
@pytest.mark.parametrize("name", DATASETS)
def test_draws_are_what_the_data_set_says(name):
    one, queries = dataset(name), drawn(name, 1500)
    assert np.mean([q.profile.joint for q in queries]) == pytest.approx(one.joint, abs=0.04)
    total = sum(one.pieces)
    for pieces, weight in enumerate(one.pieces, start=1):
        assert np.mean([q.profile.pieces == pieces for q in queries]) == pytest.approx(weight / total, abs=0.04)
    found = [q for q in queries if max(q.ranks) < 1000 and len(q.ranks) > 1]
    # gaps are geometric: the last of n pieces ranks n / precision on average
    assert np.mean([q.ranks[-1] * one.precision / len(q.ranks) for q in found]) == pytest.approx(1, abs=0.08)
    assert np.mean([q.profile.pieces for q in queries]) == pytest.approx(one.mean_pieces, rel=0.04)
    heavy = [rank for q in queries for rank in q.heavy_ranks]
    assert np.mean([r <= 20 for r in heavy]) == pytest.approx(0.794, abs=0.025)
    assert np.mean([r <= 100 for r in heavy]) == pytest.approx(0.860, abs=0.02)


@given(st.sampled_from(sorted(FORMULAS)), st.sampled_from(GRID), st.booleans(), st.booleans(),
       st.lists(st.integers(1, 60), min_size=1, max_size=10, unique=True))
def test_f1_is_a_share_and_never_better_for_a_piece_found_later(name, config, joint, hard, ranks):
    profile = Profile(joint, hard, len(ranks), (50, 100))
    value = FORMULAS[name].f1(query(profile, ranks), config)
    assert 0 <= value <= 1
    assert FORMULAS[name].f1(query(profile, [rank + 5 for rank in ranks]), config) <= value + 1e-12
