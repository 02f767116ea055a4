"""Charts as matplotlib figures without pyplot's global state, for notebooks: `Results.plot`, and several runs by name.

A figure shows itself in a notebook, with or without `%matplotlib inline`; elsewhere call its `savefig`.
"""

from __future__ import annotations

import io
import textwrap
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.figure import Figure

from hermes.errors import InputError, Verbatim
from hermes.results.charts import GREY, LINE, Chart, Layer, Panel
from hermes.results.results import Results
from hermes.results.run_charts import chart

__all__ = ["NotebookFigure", "draw", "plot_runs"]

DPI, PIXELS = 100, 80   # pixels of a page in an inch


class NotebookFigure(Figure):
    """A figure that a notebook shows although pyplot does not manage it."""

    def _repr_png_(self) -> bytes:
        out = io.BytesIO()
        self.savefig(out, format="png", dpi=DPI)
        return out.getvalue()


def plot_runs(runs: Mapping[str, Results], kind: str = "latency", ax: Any = None) -> Figure:
    """Draw several runs, by name, in the same axes. kind, ax: As in `Results.plot`."""
    return draw(chart(list(runs.items()), kind), ax)


def draw(made: Chart, ax: Any = None) -> Figure:
    """Draw a chart into axes of matplotlib, one for each panel; without them, into a new figure.

    Raises `InputError` for another number of axes.
    """
    panels = made.panels
    if ax is None:
        heights = [panel.height / PIXELS for panel in panels] or [1.0]
        figure: Figure = NotebookFigure(figsize=(7, sum(heights) + 0.9 * len(heights) + 0.6), layout="constrained")
        FigureCanvasAgg(figure)
        axes = list(figure.subplots(max(len(panels), 1), 1, squeeze=False, height_ratios=heights).flat)
        lines = [line for text in (made.title, made.said) for line in textwrap.wrap(text, LINE)]
        figure.suptitle("\n".join(lines), fontsize="medium")
    else:
        axes = list(np.ravel(ax))
        if len(axes) != len(panels):
            raise InputError(Verbatim(f"{len(panels)} axes, one for each panel; found {len(axes)}"), field="ax")
        figure = axes[0].figure
    for axis, panel in zip(axes, panels, strict=False):
        _panel(axis, panel)
    return figure


def _panel(axis: Any, panel: Panel) -> None:
    colours = panel.palette()
    for one, scale in ((axis.xaxis, panel.x), (axis.yaxis, panel.y)):
        if scale.kind == "category":
            one.update_units(list(scale.domain or ()))   # all categories, in their order
    for layer in panel.layers:
        frame = layer.frame
        for name, rows in frame.groupby("series", sort=False) if "series" in frame else [("", frame)]:
            _layer(axis, layer, {str(column): rows[column].to_numpy() for column in rows}, colours.get(str(name)))
    for way, scale in (("x", panel.x), ("y", panel.y)):
        getattr(axis, f"set_{way}label")(scale.title)
        if scale.kind == "log":
            getattr(axis, f"set_{way}scale")("log")
        if scale.kind != "category" and scale.domain:
            getattr(axis, f"set_{way}lim")(*scale.domain)
        if scale.percent:
            getattr(axis, f"{way}axis").set_major_formatter(lambda value, _: f"{value:.0%}" if value <= 1.001 else "")
    if panel.y.kind == "category":
        axis.invert_yaxis()
    above = any(layer.mark == "above" for layer in panel.layers)
    axis.set_title(panel.title, loc="left", fontsize="small", fontweight="bold", pad=18 if above else 6)
    axis.grid(alpha=0.3)
    axis.set_axisbelow(True)
    axis.spines[["top", "right"]].set_visible(False)
    if panel.legend and colours:
        names = [axis.plot([], [], color=colour, linewidth=4)[0] for colour in colours.values()]
        axis.legend(names, list(colours), frameon=False, fontsize="small", loc="center left", bbox_to_anchor=(1, 0.5))


def _layer(axis: Any, layer: Layer, data: Mapping[str, Any], colour: str | None) -> None:
    mark = layer.mark
    x: Any = data.get("x")
    y: Any = data.get("y")
    if mark in ("line", "step", "dash"):
        axis.plot(x, y, color=colour or "0.2", drawstyle="steps-post" if mark == "step" else "default",
                  linestyle="--" if mark == "dash" else "-")
    elif mark in ("area", "stack"):
        axis.fill_between(x, y, data["y2"], color=colour, alpha=0.8 if mark == "stack" else 0.22, linewidth=0)
    elif mark == "bar":
        axis.barh(y, data["x2"] - x, left=x, color=colour)
    elif mark in ("tick", "point", "open", "ring", "box"):
        style = {"tick": "|", "point": "o", "open": "o", "ring": "o", "box": "s"}[mark]
        axis.plot(x, y, style, color=colour or "0.2", markersize={"ring": 14, "box": 30}.get(mark, 6),
                  fillstyle="none" if mark in ("open", "ring", "box") else "full")
    elif mark == "rule":
        draw_rule = axis.axhline if x is None else axis.axvline
        for place in y if x is None else x:
            draw_rule(place, color="0.2", linestyle="--", linewidth=1)
    elif mark == "span":
        axis.axvspan(x[0], data["x2"][0], color="0.2", alpha=0.09, linewidth=0)
    elif mark == "cell":
        axis.scatter(x, y, c=data["colour"], s=900, marker="s")
    else:
        _texts(axis, layer, data, colour)


def _texts(axis: Any, layer: Layer, data: Mapping[str, Any], colour: str | None) -> None:
    above = layer.mark == "above"
    places: Sequence[Any] = [1.0] * len(data["x"]) if above else data["y"]
    colours = data.get("colour", [colour or "0.2"] * len(data["x"]))
    for x, y, text, ink in zip(data["x"], places, data["label"], colours, strict=True):
        axis.annotate(text, (x, y), xycoords=("data", "axes fraction") if above else "data",
                      xytext=({"left": 5, "center": 0, "right": -5}[layer.align], 3 if above else 0),
                      textcoords="offset points", ha=layer.align, va="bottom" if above else "center",
                      fontsize="small", color=ink or GREY, annotation_clip=False)
