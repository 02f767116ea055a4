"""Figure of a sweep: latency, throughput and goodput by case."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np
from matplotlib.figure import Figure

from hermes.errors import InputError, Verbatim
from hermes.explore.sweep_results import SweepResults
from hermes.results.plots import make_figure, shortened

if TYPE_CHECKING:
    import pandas as pd

__all__ = ["MAX_CASES", "overview"]

MAX_CASES = 60
_LATENCIES = {"ttft_s": "TTFT", "tpot_s": "TPOT", "e2e_s": "end-to-end latency"}
_FROM, _TO, _RATE, _GOOD = "#3a76a8", "#e07b39", "#9dc3e0", "#5b9e6f"
_WIDE = 30   # largest over smallest value: above, the axis is logarithmic


def overview(sweep: SweepResults) -> Figure:
    """Draw one row per point: TTFT, TPOT and E2E at p50 and p99, and requests per second, within the SLO and in all.

    Panels without values are left out. Failed points are marked. The title counts the points not run yet, and those
    beyond the first `MAX_CASES`. Raises `InputError` if no point has results.
    """
    frame = sweep.frame()
    if frame.empty or not (frame["status"] == "ok").any():
        raise InputError("a sweep with finished points", Verbatim("none"), file=str(sweep.path))
    shown = frame.head(MAX_CASES).reset_index(drop=True)
    labels = _labels(sweep, shown)
    latencies = {name: title for name, title in _LATENCIES.items() if _values(shown, f"latency.{name}.p50").any()}
    count = len(latencies) + 1
    longest = max(map(len, labels))
    figure, axes = make_figure(1, count, 0.085 * longest + 3 * count, 0.24 * len(shown) + 1.4, sharey=True)
    for axis, (name, title) in zip(axes, latencies.items(), strict=False):
        _latency(axis, shown, name, title)
    _throughput(axes[-1], shown)
    rows = np.arange(len(shown))
    for axis in axes:
        axis.grid(visible=False, axis="y")
        for row in rows[shown["status"] != "ok"]:
            axis.text(0.5, row, "failed", transform=axis.get_yaxis_transform(), ha="center", va="center", color="gray",
                      fontsize="small")
    axes[0].set_yticks(rows, labels, fontsize="small")
    axes[0].set_ylim(len(shown) - 0.4, -0.6)
    figure.suptitle(_title(sweep, frame), fontsize="medium")
    return figure


def _values(frame: pd.DataFrame, name: str) -> Any:
    """Return a column as floats, with NaN for missing values."""
    import pandas as pd

    return pd.to_numeric(frame[name], errors="coerce") if name in frame else pd.Series(np.nan, index=frame.index)


def _labels(sweep: SweepResults, frame: pd.DataFrame) -> list[str]:
    """Return the settings of each point that differ between points: `chunked, rate 20`."""
    settings = [sweep.settings(int(number)) | {"seed": seed}
                for number, seed in zip(frame["point"], frame["seed"], strict=True)]
    names = list(dict.fromkeys(name for one in settings for name in one))
    differing = [name for name in names if len({str(one.get(name)) for one in settings}) > 1]
    return [
        shortened(", ".join(
            shortened(str(one[name]), 28) if name == "case" else f"{name.rpartition('.')[2]} {one[name]}"
            for name in differing if name in one
        ) or sweep.name, 60)
        for one in settings
    ]


def _latency(axis: Any, frame: pd.DataFrame, name: str, title: str) -> None:
    low, high = (_values(frame, f"latency.{name}.{stat}").to_numpy() for stat in ("p50", "p99"))
    top = float(np.nanmax(np.concatenate((low, high))))
    scale, unit = (1.0, "s") if top >= 1 else (1e3, "ms")
    rows = np.arange(len(frame))
    axis.hlines(rows, low * scale, high * scale, color="lightgray", linewidth=2, zorder=1)
    axis.plot(low * scale, rows, "o", color=_FROM, markersize=5, label="p50")
    axis.plot(high * scale, rows, "|", color=_TO, markersize=9, markeredgewidth=2, label="p99")
    axis.set_xlabel(f"{title} ({unit})")
    positive = low[low > 0]
    if len(positive) and top > _WIDE * float(positive.min()):
        axis.set_xscale("log")
    else:
        axis.set_xlim(0, top * scale * 1.08 or 1.0)
    _legend(axis)


def _throughput(axis: Any, frame: pd.DataFrame) -> None:
    rows = np.arange(len(frame))
    done, good = (_values(frame, f"headline.{part}_per_s").to_numpy() for part in ("served", "goodput"))
    axis.barh(rows, np.nan_to_num(done), color=_RATE, height=0.7, label="completed")
    for row, (rate, window) in enumerate(zip(done, frame.get("headline.window", ["steady"] * len(frame)), strict=True)):
        if window == "whole" and np.isfinite(rate):   # as in the table: no steady state
            axis.annotate("*", (rate, row), textcoords="offset points", xytext=(2, -4))
    if np.isfinite(good).any():   # without an SLO there is no goodput
        axis.barh(rows, np.nan_to_num(good), color=_GOOD, height=0.35, label="within the SLO")
    axis.set_xlabel("requests/s")
    axis.set_xlim(0, float(np.nanmax(done)) * 1.08 or 1.0)
    _legend(axis)


def _legend(axis: Any) -> None:
    axis.legend(frameon=False, fontsize="small", ncols=2, loc="lower left", bbox_to_anchor=(0, 1), borderaxespad=0.2)
    axis.set_axisbelow(True)


def _title(sweep: SweepResults, frame: pd.DataFrame) -> str:
    said = [sweep.name]
    if len(frame) > MAX_CASES:
        said.append(f"the first {MAX_CASES} of {len(frame)} finished points")
    if len(frame) < len(sweep):
        said.append(f"{len(frame)} of {len(sweep)} points finished")
    return ": ".join((said[0], ", ".join(said[1:]))) if said[1:] else said[0]
