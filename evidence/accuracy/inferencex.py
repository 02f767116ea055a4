"""Reference sets of InferenceX (`data/inferencex`): mixtures of experts in closed loops, on four or eight cards.

Each user asks again at once, ten prompts a user, and the first wave is included. Three files:

deepseek-r1-fp8-sglang.csv, deepseek-r1-more.csv: DeepSeek-R1 on SGLang and TensorRT-LLM. Lengths are drawn evenly
between 0.8 and 1.0 of the nominal ones. SGLang computes prompts in chunks of 32,768 tokens, and shares no prefix. The
`exposed` time of its steps was found on the H200 rows of the first file (`sglang-0.5`). The newest vLLM's rules and
host times stand in for TensorRT-LLM's (`trtllm-1.2`). In 4 bits (`deepseek-r1-nvfp4`, `-mxfp4`) attention stays wide.

minimax-m2.5-fp8block-h200-vllm.csv: MiniMax-M2.5 on vLLM of February 2026, for which `vllm-0.15` stands in. Prompts
have exactly the nominal tokens, outputs 128. The prompts of one length are the same in every run (the load generator
draws them from one seed), and runs follow each other on one server, from few users to many: what an earlier run had is
found in the prefix cache, if it has not been evicted. The recordings show it: at 8,192 tokens the throughput rises up
to 48 users, whose 480 prompts do not fit into the KV memory, and falls by 38% with the 64 users after them.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from math import isfinite, nan
from pathlib import Path
from types import MappingProxyType
from typing import NamedTuple

import numpy as np
import pandas as pd

from evidence.accuracy.peers import Fields, Setting, peer_errors
from evidence.accuracy.served import (
    LATENCIES,
    Case,
    Figures,
    Row,
    latencies,
    read_rows,
    replay,
    rows_of,
    trust_of_steps,
)
from hermes.errors import InputError
from hermes.results import Results

__all__ = [
    "OUTPUT", "Run", "inferencex", "inferencex_minimax", "inferencex_more", "loop", "minimax_runs", "parallel_of",
    "sweep",
]

Client = Mapping[str, object]   # keys of a client in a scenario
SGLANG, MORE, MINIMAX = "deepseek-r1-fp8-sglang", "deepseek-r1-more", "minimax-m2.5-fp8block-h200-vllm"
INTEGERS = ("tp", "ep", "input_tokens", "output_tokens", "concurrency")
NUMBERS = ("median_ttft_s", "p99_ttft_s", "median_tpot_s", "p99_tpot_s", "median_e2e_s", "output_tokens_per_s_per_gpu")
MORE_NUMBERS = ("median_ttft_ms", "median_tpot_ms", "median_e2e_ms", "tokens_per_s_per_gpu")
WATTS = "watts_per_gpu"
PERCENTILES = {"median": "p50", "p99": "p99"}
OUTPUT, TOTAL = ("output tokens/s", "mean"), ("tokens/s", "mean")
EACH = 10              # prompts of each user
SHORTEST = 0.8         # of the nominal lengths
CHUNK = 32768          # tokens
UTILIZATION = 0.82     # of the memory, for weights and KV
MINIMAX_OUTPUT = 128   # tokens
AFTER_S = 1e5          # when the run that is scored begins: those before it have ended
ENGINES: Mapping[str, tuple[str, Client]] = MappingProxyType({
    "sglang": ("sglang", {"scheduler": {"kind": "sglang", "chunked_prefill_size": CHUNK, "disable_radix_cache": True},
                          "memory": {"utilization": UTILIZATION}}),
    "trt": ("trtllm-1.2", {"engine": "trtllm-1.2"}),
})
"""Name and options of the client by the name of the engine in the file."""
MODELS = {"fp8": "deepseek-v3", "fp4": "deepseek-r1-nvfp4"}
AMD_FP4 = "deepseek-r1-mxfp4"
BITS = {"fp8": "8 bits", "fp4": "4 bits"}


def inferencex(data: Path) -> Iterator[Row]:
    """DeepSeek-R1 in FP8 on SGLang: medians and p99 by card, lengths and users. Raises `InputError`."""
    rows = read_rows(data / "inferencex" / f"{SGLANG}.csv", INTEGERS, NUMBERS, ("card", "image"), WATTS)
    for row in rows.to_dict("records"):
        version = str(row["image"]).split("-")[0]
        results, found = loop(_client(row, "sglang", "fp8"), row)
        measured = {(metric, stat): row[f"{word}_{metric}_s"] for metric in LATENCIES
                    for word, stat in PERCENTILES.items() if f"{word}_{metric}_s" in row}
        measured[OUTPUT] = row["output_tokens_per_s_per_gpu"] * row["tp"]
        if isfinite(watts := row.get(WATTS, nan)):   # few rows have them
            measured["watts", "mean"] = watts * row["tp"]
        yield from _rows("InferenceX", row, f"sglang {version}", Setting.of(SGLANG, row, "sglang", "fp8"), results,
                         measured, found)


def inferencex_more(data: Path) -> Iterator[Row]:
    """DeepSeek-R1 in FP8 on TensorRT-LLM and in 4 bits on SGLang: medians. Raises `InputError`."""
    path = data / "inferencex" / f"{MORE}.csv"
    rows = read_rows(path, INTEGERS, MORE_NUMBERS, ("card", "engine", "precision"))
    for row in rows.to_dict("records"):
        for field, known in (("engine", ENGINES), ("precision", MODELS)):
            if row[field] not in known:
                raise InputError(f"one of {', '.join(known)}", row[field], file=str(path), field=field)
        engine, precision = row["engine"], row["precision"]
        results, found = loop(_client(row, engine, precision), row)
        measured = {(metric, "p50"): row[f"median_{metric}_ms"] / 1e3 for metric in LATENCIES}
        measured[TOTAL] = row["tokens_per_s_per_gpu"] * row["tp"]
        yield from _rows(f"InferenceX, {engine} {precision}", row, ENGINES[engine][0],
                         Setting.of(MORE, row, engine, precision), results, measured, found)


def _client(row: Fields, engine: str, precision: str) -> Client:
    model = AMD_FP4 if precision == "fp4" and row["card"].startswith("mi") else MODELS[precision]
    parallel = {"tp": row["tp"], "ep": row["ep"]} if row["ep"] > 1 else {"tp": row["tp"]}
    return {"model": model, "device": row["card"], "parallel": parallel, **ENGINES[engine][1]}


def _rows(name: str, row: Fields, engine: str, setting: Setting, results: Results, measured: Figures,
          found: Figures) -> Iterator[Row]:
    ranks = f" ep{row['ep']}" if row["ep"] > 1 else ""
    lengths = f"{row['input_tokens']} in, {row['output_tokens']} out, {row['concurrency']} users"
    case = Case(name, lengths, engine, f"{row['card']} tp{row['tp']}{ranks}", "deepseek-r1", trust_of_steps(results),
                BITS["fp4" if "fp4" in setting.precision else "fp8"])
    yield from rows_of(case, measured, found, peer_errors(setting, measured))


def loop(client: Client, row: Fields) -> tuple[Results, dict[tuple[str, str], float]]:
    """Simulate the users of one row, with lengths drawn between 0.8 and 1.0 of its nominal ones; return the results and
    its figures."""
    users = row["concurrency"]
    random, count = np.random.default_rng(1), EACH * users
    requests = pd.DataFrame({"arrival_s": 0.0} | {
        name: random.integers(round(SHORTEST * most), most + 1, count)
        for name, most in (("prompt_tokens", row["input_tokens"]), ("output_tokens", row["output_tokens"]))},
        index=range(count))
    results = replay(client, requests, {"kind": "closed_loop", "users": users})
    found = _figures(results.requests)
    seconds = results.requests["finish_s"].max()
    found["watts", "mean"] = results.summary_of_run["energy"]["total_j"] / seconds
    return results, found


def _figures(requests: pd.DataFrame) -> dict[tuple[str, str], float]:
    """Return latencies and rates of the requests of one run."""
    found = latencies(requests)
    seconds = requests["finish_s"].max() - requests["arrival_s"].min()
    found[OUTPUT] = float(requests["output_tokens"].sum() / seconds)
    found[TOTAL] = float(requests["prompt_tokens"].sum() / seconds) + found[OUTPUT]
    return found


class Run(NamedTuple):
    """One run of MiniMax-M2.5 and what was measured.

    before: Users of the runs of this prompt length before it, on the same server.
    """

    layout: str
    parallel: dict[str, int]
    prompt: int
    users: int
    before: tuple[int, ...]
    measured: dict[tuple[str, str], float]

    @property
    def client(self) -> Client:
        """The server."""
        return {"model": "minimax-m2.5", "device": "h200", "engine": "vllm-0.15", "parallel": self.parallel}


def inferencex_minimax(data: Path) -> Iterator[Row]:
    """MiniMax-M2.5 in FP8 blocks on vLLM: medians and p99 by prompt length and users. Raises `InputError`."""
    for run in minimax_runs(data):
        results, found = sweep(run.client, run.prompt, run.users, run.before)
        case = Case("InferenceX, MiniMax", f"{run.prompt} in, {MINIMAX_OUTPUT} out, {run.users} users", "vllm-0.15",
                    f"h200 {run.layout}", "minimax-m2.5", trust_of_steps(results), BITS["fp8"])
        cards = run.parallel.get("tp", 1) * run.parallel.get("dp", 1)
        setting = Setting(MINIMAX, "h200", "vllm", "fp8_block", cards, run.parallel.get("ep", 1), run.prompt,
                          MINIMAX_OUTPUT, run.users)
        yield from rows_of(case, run.measured, found, peer_errors(setting, run.measured))


def minimax_runs(data: Path) -> Iterator[Run]:
    """Yield the runs of each layout and prompt length, from few users to many. Raises `InputError`."""
    path = data / "inferencex" / f"{MINIMAX}.csv"
    columns = tuple(f"{metric}_{stat}_ms" for metric in LATENCIES for stat in ("p50", "p99") if metric != "e2e")
    rows = read_rows(path, ("input_tokens", "concurrency"), (*columns, "e2e_p50_ms", "output_tokens_per_s"),
                     ("layout",))
    for (layout, prompt), runs in rows.groupby(["layout", "input_tokens"], sort=False):
        before: tuple[int, ...] = ()
        for row in runs.sort_values("concurrency", kind="stable").to_dict("records"):
            measured = {(metric, stat): row[f"{metric}_{stat}_ms"] / 1e3 for metric in LATENCIES
                        for stat in ("p50", "p99") if f"{metric}_{stat}_ms" in row}
            measured[OUTPUT] = row["output_tokens_per_s"]
            yield Run(str(layout), parallel_of(str(layout), path), int(str(prompt)), row["concurrency"], before,
                      measured)
            before = (*before, row["concurrency"])


def parallel_of(layout: str, path: Path) -> dict[str, int]:
    """Return the `parallel` of a layout as the file names it: tp8, tep8 (whole experts), dep8 (data-parallel attention
    and whole experts). Raises `InputError`."""
    found = re.fullmatch(r"(t|d)(e?)p([1-9]\d{0,3})", layout)
    if found is None or found[1] + found[2] == "d":
        raise InputError("a layout: tpN, tepN or depN", layout, file=str(path), field="layout")
    number = int(found[3])
    return {found[1] + "p": number} | ({"ep": number} if found[2] and number > 1 else {})


def sweep(client: Client, prompt: int, users: int, before: Sequence[int],
          output: int = MINIMAX_OUTPUT) -> tuple[Results, dict[tuple[str, str], float]]:
    """Simulate a run of users on a server that has served runs of `before` users each; return the results and the
    figures of this run.

    Each run has the first ten prompts a user of the same list. Of those before only the prompts count, for the prefix
    cache; they have one output token each.
    """
    count = EACH * users
    ids = [prompt_id for earlier in before for prompt_id in range(EACH * earlier)]
    served = len(ids)
    requests = pd.DataFrame({
        "arrival_s": [0.0] * served + [AFTER_S] * count, "prompt_tokens": prompt,
        "output_tokens": [1] * served + [output] * count, "prefix_group": [*ids, *range(count)],
        "prefix_tokens": prompt})
    results = replay(client, requests, max_in_flight=users)
    return results, _figures(results.requests.iloc[served:])
