"""How the highest rate a client can take changes with the number of clients, by batching and weights."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any

import pandas as pd
from matplotlib.figure import Figure

from hermes.studies.base import STUDIES, Context
from hermes.studies.figures import speed_note
from hermes.studies.report import Plot, Report, Table
from hermes.studies.systems import arrange, routers, run_points

__all__ = ["Scaling", "Search", "highest"]

COUNTS, QUICK_COUNTS = (2, 4, 8, 16, 32), (2, 4, 8)
SPEEDS = (25, 50)             # tokens/s
SHARE = 0.99                  # of the arrivals
STEP = 0.05                   # requests/s and client: rates are multiples of it
HIGHEST = 256                 # steps: no client takes 12.8 requests a second here
PREFILL_SHARE = 0.6
SPLITS = {8: ("3P/5D", "4P/4D", "5P/3D", "6P/2D")}   # 60% is never met exactly: what a client more or less does
CLIENT_SECONDS, SHORTEST_S = 1600, 100
BF16 = {
    "hardware": {"kind": "polynomial", "profile": "llama-3.1-70b-h100-tp2-bf16"},
    "memory": {"capacity": "80 GiB", "utilization": 0.9, "weights": 141_104_775_168, "activations": 4_989_124_608,
               "prefix_caching": False},
}
WEIGHTS: dict[str, dict[str, Any]] = {"fp8": {}, "bf16": BF16}
COLOURS = {"continuous": "#444444", "chunked": "#1f77b4", "disaggregated": "#d62728"}


def split(count: int) -> str:
    """60% of the clients prefill, rounded, and at least one does either."""
    prefill = min(max(round(PREFILL_SHARE * count), 1), count - 1)
    return f"{prefill}P/{count - prefill}D"


@dataclass
class Search:
    """A bisection for the highest multiple of STEP at which a system keeps a speed, over points that others share.

    low: the highest rate (in steps) known to be fine, 0 at first; high: the lowest known not to be.
    """

    weights: str
    strategy: str
    count: int
    speed: int
    low: int = 0
    high: int = HIGHEST
    fine: dict[int, bool] = field(default_factory=dict)

    @property
    def open(self) -> bool:
        return self.high - self.low > 1

    @property
    def next(self) -> int:
        return (self.low + self.high) // 2

    def learn(self, points: Mapping[tuple[str, str, int, int], Mapping[str, Any]]) -> None:
        """Narrow the interval by every point that was simulated for this system."""
        for (weights, strategy, count, steps), point in points.items():
            if (weights, strategy, count) == (self.weights, self.strategy, self.count):
                self.fine[steps] = keeps(point, self.speed)
        while self.open and self.next in self.fine:
            if self.fine[self.next]:
                self.low = self.next
            else:
                self.high = self.next

    @property
    def contradictions(self) -> int:
        """Simulated points on the wrong side of the answer: what bisection takes for granted and need not be so."""
        return sum(fine != (steps <= self.low) for steps, fine in self.fine.items())


def keeps(point: Mapping[str, Any], speed: int) -> bool:
    """Whether enough requests are read at that speed, and requests in the system do not grow."""
    return bool(point[f"share_{speed}"] >= SHARE and point["stable"] is not False)


@STUDIES.register("scaling")
class Scaling:
    title = "Scaling clients: the highest rate per client at a generation SLA"

    def run(self, context: Context) -> Report:
        counts = QUICK_COUNTS if context.quick else COUNTS
        searches = [
            Search(weights, strategy, count, speed)
            for weights in WEIGHTS for strategy in COLOURS for count in counts for speed in SPEEDS
        ]
        splits = [Search("fp8", name, count, speed) for count, names in SPLITS.items() if count in counts
                  for name in names for speed in SPEEDS]
        points: dict[tuple[str, str, int, int], dict[str, Any]] = {}
        for number in range(HIGHEST.bit_length()):
            wanted = list(dict.fromkeys(
                (s.weights, s.strategy, s.count, s.next) for s in [*searches, *splits]
                if s.open and s.next not in s.fine))
            if not wanted:
                break
            points |= self._round(context, number, wanted)
            for search in [*searches, *splits]:
                search.learn(points)
        return build(self.title, searches, splits, points, context.quick)

    def _round(
        self, context: Context, number: int, wanted: list[tuple[str, str, int, int]],
    ) -> Iterator[tuple[tuple[str, str, int, int], dict[str, Any]]]:
        from hermes.scenario.loading import load_document

        base = context.file("conversation.yaml")
        scenario: Any = load_document(base).plain()
        cases = []
        for weights, strategy, count, steps in wanted:
            clients = [client | WEIGHTS[weights] for client in scenario["clients"]]
            how = split(count) if strategy == "disaggregated" else strategy
            cases.append({"label": f"{weights}, {strategy}, {count}, {steps}", "set": {
                "clients": arrange(clients, how, count), "routers": routers(how, scenario["router"]),
                "workload.arrivals.rate": f"{steps * STEP * count:.6g} /s",
                "workload.duration": f"{window_s(count, context.quick):g} s",
            }})
        frame = run_points(context, f"round-{number}", {
            "scenario": str(base), "cases": cases, "extract": "hermes.studies.llm_figures:llm_figures"})
        return zip(wanted, frame.to_dict("records"), strict=True)   # type: ignore[arg-type]


def window_s(count: int, quick: bool) -> float:
    """Small systems are watched longer, so that the slowest 1% of their requests are some."""
    return max(SHORTEST_S, CLIENT_SECONDS / count) / (4 if quick else 1)


def highest(searches: list[Search]) -> pd.DataFrame:
    """A row per weights, speed and batching; a column per number of clients: requests/s and client."""
    rows = pd.DataFrame([
        {"weights": s.weights, "tokens/s": s.speed, "batching": s.strategy, "clients": s.count, "rate": s.low * STEP}
        for s in searches
    ])
    wide = rows.set_index(["weights", "tokens/s", "batching", "clients"])["rate"].unstack("clients", sort=False)
    return wide.reset_index().rename(columns=str)


def details(searches: list[Search], points: Mapping[tuple[str, str, int, int], Mapping[str, Any]]) -> pd.DataFrame:
    """The point of each answer, and what ends it one step further."""
    rows = []
    for s in searches:
        at = points.get((s.weights, s.strategy, s.count, s.low), {})
        past = points.get((s.weights, s.strategy, s.count, s.high))
        reasons = [] if past is None else [reason for reason, holds in (
            ("speed", past[f"share_{s.speed}"] < SHARE), ("unstable", past["stable"] is False)) if holds]
        rows.append({
            "weights": s.weights, "tokens/s": s.speed, "batching": s.strategy, "clients": s.count, "rate": s.low * STEP,
            "share": at.get(f"share_{s.speed}"), "TTFT p99 s": at.get("latency.ttft_s.p99"),
            "TPOT p99 ms": 1e3 * at["latency.tpot_s.p99"] if at else None,
            "KV tokens": (at or past or {}).get("kv.capacity_per_client_tokens"), "peak": at.get("kv.peak_share"),
            "rejected": at.get("requests.rejected"), "stable": at.get("stable"), "then": " ".join(reasons),
            "contradictions": s.contradictions,
        })
    return pd.DataFrame(rows)


def build(
    title: str, searches: list[Search], splits: list[Search],
    points: Mapping[tuple[str, str, int, int], Mapping[str, Any]], quick: bool,
) -> Report:
    table, every = highest(searches), details(searches, points)
    hours = sum(point["device_hours"] for point in points.values())
    core_s = sum(point["core_s"] for point in points.values())
    return Report(title, [
        f"A rate is fine if {SHARE:.0%} of the arrivals are served and read at 25 or 50 tokens/s from their first "
        "token on, and requests in the system do not grow; how long the first token takes does not count.",
        f"Bisection over multiples of {STEP} requests/s and client, the same draws at every rate; windows of "
        + ", ".join(f"{window_s(count, quick):g} s for {count}" for count in dict.fromkeys(s.count for s in searches))
        + " clients.",
        "Disaggregated: 60% of the clients prefill (" + ", ".join(
            split(count) for count in dict.fromkeys(s.count for s in searches)) + "); KV layer by layer over 50 GB/s.",
    ], [
        Table("highest-rate", "Highest rate (requests/s per client)", table, "", {
            name: 2 for name in table.columns if name.isdigit()}),
        *([Table("splits", "fp8: the same for other splits", details(splits, points), "", {"share": 4, "peak": 2})]
          if splits else []),
        Table("details", "The points of these rates, and what ends them one step further", every,
              "share: of the arrivals that keep the speed; contradictions: simulated points on the wrong side.",
              {"share": 4, "peak": 2, "rate": 2, "contradictions": 0}),
    ], [plot(table)], [*findings(every), f"Speed: {speed_note(hours, core_s)}."])


def findings(every: pd.DataFrame) -> list[str]:
    said = []
    for (weights, speed), group in every.groupby(["weights", "tokens/s"], sort=False):
        wide = group.pivot_table(index="batching", columns="clients", values="rate", sort=False)
        first, last = wide.columns.min(), wide.columns.max()
        if not wide.to_numpy().any():
            said.append(f"{weights}, {speed} tokens/s: out of reach of any batching at any rate and number of clients.")
            continue
        best = wide[last].idxmax()
        said.append(
            f"{weights}, {speed} tokens/s: at {last} clients {best} takes most, {wide[last].max():.2f} requests/s per "
            f"client; from {first} to {last} clients: "
            + "; ".join(f"{name} {row[first]:.2f} to {row[last]:.2f}" for name, row in wide.iterrows()) + ".")
    odd = every[every.contradictions > 0]
    said.append(f"Searches with points on the wrong side of their answer: {len(odd)} of {len(every)}.")
    return said


def plot(table: pd.DataFrame) -> Plot:
    """A panel for each weights and speed that anything reaches; a line for each batching."""
    counts = [name for name in table.columns if name.isdigit()]
    panels = [(key, group) for key, group in table.groupby(["weights", "tokens/s"], sort=False)
              if group[counts].to_numpy().any()]
    figure = Figure(figsize=(4.2 * max(len(panels), 1), 3.6), layout="constrained")
    axes = figure.subplots(1, max(len(panels), 1), squeeze=False)[0]
    for ((weights, speed), group), axis in zip(panels, axes, strict=False):
        for row in group.to_dict("records"):
            axis.plot([int(c) for c in counts], [row[c] for c in counts], "o-", color=COLOURS[row["batching"]],
                      label=row["batching"])
        axis.set_xscale("log", base=2)
        axis.set_xticks([int(c) for c in counts], counts)
        axis.set_ylim(bottom=0)
        axis.set_title(f"{weights} weights, {speed} tokens/s", fontsize=10)
        axis.set_xlabel("clients")
        axis.grid(alpha=0.3)
    axes[0].set_ylabel("highest rate, requests/s per client")
    axes[0].legend(fontsize=8, frameon=False)
    return Plot("highest-rate-by-clients", "Highest rate per client at which 99% keep the speed", figure)
