"""Terms: parsing, and compiled functions against an independent evaluation."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from hermes.errors import InputError
from hermes.hardware.base import StepStats
from hermes.hardware.fitted.ranges import steps_outside
from hermes.hardware.fitted.terms import (
    FEATURES,
    Factor,
    compile_terms,
    evaluate,
    feature_columns,
    parse_term,
    term_text,
)
from hermes.testing.hardware import FIELDS, advanced, columns_of


@pytest.mark.parametrize(
    ("text", "term"),
    [
        ("1", ()),
        ("decode_ctx", (Factor("decode_ctx"),)),
        (" prefill_tokens ^ 2 ", (Factor("prefill_tokens", None, 2),)),
        ("decode_seqs*decode_ctx", (Factor("decode_seqs"), Factor("decode_ctx"))),
        ("max(prefill_tokens - 512, 0)", (Factor("prefill_tokens", 512.0),)),
        ("min(decode_seqs, 8)", (Factor("decode_seqs", cap=8.0),)),
        ("clip(decode_seqs-128,0,64)*decode_ctx", (Factor("decode_seqs", 128.0, cap=64.0), Factor("decode_ctx"))),
        ("clip(tokens-1.5,0,2)^2", (Factor("tokens", 1.5, 2, 2.0),)),
        ("max(tokens-0.5,0)^3*seqs", (Factor("tokens", 0.5, 3), Factor("seqs"))),
    ],
)
def test_terms_parse(text, term):
    assert parse_term(text) == term
    assert parse_term(term_text(term)) == term


@pytest.mark.parametrize(
    "text",
    ["", "2", "1*1", "decode_ctx^0", "decode_ctx^9", "decode_ctx+1", "decode_ctx**2", "max(decode_ctx,0)", "*", "a b",
     "max(decode_ctx-1,1)", "min(decode_ctx)", "min(decode_ctx-1,5)", "clip(decode_ctx,0,5)", "clip(decode_ctx-1,1,5)",
     "prefill_sampled", "__import__('os')", "decode_ctx;1", "decode_ctx*", "^2", "x" * 10_000,
     "decode_ctx^4*decode_ctx^4*decode_ctx"],
)
def test_other_terms_are_refused(text):
    with pytest.raises(InputError):
        parse_term(text)


@pytest.mark.parametrize("text", ["max(tokens-{},0)", "min(tokens,{})", "clip(tokens-{},0,5)", "clip(tokens-5,0,{})"])
def test_a_number_too_large_for_a_float_is_refused_in_one_line(text):
    """309 digits are an infinity, and its name stood in the generated source: a NameError when the profile was used."""
    with pytest.raises(InputError, match=r"expected knots and caps of at most 1e\+15") as caught:
        parse_term(text.format("9" * 309))
    assert "\n" not in str(caught.value)


def test_a_mistyped_feature_gets_a_suggestion():
    with pytest.raises(InputError, match=r"found 'decode_ctxs' \(did you mean 'decode_ctx'\?\)"):
        parse_term("decode_seqs*decode_ctxs")


factors = st.builds(
    lambda name, knot, cap, power: Factor(name, knot, power, cap).text(),
    st.sampled_from(FEATURES), st.none() | st.integers(0, 3000), st.none() | st.integers(0, 3000), st.integers(1, 2),
)
terms = st.lists(factors, max_size=3).map(lambda parts: "*".join(parts) or "1")
polynomials = st.lists(st.tuples(st.floats(-1e3, 1e6), terms), max_size=8)
stats = st.builds(
    lambda values, seqs: StepStats(**dict(zip(FIELDS, values, strict=True)) | {"decode_seqs": seqs}),
    st.lists(st.integers(0, 60_000), min_size=8, max_size=8), st.integers(1, 300),
)


@given(polynomials, stats, st.integers(1, 40), st.floats(0, 1e6))
def test_compiled_run_is_compiled_steps_is_the_polynomial(polynomial, first, steps, floor):
    parsed = [(coefficient, parse_term(text)) for coefficient, text in polynomial]
    compiled = compile_terms(parsed, floor)
    rows = [advanced(first, j) for j in range(steps)]
    columns = feature_columns(columns_of(rows))
    parts = [coefficient * evaluate(term, columns, steps) for coefficient, term in parsed]
    expected = np.maximum(np.sum(parts, axis=0) if parts else np.zeros(steps), max(1, round(floor)))
    size = np.sum(np.abs(parts), axis=0) if parts else np.zeros(steps)  # cancellation keeps the size of the summands
    if np.max(size, initial=0) > 1e15:
        return  # past 2^53 ns (100 days) rounding to integers means nothing
    run = compiled.run(first, steps)
    assert run.tolist() == [compiled.step(row) for row in rows]
    assert np.all(np.abs(run - expected) <= 1 + 1e-12 * size)


def test_the_floor_is_at_least_one_nanosecond():
    compiled = compile_terms([(-5.0, parse_term("1"))], 0.0)
    assert compiled.step(StepStats()) == 1
    assert compile_terms([(-5.0, parse_term("decode_ctx"))], 7.4).run(StepStats(decode_seqs=2), 3).tolist() == [7] * 3


def test_rounding_is_half_to_even():
    compiled = compile_terms([(0.5, parse_term("decode_ctx"))], 1)
    first = StepStats(decode_seqs=1, decode_ctx=3)
    assert compiled.run(first, 4).tolist() == [2, 2, 2, 3]  # 1.5, 2, 2.5, 3
    assert [compiled.step(advanced(first, j)) for j in range(4)] == [2, 2, 2, 3]


ranges = st.dictionaries(
    st.sampled_from(FEATURES), st.tuples(st.integers(0, 500), st.integers(0, 500)).map(sorted), max_size=4
)
small = st.builds(
    lambda values, seqs: StepStats(**dict(zip(FIELDS, values, strict=True)) | {"decode_seqs": seqs}),
    st.lists(st.integers(0, 600), min_size=8, max_size=8), st.integers(0, 30),
)


@given(ranges, st.lists(st.tuples(small, st.integers(1, 50)), min_size=1, max_size=5))
def test_steps_outside_counts_every_step(limits, runs):
    counts = steps_outside(limits, columns_of([first for first, _ in runs]), np.array([k for _, k in runs]))
    for (first, steps), count in zip(runs, counts.tolist(), strict=True):
        columns = feature_columns(columns_of([advanced(first, j) for j in range(steps)]))
        outside = np.zeros(steps, dtype=bool)
        for name, (low, high) in limits.items():
            outside |= (columns[name] < low) | (columns[name] > high)
        assert count == outside.sum()
