"""Figures that studies of LLM batching extract from each point. An edit here simulates their points again."""

from __future__ import annotations

from typing import Any

import numpy as np

from hermes.core.record import STATUS_COMPLETED
from hermes.results import Results
from hermes.results.stability import stability

__all__ = ["llm_figures"]


def llm_figures(results: Results) -> dict[str, Any]:
    """Return flat figures of one run, besides those that every point has.

    - stable: see `hermes.results.stability`, None if the window is too short to tell.
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
        "device_hours": devices * results.summary["makespan_s"] / 3600,
        **{f"share_{speed}": float((done & ~(metrics.tpot_s > 1 / speed)).sum()) / arrived if arrived else None
           for speed in (25, 50)},
    }
