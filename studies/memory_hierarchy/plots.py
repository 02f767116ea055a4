"""The study's figure, and fronts of designs that no other beats."""

from __future__ import annotations

import pandas as pd
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from hermes.study import Plot

__all__ = ["front", "pareto"]

OFFSETS = {"HBM alone": (-12, -14), "host 32": (4, 6), "host 64": (-40, 4), "flash 100G": (7, -3)}   # points, of labels


def front(dollars: pd.Series, good: pd.Series, *, lower: bool = False) -> list[bool]:
    """Return for each design whether no other is at most as dear and at least as good. lower: low figures are good."""
    sign = -1.0 if lower else 1.0
    pairs = [(cost, sign * value) for cost, value in zip(dollars, good.fillna(-sign * 1e9), strict=True)]
    return [not any((cost <= mine and value >= best) and (cost, value) != (mine, best) for cost, value in pairs)
            for mine, best in pairs]


def pareto(found: pd.DataFrame, gaps: pd.DataFrame) -> Plot:
    """Turns/s within the limits over dollars an hour, and the TTFT with the longer gap; fronts as lines."""
    figure = Figure(figsize=(11, 4.6), layout="constrained")
    left, right = figure.subplots(1, 2)
    _panel(left, found["design"], found["$/h"], found["turns/s"], list(found["front"]), below=False)
    left.set_ylabel("turns/s within the limits")
    left.set_title("30 s between turns: highest rate", fontsize=10)
    ends = front(gaps["dollars"], gaps["ttft_p90"], lower=True)
    _panel(right, gaps["design"], gaps["dollars"], gaps["ttft_p90"], ends, below=True)
    right.set_yscale("log")
    right.axhline(1.0, color="#999999", linestyle=":", linewidth=1)
    right.set_ylabel("TTFT p90, s (dots: the limit)")
    right.set_title(f"120 s between turns, {gaps['rate'].iloc[0]:g} conversations/s", fontsize=10)
    for axes in (left, right):
        axes.set_xlabel("dollars an hour, 24 H100 with their memories")
        axes.grid(alpha=0.3)
    return Plot("pareto", "Designs by dollars an hour; the line joins those that no other beats.", figure)


def _panel(axes: Axes, designs: pd.Series, dollars: pd.Series, values: pd.Series, ends: list[bool], *,
           below: bool) -> None:
    axes.scatter(dollars, values, color="#444444", zorder=3)
    chosen = sorted((x, y) for x, y, keep in zip(dollars, values, ends, strict=True) if keep)
    axes.plot(*zip(*chosen, strict=True), color="#d62728", linewidth=1.5)
    for name, x, y in zip(designs, dollars, values, strict=True):
        axes.annotate(name, (x, y), fontsize=8, textcoords="offset points",
                      xytext=(5, 6) if below else OFFSETS.get(name, (6, -10)))
    axes.margins(x=0.15, y=0.12)
