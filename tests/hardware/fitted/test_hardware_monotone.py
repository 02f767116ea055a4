"""Monotony: what is proved is true, what is not proved is named, and the search finds what falls."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from long_runs import quick_and_full

from hermes.hardware.fitted.monotone import Batch, cheaper_steps, falling_terms, unproved
from hermes.hardware.fitted.polynomial import PolynomialModel
from hermes.hardware.fitted.profile import Profile
from hermes.hardware.fitted.terms import evaluate, feature_columns, parse_term
from hermes.testing.hardware import FIELDS


def terms(**parts):
    return [(value, parse_term(text)) for text, value in parts.items()]


@pytest.mark.parametrize(
    ("polynomial", "falling"),
    [
        ({"1": 1.0, "decode_ctx": 2.0, "decode_seqs^2": 1.0, "min(tokens,8)*decode_ctx": 3.0}, []),
        ({"1": -1.0, "decode_ctx": 2.0}, []),
        ({"decode_ctx": 2.0, "max(decode_ctx-100,0)": -2.0}, []),
        ({"decode_ctx": 2.0, "max(decode_ctx-100,0)": -2.1}, ["decode_ctx"]),
        ({"max(decode_ctx-100,0)": 2.0, "max(decode_ctx-90,0)": -1.0}, ["decode_ctx"]),
        ({"max(decode_ctx-100,0)": -1.0, "max(decode_ctx-90,0)": 1.0, "max(decode_ctx-300,0)": 1.0}, []),
        ({"decode_seqs*decode_ctx": 1.0, "decode_seqs*max(decode_ctx-10,0)": -0.5}, []),
        ({"decode_seqs": 1.0, "decode_seqs*max(decode_ctx-10,0)": -0.5}, ["decode_ctx*decode_seqs"]),
        ({"decode_ctx^2": -1.0, "decode_ctx": 100.0}, ["decode_ctx^2"]),
        ({"min(decode_ctx,5)": -1.0, "decode_ctx": 1.0}, ["min(decode_ctx,5)"]),  # true of it all, but not proved
        ({"decode_ctx": 1 / 3, "max(decode_ctx-9,0)": -0.33333333333334}, []),  # rounding of the file
    ],
)
def test_falling_terms(polynomial, falling):
    assert falling_terms(terms(**polynomial)) == falling


pieces = st.sampled_from(
    ["decode_ctx", "decode_seqs", "max(decode_ctx-50,0)", "max(decode_ctx-200,0)", "max(decode_seqs-3,0)",
     "decode_seqs*decode_ctx", "decode_seqs*max(decode_ctx-50,0)", "min(decode_ctx,80)", "clip(decode_seqs-2,0,4)"]
)


@quick_and_full(75, 300)
@given(st.dictionaries(pieces, st.integers(-4, 4).map(float), min_size=1), st.integers(0, 2**32 - 1))
def test_what_is_proved_never_falls(polynomial, seed):
    parsed = terms(**polynomial)
    if falling_terms(parsed):
        return
    rng = np.random.default_rng(seed)
    low = rng.integers(0, 300, (200, len(FIELDS)))
    high = low + rng.integers(0, 60, low.shape)
    values = []
    for table in (low, high):
        columns = feature_columns(dict(zip(FIELDS, table.T, strict=True)))
        values.append(sum(coefficient * evaluate(term, columns, 200) for coefficient, term in parsed))
    assert np.all(values[1] >= values[0])


def model_of(prefill, decode, mixed):
    provenance = {"source": "t", "hardware": "h", "engine": "e", "model": "m", "dtype": "d", "date": "today"}
    phases = {
        name: {"terms": [{"term": text, "seconds": value} for text, value in part.items()]}
        for name, part in (("prefill", prefill), ("decode", decode), ("mixed", mixed))
    }
    return Profile.model_validate(
        {"format": "hermes-profile/1", "name": "t", "provenance": provenance, "phases": phases}
    )


LARGEST = {"tokens": 10_000, "past": 10_000, "seqs": 100, "context": 10_000}


@pytest.mark.parametrize("phase", ["prefill", "decode", "mixed"])
def test_the_search_finds_a_phase_that_falls(phase):
    rising = {"prefill": {"1": 0.1, "tokens": 1e-5}, "decode": {"1": 0.1, "seqs": 1e-5},
              "mixed": {"1": 0.5, "tokens": 1e-5}}
    profile = model_of(**rising)
    assert unproved(profile) == {}
    assert cheaper_steps(PolynomialModel(profile), LARGEST) == []
    profile = model_of(**rising | {phase: {"1": 1.0, "seqs": -1e-3}})
    assert unproved(profile) == {phase: ["seqs"]}
    found = cheaper_steps(PolynomialModel(profile), LARGEST)
    assert found
    for before, after, before_ns, after_ns in found:
        assert after_ns < before_ns
        assert sum(n for n, _ in after.prefills) + len(after.contexts) >= (
            sum(n for n, _ in before.prefills) + len(before.contexts)
        )


def test_the_search_finds_a_boundary_where_more_is_cheaper():
    profile = model_of({"1": 0.1}, {"1": 0.1}, {"1": 0.05})
    model = PolynomialModel(profile)
    assert cheaper_steps(model, LARGEST) == []
    model.bounds = []
    assert cheaper_steps(model, LARGEST)


def test_a_batch_grows_in_every_way():
    rng = np.random.default_rng(1)
    before = Batch(((10, 5),), (7, 9))
    ways = [after.stats() for after in before.grown(rng, 1000)]
    for name in FIELDS:
        assert all(getattr(stats, name) >= getattr(before.stats(), name) for stats in ways)
        assert any(getattr(stats, name) > getattr(before.stats(), name) for stats in ways), name
