"""Charts as data: panels of layers, one data frame each, and their Vega-Lite specifications.

`run_charts` and `hermes.explore.sweep.plots` make charts of results. `hermes.results.plots` draws them, for `hermes
plot` and notebooks; a page of `hermes report` holds the specifications of its panels, which a script inside it draws.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Literal

import numpy as np

from hermes.arrays import exp, log

if TYPE_CHECKING:
    import pandas as pd

__all__ = ["DIM", "GREY", "GRID", "HEIGHT", "INK", "PALETTE", "VEGA_LITE", "WIDTH", "Axis", "Chart", "Layer", "Panel",
           "Spec", "end_labels", "panel_spec", "theme"]

Spec = dict[str, Any]   # Any: Vega-Lite is JSON
Mark = Literal["line", "step", "dash", "area", "stack", "bar", "tick", "point", "open", "ring", "cell", "box", "rule",
               "error", "span", "text", "above"]

VEGA_LITE = "6.1"
WIDTH, HEIGHT = 440, 130   # of a panel, in pixels of an image that stays readable 390 pixels wide
DIGITS = 5
INK, DIM, GRID = "#1c2128", "#4a525c", "#dfe3e8"   # of letters, of axes, of the lines behind a plot
# readable on white and on black
PALETTE = ("#2f7fd0", "#e0772f", "#2f9e6e", "#a45fc4", "#c9485b", "#8a7a2e", "#3aa3b5", "#c2679f")
GREY = "#8a929c"
_MARKS: dict[Mark, Spec] = {
    "line": {"type": "line", "strokeWidth": 2}, "step": {"type": "line", "interpolate": "step-after"},
    "dash": {"type": "line", "strokeDash": [4, 3]}, "area": {"type": "area", "opacity": 0.22},
    "stack": {"type": "area", "opacity": 0.8}, "bar": {"type": "bar"},
    "tick": {"type": "tick", "thickness": 2.5, "size": 14},
    "point": {"type": "point", "filled": True, "size": 55, "opacity": 1},
    "open": {"type": "point", "filled": False, "size": 60, "strokeWidth": 2},
    "ring": {"type": "point", "filled": False, "size": 230, "strokeWidth": 2.5}, "cell": {"type": "rect"},
    "box": {"type": "rect", "filled": False, "strokeWidth": 3}, "rule": {"type": "rule", "strokeDash": [5, 4]},
    "error": {"type": "rule", "strokeWidth": 1.5},
    "span": {"type": "rect", "opacity": 0.09}, "text": {"type": "text"},
    "above": {"type": "text", "baseline": "bottom"},
}


@dataclass(frozen=True)
class Axis:
    """One axis. title: With its unit. domain: Ends, or the categories in order; None for those of the data."""

    title: str = ""
    kind: Literal["linear", "log", "category"] = "linear"
    domain: tuple[float, float] | tuple[str, ...] | None = None
    percent: bool = False


@dataclass(frozen=True)
class Layer:
    """Marks of one kind.

    Attributes:
        mark: line, step, dash (x, y), area and stack (y to y2), bar (x to x2 in category y), tick, point, ring (a
            circle around an answer), cell, box (of a heat map), rule (at x, or at y), error (a bar from x to x2 or from
            y to y2), span (x to x2, over the whole height), text (at x, y) or above (a text over the plot, at x).
        frame: One row per mark, or per vertex of a line; columns x, y, x2, y2, and series, colour, label as needed.
        align: Of texts: "left" of the place is where the text begins.
    """

    mark: Mark
    frame: pd.DataFrame
    align: Literal["left", "center", "right"] = "left"


@dataclass(frozen=True)
class Panel:
    """One plot. said: What it shows, for the page. colours: By series; others take the palette's in order."""

    title: str
    x: Axis
    y: Axis
    layers: Sequence[Layer]
    said: str = ""
    height: int = HEIGHT
    legend: bool = False
    colours: Mapping[str, str] = field(default_factory=dict)

    def palette(self) -> dict[str, str]:
        """Return the colour of each series: those of `colours` first, then in order of appearance."""
        found = [str(name) for layer in self.layers if "series" in layer.frame for name in layer.frame["series"]]
        names = dict.fromkeys([*(name for name in self.colours if name in found), *found])
        others = [name for name in names if name not in self.colours]
        return {name: self.colours.get(name) or PALETTE[others.index(name) % len(PALETTE)] for name in names}


@dataclass(frozen=True)
class Chart:
    """Panels below each other. title: The name and what is seen. said: More, in smaller letters."""

    title: str
    said: str
    panels: Sequence[Panel]


def end_labels(frame: pd.DataFrame, axis: Axis, height: float = HEIGHT, gap: float = 14.0) -> Layer:
    """Return texts at the right ends of lines, moved apart to at least `gap` pixels.

    frame: x, y, label and series or colour, one row per text. axis: The y axis, with its domain.
    """
    import pandas as pd

    low, high = (float(end) for end in axis.domain or (0.0, 1.0))
    if axis.kind == "log":
        low, high = math.log(low), math.log(high)
    values = frame["y"].to_numpy(dtype=float)
    values = log(values) if axis.kind == "log" else values
    order = np.argsort(values, kind="stable")
    places = (values[order] - low) / ((high - low) or 1.0) * height
    for i in range(1, len(places)):
        places[i] = max(places[i], places[i - 1] + gap)
    over = max(places[-1] - height, 0.0) if len(places) else 0.0
    for i in range(len(places) - 1, -1, -1):   # back from the top edge, no further than needed
        places[i] = min(places[i], height - gap * (len(places) - 1 - i)) if over else places[i]
    moved = np.empty(len(places))
    moved[order] = low + places / height * (high - low)
    return Layer("text", pd.DataFrame(frame).assign(y=exp(moved) if axis.kind == "log" else moved))


def theme(*, dark: bool = False) -> Spec:
    """Return the colours and fonts of all charts as a Vega-Lite configuration."""
    fg, dim, line = ("#e4e8ee", "#b4bdc8", "#323a45") if dark else (INK, DIM, GRID)
    return {
        "background": "white", "font": "Liberation Sans, Arial, Helvetica, sans-serif",
        "view": {"stroke": None}, "mark": {"color": fg, "tooltip": True}, "bar": {"color": PALETTE[0]},
        "rule": {"color": fg},
        "axis": {"labelColor": fg, "titleColor": fg, "gridColor": line, "domainColor": dim, "tickColor": dim,
                 "labelFontSize": 12, "titleFontSize": 12, "titleFontWeight": "normal", "labelOverlap": "greedy"},
        "legend": {"labelColor": fg, "labelFontSize": 12, "orient": "top", "title": None, "symbolStrokeWidth": 3},
        "text": {"color": fg, "fontSize": 12},
        "title": {"color": fg, "subtitleColor": dim, "anchor": "start", "frame": "group", "fontSize": 13,
                  "subtitleFontSize": 12},
    }


def panel_spec(panel: Panel) -> Spec:
    """Return the specification of one panel of a page, as wide as its place. The page has its title."""
    return {"$schema": f"https://vega.github.io/schema/vega-lite/v{VEGA_LITE[0]}.json",
            "background": "transparent", "width": "container",
            "autosize": {"type": "fit-x", "contains": "padding"}, **_body(panel)}


def _body(panel: Panel) -> Spec:
    colours = panel.palette()
    layers = [_layer(layer, panel, colours) for layer in panel.layers]
    if panel.legend:
        first = next(layer for layer, made in zip(layers, panel.layers, strict=True) if "series" in made.frame)
        first["params"] = [{"name": "shown", "select": {"type": "point", "fields": ["series"]}, "bind": "legend"}]
        for spec, made in zip(layers, panel.layers, strict=True):
            if "series" in made.frame:
                spec["encoding"]["opacity"] = {"condition": {"param": "shown", "value": spec["mark"].get("opacity", 1)},
                                               "value": 0.08}
    return {"height": panel.height, "layer": layers}


def _layer(layer: Layer, panel: Panel, colours: Mapping[str, str]) -> Spec:
    mark, frame = dict(_MARKS[layer.mark]), layer.frame
    if layer.mark == "span" and "series" in frame:   # named in the legend: perhaps narrow
        mark["opacity"] = 0.3
    encoding: Spec = {}
    if "x" in frame:
        encoding["x"] = {"field": "x", **_channel(panel.x)}
    if layer.mark == "above":
        mark |= {"align": layer.align, "y": -4}
    elif "y" in frame:
        encoding["y"] = {"field": "y", **_channel(panel.y)}
    encoding |= {end: {"field": end} for end in ("x2", "y2") if end in frame}
    if layer.mark in ("text", "above"):
        encoding["text"] = {"field": "label"}
        mark |= {"align": layer.align, "dx": {"left": 6, "center": 0, "right": -6}[layer.align], "tooltip": None}
    if "series" in frame:
        longest = max(map(len, colours))
        columns = 1 if longest > 16 else 2 if longest > 8 else 3
        legend = {"labelLimit": 190, "columns": columns} if panel.legend else None
        encoding["color"] = {"field": "series", "type": "nominal", "legend": legend, "title": None, "scale": {
            "domain": list(colours), "range": list(colours.values())}}
    elif "colour" in frame:
        encoding["color"] = {"field": "colour", "type": "nominal", "scale": None}
    elif layer.mark == "cell":
        mark["color"] = GREY
    return {"data": {"values": _values(frame)}, "mark": mark, "encoding": encoding}


def _channel(axis: Axis) -> Spec:
    if axis.kind == "category":
        return {"type": "nominal", "title": axis.title or None, "sort": None, "scale": {"domain": list(
            axis.domain or ())}, "axis": {"labelLimit": 150, "labelAngle": 0, "grid": False}}
    scale: Spec = {"type": axis.kind}
    scale |= {"domain": list(axis.domain), "nice": False} if axis.domain else {}
    ticks: Spec = {"values": [mantissa * 10.0**power for power in range(-9, 10) for mantissa in (1, 2, 5)
                              ]} if axis.kind == "log" else {"tickCount": 5}
    return {"type": "quantitative", "title": axis.title or None, "scale": scale,
            "axis": {**ticks, **({"format": "%", "labelExpr": "datum.value > 1.001 ? '' : datum.label"} if axis.percent
                                 else {})}}


def _values(frame: pd.DataFrame) -> list[dict[str, Any]]:
    """Return rows as JSON: numbers of five digits, None for NaN."""
    def plain(value: Any) -> Any:
        value = value.item() if isinstance(value, np.generic) else value
        if isinstance(value, float):
            return float(f"{value:.{DIGITS}g}") if math.isfinite(value) else None
        return value

    return [{str(name): plain(value) for name, value in zip(frame.columns, row, strict=True)}
            for row in frame.itertuples(index=False, name=None)]
