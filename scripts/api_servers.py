"""Print what one API server of vLLM takes: the runs that its figures come from, and four published ones.

    python scripts/api_servers.py

Measured figures are those of public threads of vllm-project/vllm, `vllm bench serve` on the server's host:

    pull/17546   Llama-3.2-1B on two A100, 10,000 prompts of ShareGPT at 120/s, one API server before two engines
    pull/18566   Llama-3.1-8B, 1,000 prompts at once, chat completions
    pull/23369   gpt-oss-20b on two H100, 1,000 prompts at once
    pull/23696   gpt-oss-120b on eight B200, the same

They ran versions that no engine file describes: `vllm-0.15` stands in, without asynchronous scheduling. The card of the
second is not stated; an H100 is taken. Lengths are drawn as for GPUStack's runs
(`evidence.accuracy.gpustack`).
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, NamedTuple

import pandas as pd

from evidence.accuracy.gpustack import lengths
from evidence.accuracy.served import replay
from hermes import simulate

REQUESTS, PROMPT = 1000, 215


class Burst(NamedTuple):
    """A published run of 1,000 prompts at once: seconds until the last answer, tokens of an answer, mean TTFT."""

    thread: str
    model: str
    device: str
    tp: int
    output: int
    total_s: float
    ttft_s: float


BURSTS = (
    Burst("pull/18566", "llama-3.1-8b", "h100-sxm", 1, 203, 30.85, 9.63),
    Burst("pull/23369", "gpt-oss-20b", "h100-sxm", 2, 198, 33.94, 6.17),
    Burst("pull/23696", "gpt-oss-120b", "b200", 8, 197, 26.62, 3.45),
)
PAIR_PER_S = 76.5   # pull/17546


def burst(one: Burst, servers: Mapping[str, Any] | None) -> dict[str, Any]:
    """Return the total time and the mean TTFT of a run, each with its printed range."""
    prompts, outputs = lengths(requests=REQUESTS, prompt=PROMPT, output=one.output)
    results = replay({
        "model": one.model, "device": one.device, "engine": "vllm-0.15", "parallel": {"tp": one.tp},
        "hardware": {"kind": "composed", "top_p": False}, "api_servers": servers,
        "scheduler": {"kind": "chunked", "async_scheduling": False}},
        pd.DataFrame({"arrival_s": 0.0, "prompt_tokens": prompts, "output_tokens": outputs}))
    ranges = results.summary["sources"][0]["results"]
    total, ttft = results.summary["makespan_s"], float(results.requests["ttft_s"].mean())
    return {"total": (total, *(total * ranges["times p99"][end] for end in ("low", "high"))),
            "ttft": (ttft, *(ttft * ranges["ttft"][end] for end in ("low", "high")))}


def pair(count: int) -> float:
    """Return the requests/s that servers before two engines complete, of 120 that come."""
    results = simulate({
        "workload": {"requests": 3000, "arrivals": {"kind": "poisson", "rate": 120},
                     "lengths": {"kind": "independent", "prompt": 220, "output": 200}},
        "clients": [{"name": "box", "count": 2, "model": "qwen2.5-1.5b", "device": "a100-80gb",
                     "hardware": {"kind": "composed", "top_p": False},
                     "api_servers": {"engines": 2, "count": count}}]})
    return 3000 / float(results.summary["makespan_s"])


def main() -> None:
    """Print all runs."""
    print(f"pull/17546, fitted: {PAIR_PER_S}/s measured, {pair(1):.1f} with one server, {pair(2):.1f} with two")
    print(f"{'':24}{'measured s':>12}{'no limit':>10}{'one server':>12}{'range':>16}"
          f"{'mean TTFT':>11}{'one server':>12}{'range':>16}")
    for one in BURSTS:
        free, held = burst(one, None), burst(one, {})
        (total, low, high), (ttft, early, late) = held["total"], held["ttft"]
        print(f"{one.model + ' ' + one.thread:24}{one.total_s:12.1f}{free['total'][0]:10.1f}{total:12.1f}"
              f"{f'{low:.1f} to {high:.1f}':>16}{one.ttft_s:11.2f}{ttft:12.2f}{f'{early:.2f} to {late:.2f}':>16}")


if __name__ == "__main__":
    main()
