"""Print steps of a mixture of experts with tensor parallelism, and with data-parallel ranks that have whole experts.

    python scripts/compare_layouts.py [MODEL [DEVICE [DEVICES]]]      deepseek-v3 h200 8

Each line is a batch of all devices together: so many decodes of 2,048 tokens, or one prompt of 2,048 tokens for each
device. The range is that of the terms (`hermes explain`); layouts whose ranges overlap cannot be ranked.
"""

from __future__ import annotations

import sys

from hermes.hardware.base import StepStats
from hermes.hardware.composed import Composed
from hermes.hardware.composed.composed_terms import ComposedModel
from hermes.hardware.term_trust import in_total

CONTEXT = PROMPT = 2048
DECODES = (8, 64, 256, 512, 1024)


def decodes(seqs: int) -> StepStats:
    return StepStats(decode_seqs=seqs, decode_ctx=seqs * CONTEXT, decode_ctx_max=CONTEXT, sampled=seqs)


def prompts(count: int) -> StepStats:
    return StepStats(prefill_seqs=count, prefill_tokens=count * PROMPT, prefill_attn=count * PROMPT * (PROMPT + 1) // 2,
                     prefill_max=PROMPT, sampled=count)


def text(model: ComposedModel, stats: StepStats) -> str:
    """Milliseconds of a step, their range, and the terms of the experts."""
    terms = model.terms_ns(stats)
    trust, total = in_total(terms, model.trust_of()), model.step_ns(stats) / 1e6
    parts = ", ".join(f"{name} {terms[name] / 1e6:.3g}" for name in ("experts", "dispatch", "combine", "all_reduce")
                      if name in terms)
    return f"{total:7.1f} ms ({total * trust.low:.3g} to {total * trust.high:.3g}, {trust.kind}; {parts})"


def main(name: str = "deepseek-v3", device: str = "h200", devices: int = 8) -> None:
    layouts = {f"TP{devices}": Composed(model=name, device=device, tp=devices).build()}
    for backend in ("allgather_reducescatter", "deepep_low_latency", "deepep_high_throughput"):
        keys = {"model": name, "device": device, "dp": devices, "ep": devices, "all2all": backend}
        layouts[f"DP{devices} + EP{devices}, {backend}"] = Composed.model_validate(keys).build()
    for count in DECODES:
        print(f"{count} decodes of {CONTEXT:,} tokens")
        for label, model in layouts.items():
            ranks = model.base.options.dp
            print(f"  {label:40} {text(model, decodes(max(count // ranks, 1)))}")
    print(f"{devices} prompts of {PROMPT:,} tokens, one for each device")
    for label, model in layouts.items():
        print(f"  {label:40} {text(model, prompts(devices // model.base.options.dp))}")


if __name__ == "__main__":
    main(*sys.argv[1:3], *map(int, sys.argv[3:4]))
