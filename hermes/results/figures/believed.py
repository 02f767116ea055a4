"""What routers believed to be cached, with what was, and how evenly their clients were used."""

from __future__ import annotations

from typing import Any

import numpy as np

from hermes.arrays import BoolArray
from hermes.core.record import BELIEVED, RunRecord
from hermes.results.figures.membership import held_ns
from hermes.results.figures.usage import window_ns
from hermes.results.metrics import RequestMetrics

__all__ = ["believed_summary"]

COARSEST = 64   # tokens of the largest block in which a router counts (llm-d's): one tolerance for all routers


def believed_summary(record: RunRecord, metrics: RequestMetrics, completed: BoolArray) -> dict[str, Any]:
    """Return what routers believed to be cached of the prompts of completed requests, and what was; empty without such
    routers.

    A belief is false if it is more than a block off: 64 tokens, or the engine's block where that is larger.
    `balance`: of clients that share a router, where there are several.
    """
    noted = record.notes.get(BELIEVED)
    if noted is None:
        return {}
    known = completed & ~np.isnan(noted)
    believed, cached = noted[known].astype(np.int64), metrics.cached_tokens[known]
    block = max(COARSEST, *(info.block_size for info in record.clients))
    balance = _balance(record, known)
    shared = {} if not balance else {
        "block_tokens": block,
        "false_high": int((believed - cached > block).sum()), "false_low": int((cached - believed > block).sum()),
        "false_share": float(np.mean(np.abs(believed - cached) > block)),
        "balance": balance,
    }
    return {"believed": {
        "requests": int(known.sum()), "prompt_tokens": int(metrics.computed_prompt_tokens[known].sum()),
        "believed_tokens": int(believed.sum()), "cached_tokens": int(cached.sum()),
        "missed_tokens": int(np.maximum(believed - cached, 0).sum()),
        "unexpected_tokens": int(np.maximum(cached - believed, 0).sum()),
        **shared,
    }}


def _balance(record: RunRecord, known: BoolArray) -> dict[str, Any]:
    """Return for clients of one role and model, by the names of their groups, how evenly prompt and output tokens were
    spread over them: the most over the mean, and Jain's index (1: all equal; 1/n: one client served everything).
    Clients that take over computed prompts count output tokens alone.

    Clients whose devices were never held do not count.

    Source: R. Jain, D. Chiu, W. Hawe, "A Quantitative Measure of Fairness and Discrimination", DEC-TR-301, 1984.
    """
    stages = record.stages
    codes = {name: code for code, name in enumerate(record.stage_kinds)}
    computes, decodes = (np.isin(stages["kind"], [codes[name] for name in names if name in codes])
                         for names in (("generate", "prefill"), ("decode",)))
    served = record.started & record.kept
    tokens = stages["output_tokens"] + stages["prompt_tokens"] * (computes & (stages["branch"] <= 0))
    sums = np.zeros(len(record.clients), dtype=np.int64)
    np.add.at(sums, stages["client"][served], tokens[served])
    chosen = set(np.unique(stages["client"][(computes | decodes) & served & known[stages["request"]]]).tolist())
    pools: dict[tuple[str, str, str], list[int]] = {}
    for index, (info, held) in enumerate(zip(record.clients, held_ns(record, *window_ns(record)).tolist(),
                                             strict=True)):
        if held:
            pools.setdefault((info.kind, info.role, info.model), []).append(index)
    out = {}
    for pool in pools.values():
        values = sums[pool].astype(np.float64)
        if len(pool) > 1 and chosen & set(pool) and values.any():
            name = " + ".join(dict.fromkeys(record.clients[index].group or record.clients[index].name
                                            for index in pool))
            out[name] = {
                "clients": len(pool), "tokens": int(values.sum()),
                "max_over_mean": float(values.max() / values.mean()),
                "jain": float(values.sum() ** 2 / (len(pool) * (values**2).sum())),
            }
    return out
