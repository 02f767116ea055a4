"""Study of scaling: the highest rate per client against the number of clients, by batching and weights."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from functools import partial
from typing import Any

import pandas as pd
from matplotlib.figure import Figure

from hermes.scenario.loading import load_document
from hermes.study import Compared, Context, Plot, Point, Report, Search, Table, run_points, run_searches
from hermes.study.figures import speed_note

from ..common.llm_figures import llm_figures
from ..common.systems import BUDGETS, arrange, routers

__all__ = ["compare", "run"]

COUNTS, QUICK_COUNTS = (2, 4, 8, 16, 32), (2, 8)
SPEEDS = (25, 50)             # tokens/s
STEP = 0.05                   # requests/s and client: rates are multiples of it
HIGHEST = 256                 # steps: no client takes 12.8 requests a second here
SPLITS = {8: ("3P/5D", "4P/4D", "5P/3D", "6P/2D")}   # 60% is never met exactly: the effect of one client more or less
CLIENT_SECONDS, SHORTEST_S = 1600, 100
BF16 = {
    "hardware": {"kind": "polynomial", "profile": "llama-3.1-70b-h100-tp2-bf16"},
    "memory": {"capacity": "80 GiB", "utilization": 0.9, "weights": 141_104_775_168, "activations": 4_989_124_608,
               "prefix_caching": False},
}
WEIGHTS: dict[str, dict[str, Any]] = {"fp8": {}, "bf16": BF16}
QUICK_BUDGETS = (256, 2048)
COLOURS = {"continuous": "#444444", "chunked": "#1f77b4", "disaggregated": "#d62728"}


@dataclass(frozen=True)
class System:
    """Parameters of a search. strategy: continuous, chunked N (tokens a step), disaggregated, or a split like 3P/5D."""

    weights: str
    strategy: str
    count: int


@dataclass(frozen=True)
class Asked:
    """A search, and the tokens/s that a system must keep."""

    system: System
    speed: int
    search: Search


def split(count: int, share: float = 0.6) -> str:
    """Return the split in which that share of the clients prefills, rounded; at least one client does each."""
    prefill = min(max(round(share * count), 1), count - 1)
    return f"{prefill}P/{count - prefill}D"


def asked(weights: str, strategy: str, count: int, speed: int, share: float) -> Asked:
    system = System(weights, strategy, count)
    rates = [step * STEP for step in range(1, HIGHEST)]
    return Asked(system, speed, Search(system, rates, partial(keeps, speed=speed, share=share)))


def keeps(point: Mapping[str, Any], speed: int, share: float = 0.99) -> bool:
    """Whether that share of the arrivals is read at `speed` tokens/s, and the requests in the system do not grow."""
    return bool(point[f"share_{speed}"] >= share and point["stable"] is not False)


def run(context: Context) -> Report:
    searches, splits, points = _searched(context)
    return build(context, searches, splits, points)


def compare(context: Context) -> list[Compared]:
    """Return the paper's figures under the context's assumptions."""
    return compared(details(_searched(context)[0], context["share"]))


def _searched(context: Context) -> tuple[list[Asked], list[Asked], list[Mapping[str, Any]]]:
    """Run all searches; return those of the systems, those of other splits, and the points."""
    share = context["share"]
    counts = (8,) if context["clients"] == 8 else QUICK_COUNTS if context.quick else COUNTS
    budgets: Iterable[int] = (context["chunk"],)
    if context["chunk"] == "best":
        budgets = QUICK_BUDGETS if context.quick else BUDGETS
    batchings = ("continuous", *(f"chunked {budget}" for budget in budgets), "disaggregated")
    chosen = [name for name in WEIGHTS if context["weights"] in ("both", name)]
    searches = [asked(weights, strategy, count, speed, share)
                for weights in chosen for strategy in batchings for count in counts for speed in SPEEDS]
    splits = [asked("fp8", name, count, speed, share) for count, names in SPLITS.items()
              if count in counts and "fp8" in chosen for name in names for speed in SPEEDS]
    points = run_searches([one.search for one in (*searches, *splits)], partial(_round, context))
    return searches, splits, list(points.values())


def _round(context: Context, number: int, wanted: list[tuple[Any, float]]) -> list[dict[str, Any]]:
    scenario: Any = load_document(context.file("conversation.yaml")).plain()
    points = []
    for system, rate in wanted:
        clients = [client | WEIGHTS[system.weights] for client in scenario["clients"]]
        disaggregated = system.strategy == "disaggregated"
        how = split(system.count, context["prefill_share"]) if disaggregated else system.strategy
        points.append(Point(f"{system.weights}, {system.strategy}, {system.count}, {rate:.6g}", {
            "clients": arrange(clients, how, system.count), "routers": routers(how, scenario["router"]),
            "workload.arrivals.rate": f"{rate * system.count:.6g} /s",
            "workload.duration": f"{window_s(system.count, context.quick):g} s",
        }))
    frame = run_points(context, f"round-{number}", points, scenario="conversation.yaml", extract=llm_figures)
    rows: list[dict[str, Any]] = frame.to_dict("records")   # type: ignore[assignment]
    return rows


def window_s(count: int, quick: bool) -> float:
    """Return the window. Small systems run longer, so that the slowest 1% of their requests are several."""
    return max(SHORTEST_S, CLIENT_SECONDS / count) / (4 if quick else 1)


def highest(searches: list[Asked]) -> pd.DataFrame:
    """A row per weights, speed and batching; a column per number of clients: requests/s and client."""
    return wide(pd.DataFrame([
        {"weights": s.system.weights, "tokens/s": s.speed, "batching": s.system.strategy, "clients": s.system.count,
         "rate": s.search.highest or 0.0} for s in searches
    ]))


def details(searches: list[Asked], share: float) -> pd.DataFrame:
    """Return the point of each answer, and the reason it ends one step further."""
    rows = []
    for s in searches:
        at: Mapping[str, Any] = s.search.rows.get(s.search.low, {})
        past = s.search.rows.get(s.search.high)
        reasons = [] if past is None else [reason for reason, holds in (
            ("speed", past[f"share_{s.speed}"] < share), ("unstable", past["stable"] is False)) if holds]
        rows.append({
            "weights": s.system.weights, "tokens/s": s.speed, "batching": s.system.strategy, "clients": s.system.count,
            "rate": s.search.highest or 0.0,
            "share": at.get(f"share_{s.speed}"), "TTFT p99 s": at.get("latency.ttft_s.p99"),
            "TPOT p99 ms": 1e3 * at["latency.tpot_s.p99"] if at else None,
            "KV tokens": (at or past or {}).get("kv.capacity_per_client_tokens"), "peak": at.get("kv.peak_share"),
            "rejected": at.get("requests.rejected"), "stable": at.get("stable"), "then": " ".join(reasons),
            "contradictions": s.search.contradictions,
        })
    return pd.DataFrame(rows)


def build(context: Context, searches: list[Asked], splits: list[Asked], points: list[Mapping[str, Any]]) -> Report:
    share = context["share"]
    table, every = highest(searches), details(searches, share)
    budgets = ", ".join(dict.fromkeys(s.system.strategy.removeprefix("chunked ") for s in searches
                                      if s.system.strategy.startswith("chunked ")))
    hours = sum(point["device_hours"] for point in points)
    core_s = sum(point["core_s"] for point in points)
    counts = list(dict.fromkeys(s.system.count for s in searches))
    return Report([
        Table("highest-rate", "Highest rate (requests/s per client)", table, "", {
            name: 2 for name in table.columns if name.isdigit()}),
        *([Table("splits", "fp8: the same for other splits", details(splits, share), "", {"share": 4, "peak": 2})]
          if splits else []),
        Table("details", "The points of these rates, and what ends them one step further", every,
              "share: of the arrivals that keep the speed; contradictions: simulated points on the wrong side.",
              {"share": 4, "peak": 2, "rate": 2, "contradictions": 0}),
    ], [plot(best_budget(every))], [*findings(best_budget(every)), f"Speed: {speed_note(hours, core_s)}."], [
        f"A rate is fine if {share:.0%} of the arrivals are served and read at 25 or 50 tokens/s from their first "
        "token on, and requests in the system do not grow; how long the first token takes does not count.",
        f"Bisection over multiples of {STEP} requests/s and client, the same draws at every rate; windows of "
        + ", ".join(f"{window_s(count, context.quick):g} s for {count}" for count in counts) + " clients.",
        f"Chunked: steps of {budgets} tokens; the plot and the findings have the best of them.",
        f"Disaggregated: {context['prefill_share']:.0%} of the clients prefill ("
        + ", ".join(split(count, context["prefill_share"]) for count in counts)
        + "); KV layer by layer over 50 GB/s.",
    ], compared=compared(every))


def best_budget(every: pd.DataFrame) -> pd.DataFrame:
    """Return `details` with one row of chunked batching for each weights, speed and number of clients: that of the
    budget that takes the highest rate, called `chunked`, with its tokens in `budget`."""
    chunked = every[every.batching.str.startswith("chunked ")]
    best = chunked.loc[chunked.groupby(["weights", "tokens/s", "clients"], sort=False)["rate"].idxmax()]
    best = best.assign(budget=best.batching.str.removeprefix("chunked "), batching="chunked")
    others = every[~every.batching.str.startswith("chunked ")].assign(budget="")
    return pd.concat([others, best]).sort_index()


def compared(every: pd.DataFrame) -> list[Compared]:
    """Return the paper's figure 13 (arXiv 2504.09775). every: `details` of the searches."""
    rows = []
    best = best_budget(every)
    for weights, count in (("fp8", 8), ("fp8", 32), ("bf16", 8), ("bf16", 32)):
        mine = best[(best.weights == weights) & (best.clients == count)]
        rates = {speed: group.set_index("batching")["rate"] for speed, group in mine.groupby("tokens/s")}
        if not rates:
            continue
        name, slow, fast = f"Fig. 13, {weights}, {count} clients", rates[25].to_dict(), rates[50].to_dict()
        budget = mine[(mine.batching == "chunked") & (mine["tokens/s"] == 25)]["budget"].iloc[0]
        rows.append(Compared(
            f"{name}: requests/s and client at 25 tokens/s", "chunked takes most",
            ", ".join(f"{one}{f' {budget}' if one == 'chunked' else ''} {rate:.2f}"
                      for one, rate in sorted(slow.items(), key=lambda pair: -pair[1])),
            "a small step keeps 40 ms a token, and no client waits for work of its kind" if weights == "fp8"
            else "KV memory ends every rate, and prefill clients hold no decodes"))
        rows.append(Compared(
            f"{name}: chunked over disaggregated at 25 tokens/s", "above 1", _over(slow["chunked"],
                                                                                    slow["disaggregated"]),
            "with larger steps below 1: 2,048 prompt tokens take 175 ms" if weights == "fp8"
            else "60% of the memory lies idle at prefill clients", 2))
        if not any(fast.values()):
            continue
        for one, paper, why in (
            ("chunked", "drops sharply", "any step with a prompt in it takes longer than 20 ms"),
            ("disaggregated", "60% prefill is most robust", "a decode client's step holds no prompt"),
            ("continuous", None, "a prompt interrupts all decodes of its client"),
        ):
            rows.append(Compared(f"{name}: share of the rate kept at 50 tokens/s, {one}", paper,
                                 _over(fast[one], slow[one]), why, 2))
    return rows


def _over(one: float, other: float) -> float | None:
    return one / other if other else None


def wide(best: pd.DataFrame) -> pd.DataFrame:
    """A row per weights, speed and batching; a column per number of clients: requests/s and client."""
    table = best.set_index(["weights", "tokens/s", "batching", "clients"])["rate"].unstack("clients", sort=False)
    return table.reset_index().rename(columns=str)


def findings(every: pd.DataFrame) -> list[str]:
    said = []
    for (weights, speed), group in every.groupby(["weights", "tokens/s"], sort=False):
        rates = group.pivot_table(index="batching", columns="clients", values="rate", sort=False)
        first, last = rates.columns.min(), rates.columns.max()
        if not rates.to_numpy().any():
            said.append(f"{weights}, {speed} tokens/s: out of reach of any batching at any rate and number of clients.")
            continue
        best = rates[last].idxmax()
        said.append(
            f"{weights}, {speed} tokens/s: at {last} clients {best} takes most, {rates[last].max():.2f} requests/s per "
            f"client; from {first} to {last} clients: "
            + "; ".join(f"{name} {row[first]:.2f} to {row[last]:.2f}" for name, row in rates.iterrows()) + ".")
    odd = every[every.contradictions > 0]
    said.append(f"Searches with points on the wrong side of their answer: {len(odd)} of {len(every)}.")
    return said


def plot(best: pd.DataFrame) -> Plot:
    """A panel for each weights and speed that anything reaches; a line for each batching."""
    table = wide(best)
    counts = [name for name in table.columns if name.isdigit()]
    panels = [(key, group) for key, group in table.groupby(["weights", "tokens/s"], sort=False)
              if group[counts].to_numpy().any()]
    figure = Figure(figsize=(4.2 * max(len(panels), 1), 3.6), layout="constrained")
    axes = figure.subplots(1, max(len(panels), 1), squeeze=False)[0]
    for ((weights, speed), group), axis in zip(panels, axes, strict=False):
        for row in group.to_dict("records"):
            axis.plot([int(c) for c in counts], [row[c] for c in counts], "o-", color=COLOURS[row["batching"]],
                      label=row["batching"] + (", best steps" if row["batching"] == "chunked" else ""))
        axis.set_xscale("log", base=2)
        axis.set_xticks([int(c) for c in counts], counts)
        axis.set_ylim(bottom=0)
        axis.set_title(f"{weights} weights, {speed} tokens/s", fontsize=10)
        axis.set_xlabel("clients")
        axis.grid(alpha=0.3)
    axes[0].set_ylabel("highest rate, requests/s per client")
    axes[0].legend(fontsize=8, frameon=False)
    return Plot("highest-rate-by-clients", "Highest rate per client at which 99% keep the speed", figure)
