"""What was measured with the torch engine on a CPU, against the shipped profile. docs/accuracy.md has the figures."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pandas as pd
import pytest

from hermes.calibration.comparison import check_steps
from hermes.calibration.engine_validation.prediction import predict
from hermes.calibration.engine_validation.result import Times
from hermes.calibration.engine_validation.session import compared
from hermes.calibration.engine_validation.workload import EngineSettings, OnlineRequest, OnlineWorkload
from hermes.calibration.steps import load_steps, phase_of
from hermes.hardware.files import find
from hermes.hardware.polynomial import Polynomial

ROOT = Path(__file__).resolve().parents[2]
PROFILE = "small-llama-512-torch-cpu"


def test_the_steps_are_enough_and_the_profile_is_theirs():
    steps = load_steps(ROOT / "traces" / "hardware" / f"{PROFILE}.yaml")
    rows = steps.usable()
    assert len(rows) >= 1500
    phases = phase_of(rows)
    assert all((phases == phase).sum() > 300 for phase in ("prefill", "decode", "mixed"))
    model = Polynomial(profile=PROFILE).build(None)
    lines, table = check_steps(steps, model)
    assert lines[-1].errors.mape < 0.10
    assert abs(lines[-1].errors.median) < 0.02
    assert not table["outside"].any()


def test_an_online_run_it_was_not_fitted_on():
    """Three repetitions; means within 10%, p50 and p90 too."""
    served = pd.read_csv(ROOT / "tests" / "data" / "torch-cpu" / "online.csv")
    config = json.loads((ROOT / "scenarios" / "validation" / "small-llama-512.json").read_text())
    workload = OnlineWorkload(
        clock="cpu", engine=EngineSettings(model=config, max_model_len=2048),
        requests=[OnlineRequest(arrival_s=r.arrival_s, prompt_tokens=r.prompt_tokens, output_tokens=r.output_tokens)
                  for r in served.itertuples()],
    )
    scheduler = {"kind": "chunked", "max_num_batched_tokens": 512, "max_num_seqs": 32}
    prediction = predict(workload, scheduler, find(PROFILE, None, "", "a profile"))
    engine = [
        Times.of(served["arrival_s"].tolist(), served[f"first_token_s_{n}"].tolist(),
                 served[f"finish_s_{n}"].tolist(), served["output_tokens"].tolist()) for n in (1, 2, 3)
    ]
    rows = {(row.metric, row.stat): row.error for row in compared(prediction.times, engine)}
    for metric in ("ttft", "tpot", "e2e"):
        assert rows[metric, "mean"] == pytest.approx(0.0, abs=0.10), metric
        assert rows[metric, "p50"] == pytest.approx(0.0, abs=0.10), metric
        assert rows[metric, "p90"] == pytest.approx(0.0, abs=0.10), metric
    assert np.isfinite(list(rows.values())).all()
    assert prediction.out_of_range_steps < 0.02 * prediction.steps
