"""Figures that the study extracts from each point. An edit here simulates the points again."""

from __future__ import annotations

from typing import Any

from hermes.results import Results

__all__ = ["incident_figures"]


def incident_figures(results: Results) -> dict[str, Any]:
    """Return the row of the one incident, the requests, and the dollars per hour."""
    summary = results.summary
    row = summary["incidents"]["rows"][0]
    return {
        "noticed_by": row["noticed_by"] or "-", "left_s": row["left_s"], "back_s": row["back_s"],
        "recovered_s": row["recovered_s"], "lost": row["requests_failed"] + row["requests_refused"],
        "retried": row["retried"], "wasted": row["wasted_prompt_tokens"] + row["wasted_output_tokens"],
        "requests": summary["requests"]["total"], "good_share": summary["goodput"]["share"],
        "dollars_per_hour": summary["cost"]["dollars_per_hour"],
    }
