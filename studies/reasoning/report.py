"""Study of reasoning in parallel branches: requests that meet their SLOs, by batching, over a grid of SLOs."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import pandas as pd
from matplotlib.figure import Figure

from hermes.scenario.loading import load_document
from hermes.study import Context, Plot, Point, Report, Table, run_points

from ..common.systems import arrange, routers
from .figures import reasoning_figures

__all__ = ["run"]

STRATEGIES = ("continuous", "chunked", "4P/4D", "2P/6D", "1P/7D")
CLIENTS = 8
COLOURS = ("#444444", "#1f77b4", "#d62728", "#2ca02c", "#9467bd")
QUICK_WINDOW_S = 300
FEW_SEQS = 256


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
    many = context["max_num_seqs"]
    frames = {}
    for part in PARTS:
        rates = part.rates[::2] if context.quick else part.rates
        wanted = _points(context, f"{part.name}.yaml", rates, STRATEGIES, many)
        frames[part.name] = _simulate(context, part.name, f"{part.name}.yaml", wanted)
    even = {"workload.branch_spread": 0.0}
    aside = [
        ("branches", "conversation.yaml", even, many), ("separate copies", "copies.yaml", {}, many),
        (f"branches, {FEW_SEQS} sequences at most", "conversation.yaml", even, FEW_SEQS),
    ]
    shared = []
    for i, (label, file, settings, seqs) in enumerate(aside):
        wanted = _points(context, file, (2, 4), ("chunked", "2P/6D"), seqs, settings)
        shared.append(_simulate(context, f"sharing-{i}", file, wanted).assign(answers=label))
    return build(frames, pd.concat(shared, ignore_index=True), _window_s(context), many)


def _window_s(context: Context) -> float:
    window: float = context["window_s"]
    return min(QUICK_WINDOW_S, window) if context.quick else window


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
            "routers": routers(strategy, scenario["router"]), "workload.duration": f"{_window_s(context):g} s",
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
        frame = frames[part.name]
        tables.append(Table(f"{part.name}-points", f"{part.label}: every point", points_table(frame), "", digits))
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
