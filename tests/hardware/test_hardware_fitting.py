"""Fitting: known polynomials are recovered, errors are held-out errors, and the splitwise script does what it says."""

import runpy
import sys
from pathlib import Path

import numpy as np
import pandas as pd
import pytest

from hermes.hardware import load_profile, load_table
from hermes.hardware.fitting import FeatureSet, choose, cross_validate, fit, noise_of, phase_profile
from hermes.hardware.polynomial import PolynomialModel
from hermes.hardware.terms import evaluate, feature_columns, parse_term
from hermes.testing.hardware import batch

SCRIPT = Path(__file__).parents[2] / "scripts" / "fit_splitwise_profiles.py"


def decode_data(rng, noise=0.0, repeats=3):
    """Steps of a known machine: 20 ms + 0.1 ms per sequence, 0.3 ms beyond 16, 40 ns per context token."""
    seqs = np.repeat(rng.integers(1, 65, 60), repeats).astype(float)
    context = seqs * np.repeat(rng.integers(100, 8000, 60), repeats)
    seconds = 0.02 + 1e-4 * seqs + 2e-4 * np.maximum(seqs - 16, 0) + 4e-8 * context
    seconds *= rng.normal(1, noise, len(seqs))
    groups = np.repeat(np.arange(60), repeats).astype(str)
    return {"decode_seqs": seqs, "decode_ctx": context}, seconds, groups


TRUTH = {"1": 0.02, "decode_seqs": 1e-4, "max(decode_seqs-16,0)": 2e-4, "decode_ctx": 4e-8}
BENT = FeatureSet(("1", "decode_ctx"), (("decode_seqs", (16.0,)),))
STRAIGHT = FeatureSet(("1", "decode_seqs", "decode_ctx"))


def test_a_known_polynomial_is_recovered():
    columns, seconds, groups = decode_data(np.random.default_rng(1))
    terms = BENT.as_terms(fit(BENT, columns, seconds, groups).weights)
    assert terms == pytest.approx(TRUTH, rel=1e-6)


def test_noise_moves_the_coefficients_little():
    columns, seconds, groups = decode_data(np.random.default_rng(1), noise=0.02)
    terms = BENT.as_terms(fit(BENT, columns, seconds, groups).weights)
    assert terms == pytest.approx(TRUTH, rel=0.15)


def test_the_bent_polynomial_is_chosen_over_the_straight_one_and_a_needless_knot_is_not():
    columns, seconds, groups = decode_data(np.random.default_rng(2), noise=0.01)
    needless = FeatureSet(BENT.terms, (("decode_seqs", (16.0, 40.0)),))
    chosen, scores = choose([STRAIGHT, BENT, needless], columns, seconds, groups)
    assert chosen == BENT
    assert scores[STRAIGHT.label()] > 1.5 * scores[BENT.label()]


def test_slopes_are_never_negative():
    rng = np.random.default_rng(3)
    x = rng.uniform(1, 100, 50)
    features = FeatureSet(("1",), (("decode_seqs", (20.0, 50.0)),))
    fitted = fit(features, {"decode_seqs": x}, 1 - 0.005 * x, np.arange(50).astype(str))
    assert features.as_terms(fitted.weights).keys() == {"1"}
    free = fit(features, {"decode_seqs": x}, 1 - 0.005 * x, np.arange(50).astype(str), positive=False)
    assert features.as_terms(free.weights)["decode_seqs"] == pytest.approx(-0.005)


def test_every_configuration_counts_the_same_however_often_it_was_repeated():
    seconds = np.array([1.0] + [2.0] * 99)
    groups = np.array(["a"] + ["b"] * 99)
    constant = fit(FeatureSet(("1",)), {}, seconds, groups)
    # minimum of (c - 1)^2 + (c / 2 - 1)^2
    assert constant.weights == pytest.approx([1.2])


def test_cross_validation_never_sees_the_group_it_predicts():
    columns, seconds, groups = decode_data(np.random.default_rng(4))
    spoiled = groups == "7"
    held_out = cross_validate(BENT, columns, np.where(spoiled, seconds * 50, seconds), groups)
    assert held_out[spoiled] == pytest.approx(seconds[spoiled], rel=1e-6)
    assert held_out[~spoiled] != pytest.approx(seconds[~spoiled], rel=1e-2)


def test_noise_is_the_spread_of_repeats():
    rng = np.random.default_rng(5)
    groups = np.repeat([f"g{i:02}" for i in range(40)], 50)
    seconds = np.repeat(rng.uniform(0.01, 1, 40), 50) * rng.normal(1, 0.02, 2000)
    seconds[groups == "g07"] *= rng.normal(1, 0.2, 50)
    noise = noise_of(seconds, groups)
    assert noise.median_cv == pytest.approx(0.02, rel=0.1)
    assert noise.median_ci95 == pytest.approx(2.01 * 0.02 / 50**0.5, rel=0.1)
    assert [line.split(":")[0] for line in noise.flaky] == ["g07"]
    assert noise.max_cv > 0.1
    assert noise_of(seconds[:3], np.array(["a", "b", "c"])) is None


def test_the_report_of_a_phase():
    columns, seconds, groups = decode_data(np.random.default_rng(6), noise=0.01)
    phase = phase_profile([STRAIGHT, BENT], columns, seconds, groups, groups, {"decode_seqs": (1, 64)})
    assert phase.error.method == "leave one of 60 configurations out"
    held_out = cross_validate(BENT, columns, seconds, groups)
    assert phase.error.worst == pytest.approx(np.max(np.abs(held_out / seconds - 1)))
    assert phase.error.mse_s2 == pytest.approx(np.mean((held_out - seconds) ** 2))
    assert phase.error.mape == pytest.approx(np.mean(np.abs(held_out / seconds - 1)))  # equal groups
    assert phase.floor_s == seconds.min() / 2
    assert phase.noise.median_cv == pytest.approx(0.01, rel=0.3)
    assert phase.range == {"decode_seqs": [1.0, 64.0]}
    assert {entry.term for entry in phase.terms} == TRUTH.keys()


def test_design_and_terms_describe_the_same_function():
    rng = np.random.default_rng(8)
    columns = feature_columns({"decode_seqs": rng.integers(0, 99, 40), "decode_ctx": rng.integers(0, 9999, 40)})
    features = FeatureSet(("1", "decode_seqs*decode_ctx"), (("decode_seqs", (10.0, 30.0)), ("decode_ctx", ())))
    weights = rng.uniform(0, 1, 6)
    total = sum(value * evaluate(parse_term(text), columns, 40) for text, value in features.as_terms(weights).items())
    assert features.design(columns, 40) @ weights == pytest.approx(total)


@pytest.fixture(scope="module")
def fitted(tmp_path_factory):
    """The script's output for a made-up machine, written as perf_model.csv would have it."""
    folder = tmp_path_factory.mktemp("fit")
    (folder / "tables").mkdir()
    shapes = [(p, 1, 128) for p in (128, 256, 512, 1024, 2048, 4096, 8192)]
    shapes += [(512, b, 128) for b in (2, 4, 8, 16, 32, 64)] + [(512, 1, t) for t in (256, 1024, 8192)]
    rows = []
    for hardware in ("h100-80gb", "h100-80gb-pcap"):
        for prompt, size, tokens in shapes * 3:
            prefill = 50 + 0.05 * max(0, prompt * size - 512) + 1e-6 * size * prompt * (prompt + 1) / 2
            decode = 30 + 0.25 * size + 1e-4 * size * (prompt + (tokens - 2) / 2)
            corrupt = 0.1 if size == 64 else 1.0
            rows.append({
                "model": "llama2-70b", "hardware": hardware, "prompt_size": prompt, "batch_size": size,
                "token_size": tokens, "prompt_time": prefill * corrupt * (9 if "pcap" in hardware else 1),
                "token_time": decode * corrupt, "tensor_parallel": 2,
            })
    pd.DataFrame(rows).to_csv(folder / "perf.csv")
    before = sys.argv
    sys.argv = ["fit", str(folder / "perf.csv"), "--out", str(folder)]
    try:
        runpy.run_path(str(SCRIPT), run_name="__main__")
    finally:
        sys.argv = before
    return folder


def test_the_script_fits_what_was_measured_and_leaves_out_what_is_corrupt(fitted):
    assert [path.name for path in fitted.glob("*.yaml")] == ["llama-2-70b-h100-tp2.yaml"]
    profile = load_profile(fitted / "llama-2-70b-h100-tp2.yaml")
    model = PolynomialModel(profile)
    for n in (300, 512, 3000, 8000):
        expected = 50 + 0.05 * max(0, n - 512) + 1e-6 * n * (n + 1) / 2
        assert model.step_ns(batch([(n, 0)], [])) / 1e6 == pytest.approx(expected, rel=0.01)
    assert model.step_ns(batch([], [700] * 48)) / 1e6 == pytest.approx(30 + 0.25 * 48 + 1e-4 * 48 * 700, rel=1e-6)
    assert profile.phases.decode.range == {
        "decode_seqs": [1, 32], "decode_ctx": [128, 32 * 638], "decode_ctx_max": [128, 8702],
    }
    assert len(profile.provenance.excluded) == 2


def test_the_script_writes_medians_per_product_of_prompt_and_batch(fitted):
    tables = load_table(fitted / "tables" / "splitwise-llama-2-70b-h100-tp2.yaml")
    points = dict(tables.decode.points)
    assert list(points) == [128, 256, 512, 1024, 2048, 4096, 8192, 16384]
    pair = [30 + 0.25 * size + 1e-4 * size * (prompt + 63) for size, prompt in ((2, 512), (1, 1024))]
    assert points[1024] == pytest.approx(np.mean(pair) / 1e3)  # median of three of each
    assert tables.prefill.x == "prefill_tokens"
