"""Tables, plots and findings of the study of batching, from the frames of its sweeps."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import pandas as pd
from matplotlib.figure import Figure

from hermes.study import Plot, Report, Table

__all__ = ["BANDS", "BY", "RATE_STEPS", "build", "choose_budget", "highest_rates", "normalised"]

BY = ["system", "pipeline", "lengths"]
TPS, TPJ = "throughput.output_tokens_per_s", "energy.output_tokens_per_j"
LIMITS = tuple(f"{name}_{p}" for name in ("ttft", "tpot") for p in ("p50", "p90", "p99"))
BANDS = {"low (1-2)": (1.0, 2.0), "medium (3-4)": (3.0, 4.0), "high (5-6)": (5.0, 6.0)}
RATE_STEPS = {"plain": 0.5, "rag": 0.25, "kv-retrieval": 0.5}
"""Requests/s and client between two rates of the grid; systems one step apart share a place."""
POINTS_NOTE = ("rate: requests/s per client; KV tok: capacity of a client; peak: largest share of a client's in use; "
               "x: relative to continuous at the lowest rate; missed: SLOs.")
COLOURS = ("#444444", "#1f77b4", "#d62728", "#2ca02c", "#9467bd")


def build(
    grids: Sequence[pd.DataFrame], weights: pd.DataFrame | None, speed: str, windows_s: dict[str, int], quick: bool,
) -> Report:
    """Return the report of normalised grids, one for each seed; all tables but the first are of the first."""
    grid = grids[0]
    chosen = choose_budget(grid)
    highest = pd.concat([highest_rates(one.assign(seed=seed), [*BY, "seed"]) for seed, one in enumerate(grids, 1)],
                        ignore_index=True)
    tables = [
        Table("highest-rate", "Highest rate (requests/s per client) that meets all six SLOs",
              highest, "seed: the first or second; 0: no rate of the grid meets them; chunked N: steps of N tokens."),
        Table("best", "Best of those that meet all six SLOs, relative to continuous at the lowest rate",
              best_by_band(chosen)),
        Table("which-fails", "SLOs that the lowest failing rate misses", first_misses(grid)),
        *([] if weights is None else [
            Table("weights", "bf16 weights on the small system, conversation and code", weights_table(weights))]),
        Table("points", "Every point", points_table(grid), POINTS_NOTE, {"peak": 2, "x": 2, "x ": 2}),
    ]
    windows = ", ".join(f"{seconds} s ({name})" for name, seconds in windows_s.items())
    return Report(
        tables, [plot(chosen, pipeline) for pipeline in chosen.pipeline.unique()],
        [*findings(chosen, highest_rates(chosen, BY), quick), f"Speed: {speed}."],
        [f"Poisson arrivals for {windows}; the same requests for every strategy."])


def choose_budget(grid: pd.DataFrame) -> pd.DataFrame:
    """Return the grid with one budget of chunked batching for each system, pipeline and lengths, called `chunked`: the
    one that meets the SLOs up to the highest rate; of two, the one with the shorter TTFT p99 there. Its tokens are in
    the column `budget`."""
    chunked = grid[grid.strategy.str.startswith("chunked ")]
    kept = []
    for _, group in chunked.groupby(BY, sort=False):
        def rank(rows: pd.DataFrame) -> tuple[float, float]:
            good = rows[rows["slo.pass"].astype(bool)]
            at = good.sort_values("rate").iloc[-1] if len(good) else rows.iloc[0]
            return (float(at.rate) if len(good) else 0.0, -float(at["latency.ttft_s.p99"]))

        _, best = max(group.groupby("strategy", sort=False), key=lambda pair: rank(pair[1]))
        kept.append(best)
    mine = pd.concat(kept)
    mine = mine.assign(budget=mine.strategy.str.removeprefix("chunked ").astype(int), strategy="chunked")
    others = grid[~grid.strategy.str.startswith("chunked ")].assign(budget=0)
    return pd.concat([others, mine]).sort_index()


def normalised(grid: pd.DataFrame) -> pd.DataFrame:
    """With `rel_tps` and `rel_tpj`: relative to continuous at the lowest rate of the same system, pipeline, lengths."""
    base = grid[grid.strategy == "continuous"].sort_values("rate").groupby(BY, sort=False).first()
    at = pd.MultiIndex.from_frame(grid[BY])
    return grid.assign(rel_tps=grid[TPS] / base[TPS].reindex(at).to_numpy(),
                       rel_tpj=grid[TPJ] / base[TPJ].reindex(at).to_numpy())


def highest_rates(frame: pd.DataFrame, by: list[str], *, sort: bool = False) -> pd.DataFrame:
    """One row per combination of `by`, a column per strategy: the highest rate whose point meets all six SLOs.

    Systems of two sizes have splits of their own, so a cell may have nothing in it.
    """
    good = frame.assign(met=frame["rate"].where(frame["slo.pass"].astype(bool), 0.0))
    wide = good.groupby([*by, "strategy"], sort=False)["met"].max().unstack("strategy")
    order = list(dict.fromkeys(frame.strategy))
    wide = wide.reindex(columns=order).reindex(list(dict.fromkeys(frame[by].itertuples(index=False, name=None)))
                                               if len(by) > 1 else list(dict.fromkeys(frame[by[0]])))
    return wide.reset_index()


def best_by_band(grid: pd.DataFrame) -> pd.DataFrame:
    """Per band of rates: the strategy with the highest throughput among those that meet the SLOs, and with the most
    tokens a joule."""
    rows: list[dict[str, Any]] = []
    for key, group in grid.groupby(BY, sort=False):
        for band, (low, high) in BANDS.items():
            inside = group[(group.rate >= low) & (group.rate <= high)]
            if inside.empty:
                continue
            good = inside[inside["slo.pass"].astype(bool)]
            row: dict[str, Any] = dict(zip(BY, key, strict=True)) | {"rates": band}
            for name, column in (("throughput", "rel_tps"), ("tokens/J", "rel_tpj")):
                top = good.iloc[int(good[column].argmax())] if len(good) else None
                row |= {f"{name}: best": "none" if top is None else top.strategy,
                        f"{name}: at rate": None if top is None else top.rate,
                        f"{name}: relative": None if top is None else top[column]}
            rows.append(row)
    return pd.DataFrame(rows)


def first_misses(grid: pd.DataFrame) -> pd.DataFrame:
    rows = []
    for key, group in grid.groupby([*BY, "strategy"], sort=False):
        failing = group[~group["slo.pass"].astype(bool)].sort_values("rate")
        missed = "" if failing.empty else ", ".join(
            limit for limit in LIMITS if not failing.iloc[0][f"slo.{limit}.pass"])
        rows.append(dict(zip([*BY, "strategy"], key, strict=True)) | {
            "rate": None if failing.empty else failing.iloc[0].rate, "misses": missed or "none",
            "stable": "-" if failing.empty else str(failing.iloc[0].stable)})
    return pd.DataFrame(rows)


def weights_table(frame: pd.DataFrame) -> pd.DataFrame:
    return pd.DataFrame({
        "memory": frame.memory, "lengths": frame.lengths, "strategy": frame.strategy, "rate": frame.rate,
        "KV tokens": frame["kv.capacity_per_client_tokens"], "peak": frame["kv.peak_share"],
        "rejected": frame["requests.rejected"], "preemptions": frame["steps.preemptions"],
        "TTFT p99 s": frame["latency.ttft_s.p99"], "TPOT p50 ms": 1e3 * frame["latency.tpot_s.p50"],
        "six SLOs": frame["slo.pass"], "stable": frame.stable,
    })


def points_table(grid: pd.DataFrame) -> pd.DataFrame:
    """Every point, narrow enough for a terminal; the sweeps' folders have all figures."""
    missed = [
        "" if row["slo.pass"] else " ".join(name for name in LIMITS if not row[f"slo.{name}.pass"])
        for row in grid.to_dict("records")
    ]
    return pd.DataFrame({
        "system": grid.system, "pipeline": grid.pipeline, "len": grid.lengths, "batching": grid.strategy,
        "rate": grid.rate, "done": grid["requests.completed"], "rej": grid["requests.rejected"],
        "KV tok": grid["kv.capacity_per_client_tokens"], "peak": grid["kv.peak_share"], "stable": grid.stable,
        "tok/s": grid[TPS], "x": grid.rel_tps, "tok/J": grid[TPJ], "x ": grid.rel_tpj, "missed": missed,
    })


def plot(grid: pd.DataFrame, pipeline: str) -> Plot:
    """Rows: system and lengths; columns: throughput, tokens per joule. Filled where all six SLOs hold."""
    mine = grid[grid.pipeline == pipeline]
    rows = list(mine.groupby(["system", "lengths"], sort=False))
    figure = Figure(figsize=(10, 2.9 * len(rows)), layout="constrained")
    axes = figure.subplots(len(rows), 2, squeeze=False, sharex=True)
    for (key, group), pair in zip(rows, axes, strict=True):
        for axis, column, title in zip(pair, ("rel_tps", "rel_tpj"), ("throughput", "tokens per joule"), strict=True):
            for (strategy, line), colour in zip(group.groupby("strategy", sort=False), COLOURS, strict=False):
                axis.plot(line.rate, line[column], color=colour, lw=1, alpha=0.6)
                good = line[line["slo.pass"].astype(bool)]
                axis.scatter(line.rate, line[column], s=22, facecolors="white", edgecolors=colour, lw=1, zorder=3)
                axis.scatter(good.rate, good[column], s=26, color=colour, label=strategy, zorder=4)
            axis.set_title(f"{key[0]}, {key[1]}: {title}", fontsize=10)
            axis.grid(alpha=0.3)
            axis.spines[["top", "right"]].set_visible(False)
        pair[0].set_ylabel("relative to continuous\nat the lowest rate", fontsize=9)
        pair[1].legend(fontsize=8, frameon=False, loc="upper left")
    for axis in axes[-1]:
        axis.set_xlabel("requests/s per client")
    return Plot(f"batching-{pipeline}", f"{pipeline}: filled points meet all six SLOs, hollow ones do not", figure)


def findings(grid: pd.DataFrame, highest: pd.DataFrame, quick: bool) -> list[str]:
    """Return a sentence for each system, pipeline and lengths: systems near the best share its place. The short
    windows of a quick run make more of them near."""
    steps, near = (2, 0.1) if quick else (1, 0.02)
    said = []
    strategies = [c for c in highest.columns if c not in BY]
    for row in highest.to_dict("records"):
        rates = {name: row[name] for name in strategies if row[name] == row[name]}
        top = max(rates.values())
        if not top:
            said.append(f"{row['system']}, {row['pipeline']}, {row['lengths']}: nothing meets the SLOs.")
            continue
        step = RATE_STEPS[row["pipeline"]]
        order = sorted(rates.items(), key=lambda pair: -pair[1])
        leaders = ", ".join(f"{name} {rate:g}" for name, rate in order if rate > top - (steps + 0.5) * step)
        others = ", ".join(f"{name} {rate:g}" for name, rate in order if rate <= top - (steps + 0.5) * step)
        group = grid[(grid.system == row["system"]) & (grid.pipeline == row["pipeline"])
                     & (grid.lengths == row["lengths"]) & grid["slo.pass"].astype(bool)]
        energy = group.groupby("strategy").rel_tpj.max().sort_values(ascending=False)
        frugal = ", ".join(map(str, energy[energy >= energy.iloc[0] * (1 - near)].index))
        said.append(
            f"{row['system']}, {row['pipeline']}, {row['lengths']}: highest rate (requests/s per client), "
            f"within {steps * step:g} of the best: {leaders}" + (f"; others: {others}" if others else "")
            + f"; most tokens per joule, within {near:.0%}: {frugal}, {energy.iloc[0]:.2f} times continuous at the "
            "lowest rate.")
    return said
