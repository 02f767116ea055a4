"""Figure of a fit: predicted against measured times of held-out configurations, and the relative errors."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import numpy.typing as npt
from matplotlib.axis import Axis
from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.figure import Figure
from matplotlib.ticker import FuncFormatter, LogLocator, NullFormatter, PercentFormatter

from hermes.calibration.fit.data import PHASES
from hermes.calibration.fit.profile import FitResult
from hermes.config.writing import replacing

__all__ = ["plot", "save_plot"]

COLORS = {"prefill": "#1b6ca8", "decode": "#d1603d", "mixed": "#3c8d53"}


def plot(result: FitResult) -> Figure:
    """Draw one row per phase: predicted against measured (log-log), and relative error against measured time."""
    rows = result.held_out
    phases = [phase for phase in PHASES if (rows["phase"] == phase).any()]
    figure = Figure(figsize=(10, 3.4 * len(phases) + 0.4), layout="constrained")
    FigureCanvasAgg(figure)
    axes = figure.subplots(len(phases), 2, squeeze=False)
    for (left, right), phase in zip(axes, phases, strict=True):
        part = rows[rows["phase"] == phase]
        measured, predicted = 1e3 * part["seconds"].to_numpy(), 1e3 * part["predicted"].to_numpy()
        ends = np.array([min(measured.min(), predicted.min()) / 1.15, max(measured.max(), predicted.max()) * 1.15])
        style = {"s": 9, "alpha": max(0.25, min(0.9, 60 / len(part) ** 0.6)), "color": COLORS[phase], "linewidths": 0}
        left.plot(ends, ends, color="0.3", linewidth=0.8)
        left.scatter(measured, predicted, **style)
        left.set(xscale="log", yscale="log", xlim=ends, ylim=ends, ylabel="predicted (ms)",
                 title=f"{phase}: {len(part)} steps, held out")
        errors = predicted / measured - 1
        right.axhline(0, color="0.3", linewidth=0.8)
        right.scatter(measured, errors, **style)
        error = getattr(result.profile.phases, phase).error
        for sign in (-1, 1):
            right.axhline(sign * error.mape, color=COLORS[phase], linewidth=0.8, linestyle="--")
        most = max(1.15 * np.max(np.abs(errors)), 0.02)
        right.set(xscale="log", ylim=(-most, most), ylabel="relative error",
                  title=f"MAPE {100 * error.mape:.2f}% (dashed), worst {100 * error.worst:.1f}%")
        right.yaxis.set_major_formatter(PercentFormatter(1.0))
        for ticks in (left.xaxis, left.yaxis, right.xaxis):
            _plain_ticks(ticks, ends)
        for axis in (left, right):
            axis.grid(alpha=0.3, which="both")
            axis.spines[["top", "right"]].set_visible(False)
    for axis in axes[-1]:
        axis.set_xlabel("measured (ms)")
    figure.suptitle(result.profile.name)
    return figure


def _plain_ticks(axis: Axis, ends: npt.NDArray[np.float64]) -> None:
    """Label an axis with plain milliseconds, a few per decade, more if the axis spans less."""
    decades = float(np.log10(ends[1] / ends[0]))
    subs = (1.0, 2.0, 5.0) if decades > 1 else (1.0, 1.5, 2.0, 3.0, 4.0, 5.0, 7.0)
    axis.set_major_locator(LogLocator(subs=subs))
    axis.set_major_formatter(FuncFormatter(lambda value, _: f"{value:g}"))
    axis.set_minor_formatter(NullFormatter())


def save_plot(result: FitResult, path: Path) -> None:
    """Write the figure as PNG; same fit, same bytes."""
    with replacing(path) as temporary:
        plot(result).savefig(temporary, dpi=110, format="png", metadata={"Software": None})
