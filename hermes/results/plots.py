"""Charts drawn with matplotlib: the files of `hermes plot`, and figures of notebooks (`Results.plot`, `plot_runs`).

Figures do without pyplot's global state. A figure shows itself in a notebook, with or without `%matplotlib inline`;
elsewhere call its `savefig`. Lengths are points; a point is a pixel of a page 390 to 600 pixels wide.
"""

from __future__ import annotations

import io
import math
import textwrap
import warnings
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any, Literal

import numpy as np
from matplotlib import style
from matplotlib.artist import Artist
from matplotlib.axes import Axes
from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.figure import Figure
from matplotlib.lines import Line2D
from matplotlib.patches import Patch
from matplotlib.ticker import FixedLocator, Formatter, MaxNLocator, NullLocator
from matplotlib.transforms import ScaledTranslation

from hermes.errors import InputError, Verbatim
from hermes.results.charts import DIM, GREY, GRID, HEIGHT, INK, PALETTE, WIDTH, Axis, Chart, Layer, Panel
from hermes.results.charts.run_charts import chart
from hermes.results.layout import shortened
from hermes.results.results import Results

__all__ = ["NotebookFigure", "draw", "image", "plot_runs"]

DPI, NOTEBOOK_DPI = 144, 96
TEXT, HEAD, TITLE = 11.0, 11.5, 14.0       # sizes of letters: of texts, of a panel's title, of the chart's
TEXT_LINE, HEAD_LINE, TITLE_LINE = 80, 62, 56   # characters of a line
PADDING, SPACING, ROW, GAP = 12.0, 16.0, 17.0, 6.0   # around the figure, between panels, of a legend's row, below it
NAME = 28   # characters of a category
TICKS, MANY_DIGITS = 7, 10**6
DECADE = {"x": 100.0, "y": 38.0}   # of a logarithmic axis, with room for three numbers
# matplotlib's own font everywhere, texts of an SVG as texts, its names without chance
STYLE = {"font.family": "sans-serif", "font.sans-serif": ["DejaVu Sans", "Arial", "Helvetica"], "font.size": TEXT,
         "text.color": INK, "text.parse_math": False, "figure.facecolor": "white", "savefig.facecolor": "white",
         "svg.fonttype": "none", "svg.hashsalt": "hermes"}
_MARKERS: dict[str, tuple[str, float, float]] = {   # shape, size, width of its line
    "tick": ("|", 14, 2.5), "point": ("o", 7.5, 0), "open": ("o", 8, 2), "ring": ("o", 17, 2.5)}


class NotebookFigure(Figure):
    """A figure that a notebook shows although pyplot does not manage it."""

    def _repr_png_(self) -> bytes:
        with _style():
            return _saved(self, "png", NOTEBOOK_DPI)


def plot_runs(runs: Mapping[str, Results], kind: str = "latency", ax: Any = None) -> Figure:
    """Draw several runs, by name, in the same axes. kind, ax: As in `Results.plot`."""
    return draw(chart(list(runs.items()), kind), ax)


def image(made: Chart, suffix: Literal["png", "svg"]) -> bytes:
    """Return a chart as an image with a white ground; the same chart, the same bytes."""
    with _style():
        return _saved(draw(made), suffix, DPI)


def draw(made: Chart, ax: Any = None) -> Figure:
    """Draw a chart into axes of matplotlib, one for each panel; without them, into a new figure.

    Raises `InputError` for another number of axes.
    """
    panels = made.panels
    with _style():
        if ax is not None:
            axes = list(np.ravel(ax))
            if len(axes) != len(panels):
                raise InputError(Verbatim(f"{len(panels)} axes, one for each panel; found {len(axes)}"), field="ax")
            for axis, panel in zip(axes, panels, strict=True):
                _panel(axis, panel)
            figure: Figure = axes[0].figure
            return figure
        high = max((panel.height for panel in panels), default=HEIGHT)
        figure = NotebookFigure(figsize=(WIDTH / 72, high / 72), dpi=DPI)
        FigureCanvasAgg(figure)
        for panel in panels:   # all at one place, of the right size, until their texts are measured
            _panel(figure.add_axes((0, 0, 1, panel.height / high)), panel)
        _arrange(figure, made)
    return figure


@contextmanager
def _style() -> Iterator[None]:
    """Draw in the same way whatever the user's settings of matplotlib are."""
    with style.context(["default", STYLE]), warnings.catch_warnings():
        warnings.filterwarnings("ignore", message="Glyph .* missing")   # a name in other letters: boxes in a PNG
        yield


def _saved(figure: Figure, suffix: Literal["png", "svg"], dpi: int) -> bytes:
    out = io.BytesIO()
    if suffix == "png":
        figure.savefig(out, format="png", dpi=dpi, metadata={"Software": None})
        return out.getvalue()
    figure.savefig(out, format="svg", metadata={"Date": None, "Creator": None})
    return out.getvalue()[out.getvalue().index(b"<svg"):]   # without a prologue, so that a page can hold it


def _arrange(figure: Figure, made: Chart) -> None:
    """Put the titles and the panels below each other, and give the figure the size that their texts need."""
    title = figure.suptitle(_wrapped(made.title, TITLE_LINE), fontsize=TITLE, fontweight="bold", ha="left", va="top")
    said = figure.text(0, 0, _wrapped(made.said, TEXT_LINE), color=DIM, va="top", linespacing=1.3)
    scale, renderer = 72 / figure.dpi, figure.canvas.get_renderer()   # type: ignore[attr-defined]
    heads = [text.get_window_extent(renderer) for text in (title, said) if text.get_text()]
    around = [(axis.bbox, axis.get_tightbbox(renderer) or axis.bbox) for axis in figure.axes]
    left = max((plot.x0 - whole.x0 for plot, whole in around), default=0.0) * scale + PADDING
    right = max((whole.x1 - plot.x1 for plot, whole in around), default=0.0) * scale + PADDING
    width = max(left + WIDTH + right, *(head.width * scale + 2 * PADDING for head in heads), 0.0)
    places, down = [], PADDING   # from the top edge
    for head in heads:
        places.append(down)
        down += head.height * scale + 3
    bottoms = []
    for plot, whole in around:
        down += (whole.y1 - plot.y1) * scale + SPACING + plot.height * scale
        bottoms.append(down)
        down += (plot.y0 - whole.y0) * scale
    high = down + PADDING
    figure.set_size_inches(width / 72, high / 72)
    for text, place in zip((title, said), places, strict=False):
        text.set_position((PADDING / width, 1 - place / high))
    for axis, bottom, panel in zip(figure.axes, bottoms, made.panels, strict=True):
        axis.set_position((left / width, 1 - bottom / high, WIDTH / width, panel.height / high))


def _wrapped(text: str, most: int) -> str:
    return "\n".join(textwrap.wrap(text, most))


def _panel(axis: Axes, panel: Panel) -> None:
    colours = panel.palette()
    axis.set_axisbelow(True)
    for number, layer in enumerate(panel.layers):
        frame = layer.frame
        for name, rows in frame.groupby("series", sort=False) if "series" in frame else [("", frame)]:
            data = {str(column): rows[column].to_numpy() for column in rows}
            for way, scale in (("x", panel.x), ("y", panel.y)):
                if scale.kind == "category" and way in data and layer.mark != "rule":
                    data[way] = np.array([list(scale.domain or ()).index(value) for value in data[way]])
            _layer(axis, layer, data, colours[str(name)] if "series" in frame else None, 2 + number / 1000)
    _scale(axis, "x", panel.x)
    _scale(axis, "y", panel.y)
    axis.tick_params(which="both", color=DIM, labelcolor=INK, labelsize=TEXT, length=5, width=1)
    axis.spines[["top", "right"]].set_visible(False)
    for side in ("left", "bottom"):
        axis.spines[side].set(color=DIM, linewidth=1, zorder=1.5)
    above = ROW if any(layer.mark == "above" for layer in panel.layers) else 0.0
    legend = _legend(axis, panel, colours, above) if panel.legend and colours else 0
    axis.set_title(_wrapped(panel.title, HEAD_LINE), loc="left", fontsize=HEAD, fontweight="bold", color=INK,
                   pad=6 + above + legend * ROW + (GAP if legend and not above else 0))


def _scale(axis: Axes, way: Literal["x", "y"], scale: Axis) -> None:
    """Set the ends of an axis, its ticks and its title."""
    one, ends = getattr(axis, f"{way}axis"), getattr(axis, f"set_{way}lim")
    one.set_label_text(scale.title, fontsize=TEXT, color=INK)
    if scale.kind == "category":
        names = [shortened(str(name), NAME) for name in scale.domain or ()]
        low, high = -0.5, max(len(names), 1) - 0.5
        ends(*((low, high) if way == "x" else (high, low)))   # the first one at the top
        one.set_ticks(range(len(names)), labels=names)
        return
    getattr(axis, f"set_{way}scale")(scale.kind)
    if scale.domain:
        ends(*scale.domain)
    low, high = sorted(getattr(axis, f"get_{way}lim")())
    one.grid(visible=True, color=GRID, linewidth=1)
    wide = way == "x" and high >= MANY_DIGITS   # long numbers would run into each other
    few = MaxNLocator(4, steps=[1, 2, 4, 5, 10]) if wide else MaxNLocator(TICKS, steps=[1, 2, 5, 10])
    one.set_major_locator((_log_ticks(axis, way, low, high) if scale.kind == "log" else None) or few)
    one.set_minor_locator(NullLocator())
    one.set_major_formatter(_Numbers(scale))


class _Numbers(Formatter):
    """Numbers with as many digits as their neighbours have; shares as percentages, up to 100%."""

    def __init__(self, scale: Axis) -> None:
        self.scale = scale

    def __call__(self, value: float, pos: int | None = None) -> str:
        return self.format_ticks([value])[0]

    def format_ticks(self, values: Sequence[float]) -> list[str]:
        shown = [100 * value if self.scale.percent else value for value in values]
        digits = [len(f"{round(value, 9):.12g}".partition(".")[2]) for value in shown]
        if self.scale.kind != "log":
            digits = [max(digits, default=0)] * len(digits)
        texts = [f"{value:,.{number}f}" for value, number in zip(shown, digits, strict=True)]
        if not self.scale.percent:
            return texts
        return [f"{text}%" if value <= 100.1 else "" for text, value in zip(texts, shown, strict=True)]


def _log_ticks(axis: Axes, way: Literal["x", "y"], low: float, high: float) -> FixedLocator | None:
    """Return ticks at 1, 2 and 5 in each decade, or at 1 of many decades; None for a part of a decade without two."""
    room = (axis.bbox.width if way == "x" else axis.bbox.height) * 72 / axis.figure.dpi
    decades = range(math.floor(math.log10(low)), math.ceil(math.log10(high)) + 1)
    few = DECADE[way] * math.log10(high / low) <= room
    ticks = [digit * 10.0**power for power in decades for digit in ((1, 2, 5) if few else (1,))
             if low <= digit * 10.0**power <= high]
    return FixedLocator(ticks) if len(ticks) > 1 else None


def _legend(axis: Axes, panel: Panel, colours: Mapping[str, str], above: float) -> int:
    """Put a legend between the plot and its title, and return its rows."""
    marks = {str(name): layer.mark for layer in reversed(panel.layers) if "series" in layer.frame
             for name in layer.frame["series"]}
    handles: list[Artist] = []
    for name, colour in colours.items():
        if marks[name] in ("line", "step", "dash"):
            handles.append(Line2D([], [], color=colour, linewidth=3))
        elif marks[name] in _MARKERS:
            handles.append(Line2D([], [], color=colour, linewidth=0, marker="o", markersize=8))
        else:
            alpha = {"stack": 0.8, "span": 0.3}.get(marks[name], 1)
            handles.append(Patch(color=colour, alpha=alpha, linewidth=0))
    columns = max(1, int(WIDTH / (32 + 0.62 * TEXT * max(map(len, colours)))))
    place = axis.transAxes + ScaledTranslation(0, (above or GAP) / 72, axis.figure.dpi_scale_trans)
    axis.legend(handles, list(colours), frameon=False, fontsize=TEXT, labelcolor=INK, loc="lower left", ncols=columns,
                bbox_to_anchor=(0, 1), bbox_transform=place, borderaxespad=0, borderpad=0, handlelength=1.1,
                handleheight=1.0, handletextpad=0.6, columnspacing=1.4, labelspacing=0.35)
    return math.ceil(len(colours) / columns)


def _layer(axis: Axes, layer: Layer, data: Mapping[str, Any], colour: str | None, order: float) -> None:
    """Draw one layer, of one series. Nothing is cut off at the edges of the plot."""
    mark, ink = layer.mark, colour or INK
    x: Any = data.get("x")
    y: Any = data.get("y")
    how: dict[str, Any] = {"zorder": order, "clip_on": False}
    if mark in ("line", "step", "dash"):
        axis.plot(x, y, color=ink, linewidth=2, drawstyle="steps-post" if mark == "step" else "default",
                  linestyle=(0, (2, 1.5)) if mark == "dash" else "-", solid_capstyle="butt", **how)
    elif mark in ("area", "stack"):
        axis.fill_between(x, y, data["y2"], color=ink, alpha=0.8 if mark == "stack" else 0.22, linewidth=0, **how)
    elif mark == "bar":
        axis.barh(y, data["x2"] - x, height=0.88, left=x, color=colour or PALETTE[0], **how)
    elif mark in _MARKERS:
        shape, size, width = _MARKERS[mark]
        axis.plot(x, y, shape, color=ink, markersize=size, markeredgewidth=width, alpha=1 if mark == "point" else 0.75,
                  fillstyle="none" if mark in ("open", "ring") else "full", **how)
    elif mark == "rule":
        draw_rule, places = (axis.axhline, y) if x is None else (axis.axvline, x)
        for place in places:
            draw_rule(place, color=INK, linestyle=(0, (5, 4)), linewidth=1, **how)
    elif mark == "error":
        axis.plot([x, data.get("x2", x)], [y, data.get("y2", y)], color=ink, linewidth=1.5, **how)
    elif mark == "span":
        for low, high in zip(x, data["x2"], strict=True):
            axis.axvspan(low, high, color=ink, alpha=0.09 if colour is None else 0.3, linewidth=0, zorder=order)
    elif mark in ("cell", "box"):
        look = {"color": data.get("colour", GREY)} if mark == "cell" else {
            "fill": False, "edgecolor": INK, "linewidth": 3}
        axis.barh(y, 1, height=1, left=x - 0.5, **look, **how)
    else:
        _texts(axis, layer, data, ink)


def _texts(axis: Axes, layer: Layer, data: Mapping[str, Any], ink: str) -> None:
    above = layer.mark == "above"
    places = [1.0] * len(data["x"]) if above else data["y"]
    colours = data.get("colour", [ink] * len(data["x"]))
    for x, y, text, colour in zip(data["x"], places, data["label"], colours, strict=True):
        axis.annotate(text, (x, y), xycoords=("data", "axes fraction") if above else "data",
                      xytext=({"left": 6, "center": 0, "right": -6}[layer.align], 4 if above else 0),
                      textcoords="offset points", ha=layer.align, va="bottom" if above else "center_baseline",
                      fontsize=TEXT, color=colour, annotation_clip=False, zorder=5)
