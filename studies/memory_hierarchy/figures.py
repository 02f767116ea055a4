"""Figures that the study extracts from each point. An edit here simulates the points again."""

from __future__ import annotations

from typing import Any

import numpy as np
import pandas as pd

from hermes.results import Results
from hermes.sums import float_sum

__all__ = ["TPOT_S", "TTFT_S", "WARM", "figures"]

WARM = 0.4                   # share of the arrivals' time before the first turn that counts
TTFT_S, TPOT_S = 1.0, 0.05   # the limits of p90


def figures(results: Results) -> dict[str, Any]:
    """Return figures of the turns that arrive from `WARM` of the arrivals' time on, until the last conversation starts.

    - turns: Number of them; turns_per_s.
    - ttft_*, tpot_*: s; meets: Whether the p90 keep their limits.
    - hits: Share of their prompt tokens that was found on the device or in a tier.
    - moved_per_s: Bytes read and written at all tiers, by second of the whole run; busy: share of it in which the
      busiest tier moved any.
    """
    record, metrics = results.record, results.metrics
    first = pd.Series(record.arrival_ns).groupby(record.session).min() if record.session.max(initial=-1) >= 0 else (
        pd.Series(record.arrival_ns))
    begin, end = WARM * float(first.max()), float(first.max())
    chosen = (record.arrival_ns >= begin) & (record.arrival_ns <= end) & (metrics.ttft_ns >= 0)
    ttft, tpot = metrics.ttft_ns[chosen] / 1e9, metrics.tpot_s[chosen]
    tpot = tpot[~np.isnan(tpot)]
    found = {f"ttft_p{p}": float(np.percentile(ttft, p)) for p in (50, 90, 99)} | {"ttft_mean": float(ttft.mean())}
    found |= {f"tpot_p{p}": float(np.percentile(tpot, p)) for p in (50, 90)}
    tiers = results.summary.get("tiers") or {}
    span = results.summary["makespan_s"]
    return {
        "turns": int(chosen.sum()), "turns_per_s": int(chosen.sum()) / ((end - begin) / 1e9), **found,
        "meets": found["ttft_p90"] <= TTFT_S and found["tpot_p90"] <= TPOT_S,
        "hits": float(metrics.cached_tokens[chosen].sum() / record.prompt_tokens[chosen].sum()),
        "prompt_mean": float(record.prompt_tokens[chosen].mean()),
        "moved_per_s": float_sum(tier["read_bytes"] + tier["written_bytes"] for tier in tiers.values()) / span,
        "read_per_s": float_sum(tier["read_bytes"] for tier in tiers.values()) / span,
        "written_per_s": float_sum(tier["written_bytes"] for tier in tiers.values()) / span,
        "busy": max((tier["max_utilisation"] for tier in tiers.values()), default=0.0),
    }
