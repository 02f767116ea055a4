"""Figures that the studies of LLM batching extract from each run. Sweeps hash this module: an edit runs them anew."""

from __future__ import annotations

from typing import Any

import numpy as np

from hermes.results import Results
from hermes.results.record import STATUS_COMPLETED
from hermes.results.stability import stability

__all__ = ["llm_figures", "splitwise_figures"]


def llm_figures(results: Results) -> dict[str, Any]:
    """Flat figures of one run, for a sweep's `extract`, besides those every point has.

    stable: see `hermes.results.stability`, None where the window is too short to tell; device_hours: accelerators of
    the LLM clients x makespan; decode_speed_*: tokens/s that the slowest 1% and 50% of the requests are read at.
    """
    record, metrics = results.record, results.metrics
    done = record.status == STATUS_COMPLETED
    served_ns = (metrics.e2e_ns - metrics.queue_ns)[done]
    steady = stability(record, float(served_ns.mean()) if done.any() else np.inf)
    tpot = metrics.tpot_s[done & ~np.isnan(metrics.tpot_s)]
    devices = sum(client.num_devices for client in record.clients if client.num_blocks)
    return {
        "stable": steady.stable, "in_system_early": steady.in_system_early, "in_system_late": steady.in_system_late,
        "window_s": steady.window_s, "llm_devices": devices,
        "device_hours": devices * results.summary["makespan_s"] / 3600,
        "decode_speed_p1": float(1 / np.percentile(tpot, 99)) if len(tpot) else None,
        "decode_speed_p50": float(1 / np.percentile(tpot, 50)) if len(tpot) else None,
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
