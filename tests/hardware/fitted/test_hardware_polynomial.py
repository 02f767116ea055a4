"""The polynomial model: which phase prices a step, floors, ranges, and the shipped profiles."""

import hashlib
import re

import numpy as np
import pytest
import yaml
from each import each

from hermes.calibration.fit.checks import search_limits
from hermes.errors import InputError
from hermes.hardware import HARDWARE, StepStats, load_model, load_profile
from hermes.hardware.descriptions.files import names_in
from hermes.hardware.fitted.monotone import cheaper_steps, unproved
from hermes.hardware.fitted.polynomial import PolynomialModel
from hermes.hardware.fitted.profile import Profile, dump_yaml
from hermes.testing.hardware import advanced, batch, columns_of

SHIPPED = names_in("")
SPLITWISE = [name for name in SHIPPED if name.startswith(("llama-2-70b-", "bloom-176b-"))]


def shipped(name, **options):
    return HARDWARE.get("polynomial").model_validate({"kind": "polynomial", "profile": name, **options}).build()


def profile(phases, **changes):
    provenance = {
        "source": "test", "hardware": "h", "engine": "e", "model": "m", "dtype": "bf16", "date": "2026-01-01",
    }
    data = {"format": "hermes-profile/1", "name": "test", "provenance": provenance}
    data["phases"] = {
        phase: {"terms": [{"term": k, "seconds": v} for k, v in terms.items()]} | changes.get(phase, {})
        for phase, terms in phases.items()
    }
    return Profile.model_validate(data)


@pytest.mark.feature("Hardware", "Fitted profiles: `polynomial`")
def test_each_kind_of_step_is_priced_by_its_phase():
    model = PolynomialModel(profile({
        "prefill": {"1": 0.001, "prefill_tokens": 1e-6},
        "decode": {"1": 0.002, "decode_ctx": 1e-9},
        "mixed": {"1": 0.003, "tokens": 1e-7, "decode_ctx": 2e-9},
    }))
    assert model.step_ns(batch([(100, 50), (20, 0)], [])) == 1_000_000 + 120_000
    assert model.run_ns(batch([], [10, 20]), 3).tolist() == [2_000_030, 2_000_032, 2_000_034]
    assert model.run_ns(batch([(8, 0)], [10, 20]), 3).tolist() == [3_001_060, 3_001_064, 3_001_068]


def test_mixed_steps_are_composed_when_none_was_measured():
    model = PolynomialModel(profile({
        "prefill": {"1": 0.001, "prefill_tokens": 1e-6, "max(prefill_tokens-100,0)": 1e-6, "prefill_attn": 1e-9},
        "decode": {"1": 0.0005, "decode_seqs": 1e-4, "decode_ctx": 1e-9},
    }))
    # 1 ms + (98 + 5) us + 3 us past the knot + attention pairs 98 * 10 + 98 * 99 / 2 + context 5 * 200
    assert model.step_ns(batch([(98, 10)], [200] * 5)) == 1_000_000 + 103_000 + 3_000 + 980 + 4851 + 1000
    # thirty decodes beside one prompt token: never below what the decodes alone need, context apart
    assert model.step_ns(batch([(1, 0)], [200] * 30)) == 500_000 + 3_000_000 + 6000


def test_a_mixed_step_takes_at_least_as_long_as_its_decodes_and_its_prefill():
    for name in SHIPPED:
        model = shipped(name)
        for tokens in (1, 64, 511, 2048, 9000):
            for seqs in (1, 16, 64):
                both = model.step_ns(batch([(tokens, 100)], [500] * seqs))
                assert both >= model.step_ns(batch([(tokens, 100)], [])), name
                assert both >= model.step_ns(batch([], [500] * seqs)), name


def test_a_measured_mixed_phase_is_never_below_its_prefills_or_its_decodes():
    model = PolynomialModel(profile({
        "prefill": {"1": 0.002, "tokens": 1e-6, "sampled": 1e-5},
        "decode": {"1": 0.003, "seqs": 1e-4, "sampled": 1e-5, "decode_ctx": 1e-9},
        "mixed": {"1": 0.001, "tokens": 1e-6, "decode_ctx": 1e-8},
    }))
    # 2 prefills of 4000 tokens alone: 2 ms + 8 ms + 2 x 10 us; the mixed polynomial says 1 ms + 8.001 ms
    assert model.step_ns(batch([(4000, 0)] * 2, [50])) == 10_020_000
    # 4 decodes alone: 3 ms + 4 x 110 us + 200 x 1 ns; the prompt token is one more sampled, not one of theirs
    assert model.step_ns(batch([(1, 0)], [50] * 4)) == 3_440_200
    # and the mixed polynomial where it is the highest
    assert model.step_ns(batch([(4000, 0)] * 2, [100_000] * 5)) == 1_000_000 + 8_005_000 + 5_000_000
    stats = batch([(1, 0)], [50_000] * 4)
    run = model.run_ns(stats, 50_000)
    assert run.tolist()[::9999] == [model.step_ns(advanced(stats, j)) for j in range(0, 50_000, 9999)]


def test_a_mixed_phase_that_contains_the_others_needs_no_bounds():
    parts = {"1": 0.001, "tokens": 1e-6}
    whole = parts | {"decode_ctx": 1e-8, "prefill_attn": 1e-9}
    model = PolynomialModel(profile({
        "prefill": parts | {"prefill_attn": 1e-9}, "decode": parts | {"decode_ctx": 1e-8}, "mixed": whole,
    }))
    assert model.bounds == []
    less = whole | {"decode_ctx": 0.9e-8}
    model = PolynomialModel(profile({"prefill": parts, "decode": parts | {"decode_ctx": 1e-8}, "mixed": less}))
    assert len(model.bounds) == 1


def test_times_below_the_floor_are_raised_to_it():
    model = PolynomialModel(profile(
        {"prefill": {"1": 0.001, "prefill_tokens": -1e-6}, "decode": {"1": 0.001, "decode_ctx": -1e-8}},
        prefill={"floor_s": 0.0002}, decode={"floor_s": 0.0003},
    ))
    assert [model.step_ns(batch([(n, 0)], [])) for n in (700, 800, 801, 5000)] == [300_000, 200_000, 200_000, 200_000]
    assert model.run_ns(batch([], [69_990] * 2), 8).min() == 300_000
    assert model.run_ns(batch([], [34_990] * 2), 8).tolist() == [300_200 - 20 * j if j < 10 else 0 for j in range(8)]
    assert model.step_ns(batch([(1, 0)], [99_999])) == 300_000


def test_scale_multiplies_every_time():
    for stats in (batch([(700, 0)], []), batch([], [900] * 9), batch([(300, 0)], [900] * 9)):
        once, twice = (
            shipped("splitwise-2023-llama-2-70b-h100-tp8", scale=scale).step_ns(stats) for scale in (1.0, 2.0)
        )
        assert abs(twice - 2 * once) <= 1


@pytest.mark.parametrize("phase", ["prefill", "decode"])
def test_changing_one_coefficient_by_one_percent_changes_predictions(phase):
    original = load_profile("splitwise-2023-llama-2-70b-h100-tp8")
    cases = [batch([(n, 0)], []) for n in (300, 3000, 6000, 30_000)] + [batch([], [n] * 40) for n in (64, 2000)]
    before = [PolynomialModel(original).step_ns(stats) for stats in cases]
    for index in range(len(getattr(original.phases, phase).terms)):
        data = original.model_dump()
        data["phases"][phase]["terms"][index]["seconds"] *= 1.01
        after = [PolynomialModel(Profile.model_validate(data)).step_ns(stats) for stats in cases]
        assert after != before, original.phases.decode.terms[index]


def test_out_of_range_counts_steps():
    model = PolynomialModel(profile(
        {"prefill": {"prefill_tokens": 1e-6}, "decode": {"1": 1e-3, "decode_ctx": 1e-9}},
        prefill={"range": {"prefill_tokens": [100, 1000]}},
        decode={"range": {"decode_seqs": [1, 4], "decode_ctx": [100, 200], "decode_ctx_max": [50, 120]}},
    ))
    runs = [
        (batch([(99, 0)], []), 1, 1),
        (batch([(100, 0)], []), 1, 0),
        (batch([(1001, 0)], []), 2, 2),
        (batch([], [60, 50]), 46, 0),        # 110, 112, ..., 200
        (batch([], [60, 50]), 50, 4),
        (batch([], [45, 45]), 10, 5),        # below 100 until the sixth step
        (batch([], [110]), 30, 19),          # the longest context passes 120 after 11 steps
        (batch([], [25] * 5), 3, 3),         # five decodes were never measured
        (batch([(97, 0)], [60, 60]), 1, 1),  # 99 tokens
        (batch([(98, 0)], [60, 60]), 1, 0),  # 100 tokens
    ]
    out = model.out_of_range(columns_of([stats for stats, _, _ in runs]), np.array([k for _, k, _ in runs]))
    assert out.tolist() == [expected for _, _, expected in runs]


def test_a_measured_mixed_phase_has_its_own_range():
    model = PolynomialModel(profile(
        {"prefill": {"1": 1e-3}, "decode": {"1": 1e-3}, "mixed": {"1": 1e-3}},
        prefill={"range": {"prefill_tokens": [1, 1]}}, mixed={"range": {"tokens": [10, 20]}},
    ))
    stats = [batch([(n, 0)], [5] * 5) for n in (4, 5, 15, 16)]
    assert model.out_of_range(columns_of(stats), np.ones(4, dtype=np.int64)).tolist() == [1, 0, 0, 1]


def test_a_phase_cannot_use_features_its_steps_do_not_have():
    with pytest.raises(ValueError, match=r"features of a decode step \(.*\), found 'prefill_tokens'"):
        profile({"prefill": {"1": 1.0}, "decode": {"prefill_tokens": 1.0}})
    with pytest.raises(ValueError, match="features of a prefill step"):
        profile({"prefill": {"decode_ctx": 1.0}, "decode": {"1": 1.0}})


@each("name", SHIPPED)
class TestShippedProfiles:
    def test_it_names_its_model_and_its_source(self, name):
        loaded = load_profile(name)
        source = loaded.provenance
        assert loaded.name == name
        assert len(source.sha256) == len(hashlib.sha256().hexdigest())
        assert all((source.source, source.hardware, source.engine, source.model, source.dtype, source.notes))
        if name in SPLITWISE:
            assert load_model(source.model).name in name
            assert any("pcap" in line for line in source.excluded)
            assert ("corrupt" in " ".join(source.excluded)) == (source.tensor_parallel == 2)

    def test_errors_are_those_of_steps_that_were_held_out(self, name):
        phases = load_profile(name).phases
        for phase in (phases.prefill, phases.decode, *([phases.mixed] if phases.mixed else [])):
            error = phase.error
            assert 0 < error.in_sample_mape <= 1.25 * error.mape  # terms chosen without a part may be the luckier ones
            assert error.mape <= error.worst
            assert error.fixed_features_mape <= 2 * error.mape
            worst = [group.mape for group in error.by_configuration]
            assert worst == sorted(worst, reverse=True)
            assert worst[0] >= error.mape
            assert "held out" in error.method
            assert phase.range

    def test_splitwise_errors_are_what_that_data_allows(self, name):
        if name in SPLITWISE:
            phases = load_profile(name).phases
            assert 0.005 < phases.decode.error.mape < 0.05
            assert 0.02 < phases.prefill.error.mape < 0.14
            for phase in (phases.prefill, phases.decode):
                assert phase.noise.median_cv < phase.error.mape + 0.01
                assert set(phase.noise.classes) <= {"excellent", "good", "flaky"}

    def test_it_is_proved_monotone_and_no_exception_is_found_over_ten_times_its_range(self, name):
        profile = load_profile(name)
        assert unproved(profile) == {}
        assert cheaper_steps(PolynomialModel(profile), search_limits(profile), count=60) == []

    def test_times_are_positive_and_finite_and_never_fall_over_ten_times_the_range(self, name):
        model, limits = shipped(name), search_limits(load_profile(name))

        def sweep(most, make):
            times = [model.step_ns(make(int(n))) for n in np.unique(np.geomspace(1, most, 60).astype(int))]
            assert times == sorted(times)
            assert 0 < times[0] <= times[-1] < 3600e9

        sweep(limits["tokens"], lambda n: batch([(n, 0)], []))
        sweep(limits["past"], lambda n: batch([(512, n)], []))
        sweep(limits["seqs"], lambda n: batch([], [300] * n))
        sweep(limits["context"], lambda n: batch([], [n] * 8))
        sweep(limits["context"], lambda n: batch([], [n, *[64] * 7]))
        sweep(limits["tokens"], lambda n: batch([(n, 0)], [500] * 30))
        sweep(limits["seqs"], lambda n: batch([(256, 64)], [500] * n))
        run = model.run_ns(batch([], [1] * 8), 20_000)
        assert np.all(np.diff(run) >= 0)

    def test_having_more_to_do_is_not_cheaper_where_one_kind_of_step_becomes_another(self, name):
        model = shipped(name)
        for contexts in ([10], [500] * 8, [3000] * 64, [200] * 300):
            before = model.step_ns(batch([], contexts))
            assert [model.step_ns(batch([(n, 0)], contexts)) >= before for n in (1, 16, 500)] == [True] * 3
        for prefills in ([(1, 0)], [(64, 4000)], [(2048, 0)], [(100, 10)] * 8, [(16_000, 0)]):
            before = model.step_ns(batch(prefills, []))
            assert [model.step_ns(batch(prefills, [c])) >= before for c in (1, 500, 8000)] == [True] * 3

    def test_even_the_smallest_step_is_no_shorter_than_the_floor(self, name):
        model, phases = shipped(name), load_profile(name).phases
        assert model.step_ns(StepStats(prefill_seqs=1, prefill_tokens=1)) >= round(1e9 * phases.prefill.floor_s)
        assert model.step_ns(StepStats(decode_seqs=1)) >= round(1e9 * phases.decode.floor_s)


# medians of the measurements the profiles were fitted on, in ms: (prompt, batch) -> prompt time, token time
MEASURED = {
    "splitwise-2023-llama-2-70b-h100-tp8": {
        (512, 1): (53.8, 30.8), (2048, 1): (136.8, 31.05), (512, 16): (811.9, 34.17),
    },
    "splitwise-2023-llama-2-70b-h100-tp2": {
        (512, 1): (83.9, 37.2), (512, 32): (2397.8, 52.3), (8192, 1): (1339.8, 37.8),
    },
    "splitwise-2023-bloom-176b-a100-tp8": {
        (512, 1): (174.4, 49.5), (512, 16): (3510.1, 57.3), (8192, 1): (3593.2, 51.3),
    },
}


@pytest.mark.parametrize("name", MEASURED)
def test_shipped_profiles_are_near_the_measured_medians(name):
    model = shipped(name)
    for (prompt, size), (prompt_ms, token_ms) in MEASURED[name].items():
        assert model.step_ns(batch([(prompt, 0)] * size, [])) / 1e6 == pytest.approx(prompt_ms, rel=0.15)
        assert model.step_ns(batch([], [prompt + 63] * size)) / 1e6 == pytest.approx(token_ms, rel=0.06)


def test_profiles_can_be_written_and_read_back(tmp_path):
    for name in SHIPPED:
        loaded = load_profile(name)
        dump_yaml(loaded, tmp_path / "copy.yaml", "a copy\nof two lines")
        assert load_profile("copy.yaml", tmp_path) == loaded
        assert (tmp_path / "copy.yaml").read_text().startswith("# a copy\n# of two lines\nformat: hermes-profile/1\n")


def test_profiles_are_found_by_name_and_by_path(tmp_path):
    with pytest.raises(InputError, match=r"did you mean 'splitwise-2023-llama-2-70b-h100-tp8'"):
        shipped("splitwise-2023-llama-2-70b-h100-tp9")
    text = yaml.safe_dump(load_profile("splitwise-2023-llama-2-70b-h100-tp8").model_dump())
    (tmp_path / "own.yaml").write_text(re.sub("name: splitwise.*", "name: own", text))
    component = HARDWARE.get("polynomial").model_validate({"kind": "polynomial", "profile": "own.yaml"})
    model = component.build(tmp_path)
    assert model.name == "own"
    assert "llama-2-70b" in model.description
    with pytest.raises(InputError, match=r"an existing file, found 'own\.yaml'"):
        component.build(tmp_path / "elsewhere")
