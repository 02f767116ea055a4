"""Figures that the studies of LLM batching extract from each run. Sweeps hash this module: an edit runs them anew."""

from __future__ import annotations

from typing import Any

import numpy as np

from hermes.core.record import STATUS_COMPLETED
from hermes.results import Results
from hermes.results.stability import stability

__all__ = ["llm_figures", "splitwise_figures"]


def llm_figures(results: Results) -> dict[str, Any]:
    """Flat figures of one run, for a sweep's `extract`, besides those every point has.

    stable: see `hermes.results.stability`, None where the window is too short to tell; device_hours: accelerators of
    the LLM clients x makespan; share_25, share_50: share of all arrivals that were served and read at 25 or 50 tokens/s
    or more from the first token on (an answer of one token is read at any speed).
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


def splitwise_figures(results: Results) -> dict[str, Any]:
    """`llm_figures`, splitwise-sim's TBT = (E2E - TTFT) / output tokens, and decodes that prompt machines served."""
    requests = results.requests
    done = requests[requests["status"] == "completed"]
    tbt = ((done["e2e_s"] - done["ttft_s"]) / done["output_tokens"]).to_numpy()
    record = results.record
    decodes = record.stages["kind"] == record.stage_kinds.index("decode")
    lender = np.array([client.name.startswith("prompt") for client in record.clients])
    stats = {f"tbt_p{q}": float(np.percentile(tbt, q)) if len(tbt) else None for q in (50, 90, 99)}
    return llm_figures(results) | stats | {
        "tbt_mean": float(tbt.mean()) if len(tbt) else None,
        "lent_decodes": int(lender[record.stages["client"][decodes]].sum()),
    }
