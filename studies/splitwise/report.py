"""Study against splitwise-sim: simulated results of its eight cases, compared with its own where they are given."""

from __future__ import annotations

import pandas as pd
from matplotlib.figure import Figure

from hermes.study import Compared, Context, Plot, Point, Report, Table, run_points

from . import compare as reference
from .figures import splitwise_figures

__all__ = ["compare", "run"]

MODELS = ("llama-2-70b", "bloom-176b")
WORKLOADS = ("conv", "code")
RATES = (20, 40)
SEEDS = (1, 2, 3, 4, 5)
CASE = ["model", "workload", "rate"]
CASES = len(MODELS) * len(WORKLOADS) * len(RATES)
PUBLISHED = 0.065
# of the paper's figure 5, percent
CELLS = {
    "bloom-176b-conv-20": 0.0, "bloom-176b-code-20": 0.1, "bloom-176b-conv-40": -0.8, "bloom-176b-code-40": -6.5,
    "llama-2-70b-conv-20": 0.0, "llama-2-70b-code-20": 0.0, "llama-2-70b-conv-40": 0.0, "llama-2-70b-code-40": -0.5,
}
ROUNDING = 0.05   # percent, of figures with one decimal
COLUMNS = {"TTFT": "latency.ttft_s.", "TBT": "tbt_", "E2E": "latency.e2e_s."}
STATS = {f"{name} {stat}": column + stat for name, column in COLUMNS.items() for stat in ("mean", "p50", "p90", "p99")}


def run(context: Context) -> Report:
    frames = [
        run_points(context, model, points(context), scenario=f"{model}.yaml", extract=splitwise_figures).assign(
            model=model) for model in MODELS
    ]
    ours = tidy(pd.concat(frames, ignore_index=True))
    against = reference_cases(context)
    report = build(ours, against)
    served = ours[ours.rejected == 0]
    report.compared = [Compared(
        "cases simulated, all requests served", CASES, len(served.groupby(CASE)),
        f"KV memory peaks at {ours.peak.min():.0%} to {ours.peak.max():.0%}", 0, "text",
        qualifier="given"), *compared(against)]
    return report


def compare(context: Context) -> list[Compared]:
    """Return the comparison with splitwise-sim under the context's assumptions."""
    return compared(reference_cases(context))


def compared(against: pd.DataFrame | None) -> list[Compared]:
    """Return how far the cases are from splitwise-sim. against: `reference_cases`."""
    if against is None:
        need = "--data names the folder of splitwise-sim's answers"
        return [Compared("largest difference from splitwise-sim, of all statistics, %", f"up to {PUBLISHED:.1%}", None,
                         need, 4, "text"),
                *(Compared(_cell_name(case), f"{error:+.1f}", None, need, 4, "Fig. 5")
                  for case, error in CELLS.items())]
    worst = 100 * float(against.error.abs().max())
    cases = against.groupby("case", sort=False).first()
    rows = [Compared(
        "largest difference from splitwise-sim, of all statistics, %", f"up to {PUBLISHED:.1%}", worst,
        f"{len(cases)} of the {CASES} cases, {len(against)} statistics; "
        f"{cases['placed alike'].sum():,} of {cases.requests.sum():,} requests on the same machines", 4, "text",
        agrees=worst <= 100 * PUBLISHED)]
    for case, error in CELLS.items():
        own = against.error[against.case == case]
        here = 100 * float(own.abs().max()) if len(own) else None
        rows.append(Compared(
            _cell_name(case), f"{error:+.1f}", here, "The largest of its statistics." if len(own) else
            "splitwise-sim's answers to it are not at hand.", 4, "Fig. 5",
            agrees=None if here is None else here <= abs(error) + ROUNDING,
            qualifier="" if len(own) else "not computed"))
    return rows + [Compared(f"{name}: requests with splitwise-sim's times", None, row["same times"],
                            f"of {row.requests:,}", 0) for name, row in cases.iterrows()]


def _cell_name(case: str) -> str:
    return f"{case}: difference from splitwise-sim, %"


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


def reference_cases(context: Context) -> pd.DataFrame | None:
    """Return every statistic of the cases that splitwise-sim's answers are there for, on its own traces; None without
    --data."""
    if context.data is None:
        return None
    rows = []
    passed = [f"clients.{place}.scheduler.max_passed_over={context['max_passed_over']}" for place in (0, 1)]
    for case in reference.splitwise_cases(context.need_data("reference", "splitwise")):
        outcome = reference.run(case, extra=passed)
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


def build(ours: pd.DataFrame, against: pd.DataFrame | None) -> Report:
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
    if against is not None:
        tables.insert(0, Table("reference", "Against splitwise-sim, on the traces it was given", against, "",
                               {"error": 6}))
    return Report(tables, [plot(table)], findings(table, apart, against))


def findings(table: pd.DataFrame, apart: pd.DataFrame, against: pd.DataFrame | None) -> list[str]:
    said = []
    if against is not None:
        for case, rows in against.groupby("case", sort=False):
            worst = rows.iloc[int(rows.error.abs().argmax())]
            said.append(
                f"{case}: largest difference {worst.error:+.4%} ({worst.metric}); {worst['placed alike']:,} of "
                f"{worst.requests:,} requests on the same machines, {worst['same times']:,} with the same times.")
        said.append(f"Largest difference of all: {against.error.abs().max():.4%}; the paper's: {PUBLISHED:.1%}.")
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
