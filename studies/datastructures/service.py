"""Admission to a tier, its warming, micro-batches, and the cost of a submit to one."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import numpy as np
import pandas as pd

from hermes.core.noise import spread
from hermes.plugins.structures.micro_batcher import MicroBatcher
from hermes.results import Results
from hermes.study import Context, Plot, Point, Table, run_points

__all__ = ["admission", "admission_plot", "hybrid_runs", "micro_batches", "submit_costs"]

_TIER = "clients.1.tiers.levels.0"
_ADMIT = {f"{_TIER}.admission": "frequency"}
_WARM: dict[str, Any] = {"clients.1.warming": {"every": 100, "entries": 50}}   # about half of what the tier holds
VARIANTS: dict[str, dict[str, Any]] = {
    "everything comes in": {}, "admission": _ADMIT, "warming": _WARM, "admission + warming": _ADMIT | _WARM,
}


def admission(
    context: Context, requests: int, seeds: int, rates: Sequence[int], recency: str = "rank",
) -> Table:
    """Time to fetch a chunk, with and without admission and warming; the disk is the busier the higher the rate."""
    policies = {"lru": {f"{_TIER}.eviction": "lru"}, "tamm": {f"{_TIER}.eviction": "tamm", f"{_TIER}.recency": recency}}
    points = [
        Point(f"{policy}/{name}, {rate}/s", {
            **settings, **changes, "workload.arrivals.rate": rate, "workload.requests": requests,
        }, {"case": f"{policy}/{name}", "rate": rate}, seed)
        for policy, settings in policies.items() for name, changes in VARIANTS.items()
        if policy == "lru" or changes in ({}, _ADMIT)
        for rate in rates for seed in range(seeds)
    ]
    frame = run_points(context, "tiers", points, scenario="chunks.yaml")
    p95 = frame.pivot(index="seed", columns=["case", "rate"], values="stages.fetch_kv.service_s.p95")
    rows = []
    for (case, rate), mine in frame.groupby(["case", "rate"], sort=False):
        policy, name = str(case).split("/")
        row = {"policy": policy, "rate/s": rate, "memory tier": name,
               "hit %": 100 * mine["tiers.memory.hit_rate"].mean(),
               "disk busy %": 100 * mine["tiers.disk.mean_utilisation"].mean(),
               "mean ms": 1e3 * mine["stages.fetch_kv.service_s.mean"].mean(),
               "P50 ms": 1e3 * mine["stages.fetch_kv.service_s.p50"].mean(),
               "P95 ms": 1e3 * mine["stages.fetch_kv.service_s.p95"].mean(),
               "P95 change %": None, "+/-": None, "written GB": mine["tiers.memory.written_bytes"].mean() / 1e9,
               "peak share": mine["tiers.memory.peak_share"].max(), "rejected": mine["requests.rejected"].sum()}
        if VARIANTS[name]:   # seed by seed: the same chunks at the same times
            ratio = spread(p95[case, rate] / p95[f"{policy}/everything comes in", rate])
            row |= {"P95 change %": 100 * (ratio.mean - 1), "+/-": 100 * ratio.ci95}
        rows.append(row)
    return Table(
        "admission", "3. Retrieval of KV chunks (Zipf 0.9): memory of 16 GB over a disk of 5 GB/s", pd.DataFrame(rows),
        f"Means over {seeds} seeds of {requests:,} requests; change of P95 seed by seed, with its 95% interval. "
        "The paper hopes for 20 to 30% less.",
        {"hit %": 1, "disk busy %": 1, "P95 change %": 1, "+/-": 1, "peak share": 3})


def admission_plot(table: Table) -> Plot:
    """P95 against the rate, a panel for each policy."""
    from matplotlib.figure import Figure  # not in workers, which import this module too

    frame = table.frame
    policies = list(dict.fromkeys(frame["policy"]))
    figure = Figure(figsize=(5.2 * len(policies), 3.8), layout="constrained")
    for axis, policy in zip(np.atleast_1d(figure.subplots(1, len(policies), sharey=True)), policies, strict=True):
        for name, mine in frame[frame["policy"] == policy].groupby("memory tier", sort=False):
            axis.plot(mine["rate/s"], mine["P95 ms"], marker="o", markersize=3, label=str(name))
        axis.set(xlabel="requests/s", ylabel="P95 of a fetch, ms", yscale="log", title=policy)
        axis.set_xticks(sorted(set(frame["rate/s"])))
        ticks = [tick for tick in (20, 50, 100, 200, 500, 1000, 2000, 5000)
                 if frame["P95 ms"].min() / 2 < tick < 2 * frame["P95 ms"].max()]
        axis.set_yticks(ticks, [f"{tick:,}" for tick in ticks])
        axis.minorticks_off()
        axis.grid(alpha=0.3)
        axis.legend(frameon=False)
    return Plot("fetches", "P95 of a fetch from memory over a disk, by rate: admission and warming", figure)


def micro_batches(context: Context, requests: int, rates: Sequence[int], windows_ms: Sequence[float]) -> Table:
    """Retrieval latency (waiting for the batch included) against the window, with and without a cost per submit."""
    points = [
        Point(f"{rate}/s, {window} ms, {cost_us} us", {
            "workload.requests": requests, "workload.arrivals.rate": f"{rate} /s",
            "clients.0.batch_window": f"{window} ms", "clients.0.submit_cost": f"{cost_us} us",
        }, {"rate/s": rate, "window ms": window, "submit us": cost_us})
        for rate in rates for window in windows_ms for cost_us in (0, 20)
    ]
    frame = run_points(context, "micro-batches", points, scenario="micro-batches.yaml", extract=batch_figures)
    columns = ["rate/s", "window ms", "submit us", "mean batch", "P50 ms", "P95 ms"]
    return Table("micro_batches", "3. Micro-batches in front of retrieval (IVF-PQ on a large CPU, at most 32 a batch)",
                 frame[columns], "Waiting for the batch is part of the latency. What a submit costs: next table.",
                 {"mean batch": 2})


def batch_figures(results: Results) -> dict[str, Any]:
    """Size of the batches of retrievals, and latency."""
    stages = results.record.stages
    mine = stages["kind"] == results.record.stage_kinds.index("retrieve")
    took = (stages["end_ns"] - stages["assigned_ns"])[mine] / 1e6
    batches = len(np.unique(stages["start_ns"][mine]))
    return {"mean batch": mine.sum() / batches, "P50 ms": float(np.percentile(took, 50)),
            "P95 ms": float(np.percentile(took, 95))}


def hybrid_runs(context: Context, requests: int, rates: Sequence[int]) -> Table:
    """Hybrid retrieval on the clock: its two searches one after the other, or side by side on four cores."""
    points = [
        Point(f"{searches}, {rate}/s", {
            "workload.requests": requests, "workload.arrivals.rate": f"{rate} /s",
            "clients.0.serves.retrieve.searches": searches,
        }, {"searches": searches, "rate/s": rate}) for searches in ("sequential", "parallel") for rate in rates
    ]
    frame = run_points(context, "hybrid", points, scenario="hybrid.yaml")
    table = frame[["searches", "rate/s"]].assign(**{
        f"{part} {name} ms": 1e3 * frame[f"stages.retrieve.{key}_s.{name.lower()}"]
        for part, key in (("search", "service"), ("wait", "wait")) for name in ("P50", "P95")})
    return Table("hybrid_runs", "4. Hybrid retrieval over 100,000 documents on four cores, searches as timed",
                 table, "At most 8 queries a batch; batches of more than one share the cores.")


def submit_costs(repetitions: int, queries: int = 3200, sizes: Sequence[int] = (1, 2, 4, 8, 16, 32)) -> Table:
    """CPU time of a submit to a real micro-batcher (asyncio, one search thread), by the size of the batches."""
    rows = []
    for size in sizes:
        asyncio.run(_submits(size, size))   # imports, the first thread
        took = spread(asyncio.run(_submits(size, max(size, queries))) for _ in range(repetitions))
        rows.append({"batch": size, "us a submit": 1e6 * took.mean, "+/-": 1e6 * took.ci95, "class": took.verdict})
    return Table("submits", "3. What a submit to a micro-batcher costs", pd.DataFrame(rows),
                 f"CPU time of both threads for queries that need no search, answer included; {queries:,} queries, "
                 f"{repetitions} repetitions. `submit_cost` of a client.", {"us a submit": 1, "+/-": 1})


async def _submits(size: int, queries: int) -> float:
    """Seconds of CPU time a query, in full batches."""
    with ThreadPoolExecutor(1) as pool:
        batcher: MicroBatcher[int, int] = MicroBatcher(lambda batch: batch, size, 60.0, pool)
        started = time.process_time()
        for _ in range(queries // size):
            await asyncio.gather(*(batcher.submit(query) for query in range(size)))
        return (time.process_time() - started) / (queries // size * size)
