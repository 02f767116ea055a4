"""Figures that the study extracts from each point. An edit here simulates the points again."""

from __future__ import annotations

from typing import Any

from hermes.core.record import STATUS_COMPLETED
from hermes.results import Results

from ..common.llm_figures import llm_figures

__all__ = ["TPOT_MS", "TTFT_MS", "reasoning_figures"]

TTFT_MS = (10, 20, 50, 100, 200, 500, 1000, 2000, 5000, 10_000)
TPOT_MS = (15, 20, 25, 30, 35)


def reasoning_figures(results: Results) -> dict[str, Any]:
    """`llm_figures`, and `good_A_B`: requests with TTFT <= A ms and TPOT (mean of their branches) <= B ms."""
    metrics = results.metrics
    done = results.record.status == STATUS_COMPLETED
    good = {
        f"good_{ttft}_{tpot}": int((done & (metrics.ttft_ns <= ttft * 1e6) & ~(metrics.tpot_s > tpot / 1e3)).sum())
        for ttft in TTFT_MS for tpot in TPOT_MS
    }
    return llm_figures(results) | good
