"""Figures that the study extracts from each point. An edit here simulates the points again."""

from __future__ import annotations

from typing import Any

import numpy as np

from hermes.results import Results
from hermes.units import NS_PER_S

__all__ = ["fleet_figures", "queue_figures"]

STEP_AT_S = 1800   # of step.yaml


def fleet_figures(results: Results) -> dict[str, Any]:
    """Return what a fleet did: shares of requests, minutes out of the SLO, device-hours, dollars per million tokens of
    answers within the SLO, replicas started."""
    summary = results.summary
    fleet, requests, good = summary["fleet"]["llm"], summary["requests"], summary["goodput"]
    tokens = good["output_tokens_per_s"] * summary["makespan_s"]
    return {
        "kept_share": good["requests"] / requests["total"], "lost_share": 1 - requests["completed"] / requests["total"],
        "minutes_out": summary["fleet_slo"]["slo_minutes_out"], "device_hours": fleet["held_device_hours"],
        "dollars": summary["cost"]["total_dollars"],
        "dollars_per_m": 1e6 * summary["cost"]["total_dollars"] / tokens if tokens else None,
        "ready_mean": fleet["ready_mean"], "ready_most": fleet["ready_most"], "started": fleet["started"],
    }


def queue_figures(results: Results) -> dict[str, Any]:
    """Return the requests that waited when the second replica was ready, and the seconds of an answer in a full batch
    (the 90th percentile: the batch is full while requests wait). The longest queue is a few longer, by chance."""
    record, members = results.record, results.membership
    begun, ended = record.stages["start_ns"], record.stages["end_ns"]
    full_ns = np.percentile((ended - begun)[begun >= 0], 90)
    second = members[(members["client"] == "llm-1") & (members["state"] == "ready") & (members["time_s"] >= STEP_AT_S)]
    ready_ns = second["time_s"].min() * NS_PER_S
    waiting = (record.arrival_ns < ready_ns).sum() - ((begun >= 0) & (begun < ready_ns)).sum()
    return {"waiting": int(waiting), "full_s": float(full_ns) / NS_PER_S}
