"""Plots of the study."""

from __future__ import annotations

from typing import Any

from matplotlib.figure import Figure

from .points import ARRIVALS, BIN_S, FCFS, IBS, PHASES_S, QUANTILES, SPLIT
from .tables import PAPER, served

__all__ = ["burst_plot", "mix_plot", "phase_plot"]

Rows = dict[str, dict[str, Any]]
STYLES: dict[str, tuple[str, str]] = {
    SPLIT: ("#2166ac", "-"), "SplitGPU 2:2": ("#4393c3", "--"), "SplitGPU 3:1": ("#92c5de", ":"),
    "SameGPU FCFS, drain": ("#999999", "-"), "SameGPU FCFS, alternate": ("#555555", "--"),
    "SameGPU FCFS, oldest": ("#1b7837", "-."), FCFS: ("#f4a582", "-"), IBS: ("#b2182b", "-"),
}


def mix_plot(rows: Rows, systems: list[str], mixes: tuple[int, ...], mode: str) -> Figure:
    """Normalised throughput by mix, with the paper's points."""
    figure = Figure(figsize=(8, 4.8), layout="constrained")
    axes = figure.subplots()
    for system in systems:
        colour, line = STYLES[system]
        values = [served(rows[f"mix {system} {percent} {mode}"])[2] for percent in mixes]
        wide = 5.0 if system == FCFS else 1.6   # it lies under IBS nearly everywhere
        axes.plot(mixes, values, line, color=colour, marker="o", markersize=4, linewidth=wide, label=system)
    for system in (SPLIT, IBS):
        axes.plot(list(PAPER), [PAPER[percent][system][2] for percent in PAPER], linestyle="none", marker="x",
                  markersize=9, markeredgewidth=2, color=STYLES[system][0], label=f"{system}, paper")
    axes.set_xlabel("embeddings, % of the requests")
    axes.set_ylabel("1.7 generations/s + embeddings/s")
    axes.set_ylim(bottom=0)
    axes.grid(alpha=0.25)
    axes.legend(fontsize=8, ncols=2, loc="lower center", bbox_to_anchor=(0.5, 1.01), frameon=False)
    return figure


def burst_plot(rows: Rows, systems: list[str], mode: str) -> Figure:
    """Distribution of latency by kind."""
    figure = Figure(figsize=(10, 4.2), layout="constrained")
    panels = figure.subplots(1, 2, sharey=True)
    for axes, kind, title in zip(panels, ("embed", "generate"), ("embeddings", "generations"), strict=True):
        for system in systems:
            colour, line = STYLES[system]
            row = rows[f"burst {system} {mode}"]
            times = [row[f"{kind}_{round(100 * q):03d}"] for q in QUANTILES]
            axes.plot(times, QUANTILES, line, color=colour, linewidth=1.8, label=system)
        axes.set_xlim(left=0)
        axes.set_title(f"1,000 {title}", fontsize=10)
        axes.set_xlabel("latency, s")
        axes.grid(which="both", alpha=0.25)
    panels[0].set_ylabel("share of requests")
    panels[0].legend(fontsize=8, loc="lower right")
    return figure


def phase_plot(rows: Rows, systems: list[str], mode: str) -> Figure:
    """Accelerators busy over time, a column for each kind of arrivals."""
    figure = Figure(figsize=(11, 1.5 * len(systems) + 0.8), layout="constrained")
    panels = figure.subplots(len(systems), len(ARRIVALS), sharex=True, sharey=True, squeeze=False)
    times = [(i + 0.5) * BIN_S for i in range(PHASES_S // BIN_S)]
    groups = (("embed", "GPUs for embeddings", ":"), ("generate", "GPUs for generations", "--"), ("all", "all", "-"))
    for line_of_panels, system in zip(panels, systems, strict=True):
        for axes, arrivals in zip(line_of_panels, ARRIVALS, strict=True):
            row = rows[f"phases {arrivals} {system} {mode}"]
            for group, label, line in groups:
                values = [row.get(f"busy.{group}.{i:03d}") for i in range(len(times))]
                if values[0] is not None and values[0] == values[0]:
                    axes.plot(times, values, line, color=STYLES[system][0], label=label)
            for edge in (60, 120, 180):
                axes.axvline(edge, color="#bbbbbb", linewidth=0.8)
            axes.set_ylim(0, 1.05)
            axes.set_title(f"{system}, {arrivals}", fontsize=9, loc="left")
        line_of_panels[0].set_ylabel("busy", fontsize=9)
    handles, labels = panels[0][0].get_legend_handles_labels()
    figure.legend(handles, labels, fontsize=8, ncols=3, loc="outside upper right", frameon=False)
    for axes in panels[-1]:
        axes.set_xlabel("time, s (10%, 50%, 90% embeddings, 60 s each)")
    return figure
