"""Vary one assumption at a time about the llm-d servers, and print the error of their throughput.

    python scripts/llm_d_causes.py DATA_DIR

DATA_DIR holds h100/llm-d-prism (see `hermes accuracy`). Each deployment has the all-reduce that its row of a single
user shows, found again under each assumption; columns are other numbers of users; "-" where no request fits. The last
line of each gives the latency of an all-reduce with which the time per output token of a row would be the measured one:
with the right model it would be the same in all rows.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import pandas as pd

from hermes.calibration.accuracy.closed_loop import all_reduce_of_one_user, client_of, deployments, figures
from hermes.errors import HermesError, InputError

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


def throughput_error(row: pd.Series[Any], link: Mapping[str, float], change: Mapping[str, Mapping[str, Any]]) -> float:
    found = figures(row, client_of(row, link, change))
    return found["tokens/s", "mean"] / float(row.total_tokens_per_s) - 1.0


def _errors(alone: pd.Series[Any], rows: Sequence[pd.Series[Any]], change: Mapping[str, Mapping[str, Any]]) -> str:
    try:
        link = all_reduce_of_one_user(alone, change).link
    except InputError:
        return "".join(f"{'-':>8}" for _ in rows)
    return "".join(f"{round(throughput_error(row, link, change), 3) + 0.0:>+8.1%}" for row in rows)


def latency_of(row: pd.Series[Any], link: Mapping[str, float]) -> float:
    """Return the latency with which the predicted TPOT is the measured one, by the secant method."""
    def error(latency: float) -> float:
        return figures(row, client_of(row, dict(link) | {"latency": latency}))["tpot", "mean"] - row.tpot_mean_ms / 1e3

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
            link = all_reduce_of_one_user(alone).link
            print(f"{alone.config}: {link['latency'] * 1e6:.1f} us + bytes / {link['bandwidth'] / 1e9:.0f} GB/s")
            print(f"  {'error of tokens/s, users':44}" + "".join(f"{n:>8}" for n in users))
            for name, change in CHANGES.items():
                print(f"  {name:44}" + _errors(alone, [rows[n] for n in users], change), flush=True)
            print(f"  {'latency that meets the TPOT, us':44}"
                  + "".join(f"{latency_of(rows[n], link) * 1e6:>8.0f}" for n in users), flush=True)
    except HermesError as error:
        print(f"llm_d_causes: {error}", file=sys.stderr)
        return 2
    return 0


if __name__ == "__main__":
    sys.exit(main())
