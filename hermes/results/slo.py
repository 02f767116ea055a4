"""Service-level objectives: the paper's six-SLO table, and thresholds per request.

The table (spec section 7) allows TTFT and TPOT a slowdown over a baseline at p50, p90 and p99; a system passes when all
six hold. Goodput counts the requests that each meet the per-request thresholds.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt
from pydantic import Field

from hermes.config import ConfigModel, Duration
from hermes.results.distribution import Distribution
from hermes.results.metrics import RequestMetrics
from hermes.units import NS_PER_S

__all__ = ["SloConfig", "Slowdowns", "meets", "slo_table"]


class Slowdowns(ConfigModel):
    """How many times the baseline a percentile may be."""

    p50: float = Field(gt=0)
    """Of the median."""
    p90: float = Field(gt=0)
    """Of the 90th percentile."""
    p99: float = Field(gt=0)
    """Of the 99th percentile."""


class SloConfig(ConfigModel):
    """What counts as served well. The defaults are the paper's table for requests without retrieval."""

    baseline_ttft: Duration = 0.25
    """Time to first token of an unloaded system; the paper takes 1 s with RAG or memory retrieval."""

    baseline_tpot: Duration = 0.025
    """Time per output token of an unloaded system."""

    ttft_slowdown: Slowdowns = Slowdowns(p50=2.0, p90=3.0, p99=6.0)
    """Allowed TTFT, in baselines."""

    tpot_slowdown: Slowdowns = Slowdowns(p50=1.25, p90=1.5, p99=5.0)
    """Allowed TPOT, in baselines."""

    ttft: Duration | None = None
    """Longest TTFT of a request that counts for goodput."""

    tpot: Duration | None = None
    """Longest TPOT of a request that counts for goodput (requests with a single token have none)."""

    e2e: Duration | None = None
    """Longest end-to-end latency of a request that counts for goodput."""

    def thresholds(self) -> dict[str, float | None]:
        """The per-request limits in seconds; where none is given, the table's p99 limits for TTFT and TPOT."""
        if self.ttft is None and self.tpot is None and self.e2e is None:
            return {
                "ttft_s": self.baseline_ttft * self.ttft_slowdown.p99,
                "tpot_s": self.baseline_tpot * self.tpot_slowdown.p99, "e2e_s": None,
            }
        return {"ttft_s": self.ttft, "tpot_s": self.tpot, "e2e_s": self.e2e}


def slo_table(slo: SloConfig, ttft: Distribution, tpot: Distribution) -> dict[str, Any]:
    """`{ttft_p50: {limit_s, value_s, pass}, ..., pass}`.

    `pass` is None without a completed request. TPOT limits hold trivially where every answer is a single token.
    """
    out: dict[str, Any] = {}
    for name, baseline, slowdown, sample in (
        ("ttft", slo.baseline_ttft, slo.ttft_slowdown, ttft), ("tpot", slo.baseline_tpot, slo.tpot_slowdown, tpot),
    ):
        values = sample.percentiles((50, 90, 99))
        for (key, factor), value in zip(slowdown.model_dump().items(), values, strict=True):
            known = sample.count > 0
            out[f"{name}_{key}"] = {
                "limit_s": baseline * factor, "value_s": float(value) if known else None,
                "pass": None if ttft.count == 0 else not known or bool(value <= baseline * factor),
            }
    out["pass"] = None if ttft.count == 0 else all(row["pass"] for row in out.values())
    return out


def meets(slo: SloConfig, metrics: RequestMetrics, completed: npt.NDArray[np.bool_]) -> npt.NDArray[np.bool_]:
    """Which requests completed within the per-request thresholds, shape (requests,)."""
    ok = completed.copy()
    limits = slo.thresholds()
    if limits["ttft_s"] is not None:
        ok &= metrics.ttft_ns / NS_PER_S <= limits["ttft_s"]  # requests without a token have no first one to wait for
    if limits["tpot_s"] is not None:
        ok &= ~(metrics.tpot_s > limits["tpot_s"])
    if limits["e2e_s"] is not None:
        ok &= metrics.e2e_ns / NS_PER_S <= limits["e2e_s"]
    return ok
