"""Refusals of `hermes import` of engines: they name the flag, and its line in a file; never a key of a scenario."""

import itertools
import re

import pytest
from each import check_each

from hermes.cli import main
from hermes.deploy.engine_scenario import read_source
from hermes.deploy.vllm_features import Told
from hermes.errors import InputError

KEY = re.compile(r"clients\.|\b(scheduler|memory|hardware|parallel|workload|slo)\.\w|\w: (true|false)\b|`\w+: ")
SHARES, NOTHING = Told("0.7", None, "1ms"), Told()
MODELS = ("meta-llama/Llama-3.1-8B-Instruct", "openai/gpt-oss-20b")
FLAGS = (
    "--max-num-seqs 8", "--max-num-batched-tokens 100", "--max-num-scheduled-tokens 100", "--max-num-active-seqs 3",
    "--max-num-queued-reqs 3", "--prefill-schedule-interval 4", "--api-server-count 3", "--stream-interval 4",
    "--enable-lora --max-loras 2 --max-lora-rank 8", "--max-model-len 5000", "--gpu-memory-utilization 1.5",
    "--block-size 7", "--num-gpu-blocks-override 50", "--no-enable-prefix-caching", "--disable-hybrid-kv-cache-manager",
    "--no-enable-chunked-prefill", "--long-prefill-token-threshold 20 --long-prefill-token-threshold-adaptive",
    "--watermark 0.1", "--scheduling-policy priority", "--async-scheduling", "-tp 3", "-pp 2", "-dp 2", "-dp 2 -ep",
    "--kv-offloading-size 10", "--kv-cache-dtype fp8", "--quantization fp8", "--dtype float32",
    "--speculative-config.method ngram --speculative-config.num_speculative_tokens 3", "--max-num-seqs 0",
    """--speculative-config '{"method": "medusa", "num_speculative_tokens": 3, "model": "x"}'""",
    "--cudagraph-capture-sizes 1 2", "--kv-cache-memory-bytes 1G", "--performance-mode throughput", "--max-model-len 0",
    """--kv-transfer-config '{"kv_connector": "NixlConnector", "kv_role": "kv_producer"}'""",
)
PARTS = 16


def refusal(text, file=None, kind="vllm", told=NOTHING, **more):
    """The line with which a text is refused, None if it is read."""
    try:
        given = {"device": "h100-sxm", "engine": None, "model": None, **more}
        source = read_source(text, file, kind, **given, told=told)
        for model in source.models:
            source.check(source.document(model, "azure-conv-2023", 1.0))
    except InputError as error:
        return str(error)
    return None


@pytest.mark.drawn(one_of=PARTS)
@pytest.mark.parametrize("part", range(PARTS))
def test_two_flags_are_read_or_refused_by_a_flag(part):
    def check(pair):
        told = SHARES if any("speculative" in flags for flags in pair) else NOTHING
        said = refusal(f"vllm serve {MODELS[part % 2]} {' '.join(pair)}", told=told, engine="vllm-0.33")
        if said is not None:
            assert re.match(r"--[a-z-]+: ", said)
            assert not KEY.search(said)

    check_each(list(itertools.combinations(FLAGS, 2))[part // 2::PARTS // 2], check)


@pytest.mark.parametrize(("flags", "said"), [
    ("-tp 3", "--tensor-parallel-size: expected a divisor of the 32 attention heads of llama-3.1-8b, found 3"),
    ("--kv-offloading-size 9 -pp 2", "--kv-offloading-size: not modelled with --pipeline-parallel-size: how batches"),
    ("--kv-offloading-size 9 --no-enable-prefix-caching",
     "--kv-offloading-size: not modelled with --no-enable-prefix-caching: the host memory extends the prefix cache"),
    ("--prefill-schedule-interval 4 -pp 2", "--prefill-schedule-interval: not modelled with --pipeline-parallel-size"),
    ("--max-num-seqs 0", "--max-num-seqs: expected a number of at least 1, found 0"),
    ("--kv-cache-memory-bytes 1k", "--kv-cache-memory-bytes: these bytes hold no block of KV"),
    ("--kv-cache-dtype-skip-layers 0", "--kv-cache-dtype-skip-layers: not modelled: layers keep KV of another"),
    ("--config", "--config: needs a file"), ("--data-par 2", "--data-par: several flags of vLLM begin so (--data-"),
    ("--trust-remote-code=maybe", "--trust-remote-code: is a switch and takes no value"),
])
def test_a_refusal_names_the_flag(flags, said):
    assert refusal(f"vllm serve meta-llama/Llama-3.1-8B-Instruct {flags}").startswith(said)


def test_options_of_hermes_are_named_too():
    words = "vllm serve meta-llama/Llama-3.1-8B-Instruct"
    assert refusal(words, device="h1000").startswith("--device: ")
    assert refusal(words, engine="vllm-0.99").startswith("--engine: expected an engine whose rules are known")
    assert refusal(words, model="nothing").startswith("--model: ")


def test_an_engine_that_does_not_start_is_refused_with_its_line(tmp_path, capsys):
    file = tmp_path / "big.yaml"
    file.write_text("apiVersion: v1\nkind: Pod\nmetadata: {name: p}\nspec:\n  containers:\n  - name: c\n    image: "
                    "vllm/vllm-openai:v0.33.0\n    args: [--model, meta-llama/Llama-3.1-8B-Instruct,\n"
                    "      --max-model-len, 131072, --gpu-mem, '0.3']\n")
    assert main(["import", "vllm", str(file), "--device", "h100-sxm", "--rate", "1"]) == 2
    said = capsys.readouterr().err
    assert said.startswith(f"hermes: {file}:9:7: --max-model-len: the engine does not start")
    assert said.count("\n") == 1


@pytest.mark.parametrize("words", [
    "google/gemma-3-27b-it", "openai/gpt-oss-20b --attention-backend trtllm_mha",
    "openai/gpt-oss-20b --disable-hybrid-swa-memory"])
def test_sglang_with_one_pool_for_windows(words):
    assert refusal(f"sglang serve --model-path {words}", kind="sglang") is None


@pytest.mark.parametrize(("kind", "text", "said"), [
    ("sglang", "python -m sglang.launch_server --model-path m", "no description of m"),
    ("sglang", "sglang serve --model Qwen/Qwen3-8B --tp 2 --pp-size 2", "--pp-size: not modelled: pipeline stages"),
    ("sglang", "sglang serve --model Qwen/Qwen3-8B --schedule-policy hrrn", "--schedule-policy: expected a policy"),
    ("sglang", "sglang serve --model Qwen/Qwen3-8B --speculative-algo EAGLE3", "--speculative-algorithm: not modelled"),
    ("sglang", "sglang serve --model Qwen/Qwen3-30B-A3B --tp 4 --ep 2", "--ep-size: expected 1, or 4 as for"),
    ("sglang", "sglang serve --model openai/gpt-oss-20b", "add --disable-hybrid-swa-memory"),
    ("sglang", "sglang serve --model Qwen/Qwen3-8B --mem-fraction-static 8", "--mem-fraction-static: expected a num"),
    ("sglang", "sglang serve --model Qwen/Qwen3-8B --enable-mixed-chunk --chunked-prefill 9", "expected less than"),
    ("trtllm", "trtllm-serve Qwen/Qwen3-8B --tp_size three", "--tensor_parallel_size: expected a whole number"),
    ("trtllm", "trtllm-serve disaggregated -c x.yaml", "trtllm-serve disaggregated is no engine of language"),
    ("trtllm", "trtllm-serve Qwen/Qwen3-8B --cp_size 2", "--context_parallel_size: not modelled"),
    ("trtllm", "vllm serve Qwen/Qwen3-8B", "this starts vLLM, not TensorRT-LLM: hermes import vllm reads it"),
])
def test_refusals_of_other_engines(kind, text, said):
    found = refusal(text, kind=kind)
    assert found is not None
    assert said in found
    assert not KEY.search(found)
