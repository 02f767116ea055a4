"""Plots of the latency breakdown and of utilisation, from a summary and the table `utilisation`."""

from __future__ import annotations

from typing import Any

import numpy as np
from matplotlib.figure import Figure

from hermes.results.breakdown import CAUSES
from hermes.results.plots import make_figure, mark_interrupted, shortened
from hermes.results.results import Results
from hermes.results.utilisation import THRESHOLD

__all__ = ["breakdown", "utilisation"]

COLOURS = {"queue": "#e07b39", "communication": "#8c6bb1", "compute": "#3a76a8", "after": "#9dc3e0"}
MAX_BARS = 24


def breakdown(results: Results) -> Figure:
    """Plot mean time on the critical path by kind of stage and cause; below, for mixed pipelines, one bar each.

    The compute of stages that give tokens is split at the first token.
    """
    parts, by = results.summary["breakdown"]["stages"], results.summary["by"].get("pipeline", {})
    rows = 1 + bool(by)
    heights = [0.42 * len(parts) + 1.2, *([0.42 * len(by) + 1.4] if by else [])]
    figure, axes = make_figure(rows, 1, 8.5, sum(heights), height_ratios=heights)
    scale, unit = _unit(max((part["total_s"]["mean"] for part in parts.values()), default=0.0))
    _by_cause(axes[0], parts, scale)
    axes[0].set_xlabel(f"mean time on the critical path ({unit})")
    if by:
        scale, unit = _unit(max(entry["e2e_s"]["mean"] or 0.0 for entry in by.values()))
        _by_pipeline(axes[1], by, list(parts), scale)
        axes[1].set_xlabel(f"mean latency ({unit})")
    return mark_interrupted(figure, {"run": results})


def _unit(seconds: float) -> tuple[float, str]:
    return (1.0, "s") if seconds >= 1 else (1e3, "ms")


def _by_cause(axis: Any, parts: dict[str, Any], scale: float) -> None:
    names = list(parts)
    left = np.zeros(len(names))
    values = {cause: np.array([parts[name][f"{cause}_s"]["mean"] for name in names]) for cause in CAUSES}
    first = np.array([parts[name].get("first_token_s", {"mean": np.nan})["mean"] for name in names])
    after = np.where(np.isnan(first), 0.0, values["compute"] - np.nan_to_num(first))
    values["compute"] = values["compute"] - after
    for label, key, widths in (
        ("queue", "queue", values["queue"]), ("communication", "communication", values["communication"]),
        ("compute (to the first token)" if after.any() else "compute", "compute", values["compute"]),
        ("compute after the first token", "after", after),
    ):
        if widths.any():
            axis.barh(names, widths * scale, left=left * scale, color=COLOURS[key], label=label)
            left = left + widths
    for y, (name, end) in enumerate(zip(names, left, strict=True)):
        share = parts[name]["share"]
        axis.text(end * scale, y, f" {end * scale:.3g} ({share:.1%})", va="center", fontsize="small")
    axis.invert_yaxis()
    axis.set_xlim(0, (left.max() * scale if len(left) else 0.0) * 1.2 or 1.0)
    axis.legend(frameon=False, fontsize="small", ncols=4, loc="lower left", bbox_to_anchor=(0, 1))
    axis.grid(visible=False, axis="y")
    axis.set_axisbelow(True)


def _by_pipeline(axis: Any, by: dict[str, Any], kinds: list[str], scale: float) -> None:
    names = list(by)
    left = np.zeros(len(names))
    for index, kind in enumerate(kinds):
        widths = np.array([by[name]["stages_mean_s"].get(kind, 0.0) for name in names])
        if widths.any():
            axis.barh(names, widths * scale, left=left * scale, color=f"C{index % 10}", label=kind)
            left = left + widths
    for y, end in enumerate(left):
        axis.text(end * scale, y, f" {end * scale:.3g}", va="center", fontsize="small")
    axis.invert_yaxis()
    axis.set_xlim(0, (left.max() * scale) * 1.15 or 1.0)
    axis.legend(frameon=False, fontsize="small", ncols=min(len(kinds), 6), loc="lower left", bbox_to_anchor=(0, 1))
    axis.grid(visible=False, axis="y")
    axis.set_axisbelow(True)


def utilisation(results: Results) -> Figure:
    """Plot the most used links, tiers, machines and clients: bars over the window, ticks at the busiest twentieth."""
    frame = results.utilisation.sort_values(["utilisation", "name"], ascending=[False, True], kind="stable")
    frame = frame.head(MAX_BARS)
    figure, (axis,) = make_figure(1, 1, 8.5, 0.3 * max(len(frame), 1) + 1.2)
    kinds = {"link": "#8c6bb1", "tier": "#e07b39", "machine": "#5b9e6f", "client": "#3a76a8"}
    labels = [f"{kind} {name}" for kind, name in zip(frame["kind"], frame["name"], strict=True)]
    short = [shortened(label, 48) for label in labels]
    labels = short if len(set(short)) == len(short) else labels   # bars of one label would overlap
    axis.barh(labels, frame["utilisation"] * 100, color=[kinds[str(kind)] for kind in frame["kind"]])
    axis.plot(frame["peak_utilisation"] * 100, labels, "k|", markersize=9, label="busiest twentieth")
    axis.axvline(THRESHOLD * 100, color="gray", linestyle="--", linewidth=1)
    axis.set(xlabel="used (% of the window)", xlim=(0, 104))
    axis.invert_yaxis()
    axis.legend(frameon=False, fontsize="small", loc="lower right", bbox_to_anchor=(1, 1))
    axis.grid(visible=False, axis="y")
    axis.set_axisbelow(True)
    return mark_interrupted(figure, {"run": results})
