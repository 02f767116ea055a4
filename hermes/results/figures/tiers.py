"""Summary of KV stores: hits, bytes moved, evictions, and utilisation of each store's link."""

from __future__ import annotations

import math
from typing import Any

import numpy as np

from hermes.core.record import RunRecord
from hermes.results.figures.usage import window_ns
from hermes.sums import float_sum

__all__ = ["stores_summary", "tier_utilisation"]


def tier_utilisation(record: RunRecord) -> list[float]:
    """Return each store's share of the window (`hermes.results.figures.usage`) with a read or write."""
    start, end = window_ns(record)
    return [min(1.0, tier.busy_ns / (end - start)) if end > start else 0.0 for tier in record.tiers]


def stores_summary(record: RunRecord) -> dict[str, Any]:
    """Return `cache` and `tiers` of the summary, if there are any (a prefix cache counts even without hits): prompt
    tokens without prefill because their KV was found, on the device or in a tier, and figures of each tier.
    """
    stages = record.stages
    prompts = np.isin(stages["kind"], [i for i, k in enumerate(record.stage_kinds) if k in ("generate", "prefill")])
    prompts &= stages["branch"] <= 0   # branches have one prompt
    cached, prompt = int(stages["cached_tokens"][prompts].sum()), int(stages["prompt_tokens"][prompts].sum())
    caching = cached or any(info.prefix_caching for info in record.clients)
    rate = cached / prompt if prompt else None
    cache = {"prompt_tokens": prompt, "cached_tokens": cached, "hit_rate": rate} if caching else None
    return ({"cache": cache} if cache else {}) | ({"tiers": _tiers(record)} if record.tiers else {})


def _tiers(record: RunRecord) -> dict[str, Any]:
    """Return one entry per tier of the hierarchy; stores of one name are summed. Hits count contexts or blocks."""
    used = tier_utilisation(record)
    out: dict[str, Any] = {}
    for name in dict.fromkeys(tier.name for tier in record.tiers):
        rows = [i for i, tier in enumerate(record.tiers) if tier.name == name]
        mine = [record.tiers[i] for i in rows]
        busiest = max(rows, key=lambda i: used[i])
        total = {
            key: float_sum(getattr(tier, key) for tier in mine)
            for key in ("capacity_bytes", "used_bytes", "hits", "misses", "evictions", "refused", "read_bytes",
                        "written_bytes")
        }
        asked, tokens = total["hits"] + total["misses"], sum(tier.hit_tokens for tier in mine)
        out[name] = {
            "stores": len(mine), **total, "hit_rate": total["hits"] / asked if asked else None,
            "peak_share": max(t.peak_bytes / t.capacity_bytes if t.capacity_bytes else 0.0 for t in mine),
            "mean_utilisation": math.fsum(used[i] for i in rows) / len(rows), "max_utilisation": used[busiest],
            "busiest": record.tiers[busiest].where or name, **({"hit_tokens": tokens} if tokens else {}),
        }
    return out
