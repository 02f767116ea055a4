"""`hermes profile import`: mistakes on the command line, names of models, importers of plug-ins."""

from typing import Literal

import pandas as pd
import pytest

from hermes.calibration.importers import IMPORTERS, ImporterConfig
from hermes.calibration.importers.base import known_model
from hermes.calibration.steps import MeasuredSteps, StepsHeader, load_steps
from hermes.cli import main

CSV = ["--model", "m", "--hardware", "h", "--dtype", "bf16", "--engine", "vllm"]


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["layerwse", "x"], "did you mean 'layerwise'"),
        (["csv", "nofile", *CSV, "--tp", "2", "-o", "a.yaml"], "no such file"),
        (["csv", "f", *CSV, "--tp", "0", "-o", "a.yaml"], "tp: expected a number"),
        (["csv", "f", *CSV, "--tp", "2", "-o", "a.csv"], "ends in .yaml"),
    ],
)
def test_mistakes_on_the_command_line_exit_with_two(words, message, capsys):
    assert main(["profile", "import", *words]) == 2
    error = capsys.readouterr().err
    assert message in error
    assert error.count("\n") == 1


def test_published_names_find_our_descriptions():
    assert known_model("meta-llama/Meta-Llama-3.1-70B-Instruct") == "llama-3.1-70b"
    assert known_model("Qwen/Qwen3-32B") == "qwen3-32b"
    assert known_model("someone/else") == "someone/else"


def test_importers_are_an_extension_point(tmp_path, capsys):
    @IMPORTERS.register("constant-test")
    class Constant(ImporterConfig):
        """One step."""

        kind: Literal["constant-test"] = "constant-test"
        source: str
        """Ignored."""
        model: str
        """Name of the model."""

        def steps(self, progress=None):
            frame = pd.DataFrame({
                "prefill_seqs": [0], "prefill_tokens": 0, "prefill_past": 0, "prefill_attn": 0, "decode_seqs": 1,
                "decode_ctx": 5, "decode_ctx_max": 5, "sampled": 1, "time_s": 0.5, "configuration": "one",
            })
            header = {"name": "c", "hardware": "h", "engine": "e", "model": self.model, "dtype": "bf16", "date": "x",
                      "clock": "x", "source": "x"}
            return MeasuredSteps(StepsHeader(**header), frame)

    try:
        words = ["constant-test", "s", "--model", "m"]
        assert main(["profile", "import", *words, "-o", str(tmp_path / "c.yaml")]) == 0
        assert load_steps(tmp_path / "c.yaml").rows.time_s.tolist() == [0.5]
    finally:
        IMPORTERS.unregister("constant-test")
