"""`hermes init`: a first scenario with comments."""

import pytest

from hermes.api import load_scenario, simulate
from hermes.cli import main


@pytest.mark.parametrize(("options", "tp"), [
    ([], 2), (["--model", "llama-3.1-8b", "--device", "l40s", "--rate", "2/s", "--count", "1"], 1),
    (["--device", "l40s"], 4),
])
def test_what_it_writes_runs(tmp_path, capsys, options, tp):
    file = tmp_path / "first.yaml"
    assert main(["init", str(file), *options]) == 0
    scenario = load_scenario(file)
    assert scenario.clients[0].parallel.tp == tp
    assert simulate(file, overrides={"workload.requests": 20}).summary["requests"]["completed"] == 20
    assert all(len(line) <= 110 for line in file.read_text().splitlines())
    assert main(["init", str(file)]) == 2
    assert "a file that does not exist yet" in capsys.readouterr().err


@pytest.mark.parametrize(("options", "said"), [
    (["--model", "llama-9"], "model"), (["--device", "gpu"], "a device description"), (["--rate", "x"], "--rate"),
    (["--workload", "mine"], "profile"), (["--model", "bloom-176b", "--device", "rtx-4090"], "do not fit"),
])
def test_a_mistake_is_one_line_and_writes_nothing(tmp_path, capsys, options, said):
    assert main(["init", str(tmp_path / "x.yaml"), *options]) == 2
    error = capsys.readouterr().err
    assert said in error
    assert error.count("\n") == 1
    assert not (tmp_path / "x.yaml").exists()
