"""Print the terms of a step in 16 bits and in FP8, and the shares of the peak that the products reach in both.

    python scripts/compare_precisions.py [MODEL [DEVICE [TP]]]      qwen3-14b h100-sxm 1

For each term and number of tokens of a prompt: milliseconds in 16 bits and in FP8, and the second over the first. Lines
of products also have the share of the data sheet's peak for either arithmetic.
"""

from __future__ import annotations

import sys

from hermes.hardware.base import StepStats
from hermes.hardware.composed import Composed
from hermes.hardware.descriptions.models import load_model

PROMPTS = (256, 512, 1024, 2048, 4096, 8192)


def prompt(tokens: int) -> StepStats:
    return StepStats(prefill_seqs=1, prefill_tokens=tokens, prefill_attn=tokens * (tokens + 1) // 2,
                     prefill_max=tokens, sampled=1)


def shapes(model: str, tp: int) -> dict[str, float]:
    """Weights of each product of a dense model on one device, all layers."""
    of = load_model(model)
    kv = max(of.num_kv_heads / tp, 1.0)
    inner = of.intermediate_size / tp
    each = {"qkv": (of.num_heads / tp + 2 * kv) * of.head_dim * of.hidden_size,
            "o_proj": of.num_heads / tp * of.head_dim * of.hidden_size,
            "gate_up": 2 * inner * of.hidden_size, "down": inner * of.hidden_size}
    return {name: weights * of.num_layers for name, weights in each.items()}


def main(model: str = "qwen3-14b", device: str = "h100-sxm", tp: int = 1) -> None:
    both = [Composed.model_validate({"model": model, "device": device, "tp": tp, "dtype": dtype}).build()
            for dtype in ("bf16", "fp8")]
    weights = shapes(model, tp)
    steps = {tokens: [one.terms_ns(prompt(tokens)) for one in both] for tokens in PROMPTS}
    print(f"{model} on {tp} x {device}, 16 bits and FP8")
    for name in ("all", *steps[PROMPTS[0]][0]):
        print(name)
        for tokens, terms in steps.items():
            wide, narrow = (sum(one.values()) if name == "all" else one[name] for one in terms)
            line = f"  {tokens:5} tokens {wide / 1e6:9.3f} {narrow / 1e6:9.3f} ms {narrow / wide:5.2f}"
            if name in weights:
                peaks = [both[0].base.device.peak(dtype) for dtype in ("bf16", "fp8")]
                shares = [2 * tokens * weights[name] / peak * 1e9 / ns
                          for peak, ns in zip(peaks, (wide, narrow), strict=True)]
                line += "  of the peak " + " ".join(f"{share:.0%}" for share in shares)
            print(line)


if __name__ == "__main__":
    main(*sys.argv[1:3], *map(int, sys.argv[3:4]))
