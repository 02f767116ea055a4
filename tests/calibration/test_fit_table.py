"""Regressors of scikit-learn on measured steps, stored as tables: errors, files, refusals."""

import json

import numpy as np
import pytest
from machines import gpu_steps

import hermes
from hermes.calibration.fit.table import RelativeRegressor, fit_table, regressor
from hermes.calibration.steps import save_steps
from hermes.cli import main
from hermes.hardware.table import TableModel, load_table
from hermes.testing.hardware import HardwareModelContract, batch


def fit_trees():
    """Each configuration is held out once: a third of the grid are few enough fits."""
    estimator = regressor("ExtraTreesRegressor", {"n_estimators": 20})
    return fit_table(gpu_steps(noise=0.01, every=3), "trees", estimator, "Trees")


@pytest.fixture(scope="module")
def trees():
    return fit_trees()


class TestSampledTable(HardwareModelContract):
    """A table of a regressor can be simulated with."""

    examples = 60

    @pytest.fixture(autouse=True)
    def _fitted(self, trees):
        self.tables = trees.tables

    def make_model(self):
        return TableModel(self.tables)


def test_errors_are_held_out_and_the_table_is_compared_with_the_regressor(trees):
    assert set(trees.held_out) == {"prefill", "decode"}
    for phase, error in trees.held_out.items():
        assert error.in_sample_mape < error.mape < 0.3
        assert set(error.candidates) == {"seconds, relative weights", "logarithms of seconds"}
        mape, worst = trees.sampling[phase]
        assert mape <= worst < 0.5
        table = getattr(trees.tables, phase)
        assert (table.error, table.sampling_mape) == (error, mape)
        assert error.mape == pytest.approx(min(error.candidates.values()))


def test_a_linear_regressor_is_sampled_without_loss():
    found = fit_table(gpu_steps(), "line", regressor("LinearRegression", {}), "LinearRegression")
    assert found.sampling["decode"][0] < 0.01


def test_same_steps_same_table(trees):
    assert fit_trees().tables == trees.tables


def test_every_configuration_counts_the_same_and_errors_are_relative():
    steps = gpu_steps(noise=0.01).rows
    decodes = steps[steps["prefill_tokens"] == 0]
    from hermes.calibration.fit.data import FitRows

    rows = FitRows.of(decodes, 0.0)
    model = RelativeRegressor(regressor("Ridge", {"alpha": 1e-6}), ("decode_seqs", "decode_ctx"))
    found = model.fit(rows.matrix, rows.seconds, groups=rows.configuration).predict(rows.matrix)
    assert np.abs(found / rows.seconds - 1).mean() < 0.1


def test_the_command_writes_a_table_that_a_scenario_runs_with(tmp_path, capsys):
    save_steps(gpu_steps(noise=0.01, every=3), tmp_path / "steps.yaml")
    out = tmp_path / "table.yaml"
    command = ["fit", str(tmp_path / "steps.yaml"), "--estimator", "RandomForestRegressor", "--estimator-set",
               "n_estimators=10", "--estimator-set", "max_depth=6"]
    assert main([*command, "-o", str(out), "--name", "mine"]) == 0
    text = capsys.readouterr().out
    assert "held-out" in text
    assert "table MAPE" in text
    tables = load_table(out)
    assert tables.name == "mine"
    assert "RandomForestRegressor --estimator-set n_estimators=10" in tables.provenance.fitted_by
    assert tables.decode.error.mape > 0
    results = hermes.simulate({
        "workload": {"requests": 5, "arrivals": {"kind": "poisson", "rate": 2},
                     "lengths": {"kind": "fixed", "prompt": 500, "output": 20}},
        "clients": [{"hardware": {"kind": "table", "profile": str(out)}, "memory": {"num_blocks": 10_000}}],
    })
    assert results.summary["requests"]["completed"] == 5
    assert main([*command, "--json"]) == 0
    shown = json.loads(capsys.readouterr().out)
    assert shown["table"]["decode"]["error"]["mape"] == pytest.approx(tables.decode.error.mape, rel=1e-6)
    assert TableModel(tables).step_ns(batch([], [500] * 8)) > 0


@pytest.mark.parametrize(("arguments", "message"), [
    (["--estimator", "RandomForrestRegressor"], "did you mean 'RandomForestRegressor'"),
    (["--estimator", "StackingRegressor"], "needs no other"),
    (["--estimator", "Ridge", "--estimator-set", "alfa=3"], "a parameter of Ridge: alpha"),
    (["--estimator", "Ridge", "--estimator-set", "alpha"], "KEY=VALUE"),
    (["--estimator", "Ridge", "--estimator-set", "alpha=-3"], "The 'alpha' parameter of Ridge must be"),
    (["--estimator", "IsotonicRegression"], "1d array"),
    (["--estimator-set", "alpha=3"], "--estimator NAME"),
    (["--estimator", "Ridge", "--report", "r.md"], "no --report"),
])
def test_mistakes_are_one_line(arguments, message, tmp_path, capsys):
    save_steps(gpu_steps(), tmp_path / "steps.yaml")
    assert main(["fit", str(tmp_path / "steps.yaml"), *arguments]) == 2
    error = capsys.readouterr().err
    assert message in error
    assert error.count("\n") == 1
