"""Figures that studies of LLM batching extract from each point. An edit here simulates their points again."""

from __future__ import annotations

from typing import Any

import numpy as np

from hermes.core.record import STATUS_COMPLETED
from hermes.results import Results
from hermes.results.figures.stability import stability

__all__ = ["llm_figures"]


def llm_figures(results: Results) -> dict[str, Any]:
    """Return flat figures of one run, besides those that every point has.

    - stable: see `hermes.results.figures.stability`, None if the window is too short to tell.
    - kv_ttft_p50, _p90, _p99: TTFT in seconds, counted from when the client that decodes holds the prompt's KV.
    - device_hours: accelerators of the LLM clients x makespan.
    - share_25, share_50: share of all arrivals that were served and read at 25 or 50 tokens/s or more from the first
      token on (an answer of one token is read at any speed).
    """
    record, metrics = results.record, results.metrics
    done = record.status == STATUS_COMPLETED
    served_ns = (metrics.e2e_ns - metrics.queue_ns)[done]
    steady = stability(record, float(served_ns.mean()) if done.any() else np.inf)
    arrived = int((record.arrival_ns >= 0).sum())
    devices = sum(client.num_devices for client in record.clients if client.num_blocks)
    return {
        "stable": steady.stable, "in_system_early": steady.in_system_early, "in_system_late": steady.in_system_late,
        "window_s": steady.window_s, "llm_devices": devices,
        **{f"kv_ttft_p{p}": value for p, value in zip((50, 90, 99), _kv_ttft(results), strict=True)},
        "device_hours": devices * results.summary["makespan_s"] / 3600,
        **{f"share_{speed}": float((done & ~(metrics.tpot_s > 1 / speed)).sum()) / arrived if arrived else None
           for speed in (25, 50)},
    }


def _kv_ttft(results: Results) -> list[float | None]:
    """Return percentiles of the later of the first token and the arrival of the KV at another LLM client, in seconds
    since the request's arrival."""
    record, metrics = results.record, results.metrics
    done = (record.status == STATUS_COMPLETED) & (metrics.ttft_ns >= 0)
    if not done.any():
        return [None, None, None]
    ready = record.arrival_ns + metrics.ttft_ns
    llm = np.array([client.num_blocks > 0 for client in record.clients])
    moves = record.transfers
    between = llm[moves["src"]] & llm[moves["dst"]]
    np.maximum.at(ready, moves["request"][between], moves["end_ns"][between])
    return [float(value) / 1e9 for value in np.percentile((ready - record.arrival_ns)[done], (50, 90, 99))]
