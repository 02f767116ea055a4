"""Summaries by workload, pipeline or model, for simulations with several of them."""

from __future__ import annotations

from typing import Any

import numpy as np

from hermes.arrays import BoolArray
from hermes.core.record import STATUS_COMPLETED, STATUS_REJECTED, RunRecord
from hermes.results.distribution import Distribution
from hermes.results.figures.breakdown import CriticalPath
from hermes.results.figures.steady import Window
from hermes.results.metrics import RequestMetrics
from hermes.units import NS_PER_S

__all__ = ["summary_by_label"]


def summary_by_label(record: RunRecord, metrics: RequestMetrics, path: CriticalPath, good: BoolArray | None,
                     apart: BoolArray, window: Window) -> dict[str, Any]:
    """Return `by` of the summary: `workload`, `pipeline` and `model`, each with an entry per name, if the requests have
    more than one. Rates are those of the window of the headline.

    Args:
        good: Requests within the SLO, shape (requests,); None without one.
        apart: Those to which no limit applies.
    """
    out: dict[str, Any] = {}
    arrived = record.arrival_ns >= 0
    for label, (codes, names) in record.labels.items():
        present = np.unique(codes[arrived])
        if len(present) > 1:
            out[label] = {
                names[code]: _one(record, metrics, path, good, apart, arrived & (codes == code), window)
                for code in present.tolist()
            }
    return out


def _one(record: RunRecord, metrics: RequestMetrics, path: CriticalPath, good: BoolArray | None, apart: BoolArray,
         mine: BoolArray, window: Window) -> dict[str, Any]:
    length = (window.end_ns - window.start_ns) / NS_PER_S
    done = mine & (record.status == STATUS_COMPLETED)
    judged = int((mine & ~apart).sum())
    answered = done & (metrics.ttft_ns >= 0)
    ended = done & (record.finish_ns > window.start_ns) & (record.finish_ns <= window.end_ns)
    output = int(metrics.emitted_tokens[ended].sum())
    return {
        "requests": int(mine.sum()), "completed": int(done.sum()),
        "rejected": int((mine & (record.status == STATUS_REJECTED)).sum()),
        "ttft_s": Distribution(metrics.ttft_ns[answered], divisor=NS_PER_S).stats(),
        "tpot_s": Distribution(metrics.tpot_s[done]).stats(),
        "e2e_s": Distribution(metrics.e2e_ns[done], divisor=NS_PER_S).stats(),
        "requests_per_s": int(ended.sum()) / length if length else None,
        "output_tokens_per_s": output / length if length else None,
        "goodput_share": None if good is None or not judged else int((good & mine).sum()) / judged,
        "stages_mean_s": _stage_means(record, path, done),
    }


def _stage_means(record: RunRecord, path: CriticalPath, done: BoolArray) -> dict[str, float]:
    """Return the mean time of each kind of stage on the critical path; they add up to the mean latency."""
    stages, count = record.stages, int(done.sum())
    chosen = path.on_path & done[stages["request"]]
    whole = stages["end_ns"] - stages["assigned_ns"] + path.gateway_ns + path.held_ns + path.lost_ns
    spent = np.bincount(stages["kind"][chosen], weights=whole[chosen], minlength=len(record.stage_kinds))
    served = np.bincount(stages["kind"][chosen], minlength=len(record.stage_kinds))
    return {
        kind: float(spent[code]) / count / NS_PER_S for code, kind in enumerate(record.stage_kinds) if served[code]
    }
