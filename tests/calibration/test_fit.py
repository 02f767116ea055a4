"""The fit: known machines are recovered, errors are of configurations it has not seen, nothing depends on chance."""

import json
import re
from dataclasses import replace

import numpy as np
import pytest
from hypothesis import HealthCheck, given
from hypothesis import strategies as st
from long_runs import quick_and_full
from machines import cpu_seconds, cpu_steps, gpu_and_mixed_steps, gpu_seconds, gpu_steps, grid, measured

from hermes.calibration.fit import fit_steps, write_profile
from hermes.calibration.fit.checks import refuse_falling, search_limits
from hermes.calibration.fit.data import FitRows, neighbour_error
from hermes.calibration.fit.estimators import HUBER, held_out_parts, solve
from hermes.calibration.fit.plot import save_plot
from hermes.calibration.fit.polynomial import choose, unseen
from hermes.calibration.steps import STATS, load_steps, save_steps
from hermes.cli import main
from hermes.errors import InputError
from hermes.hardware import StepStats, load_profile
from hermes.hardware.fitted.monotone import cheaper_steps, unproved
from hermes.hardware.fitted.polynomial import PolynomialModel
from hermes.hardware.fitted.profile import Profile
from hermes.testing.hardware import HardwareModelContract, batch


@pytest.fixture(scope="module")
def gpu():
    return fit_steps(gpu_steps(noise=0.01, repetitions=3))


@pytest.fixture(scope="module")
def apart():
    return fit_steps(gpu_and_mixed_steps())


@pytest.fixture(scope="module")
def cpu():
    return fit_steps(cpu_steps())


def fewer_decodes(steps):
    """All prefills, and the decodes of one length: for tests of the errors of prefills."""
    kept = (steps.rows["decode_seqs"] == 0) | (steps.rows["decode_ctx_max"] == 400)
    return replace(steps, rows=steps.rows[kept].reset_index(drop=True))


def relative(model, batches, seconds):
    return np.array([model.step_ns(batch(*entry)) / 1e9 / seconds(*entry) - 1 for entry in batches])


@pytest.mark.long
def test_a_gpu_is_recovered_where_it_was_not_measured(gpu):
    model = PolynomialModel(gpu.profile)
    unseen = [([(n, past)], []) for n in (200, 700, 3000, 6000, 12_000) for past in (0, 500, 4000)]
    unseen += [([], [context] * seqs) for seqs in (3, 24, 60, 110, 125) for context in (200, 3000, 9000)]
    errors = relative(model, unseen, gpu_seconds)
    assert np.mean(np.abs(errors)) < 0.015
    assert np.max(np.abs(errors)) < 0.06
    for phase in (gpu.profile.phases.prefill, gpu.profile.phases.decode):
        assert phase.error.mape < 0.016
        assert phase.error.in_sample_mape <= phase.error.mape <= phase.error.worst
        assert sum(group.points for group in phase.error.by_configuration) <= phase.points
    assert gpu.profile.phases.mixed is None


@pytest.mark.long
def test_where_steps_are_the_sum_of_their_parts_one_polynomial_is_fitted_to_all(cpu):
    assert [block.phases for block in cpu.blocks] == [("prefill", "decode", "mixed")]
    model = PolynomialModel(cpu.profile)
    assert model.bounds == []  # the shared polynomial is never below its parts, and the model sees that
    unseen = [([(300, 100)], []), ([(300, 100)], [700] * 5), ([], [700] * 12), ([(20, 900), (3, 5)], [30, 1400])]
    assert np.max(np.abs(relative(model, unseen, lambda p, c: cpu_seconds(p, c) + 0.001))) < 0.03


@pytest.mark.long
def test_separate_polynomials_where_the_phases_differ(apart):
    assert ("decode",) in [block.phases for block in apart.blocks]
    assert len(apart.schemes) == 3
    model = PolynomialModel(apart.profile)
    assert np.mean(np.abs(relative(model, list(grid()), gpu_seconds))) < 0.015
    rows = apart.steps.rows
    mixed = rows[(rows["prefill_tokens"] > 0) & (rows["decode_seqs"] > 0)]
    steps = [StepStats(**row) for row in mixed[list(STATS)].to_dict("records")]
    rises = np.array([model.step_ns(stats) / model.mixed.step(stats) - 1 for stats in steps])
    assert 0 < np.mean(rises > 0) < 1  # mixed steps were made 10% too short: some cost less than their prefill alone
    assert 0.02 < rises.max() < 0.12


@pytest.mark.long
def test_the_overhead_is_a_parameter_where_it_was_measured(cpu, gpu):
    assert cpu.profile.overhead_s == pytest.approx(0.001, rel=0.02)
    assert gpu.profile.overhead_s == 0
    assert any("overhead" in line for line in gpu.limits)
    assert not any("overhead" in line for line in cpu.limits)


@pytest.mark.feature("Measuring and fitting", "`hermes fit`, with errors on configurations it has not seen")
def test_reported_errors_are_of_fits_that_never_saw_the_configuration():
    steps = fewer_decodes(gpu_steps(noise=0.002))
    name = "[(1024, 0)] 0 x []"
    spoiled = steps.rows["configuration"] == name
    rows = steps.rows.assign(time_s=np.where(spoiled, 5 * steps.rows["time_s"], steps.rows["time_s"]))
    held_out = fit_steps(replace(steps, rows=rows)).held_out
    true = steps.rows.loc[spoiled, "time_s"].iloc[0]
    assert held_out.loc[held_out["configuration"] == name, "predicted"].iloc[0] == pytest.approx(true, rel=0.05)


def test_cross_validation_predicts_every_row_once_and_without_its_fold():
    rows = FitRows.of(gpu_steps(noise=0.05).usable(), 0.0)
    rows = rows.where(rows.phase == "decode")
    terms = choose(rows, ("decode",)).terms
    predicted = unseen(rows, ("decode",), terms)
    changed = rows.seconds.copy()
    changed[rows.configuration == rows.configuration[3]] *= 3
    again = unseen(replace(rows, seconds=changed), ("decode",), terms)
    assert again[3] == predicted[3]
    assert np.all(np.isfinite(predicted))
    assert np.mean(again != predicted) > 0.5


def test_folds_keep_configurations_together_and_do_not_depend_on_order():
    names = np.repeat([f"c{i}" for i in range(23)], 3)
    fold = held_out_parts(names, 8)
    assert sorted(set(fold)) == list(range(8))
    assert all(len(set(fold[names == name])) == 1 for name in names)
    order = np.random.default_rng(1).permutation(len(names))
    assert held_out_parts(names[order], 8).tolist() == fold[order].tolist()


def test_excluded_rows_are_not_used_and_are_listed():
    steps = gpu_steps(noise=0.002, every=2)
    bad = np.arange(len(steps.rows)) % 4 == 0
    rows = steps.rows.assign(
        time_s=np.where(bad, 7 * steps.rows["time_s"], steps.rows["time_s"]), excluded=np.where(bad, "contended", "")
    )
    result = fit_steps(replace(steps, rows=rows))
    assert len(result.held_out) == (~bad).sum()
    assert result.excluded == [f"contended: {bad.sum()} rows"]
    assert result.profile.provenance.excluded == result.excluded
    assert result.profile.phases.decode.error.mape < 0.01


def test_repetitions_that_scatter_are_rejected_and_flaky_ones_named():
    steps = fewer_decodes(gpu_steps(noise=0.005, repetitions=4))
    rows = steps.rows.copy()
    wild = rows.index[rows["configuration"] == "[(512, 0)] 0 x []"]
    flaky = rows.index[rows["configuration"] == "[(2048, 0)] 0 x []"]
    rows.loc[wild, "time_s"] *= [1, 1, 1, 9]
    rows.loc[flaky, "time_s"] *= [1, 1, 1, 1.7]
    result = fit_steps(replace(steps, rows=rows))
    assert any("[(512, 0)]" in line and "rejected" in line for line in result.excluded)
    noise = result.profile.phases.prefill.noise
    assert noise.classes["flaky"] == 1
    assert "[(2048, 0)]" in noise.flaky[0]
    assert noise.classes["excellent"] == sum(noise.classes.values()) - 1
    assert result.profile.phases.prefill.error.fixed_features_mape < 0.03


def test_neighbours_in_time_tell_the_noise_where_nothing_was_repeated():
    rng = np.random.default_rng(4)
    entries = [([], [100 + i] * 8) for i in range(4000)]
    seconds = [0.01 * rng.normal(1, 0.03) for _ in entries]
    rows = measured(entries, seconds, ["one"] * len(entries)).rows
    # |mean of two - one| of normal errors: 0.03 * sqrt(1.5) * sqrt(2 / pi)
    assert neighbour_error(rows) == pytest.approx(0.03 * 1.5**0.5 * (2 / np.pi) ** 0.5, rel=0.05)
    assert neighbour_error(rows.sample(frac=1, random_state=1)) == neighbour_error(rows)
    assert neighbour_error(rows.iloc[::2]) is None  # not beside each other
    assert neighbour_error(rows.assign(configuration=[str(i % 2) for i in range(4000)])) is None
    assert neighbour_error(rows.iloc[:20]) is None


def test_a_few_wild_rows_do_not_move_the_fit():
    rng = np.random.default_rng(3)
    x = rng.uniform(1, 100, 200)
    matrix = np.column_stack([np.ones(200), x])
    target = 5 + 0.3 * x + rng.normal(0, 0.1, 200)
    target[:8] += 40
    robust = solve(matrix, target, relative=False, huber=HUBER)
    assert robust == pytest.approx([5, 0.3], rel=0.03)
    plain = solve(matrix, target, relative=False)
    assert abs(plain[0] - 5) > 10 * abs(robust[0] - 5)



def test_coefficients_are_never_negative_even_where_times_fall():
    seqs = np.arange(1, 41, 2)
    steps = [([], [100] * int(n)) for n in seqs] + [([(int(n) * 50, 0)], []) for n in seqs]
    seconds = [0.1 - 0.001 * len(c) if c else 0.05 + 1e-5 * p[0][0] for p, c in steps]
    profile = fit_steps(measured(steps, seconds, [str(i) for i in range(len(steps))])).profile
    assert [term.term for term in profile.phases.decode.terms] == ["1"]
    assert unproved(profile) == {}


def test_what_the_data_cannot_tell_is_said(gpu):
    alike = [([(n, 0)], []) for n in (64, 128, 256, 512, 1024, 2048)]
    alike += [([], [1000] * n) for n in (1, 2, 4, 8, 16, 32)]
    result = fit_steps(measured(alike, [gpu_seconds(*entry) for entry in alike], [str(entry) for entry in alike]))
    text = " | ".join(result.limits)
    assert "prefill_past is 0 in every step" in text
    assert "decode_ctx_max is 1000 in every step" in text
    assert "decode_ctx follows from the other features (R^2 1.000, most of all decode_seqs)" in text
    assert "no step with prefill and decode was measured" in text
    assert result.profile.provenance.notes == result.limits
    assert not any("follows" in line for line in gpu.limits if line.startswith("decode"))


@pytest.mark.long
def test_same_steps_same_bytes(tmp_path):
    steps = gpu_steps(noise=0.01, every=4)
    written = []
    for name in ("a", "b"):
        folder = tmp_path / name
        save_steps(steps, folder / "steps.yaml")
        result = fit_steps(load_steps(folder / "steps.yaml"), "known")
        write_profile(result, folder / "profile.yaml")
        save_plot(result, folder / "plot.png")
        written.append({file.name: file.read_bytes() for file in folder.iterdir()})
    assert written[0] == written[1]
    assert load_profile(tmp_path / "a" / "profile.yaml").name == "known"
    assert len(written[0]["profile.yaml"]) < 15_000


def test_the_profile_holds_candidates_ranges_noise_and_limits(gpu):
    phases = gpu.profile.phases
    decode = phases.decode
    assert any("degree 2 with hinges" in name for part in (phases.prefill, decode) for name in part.error.candidates)
    assert decode.range["decode_seqs"] == [1, 128]
    assert decode.noise.classes
    assert decode.noise.median_ci95 > 0
    assert gpu.profile.provenance.source == "made up"
    assert set(gpu.limits) <= set(gpu.profile.provenance.notes)
    worst = decode.error.by_configuration
    assert [group.mape for group in worst] == sorted((group.mape for group in worst), reverse=True)


@pytest.mark.parametrize(
    ("keep", "message"),
    [
        (lambda rows: rows["decode_seqs"] == 0, "steps with prefill and steps with decode, found only prefill steps"),
        (lambda rows: rows["decode_seqs"] > 0, "found only decode steps"),
        (lambda rows: (rows["decode_seqs"] == 0) | (rows["decode_ctx"] == 100), "at least 3 configurations"),
        (lambda rows: rows["time_s"] < 0, "steps that are not excluded, found none"),
    ],
)
def test_steps_that_cannot_carry_a_profile_are_refused(keep, message, tmp_path, capsys):
    steps = gpu_steps()
    steps = replace(steps, rows=steps.rows[keep(steps.rows)].reset_index(drop=True))
    save_steps(steps, tmp_path / "steps.yaml")
    assert main(["fit", str(tmp_path / "steps.yaml")]) == 2
    error = capsys.readouterr().err
    assert message in error
    assert error.count("\n") == 1


@pytest.mark.parametrize(
    ("column", "values", "message"),
    [
        ("time_s", lambda rows: rows["time_s"] * 1e6, "step times in seconds, up to 1000"),
        ("time_s", lambda rows: -rows["time_s"], "times above 0"),
        ("decode_seqs", lambda rows: rows["decode_seqs"].where(rows.index > 3), "numbers in the columns of numbers"),
        ("prefill_tokens", lambda rows: "many", "numbers in the columns of numbers"),
        ("decode_ctx", lambda rows: -5, "statistics of at least 0"),
        ("prefill_seqs", lambda rows: 1, "prompts where there are prompt tokens"),
    ],
)
def test_rows_that_are_no_steps_are_one_line(column, values, message, tmp_path, capsys):
    steps = gpu_steps()
    save_steps(steps, tmp_path / "steps.yaml")
    steps.rows.assign(**{column: values(steps.rows)}).to_parquet(tmp_path / "steps.parquet", index=False)
    text = (tmp_path / "steps.yaml").read_text()
    (tmp_path / "steps.yaml").write_text(re.sub("(?m)^sha256: .*$", "", text))
    assert main(["fit", str(tmp_path / "steps.yaml")]) == 2
    error = capsys.readouterr().err
    assert message in error
    assert error.count("\n") == 1


def test_a_profile_that_falls_is_refused(gpu):
    data = gpu.profile.model_dump()
    data["phases"]["decode"]["terms"].append({"term": "decode_ctx_max", "seconds": -1e-9})
    with pytest.raises(InputError, match="never fall, found decode: decode_ctx_max"):
        refuse_falling(Profile.model_validate(data))


@pytest.mark.long
def test_the_command_writes_what_it_says(tmp_path, capsys):
    save_steps(gpu_steps(noise=0.01, every=4), tmp_path / "steps.yaml")
    files = {name: str(tmp_path / name) for name in ("p.yaml", "f.png")}
    assert main(["fit", str(tmp_path / "steps.yaml"), "-o", files["p.yaml"], "--plot", files["f.png"],
                 "--name", "mine"]) == 0
    out = capsys.readouterr().out
    assert "mine: errors on held-out configurations" in out
    assert (tmp_path / "f.png").read_bytes().startswith(b"\x89PNG")
    profile = load_profile(tmp_path / "p.yaml")
    assert main(["fit", str(tmp_path / "steps.yaml"), "--json", "--name", "mine"]) == 0
    shown = json.loads(capsys.readouterr().out)
    assert shown["profile"]["phases"]["decode"]["error"]["mape"] == pytest.approx(profile.phases.decode.error.mape)
    assert main(["fit", str(tmp_path / "no.yaml")]) == 2


class TestFittedProfile(HardwareModelContract):
    """Phases fitted apart from each other, so mixed steps are bounded by their parts."""

    @pytest.fixture(autouse=True)
    def _fitted(self, apart):
        self.profile = apart.profile

    def make(self):
        model = PolynomialModel(self.profile)
        assert model.bounds
        return model


row = st.tuples(
    st.lists(st.tuples(st.integers(1, 3000), st.integers(0, 5000)), max_size=3),
    st.lists(st.integers(1, 4000), max_size=40),
).filter(lambda entry: any(entry))


@quick_and_full(2, 6, suppress_health_check=[HealthCheck.too_slow])
@given(st.lists(row, min_size=18, max_size=30), st.integers(0, 2**32 - 1))
def test_whatever_was_measured_the_profile_is_positive_finite_and_monotone(entries, seed):
    """Times without any relation to the batches: the worst a fit can get."""
    entries = [*entries, *(([(n, 0)], []) for n in (5, 50, 500)), *(([], [n]) for n in (5, 50, 500))]
    seconds = np.exp(np.random.default_rng(seed).normal(-3, 1, len(entries)))
    try:
        profile = fit_steps(measured(entries, seconds, [str(i) for i in range(len(entries))])).profile
    except InputError as error:
        assert "at least 3 configurations" in str(error)
        return
    model = PolynomialModel(profile)
    assert cheaper_steps(model, search_limits(profile), count=60, seed=seed) == []
    for entry in entries:
        run = model.run_ns(batch(*entry), 20)
        assert np.all(run >= 1)
        assert np.all(np.diff(run) >= 0)
        assert run[0] == model.step_ns(batch(*entry))
