"""The reference set of GPUStack's performance lab (`data/gpustack`): Qwen3-235B-A22B on four H100, 984 prompts at once.

The servers ran vLLM 0.10.2 and 0.11, which no engine file describes: `vllm-0.15` stands in, without asynchronous
scheduling, which was not the default yet. vLLM's benchmark sends prompts of ShareGPT within limits (4 tokens at least,
1,024 of a prompt at most, 2,048 of prompt and output): lengths have the distributions of the profile `sharegpt`, whose
means are 220 and 203 tokens where the page says about 217 and 198. The longest output decides the throughput, whose
clock stops with it (docs/accuracy.md).
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pandas as pd

from evidence.accuracy.peers import Setting, peer_errors
from evidence.accuracy.served import Case, Row, latencies, replay, rows_of, trust_of_steps
from hermes.arrays import IntArray
from hermes.config.files import read_text
from hermes.errors import InputError
from hermes.workload.lengths import EmpiricalLengths
from hermes.workload.profiles import QuantileTable, load_workload_profile

__all__ = ["gpustack", "lengths"]

HEAD = ["precision, layout", "tokens/s", "TTFT", "TPOT"]
DTYPES = {"FP8": "fp8-block", "BF16": "bf16"}
BITS = {"FP8": "8 bits", "BF16": "16 bits"}
REQUESTS, PROMPT, OUTPUT = 984, 217, 198   # number, and mean tokens
LEAST, MOST = 4, 2048   # tokens: of each, of prompt and output


def gpustack(data: Path) -> Iterator[Row]:
    """Total tokens/s, mean TTFT and median TPOT by precision and layout. Raises `InputError` for a malformed table."""
    path = data / "gpustack" / "README.md"
    prompts, outputs = lengths()
    requests = pd.DataFrame({"arrival_s": 0.0, "prompt_tokens": prompts, "output_tokens": outputs})
    for layout, dtype, parallel, measured in _table(path):
        client = {
            "model": "qwen3-235b-a22b", "device": "h100-sxm", "engine": "vllm-0.15", "parallel": parallel,
            "hardware": {"kind": "composed", "dtype": DTYPES[dtype]},
            "scheduler": {"kind": "chunked", "async_scheduling": False}}
        results = replay(client, requests)
        found = latencies(results.requests)
        tokens = int((results.requests["prompt_tokens"] + results.requests["output_tokens"]).sum())
        found["tokens/s", "mean"] = tokens / float(results.requests["finish_s"].max())
        case = Case("GPUStack", f"{layout}, {REQUESTS} prompts at once", "vllm-0.15", f"h100-sxm tp{parallel['tp']}",
                    "qwen3-235b-a22b", trust_of_steps(results), BITS[dtype])
        setting = Setting("gpustack", "h100", "vllm", dtype.lower(), parallel["tp"], parallel.get("ep", 1), PROMPT,
                          OUTPUT, REQUESTS)
        yield from rows_of(case, measured, found, peer_errors(setting, measured))


def _table(path: Path) -> Iterator[tuple[str, str, dict[str, int], dict[tuple[str, str], float]]]:
    """Yield (layout, precision, `parallel`, measured figures) of each row of the Markdown table."""
    rows = [[cell.strip() for cell in line.strip().strip("|").split("|")] for line in read_text(path).splitlines()
            if line.startswith("|")]
    if not rows or rows[0] != HEAD or len(rows) < len(HEAD) - 1:
        raise InputError(f"a table with the columns {' | '.join(HEAD)}", " | ".join(rows[0]) if rows else "none",
                         file=str(path))
    for row in rows[2:]:
        layout = re.fullmatch(r"(\w+) TP([1-9]\d?)(, expert parallel)?", row[0])
        if layout is None or layout[1] not in DTYPES:
            raise InputError(f"a layout such as FP8 TP4, expert parallel (precisions: {', '.join(DTYPES)})", row[0],
                             file=str(path))
        try:
            rate, ttft_ms, tpot_ms = (float(cell.replace(",", "")) for cell in row[1:])
        except ValueError:
            raise InputError("tokens/s, TTFT (ms) and TPOT (ms)", " | ".join(row[1:]), file=str(path),
                             field=row[0]) from None
        tp = int(layout[2])
        yield row[0], layout[1], {"tp": tp, **({"ep": tp} if layout[3] else {})}, {
            ("tokens/s", "mean"): rate, ("ttft", "mean"): ttft_ms / 1e3, ("tpot", "p50"): tpot_ms / 1e3}


def lengths(
    seed: int = 1, requests: int = REQUESTS, prompt: float = PROMPT, output: float = OUTPUT,
) -> tuple[IntArray, IntArray]:
    """Return the tokens of each prompt and of each output: the profile's quantiles at evenly spread levels, so that no
    draw decides how long the longest output is, joined at random with the profile's rank correlation, and scaled to
    the stated means."""
    profile = load_workload_profile("sharegpt")
    drawn = EmpiricalLengths(profile="sharegpt").draw(requests, np.random.default_rng(seed))
    levels = (np.arange(requests) + 0.5) / requests

    def spread(table: QuantileTable, column: IntArray, mean: float) -> IntArray:
        tokens = table.at(levels)
        ranks = np.argsort(np.argsort(column, kind="stable"))
        scaled: IntArray = np.maximum(np.rint(tokens * (mean / tokens.mean())), LEAST).astype(np.int64)
        return scaled[ranks]

    prompts = spread(profile.prompt_tokens, drawn.prompt_tokens, prompt)
    return prompts, np.minimum(spread(profile.output_tokens, drawn.output_tokens, output), MOST - prompts)
