"""Study against splitwise-sim: simulated results of its eight cases, compared with its own where they are given."""

from __future__ import annotations

from pathlib import Path

import pandas as pd
from matplotlib.figure import Figure

from hermes.study import Context, Plot, Point, Report, Table, run_points

from . import compare as reference
from .figures import splitwise_figures

__all__ = ["run"]

MODELS = ("llama-2-70b", "bloom-176b")
WORKLOADS = ("conv", "code")
RATES = (20, 40)
SEEDS = (1, 2, 3, 4, 5)
CASE = ["model", "workload", "rate"]
PUBLISHED = 0.065
COLUMNS = {"TTFT": "latency.ttft_s.", "TBT": "tbt_", "E2E": "latency.e2e_s."}
STATS = {f"{name} {stat}": column + stat for name, column in COLUMNS.items() for stat in ("mean", "p50", "p90", "p99")}


def run(context: Context) -> Report:
    frames = [
        run_points(context, model, points(context), scenario=f"{model}.yaml", extract=splitwise_figures).assign(
            model=model) for model in (MODELS[:1] if context.quick else MODELS)
    ]
    ours = tidy(pd.concat(frames, ignore_index=True))
    return build(ours, None if context.data is None else compare(context.need_data("reference", "splitwise")))


def points(context: Context, **settings: object) -> list[Point]:
    """The cases of a model, by workload and rate, and their seeds. settings: more of the scenario, by dotted path."""
    common = settings | {"clients.0.scheduler.max_passed_over": context["max_passed_over"],
                         "clients.1.scheduler.max_passed_over": context["max_passed_over"]}
    return [
        Point(f"{workload}, {rate}", common | {
            "workload.lengths.profile": f"azure-{workload}-2023", "workload.arrivals.rate": f"{rate} /s",
        }, {"workload": workload, "rate": rate}, seed)
        for workload in WORKLOADS for rate in RATES for seed in (SEEDS[:2] if context.quick else SEEDS)
    ]


def tidy(frame: pd.DataFrame) -> pd.DataFrame:
    """Readable columns, a row for each case and seed."""
    return pd.DataFrame({
        "model": frame["model"], "workload": frame["workload"], "rate": frame["rate"], "seed": frame["seed"],
        "done": frame["requests.completed"], "rejected": frame["requests.rejected"],
        "KV tokens": frame["kv.capacity_per_client_tokens"], "peak": frame["kv.peak_share"],
        "lent": frame["lent_decodes"], "stable": frame["stable"].astype(object),
        **{name: frame[column] for name, column in STATS.items()},
    })


def compare(folder: Path) -> pd.DataFrame:
    """Every statistic of the cases that splitwise-sim's answers are there for, on its own traces."""
    rows = []
    for case in reference.splitwise_cases(folder):
        outcome = reference.run(case)
        rows += [{
            "case": case.name.removeprefix("splitwise-"), "metric": f"{row.metric.upper()} {row.stat}",
            "ours s": row.ours_s, "splitwise-sim s": row.reference_s, "error": row.error,
            "requests": outcome.requests, "placed alike": outcome.placed, "same times": outcome.on_time,
        } for row in outcome.rows]
    return pd.DataFrame(rows)


def means(ours: pd.DataFrame) -> pd.DataFrame:
    """One row per case: means over the seeds; stable only if it is with every seed."""
    groups = ours.groupby(CASE, sort=False)
    table = groups[["done", "rejected", "KV tokens", "peak", "lent", *STATS]].mean()
    table.insert(5, "stable", groups["stable"].agg(lambda values: bool((values == True).all())))   # noqa: E712
    return table.reset_index()


def spread(ours: pd.DataFrame) -> pd.DataFrame:
    """Per case and statistic: the largest difference of two draws of a workload, over the mean of all."""
    groups = ours.groupby(CASE, sort=False)[list(STATS)]
    return ((groups.max() - groups.min()) / groups.mean()).reset_index()


def build(ours: pd.DataFrame, compared: pd.DataFrame | None) -> Report:
    table, apart = means(ours), spread(ours)
    digits = {"peak": 3, "done": 0, "lent": 0, "rejected": 0}
    seeds = ours.seed.nunique()
    tables = [
        Table("cases", f"The eight cases, means of {seeds} draws of two minutes",
              table[[name for name in table.columns if name not in STATS]],
              "lent: decodes on machines of the prompt pool; KV tokens: of one machine.", digits),
        Table("latencies", f"Our latencies (s), means of {seeds} draws", table[[*CASE, *STATS]],
              "TBT = (E2E - TTFT) / output tokens."),
        Table("spread", "How far two draws of one workload are apart ((max - min) / mean)", apart, "",
              dict.fromkeys(STATS, 3)),
    ]
    if compared is not None:
        tables.insert(0, Table("reference", "Beside splitwise-sim, on the traces it was given", compared, "",
                               {"error": 6}))
    return Report(tables, [plot(table)], findings(table, apart, compared))


def findings(table: pd.DataFrame, apart: pd.DataFrame, compared: pd.DataFrame | None) -> list[str]:
    said = []
    if compared is not None:
        for case, rows in compared.groupby("case", sort=False):
            worst = rows.iloc[int(rows.error.abs().argmax())]
            said.append(
                f"{case}: largest difference {worst.error:+.4%} ({worst.metric}); {worst['placed alike']:,} of "
                f"{worst.requests:,} requests on the same machines, {worst['same times']:,} with the same times.")
        said.append(f"Largest difference of all: {compared.error.abs().max():.4%}; the paper's: {PUBLISHED:.1%}.")
    cases = table.to_dict("records")
    unstable = [f"{case['model']} {case['workload']} {case['rate']}/s" for case in cases if not case["stable"]]
    said.append(f"Not stable with every seed: {', '.join(unstable) or 'none'}.")
    steady = apart[table["stable"].astype(bool)]
    if len(steady):
        farthest = steady[list(STATS)].max()
        name = list(STATS)[int(farthest.argmax())]
        said.append(f"Of the stable cases two draws differ by up to {farthest[name]:.1%} ({name}), by "
                    f"{steady[list(STATS)].median().median():.1%} in the middle.")
    return said


def plot(table: pd.DataFrame) -> Plot:
    """Three panels, TTFT, TBT and E2E: p50, p90 and p99 of every case."""
    names = [f"{row['model']}\n{row['workload']} {row['rate']}/s" for row in table.to_dict("records")]
    figure = Figure(figsize=(10, 8), layout="constrained")
    for axis, metric in zip(figure.subplots(3, 1), ("TTFT", "TBT", "E2E"), strict=True):
        for i, stat in enumerate(("p50", "p90", "p99")):
            axis.bar([x + (i - 1) * 0.25 for x in range(len(names))], table[f"{metric} {stat}"], 0.24, label=stat)
        axis.set_xticks(range(len(names)), names, fontsize=8)
        axis.set_ylabel(f"{metric}, s")
        axis.set_yscale("log")
        axis.grid(axis="y", alpha=0.3)
    figure.axes[0].legend(frameon=False, ncols=3, fontsize=8)
    return Plot("latency-bars", "TTFT, TBT and E2E of the eight cases (log scale)", figure)
