"""Layer-wise tables as steps: on the real profiles where they are at hand, and on folders that are none."""

import shutil

import pytest
from outside import OUTSIDE

from hermes.calibration.importers import Layerwise
from hermes.calibration.steps import phase_of, tidy_rows
from hermes.cli import main
from hermes.errors import InputError
from hermes.hardware.base import BATCH_STATS, StepStats
from hermes.hardware.fitted.layerwise import LayerwiseModel
from hermes.hardware.fitted.operator_tables import load_operator_tables

RUNS = OUTSIDE / "data" / "vllm-runs"
needs_runs = pytest.mark.outside("data/vllm-runs")
PROFILE = RUNS / "rtx4090-llama-3.1-8b" / "profile"


@needs_runs
def test_steps_are_what_the_tables_answer_and_stay_inside_them():
    steps = Layerwise(source=str(PROFILE), model="llama-3.1-8b").steps()
    rows = tidy_rows(steps.rows, "x")
    assert set(phase_of(rows)) == {"prefill", "decode", "mixed"}
    assert (rows.prefill_tokens + rows.decode_seqs).max() <= 2048
    assert rows.decode_ctx_max.max() <= 16384
    # unequal contexts cost more than equal ones of the same sum, and are there to be learnt from
    decode = rows[phase_of(rows) == "decode"]
    unequal = decode[decode.decode_ctx_max * decode.decode_seqs > decode.decode_ctx]
    assert len(unequal) > 200
    model = LayerwiseModel(load_operator_tables(PROFILE), 32)
    for _, row in rows.sample(50, random_state=1).iterrows():
        stats = StepStats(**{name: int(row[name]) for name in BATCH_STATS})
        assert row.time_s == pytest.approx(model.step_ns(stats) / 1e9, rel=1e-12)
    assert steps.header.hardware == "NVIDIA GeForce RTX 4090"
    assert steps.header.engine_version == "0.19.0"


@needs_runs
def test_folders_that_are_no_profile_are_one_line(tmp_path, capsys):
    with pytest.raises(InputError, match="source: expected an existing folder"):
        Layerwise(source=str(tmp_path / "none"), model="llama-3.1-8b").steps()
    with pytest.raises(InputError, match=r"a file dense\.csv"):
        Layerwise(source=str(tmp_path), model="llama-3.1-8b").steps()
    with pytest.raises(InputError, match=r"model: no model is called"):
        Layerwise(source=str(PROFILE), model="llama-3.1-9b").steps()
    folder = tmp_path / "profile"
    shutil.copytree(PROFILE, folder)
    (folder / "meta.yaml").unlink()
    words = ["profile", "import", "layerwise", str(folder), "--model", "llama-3.1-8b", "-o", str(tmp_path / "x.yaml")]
    assert main(words) == 2
    assert "meta.yaml" in capsys.readouterr().err
    (folder / "meta.yaml").write_text("- 1\n")
    assert main(words) == 2
    assert "expected a mapping" in capsys.readouterr().err
