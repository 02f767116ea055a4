"""Reference set of servers in a closed loop (`data/h100/llm-d-prism`): Llama-3.1-70B on H100, two to eight a server.

Each deployment is predicted twice: with the all-reduce of the kernel tables, and with one found on its row of a single
user, latency from the time per output token and bandwidth from the time to first token. The other rows test it.

The servers ran vLLM 0.10, which no engine file describes: `vllm-0.15` stands in, without asynchronous scheduling, which
was not the default yet. The load generator, vLLM's serving benchmark, asks for greedy sampling, which sorts no
vocabulary, and sends the first prompt once before it measures: that one is found in the prefix cache.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd

from hermes.calibration.accuracy.replay import replay
from hermes.calibration.accuracy.row import Case, Row, rows_of, statistics
from hermes.calibration.importers.base import read_csv
from hermes.errors import InputError

__all__ = ["AllReduce", "all_reduce_of_one_user", "closed_loop", "figures"]

TEXTS = ("config", "pd")
NUMBERS = (
    "gpus", "tp", "concurrency", "input_tokens", "output_tokens", "num_prompts", "total_tokens_per_s",
    "ttft_mean_ms", "ttft_p50_ms", "tpot_mean_ms", "e2e_mean_ms", "e2e_p50_ms",
)
THROUGHPUT = "tokens/s"
FAST, SLOW = {"latency": 0.0, "bandwidth": 1e15}, {"latency": 1e-5, "bandwidth": 1e15}
NARROW = {"latency": 0.0, "bandwidth": 1e11}


@dataclass(frozen=True)
class AllReduce:
    """Time of an all-reduce: latency_s + bytes / bandwidth_bytes_per_s."""

    latency_s: float
    bandwidth_bytes_per_s: float

    @property
    def link(self) -> dict[str, float]:
        """The option `link` of the hardware model."""
        return {"latency": self.latency_s, "bandwidth": self.bandwidth_bytes_per_s}


def closed_loop(data: Path) -> Iterator[Row]:
    """Throughput and latencies by deployment and number of users."""
    path = data / "h100" / "llm-d-prism" / "measured.csv"
    for name, rows in read_csv(path, NUMBERS, TEXTS).groupby("config", sort=False):
        alone = rows[rows.concurrency == 1]
        if len(alone) != 1:
            raise InputError("one row of a single user (concurrency 1) of each deployment", len(alone), file=str(path),
                             field=str(name))
        found = all_reduce_of_one_user(alone.iloc[0])
        for how, link in (("default link", None), ("1-user link", found.link)):
            for _, row in rows.iterrows():
                if link is None or row.concurrency > 1:
                    yield from _rows(f"llm-d{_kind(row)}, {how}", row, link)


def _kind(row: pd.Series[Any]) -> str:
    return "" if row.pd == "Aggregated" else " pool"


def _rows(name: str, row: pd.Series[Any], link: Mapping[str, float] | None) -> Iterator[Row]:
    case = Case(name, f"{row.config}, {row.concurrency} users", "not stated", f"h100-sxm tp{row.tp}", "llama-3.1-70b")
    measured = {
        (THROUGHPUT, "mean"): row.total_tokens_per_s, ("ttft", "mean"): row.ttft_mean_ms / 1e3,
        ("ttft", "p50"): row.ttft_p50_ms / 1e3, ("tpot", "mean"): row.tpot_mean_ms / 1e3,
        ("e2e", "mean"): row.e2e_mean_ms / 1e3, ("e2e", "p50"): row.e2e_p50_ms / 1e3,
    }
    yield from rows_of(case, measured, figures(row, link, int(row.num_prompts)))


def figures(row: pd.Series[Any], link: Mapping[str, float] | None, requests: int) -> dict[tuple[str, str], float]:
    """Return the predicted statistics of a deployment and a number of users.

    A deployment of several servers is a pool in which each request goes to the one with the fewest requests. Servers
    that were meant for one phase each served both, at 64 users and more (README of the data).
    """
    users, servers = int(row.concurrency), int(row.gpus) // int(row.tp)
    before = int(users == 1)   # the prompt that the load generator sends before it measures
    prompts = pd.DataFrame({
        "arrival_s": 0.0, "prompt_tokens": int(row.input_tokens), "output_tokens": int(row.output_tokens),
        "prefix_group": np.maximum(np.arange(requests + before) - before, 0), "prefix_tokens": int(row.input_tokens),
    })
    served = replay(_client(row, link, servers), prompts, {"kind": "closed_loop", "users": users},
                    {"kind": "least_loaded", "load": "requests"}).requests.iloc[before:]
    tokens = (served["prompt_tokens"] + served["output_tokens"]).sum()
    seconds = served["finish_s"].max() - served["arrival_s"].min()
    found = statistics({name: served[f"{name}_s"] for name in ("ttft", "tpot", "e2e")})
    found[THROUGHPUT, "mean"] = float(tokens / seconds)
    return found


def _client(row: pd.Series[Any], link: Mapping[str, float] | None, servers: int) -> dict[str, Any]:
    pool = row.pd != "Aggregated"
    return {
        "model": "llama-3.1-70b", "device": "h100-sxm", "engine": "vllm-0.15", "parallel": {"tp": int(row.tp)},
        "count": servers, "scheduler": {"kind": "chunked", "async_scheduling": False},
        "memory": {"utilization": 0.9, "block_size": 128} if pool else {"utilization": 0.95, "block_size": 16},
        "hardware": {"kind": "composed", "top_p": False} | ({} if link is None else {"link": dict(link)}),
    }


def all_reduce_of_one_user(row: pd.Series[Any]) -> AllReduce:
    """Return the all-reduce with which a single user sees the measured times (median TTFT, mean TPOT).

    Both times are linear in latency and 1 / bandwidth: three predictions give the two slopes. Values that would have to
    be negative are 0.
    """
    measured = np.array([row.ttft_p50_ms, row.tpot_mean_ms]) / 1e3
    base, slow, narrow = (_alone(row, link) for link in (FAST, SLOW, NARROW))
    slopes = np.column_stack([(slow - base) / SLOW["latency"], (narrow - base) * NARROW["bandwidth"]])
    latency, inverse = np.linalg.solve(slopes, measured - base)
    return AllReduce(max(float(latency), 0.0), 1.0 / max(float(inverse), 1e-15))


def _alone(row: pd.Series[Any], link: Mapping[str, float]) -> np.ndarray[Any, np.dtype[np.float64]]:
    """Return TTFT and TPOT of one prompt on an idle server, seconds."""
    prompt = pd.DataFrame({"arrival_s": [0.0], "prompt_tokens": [int(row.input_tokens)],
                           "output_tokens": [int(row.output_tokens)]})
    served = replay(_client(row, link, 1), prompt).requests
    return np.array([served["ttft_s"].iloc[0], served["tpot_s"].iloc[0]])
