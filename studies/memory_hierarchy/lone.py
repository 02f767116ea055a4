"""Break-even points: one conversation whose second turn runs on another replica, loaded or computed again."""

from __future__ import annotations

from typing import Any

import numpy as np
import pandas as pd

from hermes.results import Results
from hermes.study import Context, Point, run_points

from .hand import KV_BYTES, bandwidth_to_break_even, recompute_s

__all__ = ["LENGTHS", "break_even", "second_turn"]

LENGTHS = (2_000, 8_000, 24_000)      # tokens of each of two messages
AROUND = (0.7, 0.85, 1.0, 1.2, 1.5)   # times the bandwidth by hand


def second_turn(results: Results) -> dict[str, Any]:
    """Return the TTFT of the second turn, s, and the tokens of its past that were found."""
    return {"ttft_s": float(results.metrics.ttft_ns[-1]) / 1e9, "found": int(results.metrics.cached_tokens[-1]),
            "prompt": int(results.record.prompt_tokens[-1])}


def break_even(context: Context) -> pd.DataFrame:
    """Return for each length the bandwidth at which a load takes as long as recomputing, by hand and simulated.

    The load does not overlap with the prefill. Between the bandwidths tried the TTFT is linear in 1 / bandwidth.
    """
    points = [_point(context, tokens, rate) for tokens in LENGTHS for rate in (None, "host-ddr5", *AROUND)]
    frame = run_points(context, "break-even", points, scenario="assistant.yaml", extract=second_turn)
    rows = []
    for _, group in frame.groupby("tokens", sort=False):
        by = group.set_index("bandwidth")
        none, host = by.loc["none"], by.loc["host-ddr5"]
        found = int(by["found"].max())
        tried = group[~group["bandwidth"].isin(("none", "host-ddr5"))]
        inverse = 1 / tried["bandwidth"].to_numpy(dtype=float)
        order = np.argsort(tried["ttft_s"].to_numpy())
        crossing = 1 / float(np.interp(none["ttft_s"], tried["ttft_s"].to_numpy()[order], inverse[order]))
        rows.append({
            "tokens": found, "KV GB": found * KV_BYTES / 1e9, "recompute by hand, s": recompute_s(found),
            "TTFT recomputed, s": none["ttft_s"], "TTFT from host DRAM, s": host["ttft_s"],
            "by hand GB/s": bandwidth_to_break_even(found) / 1e9, "simulated GB/s": crossing / 1e9,
            "difference": crossing / bandwidth_to_break_even(found) - 1,
            "load share": found * KV_BYTES / 256e9 / host["ttft_s"],
        })
    return pd.DataFrame(rows)


def _point(context: Context, tokens: int, rate: str | float | None) -> Point:
    bandwidth: str | float = rate or "none"
    tiers = None
    if rate is not None:
        if isinstance(rate, float):
            bandwidth = rate * bandwidth_to_break_even(tokens)
        tiers = {"overlap": False, "block_tokens": 16, "levels": [
            {"name": "tier", "capacity": "1 TB", "bandwidth": bandwidth, "scope": "all"}]}
    return Point(f"{tokens} tokens, {bandwidth}", {
        "clients.0.count": 2, "clients.0.tiers": tiers, "router": {"kind": "round_robin"},
        "workload.duration": None, "workload.requests": 2, "workload.arrivals.rate": "0.01 /s",
        "workload.lengths": {"kind": "conversations", "turns": 2, "think_time": "30 s", "system_tokens": 16,
                             "message": tokens, "output": 16},
    }, {"tokens": tokens, "bandwidth": bandwidth}, context["seed"])
