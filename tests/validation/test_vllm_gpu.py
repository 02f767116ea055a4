"""Recorded vLLM 0.19.0 runs on two GPUs against the simulation over the operator tables of the same cards."""

import importlib.util
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
SPEC = importlib.util.spec_from_file_location("validate_vllm_gpu", ROOT / "scripts" / "validate_vllm_gpu.py")
assert SPEC
assert SPEC.loader
study = importlib.util.module_from_spec(SPEC)
sys.modules[SPEC.name] = study
SPEC.loader.exec_module(study)

pytestmark = pytest.mark.skipif(not study.REFERENCE.is_dir(), reason="the recorded runs are not beside the project")


@pytest.mark.parametrize("case", study.CASES)
def test_means_within_two_percent_and_percentiles_within_four(case):
    outcome = study.run(case, study.REFERENCE / study.CASES[case])
    assert len(outcome.rows) == 12
    assert not [row for row in outcome.rows if not row.ok]


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


def test_single_steps_are_within_a_few_percent():
    for folder in study.CASES.values():
        for label, windows, median, _low, _high in study.residuals(study.REFERENCE / folder):
            if label.startswith("skew single") and windows >= 10:
                assert abs(median) < 0.10, label
