"""Scan rates of the CPUs, each fitted to one figure of the paper and no other.

    server    the CPU's retrieval is 41% of the latency at batch 1, mean of the six pipelines (H100, Llama-3-8B)
    desktop   on-demand fetch is 3% slower end to end than the CPU, mean of the six pipelines (RTX 4090, Llama-3.2-3B)

`scripts/build_lookahead.py` writes them into the profile that the study reads.
"""

from __future__ import annotations

from hermes.study import Context

from .paper import BUDGET_GB, ON_DEMAND_SLOWER, SERVER_SHARE
from .points import CPU
from .required_times import solve
from .runs import Runs, mean

__all__ = ["fit_rates"]

_ANY = 20e9     # bytes/s: what generation takes and how much is scanned depends on no rate


def fit_rates(context: Context, requests: int) -> dict[str, float]:
    """Bytes/s by CPU."""
    runs = Runs(context, requests)
    wanted = [*((system, mode) for system in CPU for mode in ("offload",)), ("desktop", "on_demand")]
    found = runs.means("rates", {(system, mode, p): runs.ask(system, p, mode, cpu_rate=_ANY)
                                 for system, mode in wanted for p in BUDGET_GB})

    def scanned(system: str) -> list[tuple[float, float]]:
        """Return (seconds of all but the scans, bytes scanned) of each pipeline."""
        of = [found[system, "offload", p] for p in BUDGET_GB]
        return [(p.e2e_s - p.scanned_bytes / _ANY, p.scanned_bytes) for p in of]

    server, desktop = scanned("server"), scanned("desktop")
    fetched = [found["desktop", "on_demand", p].e2e_s for p in BUDGET_GB]

    def share(rate: float) -> float:
        return mean((size / rate) / (other + size / rate) for other, size in server)

    def slower(rate: float) -> float:
        return mean(fetch / (other + size / rate) for fetch, (other, size) in zip(fetched, desktop, strict=True))

    rates = {"desktop": solve(slower, ON_DEMAND_SLOWER, 1e8, 1e13),
             "server": solve(share, SERVER_SHARE["offload"][1] / 100, 1e8, 1e13)}
    return {CPU[system]: rate for system, rate in rates.items() if rate is not None}
