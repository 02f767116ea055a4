"""Vary one assumption at a time about the llm-d servers, and print the error of their throughput.

    python scripts/llm_d_causes.py DATA_DIR

DATA_DIR holds h100/llm-d-prism (see `hermes accuracy`). Each deployment has the all-reduce that its row of a single
user shows, found again under each assumption; columns are other numbers of users; "-" where no request fits. Four
lines have no such all-reduce, but the kernel tables', or NCCL's alone, without vLLM's kernel; each also with no step
shorter than one user's (a host that cannot launch faster). The last lines of each give the size of a decode's
all-reduce, its time in the kernel tables and by NCCL alone, and the latency with which the time per output token of a
row would be the measured one: with the right model it would be the same in all rows.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, Literal

import numpy as np
import pandas as pd

from evidence.accuracy.llm_d import all_reduce_of_one_user, client_of, deployments, figures, served
from hermes.errors import HermesError, InputError
from hermes.hardware.composed import Composed
from hermes.hardware.descriptions.engines import load_engine

USERS = (8, 32, 64, 128, 256)
CHANGES: dict[str, dict[str, Any]] = {
    "as the table has it": {},
    "scheduling hidden behind the device": {"scheduler": {"async_scheduling": True}},
    "chunks of 2,048 tokens": {"scheduler": {"max_num_batched_tokens": 2048}},
    "chunks of 16,384 tokens": {"scheduler": {"max_num_batched_tokens": 16384}},
    "5% less of the memory": {"memory": {"utilization": 0.9}},
    "KV for 31,456 tokens (TP2: 2.9 requests)": {"memory": {"num_blocks": 1966, "block_size": 16, "utilization": None}},
    "no prefix caching": {"memory": {"prefix_caching": False}},
    "the vocabulary is sorted": {"hardware": {"top_p": True}},
}
ROUNDS = 4
NCCL: dict[str, Any] = {"hardware": {"all_reduce": "nccl"}}
ROW_BYTES = 8192 * 2   # of a token in an all-reduce


def throughput_error(
    row: pd.Series[Any], link: Mapping[str, float] | None, change: Mapping[str, Mapping[str, Any]],
) -> float:
    found = figures(row, served(row, client_of(row, link, change)))
    return found["tokens/s", "mean"] / float(row.total_tokens_per_s) - 1.0


def _errors(alone: pd.Series[Any], rows: Sequence[pd.Series[Any]], change: Mapping[str, Mapping[str, Any]]) -> str:
    try:
        link = all_reduce_of_one_user(alone, change)
    except InputError:
        return "".join(f"{'-':>8}" for _ in rows)
    return "".join(f"{round(throughput_error(row, link, change), 3) + 0.0:>+8.1%}" for row in rows)


def _floor(alone: pd.Series[Any]) -> dict[str, Any]:
    """Return the change with which no step is shorter than a single user's."""
    step = load_engine("vllm-0.15").step
    return {"hardware": {"asynchronous": True, "step": {
        "exposed": step.exposed, "uncaptured": step.uncaptured, "host": float(alone.tpot_mean_ms) / 1e3}}}


def _without_link(rows: Sequence[pd.Series[Any]], change: Mapping[str, Mapping[str, Any]]) -> str:
    return "".join(f"{round(throughput_error(row, None, change), 3) + 0.0:>+8.1%}" for row in rows)


def _reduce_us(tp: int, users: int, kind: Literal["engine", "nccl"]) -> float:
    """Return microseconds of the all-reduce of a decode of so many sequences, of the tables or by NCCL alone."""
    reduces = Composed(model="llama-3.1-70b", device="h100-sxm", tp=tp, all_reduce=kind).build().sources.reduces
    assert reduces is not None, "tp > 1"
    return float(np.interp(users * ROW_BYTES, *reduces.captured)) / 1e3


def latency_of(row: pd.Series[Any], link: Mapping[str, float]) -> float:
    """Return the latency with which the predicted TPOT is the measured one, by the secant method."""
    def error(latency: float) -> float:
        found = served(row, client_of(row, dict(link) | {"latency": latency}))
        return figures(row, found)["tpot", "mean"] - row.tpot_mean_ms / 1e3

    old, new = link["latency"], link["latency"] + 10e-6
    before, after = error(old), error(new)
    for _ in range(ROUNDS):
        if after == before:
            break
        old, new, before = new, max(new - after * (new - old) / (after - before), 0.0), after
        after = error(new)
    return new


def main(arguments: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description="What single assumptions about the llm-d servers are worth.")
    parser.add_argument("data", type=Path, help="folder of the reference sets")
    options = parser.parse_args(arguments)
    try:
        for alone, others in deployments(options.data):
            rows = {int(row.concurrency): row for row in others}
            users = [n for n in USERS if n in rows]
            link = all_reduce_of_one_user(alone)
            print(f"{alone.config}: {link['latency'] * 1e6:.1f} us + bytes / {link['bandwidth'] / 1e9:.0f} GB/s")
            print(f"  {'error of tokens/s, users':44}" + "".join(f"{n:>8}" for n in users))
            for name, change in CHANGES.items():
                print(f"  {name:44}" + _errors(alone, [rows[n] for n in users], change), flush=True)
            shown = [rows[n] for n in users]
            floor = _floor(alone)
            for name, change in (("kernel tables", {}), ("tables, no step shorter than of one user", floor),
                                 ("NCCL alone", NCCL), ("NCCL, no step shorter than of one user",
                                                        {"hardware": floor["hardware"] | NCCL["hardware"]})):
                print(f"  {name:44}" + _without_link(shown, change), flush=True)
            print(f"  {'all-reduce of as many rows, KiB (one user: 16)':44}"
                  + "".join(f"{n * ROW_BYTES // 1024:>8}" for n in users))
            for name, kind in (("kernel tables, us", "engine"), ("NCCL alone, us", "nccl")):
                one, *of = (_reduce_us(int(alone.tp), n, kind) for n in (1, *users))
                print(f"  {f'{name} (one user: {one:.0f})':44}" + "".join(f"{us:>8.0f}" for us in of))
            print(f"  {'latency that meets the TPOT, us':44}"
                  + "".join(f"{latency_of(rows[n], link) * 1e6:>8.0f}" for n in users), flush=True)
    except HermesError as error:
        print(f"llm_d_causes: {error}", file=sys.stderr)
        return 2
    return 0


if __name__ == "__main__":
    sys.exit(main())
