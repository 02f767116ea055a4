"""Reference set of InferenceX (`data/inferencex`): DeepSeek-R1 in FP8 on SGLang, eight H200 or eight MI355X.

Closed loops: each user asks again at once, ten prompts a user, the first wave included. Lengths are drawn evenly
between 0.8 and 1.0 of the nominal ones. Prompts are computed in chunks of 32,768 tokens, and no prefix is shared. Not
stated there: the host times of SGLang, for which those of the newest vLLM stand in.
"""

from __future__ import annotations

from collections.abc import Iterator
from math import isfinite, nan
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd

from hermes.calibration.accuracy.replay import replay, trust_of_steps
from hermes.calibration.accuracy.row import Case, Row, rows_of, statistics
from hermes.calibration.importers.base import read_csv

__all__ = ["inferencex"]

NUMBERS = ("tp", "ep", "input_tokens", "output_tokens", "concurrency", "median_ttft_s", "p99_ttft_s", "median_tpot_s",
           "p99_tpot_s", "median_e2e_s", "output_tokens_per_s_per_gpu")
TEXTS = ("card", "image")
WATTS = "watts_per_gpu"
EACH = 10              # prompts of each user
SHORTEST = 0.8         # of the nominal lengths
CHUNK = 32768          # tokens
UTILIZATION = 0.82     # of the memory, for weights and KV


def inferencex(data: Path) -> Iterator[Row]:
    """Medians and p99 by card, lengths and number of users. Raises `InputError` for a malformed file."""
    for row in read_csv(data / "inferencex" / "deepseek-r1-fp8-sglang.csv", NUMBERS, TEXTS).to_dict("records"):
        yield from _rows(row)


def _rows(row: dict[Any, Any]) -> Iterator[Row]:
    users, prompt, output = int(row["concurrency"]), int(row["input_tokens"]), int(row["output_tokens"])
    random, count = np.random.default_rng(1), EACH * users
    requests = pd.DataFrame({"arrival_s": 0.0} | {
        name: random.integers(round(SHORTEST * most), most + 1, count)
        for name, most in (("prompt_tokens", prompt), ("output_tokens", output))}, index=range(count))
    client = {
        "model": "deepseek-v3", "device": row["card"], "parallel": {"tp": int(row["tp"])},
        "scheduler": {"kind": "sglang", "chunked_prefill_size": CHUNK, "disable_radix_cache": True},
        "memory": {"utilization": UTILIZATION},
    }
    results = replay(client, requests, {"kind": "closed_loop", "users": users})
    found = statistics({name: results.requests[f"{name}_s"] for name in ("ttft", "tpot", "e2e")})
    seconds = results.requests["finish_s"].max()
    found["output tokens/s", "mean"] = float(results.requests["output_tokens"].sum() / seconds)
    measured = {(metric, stat): float(row[f"{word}_{metric}_s"]) for metric in ("ttft", "tpot", "e2e")
                for stat, word in (("p50", "median"), ("p99", "p99")) if f"{word}_{metric}_s" in row}
    measured["output tokens/s", "mean"] = float(row["output_tokens_per_s_per_gpu"]) * int(row["tp"])
    if isfinite(watts := float(row.get(WATTS, nan))):   # few rows have them
        measured["watts", "mean"] = watts * int(row["tp"])
        found["watts", "mean"] = results.summary_of_run["energy"]["total_j"] / seconds
    version = str(row["image"]).split("-")[0]
    case = Case("InferenceX", f"{prompt} in, {output} out, {users} users", f"sglang {version}",
                f"{row['card']} tp{row['tp']}", "deepseek-r1", trust_of_steps(results))
    yield from rows_of(case, measured, found)
