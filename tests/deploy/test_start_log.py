"""`hermes explain --memory` and `hermes compare --log`: terms beside an engine's words, and which one differs."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from hermes.cli import main
from hermes.deploy.start_log import read_log
from hermes.errors import InputError

GIB = 2**30
VLLM = """\
INFO [gpu_model_runner.py:2653] Model loading took 65.9651 GiB and 18.0 seconds
INFO [gpu_worker.py:298] Available KV cache memory: 8.99 GiB
INFO [kv_cache_utils.py:1087] GPU KV cache size: 130,960 tokens
INFO [kv_cache_utils.py:1091] Maximum concurrency for 98,304 tokens per request: 2.50x
"""
SGLANG = """\
[TP0] Load weight begin. avail mem=21.63 GB
[TP0] Load weight end. type=Qwen2ForCausalLM, dtype=torch.bfloat16, avail mem=6.09 GB, mem usage=15.54 GB.
[TP0] KV Cache is allocated. #tokens: 46611, K size: 1.42 GB, V size: 1.42 GB
[TP0] max_total_num_tokens=46611, chunked_prefill_size=2048
"""
TRTLLM = "[TRT-LLM] [I] [MemUsageChange] Allocated 62.99 GiB for max tokens in paged KV cache (294848).\n"
SCENARIO = """\
name: box
workload: {{requests: 3, arrivals: {{kind: poisson, rate: 1 /s}}, lengths: {{kind: fixed, prompt: 90, output: 9}}}}
clients: [{{name: box, device: {device}, {client}}}]
"""
OSS = ("model: gpt-oss-120b, engine: vllm-0.15, max_model_len: 98304, memory: {utilization: 0.96}, "
       "scheduler: {kind: chunked, max_num_batched_tokens: 2048, max_num_seqs: 6}")


@pytest.mark.parametrize(("text", "found"), [
    (VLLM, {"weights": 65.9651 * GIB, "KV": 8.99 * GIB, "KV tokens": 130_960, "longest at once": 2.5}),
    (SGLANG, {"free before loading": 21.63 * GIB, "weights": 15.54 * GIB, "KV": 2.84 * GIB, "KV tokens": 46_611}),
    (TRTLLM, {"KV": 62.99 * GIB, "KV tokens": 294_848}),
    ("model weights take 14.99GiB; non_torch_memory takes 0.35GiB; PyTorch activation peak memory takes 2.07GiB; the "
     "rest of the memory reserved for KV Cache is 3.81GiB.",
     {"weights": 14.99 * GIB, "libraries": 0.35 * GIB, "activations": 2.07 * GIB, "KV": 3.81 * GIB}),
])
def test_lines_of_engines(text: str, found: dict[str, float]) -> None:
    assert read_log(text) == pytest.approx(found)


def test_a_text_that_is_no_log_is_refused() -> None:
    with pytest.raises(InputError, match="Available KV cache memory"):
        read_log("hello\n", "a.log")


def compared(folder: Path, capsys: pytest.CaptureFixture[str], client: str, log: str, device: str = "h100-sxm"
             ) -> dict[str, object]:
    scenario, file = folder / "box.yaml", folder / "start.log"
    scenario.write_text(SCENARIO.format(device=device, client=client))
    file.write_text(log)
    assert main(["compare", str(scenario), "--log", str(file), "--json"]) == 0
    [found] = json.loads(capsys.readouterr().out)
    return found   # type: ignore[no-any-return]


def test_a_log_that_agrees_and_one_whose_weights_differ(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """gpt-oss-120b on an H100: all of its log lies in the ranges; with the weights of the checkpoint they do not."""
    agrees = compared(tmp_path, capsys, OSS, VLLM)
    assert agrees["differ"] == []
    rest = next(term for term in agrees["terms"] if term["name"] == "all but weights")   # type: ignore[attr-defined]
    assert rest["log"] / GIB == pytest.approx(0.96 * 79.11 - 65.9651 - 8.99, abs=0.001)
    smaller = compared(tmp_path, capsys, OSS, VLLM.replace("65.9651", "60.69"))
    assert smaller["differ"] == ["weights", "all but weights"]


def test_sglangs_log(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    client = ("model: qwen2.5-32b, parallel: {tp: 4}, scheduler: {kind: sglang}, memory: {utilization: 0.85}")
    found = compared(tmp_path, capsys, client, SGLANG, device="l4")
    assert {"KV", "KV tokens"} & set(found["differ"]) == set()   # type: ignore[call-overload]


@pytest.mark.feature("Hardware", (
    "`hermes explain --memory`, `hermes compare --log`: the sum beside the engine's words and its start-up "
    "log"))
def test_the_table_of_terms(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    scenario = tmp_path / "box.yaml"
    scenario.write_text(SCENARIO.format(device="h100-sxm", client=OSS))
    assert main(["explain", str(scenario), "--memory", "--json"]) == 0
    [found] = json.loads(capsys.readouterr().out)
    terms = {term["name"]: term for term in found["terms"]}
    assert found["starts"]
    left = terms["card x share"]["here"] - sum(
        terms[name]["here"] for name in ("weights", "activations", "libraries", "workspaces", "tables"))
    assert terms["KV"]["here"] == pytest.approx(left, abs=2**20)
    assert terms["weights"]["words"] == "Model loading took"
    assert all(term["source"] for name, term in terms.items() if name != "KV tokens")
    assert "3.1 GiB" in terms["connector"]["source"]
    assert main(["explain", str(scenario), "--memory"]) == 0
    assert "Available KV" in capsys.readouterr().out


@pytest.mark.parametrize("more", [["--request", "0"], ["--alternatives", "2"]])
def test_memory_goes_with_no_request(more: list[str], capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["explain", "quickstart", "--memory", *more]) == 2
    assert "--memory: goes with neither --request nor --alternatives" in capsys.readouterr().err


@pytest.mark.parametrize("arguments", [["x.yaml"], ["x.yaml", "ref.csv", "--log", "a.log"]])
def test_compare_needs_one_of_two(arguments: list[str], capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["compare", *arguments]) == 2
    assert "--log" in capsys.readouterr().err
