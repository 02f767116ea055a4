"""What was measured with the torch engine on a CPU, against the shipped profile. docs/accuracy.md has the figures."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pandas as pd
import pytest

from evidence.accuracy.served import replay, statistics
from hermes.calibration.comparison import check_steps
from hermes.calibration.steps import load_steps, phase_of
from hermes.hardware.fitted.polynomial import Polynomial

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
    results = replay({
        "hardware": {"kind": "polynomial", "profile": PROFILE},
        "scheduler": {"kind": "chunked", "max_num_batched_tokens": 512, "max_num_seqs": 32, "async_scheduling": False},
        "memory": {"block_size": 128, "num_blocks": 1360, "prefix_caching": False},
    }, served[["arrival_s", "prompt_tokens", "output_tokens"]])
    ours = statistics({name: results.requests[f"{name}_s"] for name in ("ttft", "tpot", "e2e")})
    repetitions = []
    for n in (1, 2, 3):
        first, finish, more = served[f"first_token_s_{n}"], served[f"finish_s_{n}"], served["output_tokens"] - 1
        repetitions.append(statistics({
            "ttft": first - served["arrival_s"], "e2e": finish - served["arrival_s"],
            "tpot": ((finish - first) / more)[more > 0]}))
    for metric in ("ttft", "tpot", "e2e"):
        for stat in ("mean", "p50", "p90"):
            measured = np.mean([one[metric, stat] for one in repetitions])
            assert ours[metric, stat] == pytest.approx(measured, rel=0.10), (metric, stat)
    steps = results.summary["steps"]
    assert steps["out_of_range"] < 0.02 * steps["steps"]
