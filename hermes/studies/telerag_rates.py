"""Study `telerag`: the CPUs' scan rates, each fitted to one figure of the paper, and to nothing else.

    server    the CPU's retrieval is 41% of the latency at batch 1, mean of the six pipelines (H100, Llama-3-8B)
    desktop   on-demand fetch is 3% slower end to end than the CPU, mean of the six pipelines (RTX 4090, Llama-3.2-3B)

`scripts/build_lookahead.py` writes them into the profile that the study reads.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable

import numpy as np

from hermes.studies.base import Context
from hermes.studies.telerag_paper import BUDGET_GB, ON_DEMAND_SLOWER, SERVER_SHARE
from hermes.studies.telerag_points import CPU, simulate_point

__all__ = ["fit_rates"]

_ANY = 20e9     # bytes/s: what generation takes and how much is scanned depends on no rate


def fit_rates(context: Context, requests: int) -> dict[str, float]:
    """Bytes/s by CPU."""
    offload = {
        system: {p: simulate_point(context, system, p, "offload", cpu_rate=_ANY, requests=requests) for p in BUDGET_GB}
        for system in CPU
    }
    server = [(p.e2e_s - p.scanned_bytes / _ANY, p.scanned_bytes) for p in offload["server"].values()]
    desktop = [
        (there.e2e_s - there.scanned_bytes / _ANY, there.scanned_bytes,
         simulate_point(context, "desktop", p, "on_demand", cpu_rate=_ANY, requests=requests).e2e_s)
        for p, there in offload["desktop"].items()
    ]
    wanted = SERVER_SHARE["offload"][1] / 100

    def share(rate: float) -> float:
        return _mean((scanned / rate) / (other + scanned / rate) for other, scanned in server) - wanted

    def slower(rate: float) -> float:
        return ON_DEMAND_SLOWER - _mean(fetched / (other + scanned / rate) for other, scanned, fetched in desktop)

    return {CPU["desktop"]: _zero(slower), CPU["server"]: _zero(share)}


def _mean(values: Iterable[float]) -> float:
    return float(np.mean(list(values)))


def _zero(falling: Callable[[float], float]) -> float:
    """Where a function that falls with the rate is zero."""
    low, high = 1e8, 1e13   # bytes/s
    for _ in range(60):
        middle = (low * high) ** 0.5
        low, high = (middle, high) if falling(middle) > 0 else (low, middle)
    return float((low * high) ** 0.5)
