"""Plots of the study: the distribution of E2E latency by design."""

from __future__ import annotations

from typing import Any

from matplotlib.figure import Figure

from .points import DESIGNS, QUANTILES

__all__ = ["cdf_plot"]

# designs whose curves often coincide: a broad pale line below a narrow dark one
_WIDTHS = {"recompute": 1.6, "A": 5.0, "B": 1.6, "C": 5.0, "C+DCN": 1.6}
_COLOURS = {"recompute": "#444444", "A": "#7fbf7b", "B": "#1f4e8c", "C": "#f4a582", "C+DCN": "#8e0a1f"}


def cdf_plot(found: list[Any], mode: str, rate: float) -> Figure:
    """One panel per population and length of past context; one line per design, dashed where it is not stable."""
    populations = list(dict.fromkeys(f.setup.population for f in found if f.setup.design != "recompute"))
    pasts = sorted({f.setup.past for f in found})
    figure = Figure(figsize=(10, 3.6 * len(populations) + 0.6), layout="constrained")
    panels = figure.subplots(len(populations), len(pasts), squeeze=False)
    for i, population in enumerate(populations):
        for j, past in enumerate(pasts):
            axes = panels[i][j]
            for design in DESIGNS:
                for f in found:
                    same = f.setup.population == population or design == "recompute"
                    if f.setup.design == design and f.setup.past == past and same:
                        times = [f.mean(f"e2e_{round(100 * q):03d}") for q in QUANTILES]
                        grows = f.stable is False
                        axes.plot(times, QUANTILES, color=_COLOURS[design], linestyle="--" if grows else "-",
                                  linewidth=_WIDTHS[design], label=f"{design} (not stable)" if grows else design)
            axes.set_xscale("log")
            axes.set_ylim(0, 1)
            axes.set_title(f"{population}, {past:,} tokens of past context", fontsize=10)
            axes.set_xlabel("end-to-end latency, s")
            axes.set_ylabel("share of requests")
            axes.grid(True, which="both", alpha=0.25)
            axes.legend(fontsize=8, loc="upper left")
    figure.suptitle(f"Remote KV storage, {rate:g} requests/s, {mode} mode", fontsize=12)
    return figure
