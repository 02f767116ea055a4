"""Scan rates of the CPUs' two searches and of the GPUs, each fitted to one figure of the paper and no other.

    baseline, server    Faiss's retrieval is 41.1% of the latency at batch 1, mean of the six pipelines (H100,
                        Llama-3-8B)
    gpu, server         with the whole index on the GPU it is 10.5%, likewise
    miss, desktop       lookahead retrieval alone is 7.21 times as fast as Faiss at nprobe 256, mean of the six
                        pipelines (RTX 4090, Llama-3.2-3B)

The rates of the other machine follow from the assumptions of study.yaml. The shares are those of an answer length: the
rates are fitted for each. Simulations at arbitrary rates give the bytes of each search; scan times at other rates
follow, since they are bytes over rate. `scripts/build_lookahead.py` writes the rates at the assumed answer length into
the profile.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Sequence
from typing import TYPE_CHECKING

from hermes.hardware.descriptions.devices import load_device
from hermes.scenario import load_scenario
from hermes.sums import float_sum

from .paper import BUDGET_GB, RETRIEVAL_SPEEDUP, SERVER_SHARE
from .points import GPU, Means, Rates

if TYPE_CHECKING:
    from .runs import Runs

__all__ = ["CPU_MEMORY", "FASTEST", "fit_rates", "mean", "solve"]

CPU_MEMORY = {"desktop": 204.8e9, "server": 460.8e9}
"""Bytes/s of the CPUs' memory. Data sheets: Threadripper PRO 5975WX, 8 channels of DDR4-3200; EPYC 9554, 12 of
DDR5-4800."""
_SLOWEST, FASTEST = 1e8, 1e13
"""Bytes/s between which rates are fitted."""


def fit_rates(runs: Runs, answer: int) -> dict[str, Rates]:
    """Return the rates by system, for answers of `answer` tokens. The rate of misses is 10 TB/s where no rate is fast
    enough for the paper's figure."""
    given = runs.context
    any_rates = Rates(20e9, 20e9, 200e9, int(given["faiss_side_by_side"]))
    wanted = [("server", "offload"), ("server", "resident"), ("desktop", "offload"), ("desktop", "lookahead")]
    found = runs.means("rates", {
        (system, mode, p): runs.ask(system, p, mode, answer=answer, rates=any_rates)
        for system, mode in wanted for p in BUDGET_GB})
    server, resident, desktop, ahead = ([found[system, mode, p] for p in BUDGET_GB] for system, mode in wanted)
    own = 1e9 * given["baseline_rate"] or _baseline(server, any_rates)
    gpu = 1e9 * given["gpu_rate"] or _gpu(resident, any_rates)
    gpus = {name: load_device(GPU[name]).memory_bandwidth for name in GPU}
    gpu_desktop = gpu * (gpus["desktop"] / gpus["server"] if given["gpu_scales"] == "bandwidth" else 1.0)
    memory = CPU_MEMORY["server"] / CPU_MEMORY["desktop"]
    baseline = {"same": own, "bandwidth": own / memory, "share": _baseline(desktop, any_rates)}[given["desktop_cpu"]]
    factor = given["miss_over_baseline"]
    miss = factor * baseline if factor else _miss(desktop, ahead, any_rates, baseline, gpu_desktop)
    return {
        "desktop": _rounded(baseline, miss, gpu_desktop, any_rates.side_by_side),
        "server": _rounded(own, miss * (memory if given["miss_scales"] == "bandwidth" else 1.0), gpu,
                           any_rates.side_by_side),
    }


def _rounded(baseline: float, miss: float, gpu: float, side_by_side: int) -> Rates:
    """Return rates of five digits, those that the profile prints."""
    baseline, miss, gpu = (float(f"{rate:.5g}") for rate in (baseline, miss, gpu))
    return Rates(baseline, miss, gpu, side_by_side)


def _baseline(points: Sequence[Means], simulated: Rates) -> float:
    """Return the rate at which the CPU's retrieval has its share of the latency at batch 1."""
    def share(rate: float) -> float:
        longer = simulated.baseline / rate - 1
        return mean((p.retrieve_s + longer * p.cpu_s) / (p.e2e_s + longer * p.cpu_s) for p in points)

    return _reached(solve(share, SERVER_SHARE["offload"][1] / 100, _SLOWEST, FASTEST))


def _gpu(points: Sequence[Means], simulated: Rates) -> float:
    """Return the rate at which a resident index's retrieval has its share."""
    def share(rate: float) -> float:
        more = [p.probed_bytes * (1 / rate - 1 / simulated.gpu) for p in points]
        return mean((p.retrieve_s + s) / (p.e2e_s + s) for p, s in zip(points, more, strict=True))

    return _reached(solve(share, SERVER_SHARE["resident"][1] / 100, _SLOWEST, FASTEST))


def _miss(cpu: Sequence[Means], ahead: Sequence[Means], simulated: Rates, baseline: float, gpu: float) -> float:
    """Return the rate of misses at which retrieval alone has its mean speed-up, with the others given."""
    launch = load_scenario("studies/telerag/desktop").clients[2].serves["gpu_search"].fixed
    longer = simulated.baseline / baseline - 1
    slow = [p.retrieve_s + longer * p.cpu_s for p in cpu]
    rest = [p.retrieve_s - _scans(p, simulated.gpu, simulated.miss, launch) for p in ahead]

    def speedup(rate: float) -> float:
        return mean(s / (r + _scans(p, gpu, rate, launch)) for s, r, p in zip(slow, rest, ahead, strict=True))

    if speedup(FASTEST) < RETRIEVAL_SPEEDUP:
        return FASTEST
    return _reached(solve(speedup, RETRIEVAL_SPEEDUP, _SLOWEST, FASTEST))


def _scans(point: Means, gpu: float, miss: float, launch: float) -> float:
    """Return the seconds of a request's searches, GPU and CPU side by side."""
    total = 0.0
    for search in point.searches.split():
        hit, missed = map(int, search.split(":"))
        total += max(launch + hit / gpu if hit else 0.0, missed / miss)
    return total / point.requests


def _reached(rate: float | None) -> float:
    if rate is None:
        raise ValueError("no rate between 0.1 GB/s and 10 TB/s gives the paper's figure")
    return rate


def solve(value: Callable[[float], float], target: float, low: float, high: float) -> float | None:
    """Return where a monotone function reaches `target`; None if it does not between `low` and `high`."""
    first, last = value(low), value(high)
    if not min(first, last) <= target <= max(first, last):
        return None
    rising = last >= first
    for _ in range(60):
        middle = math.sqrt(low * high)
        low, high = (middle, high) if (value(middle) < target) == rising else (low, middle)
    return low


def mean(values: Iterable[float]) -> float:
    """Arithmetic mean."""
    found = list(values)
    return float_sum(found) / len(found)
