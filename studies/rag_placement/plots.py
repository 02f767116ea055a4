"""The plots of the RAG placement study."""

from __future__ import annotations

import pandas as pd
from matplotlib.figure import Figure

from hermes.study import Plot

from .figures import PARTS
from .tables import FAST, steady

__all__ = ["bars_plot", "rates_plot"]

COLOURS = dict(zip(PARTS, ("#4c72b0", "#937860", "#55a868", "#c44e52", "#dd8452", "#8172b3", "#8c8c8c"), strict=True))


def bars_plot(frame: pd.DataFrame) -> Plot:
    """Stacked bars of latency, and the same without the LLM on a logarithmic axis."""
    chosen = frame[frame["link"] == FAST].iloc[::-1]
    figure = Figure(figsize=(11, 4.2), layout="constrained")
    left, right = figure.subplots(1, 2, width_ratios=(3, 2), sharey=True)
    start = chosen["total_s"] * 0
    for name in PARTS:
        left.barh(chosen["case"], chosen[f"part.{name}"], left=start, color=COLOURS[name], label=name)
        start = start + chosen[f"part.{name}"]
    for y, total in enumerate(chosen["total_s"]):
        left.text(total, y, f" {total:.2f} s", va="center", fontsize=9)
    left.set_xlim(0, float(chosen["total_s"].max()) * 1.12)
    left.set_xlabel("mean latency (s)")
    left.set_title("Whole requests, one at a time", fontsize=10)
    left.legend(fontsize=8, loc="upper right")
    height = 0.25
    for k, name in enumerate(("embedding", "retrieval", "communication")):
        positions = [y + (1 - k) * height for y in range(len(chosen))]
        values = 1e3 * chosen[f"part.{name}"]
        right.barh(positions, values, height, color=COLOURS[name], label=name)
        for position, value in zip(positions, values, strict=True):
            right.text(value, position, f" {value:,.0f}" if value >= 100 else f" {value:.3g}", va="center", fontsize=7)
    right.set_xscale("log")
    right.set_xlim(5e-3, 5e4)
    right.set_xlabel("ms (logarithmic)")
    right.set_title("Before the LLM", fontsize=10)
    for axis in (left, right):
        axis.grid(axis="x", alpha=0.3)
        axis.set_axisbelow(True)
        axis.spines[["top", "right"]].set_visible(False)
    return Plot("placement-bars", "Latency of a request by part, for two embedding models on three placements.", figure)


def rates_plot(frame: pd.DataFrame) -> Plot:
    """Mean latency over the rate of requests; hollow where the system does not keep up."""
    figure = Figure(figsize=(7.5, 4.2), layout="constrained")
    axis = figure.subplots()
    styles = {"E5-Base": "-", "Mistral-7B": "--"}
    colours = {"large CPU": "#4c72b0", "small CPU": "#c44e52", "A100 + large CPU": "#55a868"}
    for case, group in frame.groupby("case", sort=False):
        model, place = str(case).split(" / ")
        group = group.sort_values("rate")
        axis.plot(group["rate"], group["total_s"], styles[model], color=colours[place], label=str(case))
        keeps = group["point.stable"].map(steady) == "yes"
        axis.plot(group["rate"][keeps], group["total_s"][keeps], "o", color=colours[place], ms=5)
        axis.plot(group["rate"][~keeps], group["total_s"][~keeps], "o", mfc="white", color=colours[place], ms=5)
    axis.set_yscale("log")
    axis.set_xlabel("requests/s")
    axis.set_ylabel("mean latency (s)")
    axis.set_title("Filled: keeps up; hollow: it does not, or the window is too short to tell", fontsize=10)
    axis.legend(fontsize=8)
    axis.grid(alpha=0.3, which="both")
    axis.spines[["top", "right"]].set_visible(False)
    caption = "Mean latency of a stream; hollow where the system does not keep up, or the window is too short to tell."
    return Plot("placement-rates", caption, figure)
