"""Plots of the study."""

from __future__ import annotations

from typing import Any

import numpy as np
import pandas as pd
from matplotlib.figure import Figure

from .tables import keeps_up

__all__ = ["memory_plot", "rates_plot", "scatter_plot", "timeline_plot"]

COLOURS = {"METIS": "#c0392b", "AdaptiveRAG*": "#1f4e8c", "profile + median": "#7fbf7b", "+ batching": "#3d8b37",
           "hindsight": "#888888", "fixed of like delay": "#e08a1e", "fixed of highest F1": "#8c564b",
           "fixed of closest F1": "#9b59b6"}
MARKS = {"METIS": "*", "AdaptiveRAG*": "D", "profile + median": "^", "hindsight": "P"}
_METHODS = {"map_rerank": "#b7c9e2", "stuff": "#f3c98b", "map_reduce": "#a9d6a5"}


def front(delays: list[float], f1: list[float]) -> list[int]:
    """Return the indices of the Pareto-optimal points, by delay."""
    best, found = -1.0, []
    for i in sorted(range(len(delays)), key=lambda i: (delays[i], -f1[i])):
        if f1[i] > best:
            best = f1[i]
            found.append(i)
    return found


def scatter_plot(grid: pd.DataFrame, systems: pd.DataFrame, datasets: list[str]) -> Figure:
    """Every fixed configuration and the choices per query: delay and F1, one panel per data set. Choices are means of
    seeds; lines reach from the lowest to the highest delay of a seed."""
    from matplotlib.ticker import FuncFormatter, LogLocator, NullFormatter

    figure = Figure(figsize=(10, 3.9 * -(-len(datasets) // 2)), layout="constrained")
    panels = figure.subplots(-(-len(datasets) // 2), 2, squeeze=False)
    for axes, dataset in zip(panels.flat, datasets, strict=False):
        rows = grid[grid["dataset"] == dataset]
        for method, colour in _METHODS.items():
            own = rows[[dict(p.params)["method"] == method for p in rows["run"]]]
            axes.scatter(own["delay_s"], own["f1"], color=colour, s=30, edgecolor="#555555", linewidth=0.5,
                         label=f"fixed: {method}")
        order = front(rows["delay_s"].tolist(), rows["f1"].tolist())
        axes.plot(rows["delay_s"].iloc[order], rows["f1"].iloc[order], color="#555555", linewidth=1,
                  label="Pareto front of the fixed")
        for system, mark in MARKS.items():
            own = systems[(systems["dataset"] == dataset) & (systems["system"] == system)]
            delay, f1 = own["delay_s"], own["f1"].mean()
            axes.plot((delay.min(), delay.max()), (f1, f1), color=COLOURS[system], linewidth=1.5)
            axes.scatter(delay.mean(), f1, marker=mark, s=110, zorder=3, color=COLOURS[system], label=system)
        axes.set_xscale("log")
        axes.xaxis.set_major_locator(LogLocator(subs=(1.0, 2.0, 5.0)))
        axes.xaxis.set_major_formatter(FuncFormatter(lambda x, _: f"{x:g}"))
        axes.xaxis.set_minor_formatter(NullFormatter())
        axes.set_title(f"{dataset}, one query at a time", fontsize=10)
        axes.set_xlabel("mean delay, s")
        axes.set_ylabel("F1 (1 is attainable)")
        axes.grid(True, which="both", alpha=0.25)
    panels.flat[0].legend(fontsize=7, loc="lower right")
    return figure


def rates_plot(rates: pd.DataFrame, datasets: list[str]) -> Figure:
    """Mean delay by rate, one panel per data set; a line ends where the queue grows."""
    figure = Figure(figsize=(3.4 * len(datasets), 3.7), layout="constrained")
    handles: dict[str, Any] = {}
    for axes, dataset in zip(figure.subplots(1, len(datasets), squeeze=False)[0], datasets, strict=True):
        for system, rows in rates[rates["dataset"] == dataset].groupby("system", sort=False):
            kept = [(rate, here["delay_s"].mean()) for rate, here in rows.groupby("rate") if keeps_up(here)]
            below = system == "fixed of highest F1"   # often the same as another: a broad line under it
            if kept:
                handles[str(system)], = axes.plot(*zip(*kept, strict=True), marker="o", markersize=3,
                                                  color=COLOURS[str(system)], label=system,
                                                  linewidth=4 if below else 1.5, alpha=0.4 if below else 1)
        axes.axhline(1.8, color="#999999", linestyle=":", linewidth=1)
        axes.set_yscale("log")
        axes.set_title(dataset, fontsize=10)
        axes.set_xlabel("queries/s")
        axes.grid(True, which="both", alpha=0.25)
    figure.axes[0].set_ylabel("mean delay, s (dots: 1.8 s)")
    figure.legend(handles.values(), handles, fontsize=8, loc="outside lower center", ncols=6)
    return figure


def memory_plot(sweep: pd.DataFrame) -> Figure:
    """Plot best fit and the median by KV memory at the study's rates: delay where no queue grows, F1, and the share of
    decisions that memory changed; bars reach from the lowest to the highest seed."""
    from matplotlib.ticker import NullFormatter

    datasets = list(dict.fromkeys(sweep["dataset"]))
    figure = Figure(figsize=(10, 2.6 * len(datasets)), layout="constrained")
    panels = figure.subplots(len(datasets), 3, squeeze=False)
    here = sweep[sweep["load"] == 1]
    ticks = sorted(set(here["kv_tokens"]))
    for line, dataset in zip(panels, datasets, strict=True):
        for axes, column, title in zip(line, ("delay_s", "f1", "constrained"), (
                "mean delay, s", "F1", "constrained decisions"), strict=True):
            for system, name in (("METIS", "best fit (METIS)"), ("+ batching", "median")):
                rows = here[(here["dataset"] == dataset) & (here["system"] == system)]
                kept = {tokens: own[column] for tokens, own in rows.groupby("kv_tokens")
                        if own[column].notna().all() and (column != "delay_s" or keeps_up(own))}
                mean = np.array([values.mean() for values in kept.values()])
                ends = [[abs(getattr(values, end)() - values.mean()) for values in kept.values()]
                        for end in ("min", "max")]
                if kept:
                    axes.errorbar(list(kept), mean, ends, marker="o", markersize=3, capsize=2, color=COLOURS[system],
                                  label=name)
            axes.set_xscale("log")
            axes.set_xticks(ticks, [f"{n / 1000:.0f}K" for n in ticks])
            axes.set_xlim(0.8 * ticks[0], 1.25 * ticks[-1])
            axes.xaxis.set_minor_formatter(NullFormatter())
            axes.set_title(f"{dataset}: {title}", fontsize=10)
            axes.grid(True, which="both", alpha=0.25)
    for axes in panels[-1]:
        axes.set_xlabel("KV memory, tokens")
    figure.legend(*panels[0][1].get_legend_handles_labels(), fontsize=8, loc="outside lower center", ncols=2)
    return figure


def timeline_plot(runs: list[tuple[str, Any]]) -> Figure:
    """The calls of two queries on one engine, and its KV memory, for each of the runs."""
    figure = Figure(figsize=(10, 6.4), layout="constrained")
    panels = figure.subplots(2, len(runs), sharex=True, squeeze=False, gridspec_kw={"height_ratios": [3, 1]})
    end_s = max(results.record.end_ns for _, results in runs) / 1e9
    for column, (title, results) in enumerate(runs):
        record, axes = results.record, panels[0][column]
        stages = record.stages
        rows = [r for r in np.lexsort((stages["start_ns"], stages["assigned_ns"]))
                if record.stage_kinds[stages["kind"][r]] == "generate"]
        for y, r in enumerate(rows):
            begin, start, end = (stages[name][r] / 1e9 for name in ("assigned_ns", "start_ns", "end_ns"))
            colour = ("#999999", "#c0392b")[int(stages["request"][r])]
            axes.barh(y, start - begin, left=begin, color="white", edgecolor=colour, hatch="////", linewidth=0.6)
            axes.barh(y, end - start, left=start, color=colour)
            tokens = f" {stages['prompt_tokens'][r]:,} -> {stages['output_tokens'][r]:,}"
            axes.text(end, y, tokens, va="center", fontsize=7)
        axes.set_yticks([])
        axes.invert_yaxis()
        axes.set_title(title, fontsize=10)
        axes.set_xlim(0, 1.25 * end_s)   # room for the label of the last call
        ends = record.runs["end_ns"] / 1e9
        info = record.clients[0]
        panels[1][column].step(ends, record.runs["used_blocks"] * info.block_size, where="post", color="#1f4e8c")
        panels[1][column].axhline(info.num_blocks * info.block_size, color="#999999", linestyle=":")
        panels[1][column].set_ylim(0, None)
        panels[1][column].set_xlabel("s (hatched: waiting; grey: the query that holds the memory)")
    panels[1][0].set_ylabel("KV tokens")
    return figure
