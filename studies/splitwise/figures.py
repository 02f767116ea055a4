"""Figures that the study extracts from each point. An edit here simulates the points again."""

from __future__ import annotations

from typing import Any

import numpy as np

from hermes.results import Results

from ..common.llm_figures import llm_figures

__all__ = ["splitwise_figures"]


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
