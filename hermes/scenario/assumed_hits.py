"""Savings by hits of a prefix cache, to first order: the time to compute their tokens, from one run."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np

from hermes.arrays import IntArray
from hermes.core.record import RunRecord
from hermes.hardware.base import StepStats

__all__ = ["hit_share", "overloads", "seconds_of_hits"]


SAMPLES = 24   # stages whose hits are priced


def _prompts(record: RunRecord, clients: IntArray) -> tuple[IntArray, IntArray]:
    """Return tokens of prompts, and those of them that were hits, of each stage of some clients."""
    mine = np.isin(record.stages["client"], clients)
    return record.stages["prompt_tokens"][mine], record.stages["cached_tokens"][mine]


def hit_share(record: RunRecord, clients: IntArray) -> float:
    """Return the share of the clients' prompt tokens that were hits."""
    prompt, cached = _prompts(record, clients)
    return float(cached.sum() / max(int(prompt.sum()), 1))


def seconds_of_hits(record: RunRecord, clients: IntArray, step_ns: Callable[[StepStats], float]) -> float:
    """Return the seconds that the clients would compute longer without hits.

    Each prompt counts alone: its step with all tokens, less its step with those that were no hits. step_ns: Time of a
    step.
    """
    prompt, cached = _prompts(record, clients)
    hits = np.flatnonzero(cached > 0)
    if not len(hits):
        return 0.0
    order = hits[np.argsort(cached[hits], kind="stable")]
    picked = order[np.linspace(0, len(order) - 1, min(SAMPLES, len(order))).astype(np.int64)]

    def alone(new: int, past: int) -> float:
        return step_ns(StepStats(prefill_seqs=1, prefill_tokens=new, prefill_past=past, prefill_max=new, sampled=1,
                                 prefill_attn=new * past + new * (new + 1) // 2))

    more = [alone(total, 0) - alone(total - past, past)
            for total, past in zip(prompt[picked].tolist(), cached[picked].tolist(), strict=True)]
    return max(float(np.mean(more)), 0.0) * len(hits) / 1e9


def overloads(record: RunRecord, clients: IntArray, more_s: float) -> bool:
    """Whether clients that compute so many seconds longer, together, would compute for longer than requests arrive."""
    runs, arrivals = record.runs, record.arrival_ns[record.arrival_ns >= 0]
    mine = np.isin(runs["client"], clients)
    busy = float((runs["end_ns"] - runs["start_ns"])[mine].sum()) / 1e9
    return len(arrivals) > 0 and busy + more_s > len(clients) * float(arrivals.max() - arrivals.min()) / 1e9
