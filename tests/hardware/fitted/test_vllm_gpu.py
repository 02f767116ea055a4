"""Recorded vLLM 0.19.0 runs on two GPUs against the simulation over the operator tables of the same cards."""


import numpy as np
import pytest
from outside import OUTSIDE
from scripts_loaded import load

from hermes.errors import InputError
from hermes.hardware.fitted.layerwise import STAIRS
from hermes.hardware.fitted.operator_tables import load_operator_tables

study = load("scripts/validate_vllm_gpu.py")

study.REFERENCE = OUTSIDE / "data" / "vllm-runs"
pytestmark = pytest.mark.outside("data/vllm-runs")


@pytest.mark.feature("Measuring and fitting", "Agreement with recorded engines")
@pytest.mark.parametrize("case", study.CASES)
def test_means_within_two_percent_and_percentiles_within_four(case):
    outcome = study.run(case, study.REFERENCE / study.CASES[case])
    assert len(outcome.rows) == 12
    assert not [row for row in outcome.rows if not row.ok]


@pytest.mark.long
def test_every_cause_is_worth_something_on_the_card_where_it_binds():
    """Companion of the figures: leaving a cause out moves the prediction, and in the direction it must."""
    case = "vllm-0.19-rtx-4090"
    folder = study.REFERENCE / study.CASES[case]
    whole = study.run(case, folder)
    assert whole.preemptions > 100
    slower = study.run(case, folder, "no prefix hits")
    assert slower.cached_tokens == 0
    assert slower.error("e2e", "mean") > whole.error("e2e", "mean") + 0.03
    assert study.run(case, folder, "equal decode contexts").error("tpot", "mean") < whole.error("tpot", "mean")
    hidden = study.run(case, folder, "1 ms of the engine's time a step, hidden")
    assert [row.ours_s for row in hidden.rows] == [row.ours_s for row in whole.rows]


def test_matrix_products_are_stairs():
    """With every other measured point left out, the point above predicts it several times better than a line does."""
    for folder in study.CASES.values():
        tables = load_operator_tables(study.REFERENCE / folder / "profile")
        errors = []
        for name in STAIRS - {"lm_head"}:
            tokens, seconds = (column[tables.dense[name][0] >= 16] for column in tables.dense[name])
            known, asked, truth = tokens[::2], tokens[1:-1:2], seconds[1:-1:2]
            above = seconds[::2][np.searchsorted(known, asked)]
            line = np.interp(asked, known, seconds[::2])
            errors.append([np.abs(above / truth - 1).mean(), np.abs(line / truth - 1).mean()])
        stairs, lines = np.mean(errors, axis=0)
        print(f"{folder}: {stairs:.2%} by the point above, {lines:.2%} by a line")
        assert stairs < 0.006
        assert lines > 3 * stairs


@pytest.mark.long
def test_single_steps_are_within_a_few_percent():
    for folder in study.CASES.values():
        for label, windows, median, _low, _high in study.residuals(study.REFERENCE / folder):
            if label.startswith("skew single") and windows >= 10:
                assert abs(median) < 0.10, label


def test_a_simulation_of_other_requests_is_refused(monkeypatch):
    case = "vllm-0.19-rtx-pro-6000"
    monkeypatch.setitem(study.CAUSES, "shorter answers", ["workload.lengths={kind: fixed, prompt: 9, output: 2}"])
    with pytest.raises(InputError, match="not the same requests: request 0 has 9 prompt tokens in the run"):
        study.run(case, study.REFERENCE / study.CASES[case], "shorter answers")
