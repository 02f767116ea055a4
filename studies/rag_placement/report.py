"""Study of RAG placement: the machines for embedding and retrieval.

The report runs the six placements on two links, one request at a time; questions of one length, for the comparison by
hand; parts of the context that move; variants of the index; and the placements as streams of requests, until they do
not keep up. The sweeps beside this file list the changes to the scenarios of scenarios/studies/rag-placement.
"""

from __future__ import annotations

from typing import Any

import pandas as pd

from hermes.config.yaml_document import load_yaml
from hermes.hardware.efficiency import load_efficiency
from hermes.study import Compared, Context, Point, Report, Table, run_points, sweep_points

from . import tables
from .compared import compared
from .figures import PARTS, figures
from .plots import bars_plot, rates_plot

__all__ = ["compare", "run", "sweep"]

TOKENS = 1024         # of a question in the comparison by hand
MEAN_QUESTION = 1155  # mean of the Azure conversation trace
RATES = [0.1, 0.2, 0.3, 0.5, 0.75, 1.0, 1.5, 2.0, 2.5, 3.0, 3.5]
QUICK_RATES = [0.2, 0.5, 1.0, 3.0]
REQUESTS, QUICK_REQUESTS = (300, 1000), (40, 150)   # one at a time, and of a stream
SEEDS, QUICK_SEEDS = 5, 2   # of the intervals
SLOW, QUICK = "Mistral-7B / small CPU", "E5-Base / A100 + large CPU"


def run(context: Context) -> Report:
    requests, many = QUICK_REQUESTS if context.quick else REQUESTS
    fast, few = {"network.bandwidth": [tables.FAST]}, {"workload.requests": [max(1, requests // 4)]}
    placed = placements(context, {"workload.requests": [requests]})
    # the computation by hand has the shares of the device's own file
    fixed = sweep(context, "placement", fast | {
        "workload.requests": [5], "workload.lengths": [{"kind": "fixed", "prompt": TOKENS, "output": 211}]})
    stream = placements(context, fast | {
        "workload.requests": [many], "workload.arrivals.rate": QUICK_RATES if context.quick else RATES})
    batch = sweep(context, "batch", {"workload.requests": [many], "workload.arrivals.rate": [0.1, 0.2]})

    def simulate(name: str, points: list[Point], scenario: str = "base.yaml") -> pd.DataFrame:
        return run_points(context, name, points, scenario=scenario, extract=figures)

    every, hand = repeats(context), simulate("fixed-length", fixed)
    bars = every[every["seed"] == 0]
    streams = simulate("streams", stream, "stream.yaml")
    moved, index = simulate("moved", sweep(context, "moved", few)), simulate("index", sweep(context, "index", few))
    batches = simulate("batch", batch, "stream.yaml")
    clients = tables.clients_of(context, placed)
    machines = tables.machines(clients, MEAN_QUESTION)
    found = [
        tables.bars(bars), tables.links(bars), tables.by_hand(hand, TOKENS), tables.moved(moved),
        tables.phases(clients), tables.index(index), machines, tables.limits(streams, machines.frame),
        tables.rates(streams), tables.batches(batches), tables.joules(bars), tables.points(bars),
    ]
    return Report(found, [bars_plot(bars), rates_plot(streams)],
                  _findings(bars, {table.name: table for table in found}), compared=compared(every, moved))


def compare(context: Context) -> list[Compared]:
    """Return the figures that the assumptions change: those of the bars."""
    return compared(repeats(context))


def repeats(context: Context) -> pd.DataFrame:
    """Simulate the bars with several seeds, from 0, which is the scenario's own."""
    requests = (QUICK_REQUESTS if context.quick else REQUESTS)[0]
    points = [Point(p.label, p.settings, p.columns, seed)
              for seed in range(QUICK_SEEDS if context.quick else SEEDS)
              for p in placements(context, {"workload.requests": [requests]})]
    return run_points(context, "placement", points, scenario="base.yaml", extract=figures)


def placements(context: Context, grid: dict[str, Any]) -> list[Point]:
    """Return the six placements, with the coarse search of the index and the CPUs' share of their peak as assumed."""
    assumed: dict[str, Any] = {"clients.0.serves.retrieve.coarse": context["coarse_search"]}
    own = load_efficiency("cpu").factors.model_dump(mode="json")
    factors = {name: value | {"compute": context["cpu_share"]} if isinstance(value, dict) else value
               for name, value in own.items()}
    embeds = {"clients.0.serves.embed.hardware.efficiency": factors} if factors != own else {}
    return [Point(p.label, {**p.settings, **assumed, **({} if "A100" in p.label else embeds)}, p.columns)
            for p in sweep(context, "placement", grid)]


def sweep(context: Context, name: str, grid: dict[str, Any]) -> list[Point]:
    """Return the points of NAME-sweep.yaml, with more in its grid."""
    said = dict(load_yaml(context.file(f"{name}-sweep.yaml")).plain())
    said["grid"] = dict(said.get("grid", {})) | grid
    if "workload.arrivals.rate" in grid:
        said["columns"] = dict(said.get("columns", {})) | {"workload.arrivals.rate": "rate"}
    return sweep_points(said)


def _row(bars: pd.DataFrame, case: str) -> Any:
    return bars[(bars["case"] == case) & (bars["link"] == tables.FAST)].iloc[0]


def _findings(bars: pd.DataFrame, by_name: dict[str, Table]) -> list[str]:
    slow, quick, mistral = (_row(bars, case) for case in (SLOW, QUICK, "Mistral-7B / A100 + large CPU"))
    factor = {row["of one question"]: row["factor"] for _, row in by_name["by_hand"].frame.iterrows()}
    shares = bars["communication_share"]
    worst = max((row for _, row in by_name["moved"].frame.iterrows()), key=lambda row: row["of the total %"])
    embedding = [row["case"] for _, row in bars[bars["link"] == tables.FAST].iterrows()
                 if max(PARTS, key=lambda name: row[f"part.{name}"]) == "embedding"]
    limits = [f"{row['placement']} {row['stable up to requests/s']:g}"
              for _, row in by_name["limits"].frame.iterrows()]
    return [
        f"Embedding is the largest part for {' and '.join(embedding) or 'none of the placements'}; for the others it "
        "is the LLM's decode.",
        f"{SLOW}: {slow['part.embedding']:.2f} s of {slow['total_s']:.2f} s are embedding "
        f"({slow['part.embedding'] / slow['total_s']:.0%}). The paper: it dominates, several seconds in total.",
        f"On the A100 embedding is {1e3 * quick['part.embedding']:.1f} ms (E5-Base) and "
        f"{1e3 * mistral['part.embedding']:.0f} ms (Mistral-7B): {quick['part.embedding'] / quick['total_s']:.1%} and "
        f"{mistral['part.embedding'] / mistral['total_s']:.1%} of the total. The paper: small.",
        f"Moving the context as text is {shares.min():.5%} to {shares.max():.5%} of the total. The paper: under 1%. As "
        f"{worst['moved']} over {worst['link']} it would be {worst['of the total %']:.1f}%.",
        f"{SLOW} against {QUICK}, questions of {TOKENS:,} tokens: embedding takes "
        f"{factor[tables.EMBEDDING_SIMULATED]:,.0f} times as long (by hand, from flops and bytes: "
        f"{factor[tables.EMBEDDING_BY_HAND]:,.0f}), the whole request {factor[tables.REQUEST_SIMULATED]:.2f} times (by "
        f"hand: {factor[tables.REQUEST_BY_HAND]:.2f}).",
        f"Stable up to, of the simulated rates (requests/s): {', '.join(limits)}.",
    ]
