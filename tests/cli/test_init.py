"""`hermes init`: a first scenario with comments, which meets its own SLO."""

import pytest

from hermes.api import load_scenario, simulate
from hermes.cli import main


@pytest.mark.feature("Results, sweeps, studies", "`hermes init`: a first scenario")
@pytest.mark.long
@pytest.mark.parametrize(("options", "tp", "slo", "reasons"), [
    ([], 4, (1.0, 0.05), [   # 131,072 tokens of 320 KiB are 40 GiB on 2 devices
        "tp 4: weights 141 GB, KV", "(tp 2: the engine does not start: KV memory of 4.82 GiB a device, one request of "
        "131,072 tokens (max_model_len) needs 20.00 GiB)", "the highest that met the SLO in"]),
    (["--model", "llama-3.1-8b", "--device", "l40s", "--rate", "1.5/s", "--count", "1"], 1, (1.0, 0.05),
     ["rate: as asked: it meets the SLO"]),
    (["--model", "llama-3.1-8b", "--device", "l40s", "--rate", "400/s", "--count", "1"], 1, (1.0, 0.05),
     ["the highest that met the SLO in"]),
    (["--device", "l40s"], 8, None, [   # on 4 devices, 10 GiB on each
        "131,072 tokens (max_model_len) needs 10.00 GiB)", "ttft", "not 1 s: a lone request already takes"]),
    (["--model", "bloom-176b", "--workload", "azure-code-2023"], 8, (1.0, 0.05),
     ["2,048 tokens are the most that an engine holds"]),
])
def test_what_it_writes_meets_its_slo(tmp_path, capsys, options, tp, slo, reasons):
    file = tmp_path / "first.yaml"
    assert main(["init", str(file), *options]) == 0
    said = capsys.readouterr().err
    text = file.read_text()
    scenario = load_scenario(file)
    assert scenario.clients[0].parallel.tp == tp
    if slo is not None:
        assert (scenario.slo.ttft, scenario.slo.tpot) == slo
    comments = " ".join(line.strip().removeprefix("# ") for line in text.splitlines() if line.strip().startswith("#"))
    assert all(reason in comments for reason in reasons)
    summary = simulate(file).summary
    assert summary["slo"]["pass"] is True
    assert summary["headline"]["stable"] is not False
    assert summary["requests"]["completed"] == summary["requests"]["total"]
    assert all(len(line) <= 110 for line in text.splitlines())
    assert ("400/s misses the SLO" in said) == ("400/s" in options)
    assert ("slo: ttft" in said) == (slo is None)
    assert main(["init", str(file)]) == 2
    assert "a file that does not exist yet" in capsys.readouterr().err


@pytest.mark.parametrize(("options", "said"), [
    (["--model", "llama-9"], "model"), (["--device", "gpu"], "no device is called"), (["--rate", "x"], "--rate"),
    (["--rate", "0/s"], "--rate"), (["--workload", "mine"], "profile"),
    (["--model", "bloom-176b", "--device", "rtx-4090"], "do not fit"),
])
def test_a_mistake_is_one_line_and_writes_nothing(tmp_path, capsys, options, said):
    assert main(["init", str(tmp_path / "x.yaml"), *options]) == 2
    error = capsys.readouterr().err
    assert said in error
    assert error.count("\n") == 1
    assert not (tmp_path / "x.yaml").exists()
