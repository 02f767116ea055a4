"""Study `telerag`: the CPUs' scan rates, each fitted to one figure of the paper, and to nothing else.

    server    the CPU's retrieval is 41% of the latency at batch 1, mean of the six pipelines (H100, Llama-3-8B)
    desktop   on-demand fetch is 3% slower end to end than the CPU, mean of the six pipelines (RTX 4090, Llama-3.2-3B)

The GPUs' rates are 80% of the data sheets' bandwidth (assumed: one pass over the vectors).
"""

from __future__ import annotations

from collections.abc import Callable, Iterable

import numpy as np

from hermes.studies.base import Context
from hermes.studies.telerag_points import BUDGET_GB, Point, Rates, simulate_point

__all__ = ["fit_rates", "generations"]

SERVER_SHARE, ON_DEMAND = 0.41, 1.03
_ANY = Rates(20e9, 20e9)


def generations(context: Context, requests: int) -> dict[str, dict[str, Point]]:
    """Per system and pipeline one offloaded run: what generation takes and how much is scanned depends on no rate."""
    return {
        system: {p: simulate_point(context, system, p, "offload", _ANY, requests=requests) for p in BUDGET_GB}
        for system in ("desktop", "server")
    }


def fit_rates(context: Context, known: dict[str, dict[str, Point]], requests: int) -> Rates:
    """The two rates."""
    def generation(point: Point) -> float:   # everything but the scan
        return point.e2e_s - point.scanned_bytes / _ANY.server_cpu

    server = [(generation(p), p.scanned_bytes) for p in known["server"].values()]
    fetched = {p: simulate_point(context, "desktop", p, "on_demand", _ANY, requests=requests) for p in BUDGET_GB}
    desktop = [(generation(known["desktop"][p]), known["desktop"][p].scanned_bytes, fetched[p].e2e_s) for p in fetched]

    def share(rate: float) -> float:
        return _mean((scanned / rate) / (other + scanned / rate) for other, scanned in server) - SERVER_SHARE

    def slower(rate: float) -> float:
        return ON_DEMAND - _mean(there / (other + scanned / rate) for other, scanned, there in desktop)

    return Rates(_zero(slower), _zero(share))


def _mean(values: Iterable[float]) -> float:
    return float(np.mean(list(values)))


def _zero(falling: Callable[[float], float]) -> float:
    """Where a function that falls with the rate is zero."""
    low, high = 1e8, 1e13   # bytes/s
    for _ in range(60):
        middle = (low * high) ** 0.5
        low, high = (middle, high) if falling(middle) > 0 else (low, middle)
    return float((low * high) ** 0.5)
