"""Reference sets of servers on H100 (`data/h100`): residency-vllm, and BLIS's experiments and training runs.

Their rows may not be published; the tables show errors and statistics (data/README.md).
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd

from evidence.accuracy.served import Case, Row, latencies, replay, rows_of, statistics, trust_of_steps

__all__ = ["blis_experiments", "blis_training", "residency"]

OPEN_LOOP = ("agg_2rps-vanilla", "agg_8rps-vanilla", "w5_sweep-agg12")
REPEATS = ("agg_2rps-patched", "1T_agg_2rps-vanilla", "4T_agg_8rps-vanilla")   # the same loads once more
MIXTURE = ("w7_sweep-agg6",)
CAPPED, CAP = ("w5_sweep-agg18", "w5_sweep-agg24", "w7_sweep-agg12", "w7_sweep-agg18"), ", capped"
MOST_IN_FLIGHT = 256
EDGE_S = 60.0
QWEN: Mapping[str, Any] = {
    "model": "qwen3-14b", "device": "h100-sxm", "engine": "vllm-0.23",
    "scheduler": {"kind": "chunked", "max_num_seqs": 256, "max_num_batched_tokens": 8192},
    "memory": {"num_blocks": 18038, "block_size": 16},
}
WORKLOADS = {  # rates and seconds of the stages, prompt tokens on average, output tokens
    "general": ((8.0, 20.0), 600, 575, 248), "codegen": ((5.0, 10.0), 600, 593, 247),
    "roleplay": ((6.0,), 1200, 786, 251), "general-lite": ((2.5, 6.0), 600, 575, 248),
}
MODELS = {"Qwen/Qwen3-14B": "qwen3-14b", "mistralai/Mixtral-8x7B-v0.1": "mixtral-8x7b",
          "meta-llama/Llama-3.1-8B-Instruct": "llama-3.1-8b",
          "llama-2-7b": "llama-2-7b", "codellama-34b": "codellama-34b"}
ALL = -1               # the index that the data give all stages together
PROMPTS = 100          # distinct prompts, asked in turn: nearly every one is in the prefix cache
SPREAD = 12            # tokens that prompts are longer or shorter than the average, evenly
PEERS = ("aiconfigurator-estimate", "blis-evolved", "blis-roofline", "blis-trained-physics", "llm-optimizer-estimate",
         "vidur")


def residency(data: Path) -> Iterator[Row]:
    """Qwen3-14B on one H100, vLLM 0.23.0: prompts of 986 tokens, and of 253 and 3,917 mixed, in open loop; and what the
    same load generator sent with at most 256 requests in flight, which keeps the server saturated."""
    folder = data / "h100" / "residency-vllm"
    for cells, of in ((OPEN_LOOP, ""), (REPEATS, ", repeats"), (MIXTURE, ", mixture"), (CAPPED, CAP)):
        for cell in cells:
            times = "intended_arrival_s" if of == CAP else "arrival_s"
            measured = pd.read_parquet(folder / f"{cell}.parquet").sort_values(times, kind="stable")
            requests = measured[["prompt_tokens", "output_tokens"]].copy()
            requests.insert(0, "arrival_s", measured[times] - measured[times].min())
            results = replay(QWEN, requests, max_in_flight=MOST_IN_FLIGHT if of == CAP else None)
            found, trust = results.requests, trust_of_steps(results)
            ends = [frame["arrival_s"] + frame["e2e_s"] for frame in (measured, found)]
            if of == CAP:
                measured, found = _steady(measured), _steady(found)
            theirs, ours = latencies(measured), latencies(found)
            if of == CAP:
                theirs["requests/s", "mean"], ours["requests/s", "mean"] = (_served_per_s(each) for each in ends)
            case = Case(f"residency-vllm{of}", cell, "vllm-0.23", "h100-sxm", "qwen3-14b", trust)
            yield from rows_of(case, theirs, ours)


def _steady(frame: pd.DataFrame) -> pd.DataFrame:
    """The requests sent neither in the first nor in the last minute."""
    since = (frame["arrival_s"] - frame["arrival_s"].min()).to_numpy(dtype=np.float64)
    return frame.iloc[np.flatnonzero((since >= EDGE_S) & (since <= since.max() - EDGE_S))]


def _served_per_s(ends: pd.Series[float]) -> float:
    """Requests that ended each second, the first and the last minute cut."""
    since = np.sort(ends.to_numpy()) - ends.min()
    kept = since[(since >= EDGE_S) & (since <= since[-1] - EDGE_S)]
    return float((len(kept) - 1) / (kept[-1] - kept[0]))


def in_turn(workload: str, share: float, prompt_tokens: float | None = None) -> tuple[pd.DataFrame, np.ndarray]:
    """(requests, stage of each) at a constant rate, the distinct prompts in turn; `share` of each stage's seconds."""
    rates, seconds, average, output = WORKLOADS[workload]
    lengths = np.rint(np.linspace(-SPREAD, SPREAD, PROMPTS) + (prompt_tokens or average)).astype(int)
    np.random.default_rng(0).shuffle(lengths)
    starts = np.cumsum([0.0, *(seconds * share for _ in rates)])
    counts = [round(rate * seconds * share) for rate in rates]
    arrival = np.concatenate([start + np.arange(n) / r for start, n, r in zip(starts, counts, rates, strict=False)])
    prompt = np.arange(len(arrival)) % PROMPTS
    requests = pd.DataFrame({
        "arrival_s": arrival, "prompt_tokens": lengths[prompt], "output_tokens": output, "prefix_group": prompt,
        "prefix_tokens": lengths[prompt],
    })
    return requests, np.repeat(np.arange(len(rates)), counts)


def _client(model: str, tp: int, budget: int) -> dict[str, Any]:
    return {
        "model": model, "device": "h100-sxm", "engine": "vllm-0.15", "max_model_len": 4096, "parallel": {"tp": tp},
        "scheduler": {"kind": "chunked", "max_num_seqs": 128, "max_num_batched_tokens": budget},
    }


def _latencies(requests: pd.DataFrame, output: int) -> dict[tuple[str, str], float]:
    found = statistics({"ttft": requests["ttft_s"], "e2e": requests["e2e_s"]})
    found["itl", "mean"] = (found["e2e", "mean"] - found["ttft", "mean"]) / (output - 1)
    return found


def blis_experiments(data: Path, share: float = 1.0) -> Iterator[Row]:
    """BLIS's experiments, stage by stage, with the best of six simulators' errors with ours."""
    table = pd.read_csv(data / "h100" / "sim-to-real-accuracy-validation" / "measured_and_peers.csv")
    for number, rows in table.groupby("exp_id"):
        model, workload = str(rows.model.iloc[0]), str(rows.workload.iloc[0])
        if model not in MODELS:
            continue
        requests, stages = in_turn(workload, share)
        results = replay(_client(MODELS[model], int(rows.tp.iloc[0]), int(rows.max_num_batched_tokens.iloc[0])),
                         requests)
        found, trust = results.requests, trust_of_steps(results)
        output = WORKLOADS[workload][3]
        several = stages.max() > 0
        for stage in [*range(stages.max() + 1), *([ALL] if several else [])]:
            part = rows[rows.stage_index == stage].set_index("metric_name")
            measured = _published(part["actual"] / 1e3, output)
            peers: dict[tuple[str, str], float] = {}
            for peer in PEERS:
                for key, value in _published(part[peer] / 1e3, output).items():
                    error = value / measured[key] - 1
                    if np.isfinite(error) and abs(error) < abs(peers.get(key, np.inf)):
                        peers[key] = error
            rates = "all" if stage == ALL else f"{WORKLOADS[workload][0][stage]:g}/s"
            case = Case("BLIS experiments", f"{number} {workload} {rates}", "vllm-0.15", "h100-sxm", MODELS[model],
                        trust)
            yield from rows_of(case, measured, _latencies(found[(stages == stage) | (stage == ALL)], output), peers)


def _published(values: pd.Series, output: int) -> dict[tuple[str, str], float]:
    found = {(metric, stat): float(values[f"{metric}_{stat}"]) for metric in ("ttft", "e2e")
             for stat in ("mean", "p90", "p99") if f"{metric}_{stat}" in values}
    found["itl", "mean"] = (found["e2e", "mean"] - found["ttft", "mean"]) / (output - 1)
    return found


def blis_training(data: Path, share: float = 1.0) -> Iterator[Row]:
    """BLIS's training runs that were not overloaded, stage by stage."""
    table = pd.read_csv(data / "h100" / "training" / "measured.csv")
    for _, rows in table[(table.workload != "reasoning") & (table.stage >= 0)].groupby("run"):
        first = rows.iloc[0]
        requests, stages = in_turn(str(first.workload), share, float(first.prompt_mean))
        model, output = MODELS[str(first.model)], int(first.output_len_configured)
        results = replay(_client(model, int(first.tp), 2048), requests)
        found, trust = results.requests, trust_of_steps(results)
        for row in rows.itertuples():
            measured = {(metric, stat): float(getattr(row, f"{metric}_{'median' if stat == 'p50' else stat}_s"))
                        for metric in ("ttft", "e2e") for stat in ("mean", "p50", "p90", "p99")}
            measured["itl", "mean"] = (measured["e2e", "mean"] - measured["ttft", "mean"]) / (output - 1)
            case = Case("BLIS training", f"{first.workload} {row.requested_rate:g}/s", "vllm-0.15", "h100-sxm", model,
                        trust)
            yield from rows_of(case, measured, _latencies(found[stages == row.stage], output))
