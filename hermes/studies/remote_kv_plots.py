"""Plots of the study `remote-kv`: the distribution of E2E latency by design."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from hermes.studies.remote_kv_points import DESIGNS, QUANTILES

if TYPE_CHECKING:
    from matplotlib.figure import Figure

__all__ = ["cdf_plot"]

_COLOURS = {"recompute": "#444444", "A": "#1b7837", "B": "#2166ac", "C": "#d6604d", "C+DCN": "#b2182b"}


def cdf_plot(found: list[Any], mode: str) -> Figure:
    """One panel per population and length of past context; one line per design, dashed where it is not stable."""
    from matplotlib.figure import Figure

    populations = list(dict.fromkeys(f.point.population for f in found if f.point.design != "recompute"))
    pasts = sorted({f.point.past for f in found})
    figure = Figure(figsize=(10, 3.6 * len(populations) + 0.6), layout="constrained")
    panels = figure.subplots(len(populations), len(pasts), squeeze=False)
    for i, population in enumerate(populations):
        for j, past in enumerate(pasts):
            axes = panels[i][j]
            for design in DESIGNS:
                for f in found:
                    same = f.point.population == population or design == "recompute"
                    if f.point.design == design and f.point.past == past and same:
                        times = [f.row[f"e2e_{round(100 * q):03d}"] for q in QUANTILES]
                        axes.plot(times, QUANTILES, color=_COLOURS[design], linestyle="-" if f.stable else "--",
                                  linewidth=1.8, label=design if f.stable else f"{design} (not stable)")
            axes.set_xscale("log")
            axes.set_ylim(0, 1)
            axes.set_title(f"{population}, {past:,} tokens of past context", fontsize=10)
            axes.set_xlabel("end-to-end latency, s")
            axes.set_ylabel("share of requests")
            axes.grid(True, which="both", alpha=0.25)
            axes.legend(fontsize=8, loc="lower right")
    figure.suptitle(f"Remote KV storage, 240 requests/s, {mode} mode", fontsize=12)
    return figure
