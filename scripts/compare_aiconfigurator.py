"""Print the terms of steps of large models beside what aiconfigurator-core answers for the same points.

    python scripts/compare_aiconfigurator.py PYTHON [MODEL ...]

PYTHON is an interpreter with aiconfigurator-core 0.12.0. Each case is a model on devices and a way to split it; its
steps are decodes of one batch, and one prompt. Terms of both are put into the same groups; what the package adds for
the engine is not asked for, and `engine`, `sampling` are left out here.
"""

from __future__ import annotations

import json
import subprocess
import sys
from typing import Any

CASES: dict[str, dict[str, Any]] = {
    "deepseek-v3, 8 x H200, dp 8 + ep 8": {
        "model": "deepseek-v3", "device": "h200", "dp": 8, "ep": 8, "theirs": "deepseek-ai/DeepSeek-V3",
        "system": "h200_sxm", "kwargs": {"attention_dp_size": 8, "moe_ep_size": 8}, "decodes": 64},
    "deepseek-v3, 8 x H200, tp 8": {
        "model": "deepseek-v3", "device": "h200", "tp": 8, "theirs": "deepseek-ai/DeepSeek-V3", "system": "h200_sxm",
        "kwargs": {"tp_size": 8, "moe_tp_size": 8}, "decodes": 64},
    "gpt-oss-120b, 1 x H100": {
        "model": "gpt-oss-120b", "device": "h100-sxm", "theirs": "openai/gpt-oss-120b", "system": "h100_sxm",
        "kwargs": {"moe_quant_mode": "w4a16_mxfp4"}, "decodes": 64},
    "gpt-oss-120b, 1 x B200": {
        "model": "gpt-oss-120b", "device": "b200", "theirs": "openai/gpt-oss-120b", "system": "b200_sxm",
        "kwargs": {"moe_quant_mode": "w4a16_mxfp4"}, "decodes": 64},
    "qwen3-235b-a22b, 8 x H200, tp 8": {
        "model": "qwen3-235b-a22b", "device": "h200", "tp": 8, "theirs": "Qwen/Qwen3-235B-A22B", "system": "h200_sxm",
        "kwargs": {"tp_size": 8, "moe_tp_size": 8}, "decodes": 64},
    "qwen3-235b-a22b, 8 x H200, dp 8 + ep 8": {
        "model": "qwen3-235b-a22b", "device": "h200", "dp": 8, "ep": 8, "theirs": "Qwen/Qwen3-235B-A22B",
        "system": "h200_sxm", "kwargs": {"attention_dp_size": 8, "moe_ep_size": 8}, "decodes": 64},
    "llama-3.1-405b, 16 x H100, pp 2 x tp 8": {
        "model": "llama-3.1-405b", "device": "h100-sxm", "tp": 8, "pp": 2, "theirs": "meta-llama/Meta-Llama-3.1-405B",
        "system": "h100_sxm", "kwargs": {"tp_size": 8, "pp_size": 2}, "decodes": 64},
    "gemma-3-27b, 1 x H100": {"model": "gemma-3-27b", "device": "h100-sxm", "decodes": 64},
}
CONTEXT, PROMPT = 2048, 2048
GROUPS = {   # parts of names -> group; the first that matches counts
    "all_reduce": "all-reduce", "_ar": "all-reduce", "embedding_ar": "all-reduce",
    "dispatch": "between ranks", "combine": "between ranks", "hops": "between stages", "p2p": "between stages",
    "pre_dispatch": "between ranks", "post_dispatch": "between ranks",
    "router": "experts", "shared": "experts", "experts": "experts", "moe": "experts",
    "logits": "output head", "lm_head": "output head", "attention": "attention", "mla": "attention",
    "decodes_beside": "attention", "bmm": "attention",
    "norm": "element-wise", "act": "element-wise", "embedding": "element-wise", "elementwise": "element-wise",
}
LEFT_OUT = ("engine", "sampling")


def group(name: str) -> str:
    return next((found for part, found in GROUPS.items() if part in name), "projections and dense layers")


def ask(path: str) -> None:
    """In the other interpreter: answer with milliseconds by operator."""
    import logging

    logging.disable(logging.CRITICAL)
    from aiconfigurator_core.sdk import perf_database
    from aiconfigurator_core.sdk.engine import EngineHandle

    cases, out = json.loads(path), {}
    for name, case in cases.items():
        try:
            version = perf_database.resolve_query_version(case["system"], "vllm", "current")
            handle = EngineHandle.compile(case["theirs"], case["system"], "vllm", backend_version=version,
                                          **case["kwargs"])
            decode = handle.decode_step_per_op(case["decodes"], CONTEXT, 1)
            prompt = handle.run_static_per_op(batch_size=1, isl=PROMPT, osl=1, prefix=0, mode="static_ctx")[0]
            out[name] = {"decode": [(op[0], op[1]) for op in decode], "prompt": [(op[0], op[1]) for op in prompt]}
        except Exception as error:   # a combination that its tables do not hold: it says which
            out[name] = {"error": f"{type(error).__name__}: {error}"[:300]}
    print(json.dumps(out))


def main(python: str, *models: str) -> None:
    from hermes.hardware.base import StepStats
    from hermes.hardware.composed import Composed

    cases = {name: case for name, case in CASES.items() if not models or case["model"] in models}
    asked = {name: case for name, case in cases.items() if "theirs" in case}
    done = subprocess.run([python, __file__, "--ask", json.dumps(asked)], capture_output=True, text=True, check=True)
    answers = json.loads(done.stdout.strip().splitlines()[-1])
    for name, case in cases.items():
        keys = ("model", "device", "tp", "pp", "dp", "ep")
        model = Composed(**{key: case[key] for key in keys if key in case}).build()
        batch = case["decodes"]
        steps = {
            "decode": StepStats(decode_seqs=batch, decode_ctx=batch * CONTEXT, decode_ctx_max=CONTEXT, sampled=batch),
            "prompt": StepStats(prefill_seqs=1, prefill_tokens=PROMPT, prefill_attn=PROMPT * (PROMPT + 1) // 2,
                                prefill_max=PROMPT, sampled=1)}
        theirs = answers.get(name, {"error": "the package has no such model"})
        if "error" in theirs:
            print(f"\n{name}: no answer ({theirs['error']})")
        for kind, stats in steps.items():
            ours: dict[str, float] = {}
            for term, ns in model.terms_ns(stats).items():
                if term not in LEFT_OUT:
                    ours[group(term)] = ours.get(group(term), 0.0) + ns / 1e6
            other: dict[str, float] = {}
            for operator, ms in theirs.get(kind, ()):
                other[group(operator)] = other.get(group(operator), 0.0) + ms
            what = f"{batch} decodes of {CONTEXT} tokens on each rank" if kind == "decode" else f"a prompt of {PROMPT}"
            print(f"\n{name}: {what}, ms: {'here':>26} {'aiconfigurator':>15}")
            for one in dict.fromkeys([*ours, *other]):
                there = f"{other[one]:15.3f}" if one in other else f"{'-':>15}"
                print(f"  {one:64} {ours.get(one, 0.0):9.3f} {there}")
            print(f"  {'all':64} {sum(ours.values()):9.3f} {sum(other.values()) if other else float('nan'):15.3f}")


if __name__ == "__main__":
    if sys.argv[1] == "--ask":
        ask(sys.argv[2])
    else:
        main(*sys.argv[1:])
