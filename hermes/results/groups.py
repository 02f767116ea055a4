"""Summaries by workload, pipeline or model, for simulations with several of them."""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt

from hermes.core.record import STATUS_COMPLETED, STATUS_REJECTED, RunRecord
from hermes.results.breakdown import CriticalPath
from hermes.results.distribution import Distribution
from hermes.results.metrics import RequestMetrics
from hermes.results.usage import window_ns
from hermes.units import NS_PER_S

__all__ = ["summary_by_label"]

BoolArray = npt.NDArray[np.bool_]


def summary_by_label(record: RunRecord, metrics: RequestMetrics, path: CriticalPath, good: BoolArray | None
            ) -> dict[str, Any]:
    """Return `by` of the summary: `workload`, `pipeline` and `model`, each with an entry per name, if the requests have
    more than one. good: Requests within the SLO, shape (requests,); None without one."""
    out: dict[str, Any] = {}
    arrived = record.arrival_ns >= 0
    for label, (codes, names) in record.labels.items():
        present = np.unique(codes[arrived])
        if len(present) > 1:
            out[label] = {
                names[code]: _one(record, metrics, path, good, arrived & (codes == code)) for code in present.tolist()
            }
    return out


def _one(record: RunRecord, metrics: RequestMetrics, path: CriticalPath, good: BoolArray | None, mine: BoolArray
         ) -> dict[str, Any]:
    start, end = window_ns(record)
    window = (end - start) / NS_PER_S
    done = mine & (record.status == STATUS_COMPLETED)
    answered = done & (metrics.ttft_ns >= 0)
    output = int(metrics.emitted_tokens[done].sum())
    return {
        "requests": int(mine.sum()), "completed": int(done.sum()),
        "rejected": int((mine & (record.status == STATUS_REJECTED)).sum()),
        "ttft_s": Distribution(metrics.ttft_ns[answered], divisor=NS_PER_S).stats(),
        "tpot_s": Distribution(metrics.tpot_s[done]).stats(),
        "e2e_s": Distribution(metrics.e2e_ns[done], divisor=NS_PER_S).stats(),
        "requests_per_s": int(done.sum()) / window if window else None,
        "output_tokens_per_s": output / window if window else None,
        "goodput_share": None if good is None else int((good & mine).sum()) / int(mine.sum()),
        "stages_mean_s": _stage_means(record, path, done),
    }


def _stage_means(record: RunRecord, path: CriticalPath, done: BoolArray) -> dict[str, float]:
    """Return the mean time of each kind of stage on the critical path; they add up to the mean latency."""
    stages, count = record.stages, int(done.sum())
    chosen = path.on_path & done[stages["request"]]
    spent = np.bincount(stages["kind"][chosen], weights=(stages["end_ns"] - stages["assigned_ns"])[chosen],
                        minlength=len(record.stage_kinds))
    served = np.bincount(stages["kind"][chosen], minlength=len(record.stage_kinds))
    return {
        kind: float(spent[code]) / count / NS_PER_S for code, kind in enumerate(record.stage_kinds) if served[code]
    }
