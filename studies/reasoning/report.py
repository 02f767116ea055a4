"""Study of reasoning in parallel branches: requests that meet their SLOs, by batching, over a grid of SLOs; and the
systems of Table III."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import Any

import pandas as pd
from matplotlib.figure import Figure

from hermes.scenario.loading import load_document
from hermes.study import Compared, Context, Plot, Point, Report, Table, run_points

from ..common.systems import BUDGETS, arrange, routers
from ..common.table_3 import NEAR
from . import small_clients
from .figures import reasoning_figures

__all__ = ["compare", "run"]

SPLITS = ("4P/4D", "2P/6D", "1P/7D")
QUICK_BUDGETS = (2048,)   # the best of `BUDGETS` in both parts
MORE_SEEDS = (2, 3)       # of figure 8; the scenario has 1
PARTS_OF_RATES = {"halves": 2, "thirds": 3}
CLIENTS = 8
COLOURS = ("#444444", "#1f77b4", "#d62728", "#2ca02c", "#9467bd")
FEW_SEQS = 256
MARGIN = 0.015   # nearer to what the paper says, one seed does not tell
MET = 0.9   # of the requests, at which batching is said to meet an SLO


@dataclass(frozen=True)
class Part:
    """One of the two workloads: rates in requests/s of the whole system, SLOs in ms."""

    name: str
    label: str
    rates: tuple[float, ...]
    ttft_ms: tuple[int, ...]
    tpot_ms: tuple[int, ...]


PARTS = (
    Part("conversation", "(a) conversation, 8 branches", (2, 3, 4, 5), (10, 20, 50, 100, 200, 500, 1000), (25, 30, 35)),
    Part("code", "(b) code, 4 branches", (4, 6, 8, 10), (100, 200, 500, 1000, 2000, 5000, 10_000), (15, 20, 25, 30)),
)


def run(context: Context) -> Report:
    frames, report = _figure_8(context), Report()
    if frames:
        report = build(frames, _sharing(context, frames), context["window_s"], context["max_num_seqs"])
    small = small_clients.grid(context, _budgets(context)) if _asked(context, "table III") else None
    if small is not None:
        report.tables[:0] = small_clients.tables(small, PARTS_OF_RATES[context["bands"]])
    report.compared = _compared(context, frames, {} if context.quick else _more_seeds(context, frames), small)
    return report


def compare(context: Context) -> list[Compared]:
    """Return the paper's figures under the context's assumptions, of one seed."""
    return _compared(context, _figure_8(context), {}, small_clients.grid(context, _budgets(context))
                     if _asked(context, "table III") else None)


def _asked(context: Context, part: str) -> bool:
    return context["part"] in ("all", part)


def _budgets(context: Context) -> tuple[int, ...]:
    if context["chunk"] != "best":
        return (context["chunk"],)
    return QUICK_BUDGETS if context.quick else BUDGETS


def _figure_8(context: Context) -> dict[str, pd.DataFrame]:
    """Simulate the two workloads; a frame by the name of each."""
    if not _asked(context, "figure 8"):
        return {}
    strategies = ("continuous", *(f"chunked {budget}" for budget in _budgets(context)), *SPLITS)
    return {part.name: _simulate(context, part.name, f"{part.name}.yaml", _points(
        context, f"{part.name}.yaml", part.rates, strategies, context["max_num_seqs"])) for part in PARTS}


def _more_seeds(context: Context, frames: dict[str, pd.DataFrame]) -> dict[str, list[pd.DataFrame]]:
    """Simulate the workloads with more seeds, and the best budget of chunked batching; a frame of each seed."""
    more = {}
    for part in PARTS if frames else ():
        strategies = tuple(dict.fromkeys(best_budget(part, frames[part.name]).batching))
        wanted = _points(context, f"{part.name}.yaml", part.rates, strategies, context["max_num_seqs"])
        found = _simulate(context, f"{part.name}-seeds", f"{part.name}.yaml", [
            replace(point, seed=seed) for seed in MORE_SEEDS for point in wanted])
        more[part.name] = [found[i:i + len(wanted)] for i in range(0, len(found), len(wanted))]
    return more


def _sharing(context: Context, frames: dict[str, pd.DataFrame]) -> pd.DataFrame:
    """Branches that share the prompt's KV beside separate copies."""
    even, many = {"workload.branch_spread": 0.0}, context["max_num_seqs"]
    aside = [
        ("branches", "conversation.yaml", even, many), ("separate copies", "copies.yaml", {}, many),
        (f"branches, {FEW_SEQS} sequences at most", "conversation.yaml", even, FEW_SEQS),
    ]
    chunked = next(name for name in best_budget(PARTS[0], frames["conversation"]).batching if "chunked" in name)
    shared = []
    for i, (label, file, settings, seqs) in enumerate(aside):
        wanted = _points(context, file, (2, 4), (chunked, "2P/6D"), seqs, settings)
        shared.append(_simulate(context, f"sharing-{i}", file, wanted).assign(answers=label))
    return pd.concat(shared, ignore_index=True)


def share_met(
    part: Part, frame: pd.DataFrame, ttft_ms: Sequence[int] = (), tpot_ms: Sequence[int] = (),
) -> pd.Series:
    """Return the share of the requests that meet both SLOs, averaged over these SLOs, or the part's; one for each
    row."""
    good = frame[[f"good_{ttft}_{tpot}" for ttft in ttft_ms or part.ttft_ms for tpot in tpot_ms or part.tpot_ms]]
    return good.mean(axis=1) / frame["requests.total"]


def best_budget(part: Part, frame: pd.DataFrame) -> pd.DataFrame:
    """Return the frame with one budget of chunked batching: the one with the largest share of requests that meet both
    SLOs, over all rates and SLOs."""
    shares = share_met(part, frame).groupby(frame.batching, sort=False).mean()
    chunked = shares[[name for name in shares.index if name.startswith("chunked ")]]
    return frame[~frame.batching.isin(chunked.index) | (frame.batching == chunked.idxmax())]


def _compared(
    context: Context, frames: dict[str, pd.DataFrame], more: dict[str, list[pd.DataFrame]], small: pd.DataFrame | None,
) -> list[Compared]:
    """Return figure 8 and the rows of reasoning of Table III (arXiv 2504.09775)."""
    rows = []
    for part in PARTS if frames else ():
        frame = best_budget(part, frames[part.name])
        rows += _figure_8_rows(part, frame, more.get(part.name, []))
    return [*rows, *(small_clients.compared(small, PARTS_OF_RATES[context["bands"]])
                   if small is not None else [])]


def _figure_8_rows(part: Part, frame: pd.DataFrame, more: list[pd.DataFrame]) -> list[Compared]:
    """Return the rows of a workload. A figure is of the first seed, its interval of all seeds."""
    top = f"{part.name}, {frame.rate.max():g} requests/s"
    chunked = next(name for name in frame.batching if "chunked" in name)
    best = SPLITS[-1]   # the split with the most decode clients

    def row(name: str, paper: str | None, figure: Callable[[pd.Series], float], values: Callable[[pd.DataFrame],
            pd.Series], text: str, limit: float | None = None) -> Compared:
        """figure: of the values by batching; text: format of a value in `why`; limit: the paper says above it."""
        here, *others = (figure(values(one)) for one in (frame, *more))
        interval = (min(here, *others), max(here, *others)) if others else None
        why = ", ".join(f"{batching} {value:{text}}" for batching, value in values(frame).items())
        said = paper if limit is None else f"{paper} (taken as above {limit:g})"
        return Compared(name, said, here, why, 2, "Fig. 8", interval, agrees=None if limit is None else here > limit,
                        settled=limit is None or (abs(here / limit - 1) > MARGIN if interval is None
                                                  else not interval[0] <= limit < interval[1]),
                        qualifier="reversed" if limit == 1 else "")

    def over(one: str, others: Sequence[str]) -> Callable[[pd.Series], float]:
        return lambda values: float(values[one] / values[list(others)].max())

    def at_top(column: str, scale: float = 1.0) -> Callable[[pd.DataFrame], pd.Series]:
        return lambda one: scale * one[one.rate == one.rate.max()].set_index("batching")[column]

    together = ["continuous", chunked]
    both, tight = (partial(_means, part, ttft_ms=ttft_ms, tpot_ms=tpot_ms) for ttft_ms, tpot_ms in (
        (part.ttft_ms, part.tpot_ms), (part.ttft_ms[:3], part.tpot_ms[-1:])))
    if part.name == "conversation":
        claims = [
            row(f"{part.name}: share that meets the loosest TTFT and TPOT, continuous", "meets the TTFT",
                lambda values: float(values["continuous"]),
                partial(_means, part, ttft_ms=part.ttft_ms[-1:], tpot_ms=part.tpot_ms[-1:]), ".0%", MET),
            row(f"{part.name}: share that meets both SLOs, continuous over the best split",
                "high goodput", over("continuous", SPLITS), both, ".0%", 1.0)]
    else:
        claims = [row(f"{part.name}: share that meets both SLOs, {best} over the best without a split",
                      "more decode clients win", over(best, together), both, ".0%", 1.0),
                  row(f"{part.name}: the same, {best} over the best other split",
                      "more decode clients win", over(best, SPLITS[:-1]), both, ".0%", 1.0)]
    return [
        *claims,
        row(f"{part.name}: share that meets the three tightest TTFT and the loosest TPOT, the best split over "
            "the best without", None, lambda values: float(values[list(SPLITS)].max() / values[together].max()),
            tight, ".0%"),
        row(f"{top}: output tokens/s, {chunked.split()[0]} over the best of the others", "high",
            over(chunked, [name for name in dict.fromkeys(frame.batching) if name != chunked]),
            at_top("throughput.output_tokens_per_s"), ",.0f", 1 - NEAR),
        row(f"{top}: TTFT p99, {chunked.split()[0]} over continuous", "bad", over(chunked, ["continuous"]),
            at_top("latency.ttft_s.p99", 1e3), ",.0f", 1.0),
    ]


def _means(part: Part, frame: pd.DataFrame, ttft_ms: Sequence[int], tpot_ms: Sequence[int]) -> pd.Series:
    """Return the share of the requests that meet both SLOs, averaged over these SLOs and all rates, by batching."""
    return share_met(part, frame, ttft_ms, tpot_ms).groupby(frame.batching, sort=False).mean()


def _points(
    context: Context, file: str, rates: tuple[float, ...], strategies: tuple[str, ...], seqs: int,
    settings: dict[str, Any] | None = None,
) -> list[Point]:
    scenario: Any = load_document(context.file(file)).plain()
    spread = {} if file == "copies.yaml" else {"workload.branch_spread": context["branch_spread"]}
    found = []
    for strategy in strategies:
        common = spread | (settings or {}) | {
            "clients": arrange(scenario["clients"], strategy, CLIENTS, max_num_seqs=seqs),
            "routers": routers(strategy, scenario["router"]), "workload.duration": f"{context['window_s']:g} s",
        }
        for rate in (context["load"] * rate for rate in rates):
            found.append(Point(f"{strategy}, {rate:g}", common | {"workload.arrivals.rate": f"{rate:g} /s"},
                               {"batching": strategy, "rate": float(rate)}))
    return found


def _simulate(context: Context, name: str, file: str, wanted: list[Point]) -> pd.DataFrame:
    return run_points(context, name, wanted, scenario=file, extract=reasoning_figures)


def goodput(part: Part, frame: pd.DataFrame, tpot_ms: int) -> pd.DataFrame:
    """Return the share of all requests that meet both SLOs: a row per rate and batching, a column per TTFT SLO in
    ms."""
    return pd.DataFrame({
        "rate": frame.rate, "batching": frame.batching, "requests": frame["requests.total"],
        **{f"{ttft:,} ms": frame[f"good_{ttft}_{tpot_ms}"] / frame["requests.total"] for ttft in part.ttft_ms},
    }).sort_values("rate", kind="stable")


def points_table(frame: pd.DataFrame) -> pd.DataFrame:
    return pd.DataFrame({
        "rate": frame.rate, "batching": frame.batching, "requests": frame["requests.completed"],
        "rejected": frame["requests.rejected"], "KV tok": frame["kv.capacity_per_client_tokens"],
        "peak": frame["kv.peak_share"], "preempt": frame["steps.preemptions"], "batch": frame["steps.mean_batch"],
        "outside": frame["steps.out_of_range_share"], "stable": frame.stable,
        **{f"{name} {p} ms": 1e3 * frame[f"latency.{name.lower()}_s.{p}"]
           for name in ("TTFT", "TPOT") for p in ("p50", "p99")},
        "tok/s": frame["throughput.output_tokens_per_s"],
    }).sort_values("rate", kind="stable")


def build(frames: dict[str, pd.DataFrame], shared: pd.DataFrame, window_s: float, most_seqs: int) -> Report:
    tables, plots, said = [], [], []
    digits = {"peak": 2, "outside": 2, "batch": 0}
    for part in PARTS:
        frame = best_budget(part, frames[part.name])
        every = frames[part.name]
        tables.append(Table(f"{part.name}-budgets", f"{part.label}: share that meets both SLOs, over all SLOs",
                            budgets_table(part, every), "", {f"{rate:g}/s": 3 for rate in every.rate.unique()}))
        tables.append(Table(f"{part.name}-points", f"{part.label}: every point", points_table(every), "", digits))
        for tpot in part.tpot_ms:
            table = goodput(part, frame, tpot)
            tables.append(Table(
                f"{part.name}-{tpot}ms", f"{part.label}: share that meets TPOT <= {tpot} ms and TTFT <= ...", table, "",
                {name: 3 for name in table.columns if name.endswith(" ms")}))
        plots.append(plot(part, frame))
        said += findings(part, frame)
    told = points_table(shared)
    told.insert(0, "answers", shared.answers.reindex(told.index))
    tables.append(Table("sharing", "(a) without a spread: branches that share the prompt's KV, and separate copies",
                        told, "", digits))
    said += sharing_findings(shared)
    return Report(tables, plots, said, [
        f"bf16, TP8; Poisson arrivals for {window_s:g} s; rates are of the whole system (the spec gives none).",
        f"At most {most_seqs} sequences a client: {FEW_SEQS} would be 32 requests of 8 branches (see the last table).",
    ])


def budgets_table(part: Part, frame: pd.DataFrame) -> pd.DataFrame:
    """Return the share of the requests that meet both SLOs, averaged over the SLOs: a row per batching, a column per
    rate."""
    table = frame.assign(met=share_met(part, frame)).pivot_table(
        index="batching", columns="rate", values="met", sort=False)
    return table.rename(columns=lambda rate: f"{rate:g}/s").reset_index()


def findings(part: Part, frame: pd.DataFrame) -> list[str]:
    said = []
    for rate, group in frame.groupby("rate", sort=True):
        parts = []
        for tpot in part.tpot_ms:
            shares = {
                row["batching"]: row[f"good_{part.ttft_ms[-1]}_{tpot}"] / row["requests.total"]
                for row in group.to_dict("records")}
            fine = [name for name, share in shares.items() if share >= 0.9]
            parts.append(f"TPOT {tpot} ms: {', '.join(fine) or 'none'}")
        said.append(f"{part.label}, {rate:g} requests/s: at least 90% meet the loosest TTFT and "
                    + "; ".join(parts) + ".")
        middle = part.tpot_ms[-1]
        tight = next((t for t in part.ttft_ms if (group[f"good_{t}_{middle}"] >= 0.5 * group["requests.total"]).any()),
                     None)
        if tight is not None:
            top = group.iloc[int(group[f"good_{tight}_{middle}"].argmax())]
            share = top[f"good_{tight}_{middle}"] / top["requests.total"]
            said.append(f"{part.label}, {rate:g} requests/s, TPOT {middle} ms: the tightest TTFT that half of the "
                        f"requests meet anywhere is {tight} ms, best with {top.batching} ({share:.0%}).")
    return said


def sharing_findings(shared: pd.DataFrame) -> list[str]:
    said = []
    points = {(row["batching"], row["rate"], row["answers"]): row for row in shared.to_dict("records")}
    for batching, rate in dict.fromkeys(zip(shared.batching, shared.rate, strict=True)):
        one, many = points[batching, rate, "branches"], points[batching, rate, "separate copies"]
        said.append(
            f"{batching}, {rate:g} requests/s: copies that share nothing reach {many['kv.peak_share']:.0%} of the KV, "
            f"branches {one['kv.peak_share']:.0%}; TTFT p50 {1e3 * many['latency.ttft_s.p50']:.0f} ms against "
            f"{1e3 * one['latency.ttft_s.p50']:.0f} ms.")
    return said


def plot(part: Part, frame: pd.DataFrame) -> Plot:
    """Rows: TPOT SLOs; columns: rates; requests that meet both over the TTFT SLO, a line for each batching."""
    rates = sorted(frame.rate.unique())
    figure = Figure(figsize=(3.1 * len(rates) + 0.8, 2.4 * len(part.tpot_ms)), layout="constrained")
    axes = figure.subplots(len(part.tpot_ms), len(rates), squeeze=False, sharex=True, sharey="col")
    for tpot, row in zip(part.tpot_ms, axes, strict=True):
        for rate, axis in zip(rates, row, strict=True):
            group = frame[frame.rate == rate].to_dict("records")
            for point, colour, width in zip(group, COLOURS, (5, 3, 2.4, 1.8, 1.2), strict=False):
                axis.plot(part.ttft_ms, [point[f"good_{ttft}_{tpot}"] for ttft in part.ttft_ms], color=colour, lw=width,
                          label=point["batching"])
            axis.set_xscale("log")
            axis.set_title(f"{rate:g} requests/s, TPOT {tpot} ms", fontsize=9)
            axis.grid(alpha=0.3)
    for axis in axes[-1]:
        axis.set_xlabel("TTFT SLO, ms")
    for axis in axes[:, 0]:
        axis.set_ylabel("requests that meet both", fontsize=8)
    axes[0, 0].legend(fontsize=7, frameon=False)
    return Plot(f"goodput-{part.name}", f"{part.label}: requests that meet both SLOs", figure)
