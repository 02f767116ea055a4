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
from ..common.seeds import over_seeds
from ..common.systems import BUDGETS, arrange, routers

__all__ = ["compare", "run"]

COUNTS, QUICK_COUNTS = (2, 4, 8, 16, 32), (2, 8)
SPEEDS = (25, 50)             # tokens/s
STEP = 0.05                   # requests/s and client: rates are multiples of it
HIGHEST = 256                 # steps: no client takes 12.8 requests a second here
AGAIN = (8, 32)               # numbers of clients that a second seed simulates too: those of the paper's figures
SPLITS = {8: ("3P/5D", "4P/4D", "5P/3D", "6P/2D")}   # 60% is never met exactly: the effect of one client more or less
SHARP = 0.5                   # a rate that drops sharply keeps less than half
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
    seed: int = 1


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


def asked(weights: str, strategy: str, count: int, speed: int, share: float, seed: int = 1) -> Asked:
    system = System(weights, strategy, count, seed)
    rates = [step * STEP for step in range(1, HIGHEST)]
    return Asked(system, speed, Search(system, rates, partial(keeps, speed=speed, share=share)))


def keeps(point: Mapping[str, Any], speed: int, share: float = 0.99) -> bool:
    """Whether that share of the arrivals is read at `speed` tokens/s, and the requests in the system do not grow."""
    return bool(point[f"share_{speed}"] >= share and point["stable"] is not False)


def run(context: Context) -> Report:
    searches, again, splits, points = _searched(context, () if context.quick else AGAIN)
    return build(context, searches, again, splits, points)


def compare(context: Context) -> list[Compared]:
    """Return the paper's figures under the context's assumptions, with its own seed alone."""
    return compared(details(_searched(context)[0], context["share"]))


def _searched(
    context: Context, again: tuple[int, ...] = (),
) -> tuple[list[Asked], list[Asked], list[Asked], list[Mapping[str, Any]]]:
    """Run all searches; return those of the systems, the same of the numbers of clients in `again` with the next seed,
    those of other splits, and the points."""
    share, seed = context["share"], context["seed"]
    counts = (8,) if context["clients"] == 8 else QUICK_COUNTS if context.quick else COUNTS
    budgets: Iterable[int] = (context["chunk"],)
    if context["chunk"] == "best":
        budgets = QUICK_BUDGETS if context.quick else BUDGETS
    batchings = ("continuous", *(f"chunked {budget}" for budget in budgets), "disaggregated")
    chosen = [name for name in WEIGHTS if context["weights"] in ("both", name)]
    first, second = ([asked(weights, strategy, count, speed, share, number)
                      for weights in chosen for strategy in batchings for count in wanted for speed in SPEEDS]
                     for number, wanted in ((seed, counts), (seed + 1, [n for n in counts if n in again])))
    splits = [asked("fp8", name, count, speed, share, seed) for count, names in SPLITS.items()
              if count in counts and "fp8" in chosen for name in names for speed in SPEEDS]
    points = run_searches([one.search for one in (*first, *second, *splits)], partial(_round, context))
    return first, second, splits, list(points.values())


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
        }, seed=system.seed))
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


def build(
    context: Context, searches: list[Asked], again: list[Asked], splits: list[Asked], points: list[Mapping[str, Any]],
) -> Report:
    share = context["share"]
    table, every = highest(searches), details(searches, share)
    budgets = ", ".join(dict.fromkeys(s.system.strategy.removeprefix("chunked ") for s in searches
                                      if s.system.strategy.startswith("chunked ")))
    hours = sum(point["device_hours"] for point in points)
    core_s = sum(point["core_s"] for point in points)
    counts = list(dict.fromkeys(s.system.count for s in searches))
    digits = dict.fromkeys(map(str, counts), 2)
    seeds = [compared(every), *([compared(details(again, share))] if again else [])]
    return Report([
        Table("highest-rate", "Highest rate (requests/s per client)", table, "", digits),
        *([Table("seed", "The same with the next seed", highest(again), "", digits)] if again else []),
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
    ], compared=over_seeds(*seeds))


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
        at = {speed: group.sort_values("rate", ascending=False, kind="stable").set_index("batching")
              for speed, group in mine.groupby("tokens/s")}
        if not at:
            continue
        name, slow, fast = f"{weights}, {count} clients", at[25]["rate"].to_dict(), at[50]["rate"].to_dict()
        top = max(slow.values())
        rows.append(Compared(
            f"{name}: requests/s and client at 25 tokens/s", "chunked takes most",
            ", ".join(f"{one} {rate:.2f}" for one, rate in slow.items()), _ends(at[25]), 2, "Fig. 13", (top, top),
            agrees=list(slow.values()).count(top) == 1 and slow["chunked"] == top))
        ratio = _over(slow["chunked"], slow["disaggregated"])
        rows.append(Compared(
            f"{name}: chunked over disaggregated at 25 tokens/s", "above 1", ratio,
            _by_budget(every[(every.weights == weights) & (every.clients == count) & (every["tokens/s"] == 25)],
                       slow["disaggregated"]), 2, "Fig. 13", agrees=None if ratio is None else ratio > 1, neutral=1))
        kept = {one: _over(fast[one], slow[one]) for one in fast}
        for one, paper, agrees in (
            ("chunked", "drops sharply", (kept["chunked"] or 0) < SHARP),
            ("disaggregated", "60% prefill is most robust", kept["disaggregated"] == max(
                share for share in kept.values() if share is not None)),
            ("continuous", None, None),
        ) if any(fast.values()) else ():
            rows.append(Compared(
                f"{name}: share of the rate kept at 50 tokens/s, {one}", paper, kept[one],
                f"{fast[one]:.2f} of {slow[one]:.2f} requests/s; {_ends(at[50].loc[[one]])}", 2, "Fig. 13",
                agrees=agrees))
    for numbers, group in best[best["tokens/s"] == 25].groupby("weights", sort=False):
        rates = group.pivot_table(index="batching", columns="clients", values="rate", sort=False)
        first, last = rates.columns.min(), rates.columns.max()
        if last > first and (rates[first] > 0).all():
            changes = (rates[last] / rates[first] - 1).sort_values()
            rows.append(Compared(f"{numbers}: change of the rate at 25 tokens/s, fewest to most clients", None,
                                 (float(changes.min()), float(changes.max())), f"{first} to {last} clients: "
                                 + ", ".join(f"{one} {change:+.0%}" for one, change in changes.items()), 2, "Fig. 13"))
    return rows


def _ends(at: pd.DataFrame) -> str:
    """Return what ends each batching one step past its rate, and how full its KV memory is at the rate."""
    words = {"": "the last rate", "unstable": "growth", "speed unstable": "speed and growth"}
    return "; ".join(
        f"{name}{f' {row.budget}' if row.budget else ''} ends by {words.get(row.then, row.then)}"
        + (f", KV {row.peak:.0%} full" if row.peak == row.peak and row.peak is not None else "")
        for name, row in at.iterrows())


def _by_budget(mine: pd.DataFrame, other: float) -> str:
    """Return the ratio of each budget of chunked batching to another rate."""
    chunked = mine[mine.batching.str.startswith("chunked ")]
    return "tokens a step: " + ", ".join(
        f"{row['batching'].removeprefix('chunked ')} {row['rate'] / other:.2f}" if other else "-"
        for row in chunked.to_dict("records"))


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
