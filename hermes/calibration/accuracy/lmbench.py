"""Reference set of llm-d-benchmark (`data/llm-d-lmbench`): Llama-3.1-70B on two A100, one server and two of them.

The servers ran vLLM of about 0.8.5, which no engine file describes: `vllm-0.15` stands in, without asynchronous
scheduling, which that version did not have. Their command names neither limit of a step. 8,192 tokens and 1,024
sequences, that version's defaults for cards of more than 70 GiB, leave 2,239 blocks of KV; 2,048 tokens and 256
sequences, from which a later commit starts on an A100, leave 3,255. The single servers answer as with the former (2,000
to 2,200 blocks fit the first tokens at 1 to 1.34 requests/s, which 3,255 miss by half), the pair, started a week later,
as with the latter (E2E at 3/s within 4.4% and 3.0%; with 2,239 blocks 11.6% and 9.3% too long).

The plain pair lies behind a Kubernetes service, which balances connections: both `random` and `round_robin` are shown.
Of what llm-d's router served, only answers within 30 s are recorded: those are joined to the others by their place in
the order of arrivals, and what is missing is replayed with the tokens of the plain pair.

Left out: prefixes that are in the cache (conversations are not marked, and rates followed each other on one server).
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd

from hermes.calibration.accuracy.served import Case, Row, latencies, replay, rows_of, statistics, trust_of_steps

__all__ = ["lmbench"]

ONE = {"exp-0-vllm-70b": "", "exp-0-baseline-llm-d-70b": " (llm-d build)"}
PAIR, ROUTED = "exp-2-vllm-70b-2replicas", "exp-2-llm-d-70b-2replicas"
MOST = {1: 1.0, 2: 3.0}   # requests/s that one server, and two, serve without a queue that grows
CLIENT: Mapping[str, Any] = {
    "model": "llama-3.1-70b", "device": "a100-80gb", "engine": "vllm-0.15", "parallel": {"tp": 2},
    "max_model_len": 20000, "memory": {"utilization": 0.95, "block_size": 16},
}
LIMITS = {1: {"max_num_batched_tokens": 8192, "max_num_seqs": 1024},   # by the number of servers
          2: {"max_num_batched_tokens": 2048, "max_num_seqs": 256}}


def lmbench(data: Path) -> Iterator[Row]:
    """Latencies by workload, number of servers, router and rate."""
    folder = data / "llm-d-lmbench"
    for file, build in ONE.items():
        for rate, sent in _rates(folder / f"{file}.csv", "sharegpt"):
            yield from _rows("x1, sharegpt", f"{rate:g}/s{build}", rate, 1, sent, sent, None)
    for workload in ("short_input", "sharegpt"):
        for rate, sent in _rates(folder / f"{PAIR}.csv", workload):
            for router in ("random", "round_robin"):
                yield from _rows(f"x2, {workload}, {router}", f"{rate:g}/s", rate, 2, sent, sent, router)
    plain = dict(_rates(folder / f"{PAIR}.csv", "sharegpt"))
    for rate, answered in _rates(folder / f"{ROUTED}.csv", "sharegpt"):
        if rate in plain:
            of, name = "x2, llm-d survivors", f"{rate:g}/s, {len(answered)} of {len(plain[rate])}"
            yield from _rows(of, name, rate, 2, plain[rate], answered, "least_loaded")


def _rates(path: Path, workload: str) -> Iterator[tuple[float, pd.DataFrame]]:
    """Yield (requests/s, rows by their place in the order of arrivals) of a file."""
    table = pd.read_csv(path)
    table = table[table["workload"] == workload]
    for rate, rows in table.groupby("rate"):
        per_s = float(str(rate))
        place = np.rint(rows["launch_s"] * per_s).astype(int) if workload == "sharegpt" else (
            rows["launch_s"].rank(method="first").astype(int))
        yield per_s, rows.assign(place=place).set_index("place").sort_index()


def _rows(what: str, name: str, rate: float, servers: int, sent: pd.DataFrame, answered: pd.DataFrame,
          router: str | None) -> Iterator[Row]:
    """Rows of one rate: all that was `sent` is replayed, what was `answered` is compared."""
    tokens = answered["generation_tokens"].reindex(sent.index).fillna(sent["generation_tokens"]).astype(int)
    requests = pd.DataFrame({"arrival_s": sent["launch_s"] - sent["launch_s"].min(),
                             "prompt_tokens": sent["prompt_tokens"], "output_tokens": tokens.clip(lower=1)})
    client = {**CLIENT, "count": servers,
              "scheduler": {"kind": "chunked", "async_scheduling": False, **LIMITS[servers]}}
    results = replay(client, requests, router=None if router is None else {"kind": router})
    found = results.requests
    found = found.set_index(sent.index).loc[answered.index]
    seconds = answered["ttft_s"] + answered["generation_s"]
    per_token = answered["generation_s"] / (answered["generation_tokens"] - 1).where(answered["generation_tokens"] > 1)
    of = "lmbench " + what + ("" if rate <= MOST[servers] or "short_input" in what else ", overload")
    yield from rows_of(Case(of, name, "not stated", "a100-80gb tp2", "llama-3.1-70b", trust_of_steps(results)),
                       statistics({"ttft": answered["ttft_s"], "tpot": per_token, "e2e": seconds}),
                       latencies(found))
