"""Study of fidelity: offline batches of Llama-3.1-70B on HGX H100, by source of step times, and their differences."""

from __future__ import annotations

from typing import Any

import pandas as pd
from matplotlib.figure import Figure

from hermes.study import Compared, Context, Plot, Point, Report, Table, run_points

from .errors import cells, fits, servers

__all__ = ["compare", "run"]

TPS, CHUNKS, COUNTS, PROMPTS = (8, 4), (512, 1024), (10, 20, 50, 100), (1000, 2000)
MAIN, FITTED = "kernel tables", "roofline, fitted"
OVERHEADS_MS = (0, 1, 2, 5)
CELL = ["tp", "chunk", "requests", "prompt"]
FIGURES = {"makespan s": "makespan_s", "TTFT s": "latency.ttft_s.mean", "TPOT ms": "latency.tpot_s.mean"}


def sources(tp: int, engine_ms: float = 0.0) -> dict[str, dict[str, Any]]:
    """Sources of step times, by name. engine_ms: added to every step of the fitted roofline."""
    roofline = {"kind": "roofline", "model": "llama-3.1-70b", "device": "h100-sxm", "tp": tp, "dtype": "bf16"}
    engine = {"step_overhead": f"{engine_ms} ms"} if engine_ms else {}
    return {
        MAIN: {"kind": "polynomial", "profile": f"llama-3.1-70b-h100-tp{tp}-bf16"},
        FITTED: roofline | engine,
        "roofline, ideal": roofline | {"efficiency": "ideal"},
        "splitwise's measurements": {"kind": "polynomial", "profile": f"splitwise-2023-llama-2-70b-h100-tp{tp}"},
        **{f"roofline + {ms} ms": roofline | {"step_overhead": f"{ms} ms"} for ms in OVERHEADS_MS if ms},
    }


def run(context: Context) -> Report:
    errors = context.study.folder.parents[1] / "docs" / "accuracy" / "all-sets.csv"
    frame = grid(context)
    return build(frame, [*cells(frame[frame.source == MAIN]), *servers(errors), *fits(), *compare(context)])


def compare(context: Context) -> list[Compared]:
    """Return the figures that the assumptions change: how far the fitted roofline is from the kernel tables."""
    return apart(relative(grid(context, (MAIN, FITTED))))


def grid(context: Context, names: tuple[str, ...] | None = None) -> pd.DataFrame:
    """Simulate all cells with these sources of step times (None: all)."""
    counts = COUNTS[:2] if context.quick else COUNTS
    points = [
        Point(f"{name}, TP{tp}, chunk {chunk}, {requests} x {prompt}", {
            "clients.0.devices": tp, "clients.0.hardware": hardware,
            "clients.0.scheduler.max_num_batched_tokens": chunk, "workload.requests": requests,
            "workload.lengths.prompt": prompt, "workload.lengths.output": context["output_tokens"],
        }, {"source": name, "tp": tp, "chunk": chunk, "requests": requests, "prompt": prompt})
        for tp in TPS for name, hardware in sources(tp, context["engine_ms"]).items() if names is None or name in names
        for chunk in CHUNKS for requests in counts for prompt in PROMPTS
    ]
    return tidy(run_points(context, "grid", points, scenario="offline.yaml"))


def apart(differences: pd.DataFrame) -> list[Compared]:
    """Return how far the makespans of the fitted roofline are from those of the kernel tables, by parallelism."""
    mine = differences[differences["source"] == FITTED]
    return [
        Compared(f"makespans, fitted roofline against kernel tables, TP{tp}, %", None,
                 (100 * cells["makespan s"].min(), 100 * cells["makespan s"].max()),
                 "Two predictions, no error: the roofline's factors were fitted on these kernels.", 1)
        for tp, cells in mine.groupby("tp", sort=False)
    ]


def tidy(frame: pd.DataFrame) -> pd.DataFrame:
    """Readable columns: source, tp, the cell of the grid, and the figures that are compared."""
    figures = {name: frame[column] * (1e3 if name.endswith("ms") else 1) for name, column in FIGURES.items()}
    return pd.DataFrame({
        "source": frame["source"], "tp": frame["tp"], **{name: frame[name] for name in CELL[1:]}, **figures,
        "KV tokens": frame["kv.capacity_per_client_tokens"], "peak": frame["kv.peak_share"],
        "rejected": frame["requests.rejected"], "outside": frame["steps.out_of_range_share"],
    })


def relative(frame: pd.DataFrame) -> pd.DataFrame:
    """Return every figure of every source divided by that of the kernel tables in the same cell, minus one."""
    wide = frame.set_index([*CELL, "source"])[list(FIGURES)]
    main = wide.xs(MAIN, level="source")
    at = pd.MultiIndex.from_frame(wide.index.to_frame(index=False)[CELL])
    apart = wide.div(main.reindex(at).set_axis(wide.index)) - 1
    return apart.reset_index()


def build(frame: pd.DataFrame, compared: list[Compared]) -> Report:
    main = frame[frame.source == MAIN].drop(columns="source")
    apart = relative(frame)
    others = apart[apart.source != MAIN]
    summary = pd.concat([
        others.groupby(["source", "tp"], sort=False)[list(FIGURES)].mean().add_suffix(", mean"),
        others.groupby(["source", "tp"], sort=False)[list(FIGURES)].agg(_farthest).add_suffix(", farthest"),
        frame.groupby(["source", "tp"], sort=False)[["outside"]].mean(),
    ], axis=1).loc[lambda table: table.index.get_level_values(0) != MAIN].reset_index()
    makespans = frame.pivot_table(index=CELL, columns="source", values="makespan s", sort=False).reset_index()
    percent = {column: 3 for column in summary.columns if column not in ("source", "tp")}
    tables = [
        Table("predictions", "Our predictions: step times from the kernel tables of vLLM 0.24 on H100", main,
              "Mean TTFT and TPOT over the requests of a cell; outside: share of steps outside the measured range. "
              "Nothing arrives after time zero, so stability is no question here.", {"peak": 3}),
        Table("sources", "The same makespans (s) from other sources of step times", makespans),
        Table("differences", "How far the sources are from the kernel tables (ours / kernel tables - 1)", summary,
              "No measurement of this grid on a real server is at hand: these are differences between predictions, not "
              "errors.", percent),
    ]
    return Report(tables, [plot(makespans)], findings(others, main), compared=compared)


def _farthest(values: pd.Series[float]) -> float:
    return float(values.iloc[int(values.abs().argmax())])


def findings(others: pd.DataFrame, main: pd.DataFrame) -> list[str]:
    said = []
    for source, group in others.groupby("source", sort=False):
        mean, worst = group["makespan s"].mean(), _farthest(group["makespan s"])
        said.append(f"{source}: makespans {mean:+.1%} from the kernel tables on average, {worst:+.1%} at most.")
    halves = main.pivot_table(index=["chunk", "requests", "prompt"], columns="tp", values="makespan s")
    ratio = halves[4] / halves[8]
    said.append(f"Twice the cards make a cell {ratio.min():.2f} to {ratio.max():.2f} times faster.")
    chunks = main.pivot_table(index=["tp", "requests", "prompt"], columns="chunk", values="makespan s")
    gain = chunks[512] / chunks[1024] - 1
    said.append(f"With chunks of 512 a cell takes {gain.min():.1%} to {gain.max():.1%} longer than with 1,024.")
    return said


def plot(makespans: pd.DataFrame) -> Plot:
    """One panel for each parallelism: makespan over the cells, a mark for each source."""
    figure = Figure(figsize=(11, 7), layout="constrained")
    axes = figure.subplots(len(TPS), 1, squeeze=False)
    marks = "o^v*+x1"
    for axis, tp in zip(axes[:, 0], TPS, strict=True):
        mine = makespans[makespans.tp == tp]
        names = [f"{row['requests']} x {row['prompt'] // 1000}k\n{row['chunk']}"
                 for row in mine.to_dict("records")]
        for (source, mark), shift in zip(
            zip([c for c in makespans.columns if c not in CELL], marks, strict=False), range(-3, 4), strict=False,
        ):
            axis.plot([i + shift * 0.08 for i in range(len(mine))], mine[source], mark, ms=6, label=source)
        axis.set_xticks(range(len(mine)), names, fontsize=7)
        axis.set_yscale("log")
        axis.set_title(f"TP{tp}", fontsize=10)
        axis.set_ylabel("makespan, s")
        axis.grid(alpha=0.3)
    axes[-1, 0].set_xlabel("requests x prompt tokens, and below it the chunk")
    axes[0, 0].legend(fontsize=8, ncols=2, frameon=False)
    return Plot("makespans", "Makespan of every cell by source of step times (log scale)", figure)
