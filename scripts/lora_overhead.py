"""Print what LoRA adapters add to a step of 32 decodes of 1,000 tokens, and to a prompt of 4,096, by `composed`.

    python scripts/lora_overhead.py

Nothing was fitted to it. Beside it: what is published. Punica (arXiv 2310.18547, abstract) adds 2 ms a token to a model
of 7 billion weights on an A100; issues of vLLM report 10 to 50% of the throughput for one adapter, by version.
"""

from __future__ import annotations

from typing import Any

from hermes.hardware.base import StepStats
from hermes.scenario import load_scenario

CASES = (("llama-2-7b", "a100-80gb", 1), ("llama-3.1-8b", "h100-sxm", 1), ("llama-3.1-70b", "h100-sxm", 4))
RANKS, ADAPTERS, DECODES, CONTEXT, PROMPT = (16, 64), (1, 4, 16, 32), 32, 1000, 4096


def hardware(model: str, device: str, tp: int, rank: int) -> Any:   # Any: a hardware model
    client = {"model": model, "device": device, "parallel": {"tp": tp},
              "scheduler": {"kind": "chunked", "max_loras": max(ADAPTERS)},
              "hardware": {"kind": "composed", "lora": {"rank": rank}}}
    lengths = {"kind": "fixed", "prompt": 1, "output": 1}
    return load_scenario({
        "workload": {"requests": 1, "arrivals": {"kind": "at_once"}, "lengths": lengths, "adapters": {"count": 1}},
        "clients": [client]}).source.hardware[0]


def decodes(adapters: int) -> StepStats:
    return StepStats(decode_seqs=DECODES, decode_ctx=DECODES * CONTEXT, decode_ctx_max=CONTEXT, sampled=DECODES,
                     lora_tokens=DECODES if adapters else 0, lora_adapters=adapters)


def prompt(adapters: int) -> StepStats:
    return StepStats(prefill_seqs=1, prefill_tokens=PROMPT, prefill_attn=PROMPT * (PROMPT + 1) // 2, prefill_max=PROMPT,
                     sampled=1, lora_tokens=PROMPT if adapters else 0, lora_adapters=adapters)


def main() -> None:
    print(f"{'model':14} {'device':9} tp rank {'decodes':>9}", *(f"{f'{n} adapters':>15}" for n in ADAPTERS),
          f"{'prompt':>9} {'1 adapter':>9}")
    for model, device, tp in CASES:
        for rank in RANKS:
            priced = hardware(model, device, tp, rank)
            alone, whole = priced.step_ns(decodes(0)), priced.step_ns(prompt(0))
            more = [priced.step_ns(decodes(n)) - alone for n in ADAPTERS]
            print(f"{model:14} {device:9} {tp:2} {rank:4} {alone / 1e6:6.2f} ms",
                  *(f"{f'+{ns / 1e6:.2f} ms {ns / alone:+.0%}':>15}" for ns in more),
                  f"{whole / 1e6:6.1f} ms {priced.step_ns(prompt(1)) / whole - 1:+9.1%}")


if __name__ == "__main__":
    main()
