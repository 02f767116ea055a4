"""Figures for a study's points: KV capacity and peak use, rejections, stability, devices."""

from __future__ import annotations

from typing import Any

import numpy as np

from hermes.core.record import STATUS_COMPLETED
from hermes.results import Results
from hermes.results.figures.stability import stability

__all__ = ["point_figures", "speed_note"]


def point_figures(results: Results) -> dict[str, Any]:
    """Return flat figures of one run, for a sweep's `extract`.

    - kv_capacity_tokens: KV capacity of all LLM clients.
    - kv_capacity_per_client_tokens: KV capacity of the smallest of them.
    - kv_peak_share: highest share of any client's blocks in use.
    - stable: True, False, or None if the window is too short to tell (`hermes.results.figures.stability`).
    - devices: accelerators of all clients.
    """
    record, metrics = results.record, results.metrics
    completed = record.status == STATUS_COMPLETED
    served_ns = metrics.e2e_ns[completed] - metrics.queue_ns[completed]
    steady = stability(record, float(served_ns.mean()) if completed.any() else np.inf)
    with_kv = [(i, c) for i, c in enumerate(record.clients) if c.num_blocks]
    tokens = [c.num_blocks * c.block_size for _, c in with_kv]
    used, client = record.runs["used_blocks"], record.runs["client"]
    peaks = [int(used[client == i].max(initial=0)) / c.num_blocks for i, c in with_kv]
    summary = results.summary
    return {
        "kv_capacity_tokens": sum(tokens), "kv_capacity_per_client_tokens": min(tokens, default=0),
        "kv_peak_share": max(peaks, default=0.0),
        "rejected": summary["requests"]["rejected"], "preemptions": summary["steps"]["preemptions"],
        "stable": steady.stable, "in_system_early": steady.in_system_early, "in_system_late": steady.in_system_late,
        "window_s": steady.window_s, "makespan_s": summary["makespan_s"],
        "devices": sum(c.num_devices for c in record.clients),
        "out_of_range_share": summary["steps"]["out_of_range_share"],
    }


def speed_note(device_hours: float, core_s: float) -> str:
    """Return simulated device-hours per core-hour, in words."""
    core_hours = core_s / 3600
    ratio = device_hours / core_hours if core_hours else float("nan")
    return f"{device_hours:,.1f} simulated GPU-hours in {core_hours:.3f} core-hours: {ratio:,.0f} per core-hour"
