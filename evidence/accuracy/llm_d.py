"""The reference set of llm-d (`data/h100/llm-d-prism`): Llama-3.1-70B in a closed loop, on two to eight H100 a server.

Each deployment is predicted three times: with the all-reduces that vLLM has on this card (its own kernel, symmetric
memory and NCCL, from kernel tables); with NCCL alone, the other end of what sites have; and with one found on its row
of a single user, latency from the time per output token and bandwidth from the time to first token, which the other
rows test.

The servers ran vLLM 0.10, which no engine file describes: `vllm-0.15` stands in, without asynchronous scheduling, which
was not the default yet. The load generator, vLLM's serving benchmark, asks for greedy sampling, which sorts no
vocabulary, and sends the first prompt once before it measures: that one is found in the prefix cache.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from pathlib import Path
from types import MappingProxyType
from typing import Any

import numpy as np
import pandas as pd

from evidence.accuracy.served import (
    Case,
    Row,
    latencies,
    read_rows,
    replay,
    rows_of,
    trust_of_steps,
)
from hermes.errors import InputError, Verbatim
from hermes.results import Results

__all__ = ["all_reduce_of_one_user", "client_of", "closed_loop", "deployments", "figures", "served"]

TEXTS = ("config", "pd")
INTEGERS = ("gpus", "tp", "concurrency", "input_tokens", "output_tokens", "num_prompts")
NUMBERS = ("total_tokens_per_s", "ttft_mean_ms", "ttft_p50_ms", "tpot_mean_ms", "e2e_mean_ms", "e2e_p50_ms")
THROUGHPUT = "tokens/s"
FAST, SLOW = {"latency": 0.0, "bandwidth": 1e15}, {"latency": 1e-5, "bandwidth": 1e15}
NARROW = {"latency": 0.0, "bandwidth": 1e11}
NCCL: Mapping[str, Mapping[str, Any]] = MappingProxyType({"hardware": {"all_reduce": "nccl"}})
NO_CHANGE: Mapping[str, Mapping[str, Any]] = MappingProxyType({})


def closed_loop(data: Path) -> Iterator[Row]:
    """Throughput and latencies by deployment and number of users."""
    for alone, others in deployments(data):
        kind = "llm-d" if alone.pd == "Aggregated" else f"llm-d x{int(alone.gpus) // int(alone.tp)}"
        for row in (alone, *others):
            yield from _rows(f"{kind}, tables", row, client_of(row, None))
            yield from _rows(f"{kind}, NCCL", row, client_of(row, None, NCCL))
        found = all_reduce_of_one_user(alone)
        for row in others:
            yield from _rows(f"{kind}, 1 user", row, client_of(row, found))


def deployments(data: Path) -> Iterator[tuple[pd.Series[Any], list[pd.Series[Any]]]]:
    """Yield the rows of each deployment: that of a single user, and the others. Raises `InputError`."""
    path = data / "h100" / "llm-d-prism" / "measured.csv"
    for name, rows in read_rows(path, INTEGERS, NUMBERS, TEXTS).groupby("config", sort=False):
        alone = [row for _, row in rows.iterrows() if row.concurrency == 1]
        if len(alone) != 1:
            raise InputError("one row of a single user (concurrency 1) of each deployment", len(alone), file=str(path),
                             field=str(name))
        yield alone[0], [row for _, row in rows.iterrows() if row.concurrency > 1]


def _rows(name: str, row: pd.Series[Any], client: Mapping[str, Any]) -> Iterator[Row]:
    results = served(row, client)
    case = Case(name, f"{row.config}, {row.concurrency} users", "not stated", f"h100-sxm tp{row.tp}", "llama-3.1-70b",
                trust_of_steps(results))
    measured = {
        (THROUGHPUT, "mean"): row.total_tokens_per_s, ("ttft", "mean"): row.ttft_mean_ms / 1e3,
        ("ttft", "p50"): row.ttft_p50_ms / 1e3, ("tpot", "mean"): row.tpot_mean_ms / 1e3,
        ("e2e", "mean"): row.e2e_mean_ms / 1e3, ("e2e", "p50"): row.e2e_p50_ms / 1e3,
    }
    yield from rows_of(case, measured, figures(row, results))


def served(row: pd.Series[Any], client: Mapping[str, Any]) -> Results:
    """Simulate a deployment and its users, the prompt that the load generator sends first included.

    A deployment of several servers is a pool in which each request goes to the one with the fewest requests. Servers
    that were meant for one phase each served both, at 64 users and more (README of the data). client: as `client_of`
    gives it.
    """
    users, requests, before = int(row.concurrency), int(row.num_prompts), int(row.concurrency == 1)
    prompts = pd.DataFrame({
        "arrival_s": 0.0, "prompt_tokens": int(row.input_tokens), "output_tokens": int(row.output_tokens),
        "prefix_group": np.maximum(np.arange(requests + before) - before, 0), "prefix_tokens": int(row.input_tokens),
    })
    return replay(client, prompts, {"kind": "closed_loop", "users": users},
                  {"kind": "least_loaded", "load": "requests"})


def figures(row: pd.Series[Any], results: Results) -> dict[tuple[str, str], float]:
    """Return the predicted statistics of a deployment and its users, the prompt that is sent first left out."""
    measured = results.requests.iloc[int(row.concurrency == 1):]
    tokens = (measured["prompt_tokens"] + measured["output_tokens"]).sum()
    seconds = measured["finish_s"].max() - measured["arrival_s"].min()
    found = latencies(measured)
    found[THROUGHPUT, "mean"] = float(tokens / seconds)
    return found


def client_of(
    row: pd.Series[Any], link: Mapping[str, float] | None, change: Mapping[str, Mapping[str, Any]] = NO_CHANGE,
) -> dict[str, Any]:
    """Return the servers of a deployment as a group of clients.

    link: its all-reduce, None for the default.
    change: other options of the client's parts, such as `{"memory": {"utilization": 0.9}}`.
    """
    pool = row.pd != "Aggregated"
    client: dict[str, Any] = {
        "model": "llama-3.1-70b", "device": "h100-sxm", "engine": "vllm-0.15", "parallel": {"tp": int(row.tp)},
        "count": int(row.gpus) // int(row.tp),
        "scheduler": {"kind": "chunked", "async_scheduling": False},
        "memory": {"utilization": 0.9, "block_size": 128} if pool else {"utilization": 0.95, "block_size": 16},
        "hardware": {"kind": "composed", "top_p": False} | ({} if link is None else {"link": dict(link)}),
    }
    return client | {part: client[part] | dict(options) for part, options in change.items()}


def all_reduce_of_one_user(
    row: pd.Series[Any], change: Mapping[str, Mapping[str, Any]] = NO_CHANGE,
) -> dict[str, float]:
    """Return the all-reduce with which a single user sees the measured times (median TTFT, mean TPOT), as an option
    `link` of the hardware model: `latency` and `bandwidth`.

    Both times are linear in latency and 1 / bandwidth: three predictions give the two slopes. Values that would have to
    be negative are 0. change: as for `client_of`. Raises `InputError` where the request does not fit.
    """
    measured = np.array([row.ttft_p50_ms, row.tpot_mean_ms]) / 1e3
    base, slow, narrow = (_alone(client_of(row, link, change), row) for link in (FAST, SLOW, NARROW))
    if not np.isfinite(base).all():
        raise InputError("memory for the request of a single user", Verbatim("no room for it"), field=str(row.config))
    slopes = np.column_stack([(slow - base) / SLOW["latency"], (narrow - base) * NARROW["bandwidth"]])
    latency, inverse = np.linalg.solve(slopes, measured - base)
    return {"latency": max(float(latency), 0.0), "bandwidth": 1.0 / max(float(inverse), 1e-15)}


def _alone(client: Mapping[str, Any], row: pd.Series[Any]) -> np.ndarray[Any, np.dtype[np.float64]]:
    """Return TTFT and TPOT of one prompt on an idle server, seconds."""
    prompt = pd.DataFrame({"arrival_s": [0.0], "prompt_tokens": [int(row.input_tokens)],
                           "output_tokens": [int(row.output_tokens)]})
    served = replay({**client, "count": 1}, prompt).requests
    return np.array([served["ttft_s"].iloc[0], served["tpot_s"].iloc[0]])
