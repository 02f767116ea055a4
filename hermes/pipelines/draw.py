"""Graphs as figures (PNG, SVG, PDF) and as DOT for Graphviz."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

from hermes.config.writing import replacing, write_text
from hermes.errors import InputError
from hermes.pipelines.graph import Graph
from hermes.pipelines.layout import Block, Describe, Drawing, Style, describe, lay_out
from hermes.pipelines.text import draw_text

if TYPE_CHECKING:
    from matplotlib.figure import Figure

__all__ = ["SUFFIXES", "draw_dot", "draw_figure", "write_drawing"]

SUFFIXES = (".png", ".svg", ".pdf", ".dot", ".txt")
_STYLE = Style(char=0.088, line=0.19, pad_x=0.12, pad_y=0.09, gap_x=0.55, gap_y=0.22, title=0.22)   # inches
_MARGIN, _TITLE = 0.2, 0.36
_FILL = {"generate": "#dbe9f6", "fetch_kv": "#dff0d8", "store_kv": "#dff0d8", "loop": "#f7f7f7"}
_OTHER, _INK = "#fdebd0", "#333333"


def write_drawing(graphs: Mapping[str, Graph], path: Path, says: Mapping[str, Describe]) -> None:
    """Write graphs, one below the other under their names, in the format of the file's suffix.

    says: per name what stands in the boxes, where it is not `describe`. Raises `InputError` for another suffix.
    """
    if path.suffix not in SUFFIXES:
        raise InputError(f"a file that ends in {', '.join(SUFFIXES)}", path.name)
    if path.suffix in (".dot", ".txt"):
        draw = draw_dot if path.suffix == ".dot" else draw_text
        single = len(graphs) == 1 or path.suffix == ".dot"
        parts = [("" if single else f"{name}\n") + draw(graph, says.get(name, describe))
                 for name, graph in graphs.items()]
        write_text(path, "\n".join(parts))
        return
    import matplotlib as mpl

    figure = draw_figure(graphs, says)
    with mpl.rc_context({"svg.hashsalt": "hermes", "svg.fonttype": "none"}):   # the same bytes each time
        stamp: dict[str, Any] = {".png": {"Software": None}, ".svg": {"Date": None}}.get(path.suffix, {})
        if path.suffix == ".pdf":
            stamp = {"CreationDate": None, "Producer": None, "Creator": None}
        with replacing(path) as temporary:
            figure.savefig(temporary, dpi=120, format=path.suffix[1:], metadata=stamp)


def draw_figure(graphs: Mapping[str, Graph], says: Mapping[str, Describe] | None = None) -> Figure:
    """A figure of graphs, one below the other under their names."""
    from matplotlib.figure import Figure

    drawings = {name: lay_out(graph, _STYLE, (says or {}).get(name, describe)) for name, graph in graphs.items()}
    width = max(drawing.width for drawing in drawings.values()) + 2 * _MARGIN
    height = sum(drawing.height + _TITLE + _MARGIN for drawing in drawings.values()) + _MARGIN
    figure = Figure(figsize=(width, height))
    axes = figure.add_axes((0, 0, 1, 1))
    axes.set(xlim=(0, width), ylim=(height, 0))
    axes.axis("off")
    top = _MARGIN
    for name, drawing in drawings.items():
        axes.text(_MARGIN, top, name, fontsize=11, fontweight="bold", color=_INK, va="top")
        _paint(axes, drawing, _MARGIN, top + _TITLE)
        top += drawing.height + _TITLE + _MARGIN
    return figure


def _paint(axes: Any, drawing: Drawing, x0: float, y0: float) -> None:
    from matplotlib.patches import FancyBboxPatch

    for block in (block for layer in drawing.layers for block in layer if block.lines):
        assert block.node is not None
        background, kind = block.node.background, block.node.kind
        left, top = x0 + block.left, y0 + block.top
        axes.add_patch(FancyBboxPatch(
            (left, top), block.width, block.height, boxstyle="round,pad=0,rounding_size=0.06", linewidth=1,
            edgecolor=_INK, facecolor=_FILL.get(kind, _OTHER), linestyle="--" if background or block.inner else "-",
        ))
        _write(axes, block, left, top)
        if block.inner is not None:
            inset = left + (block.width - block.inner.width) / 2
            _paint(axes, block.inner, inset, top + _STYLE.title + 2 * _STYLE.pad_y)
    for chain in drawing.edges:
        _arrow(axes, chain, x0, y0)


def _write(axes: Any, block: Block, left: float, top: float) -> None:
    for i, line in enumerate(block.lines):
        axes.text(
            left + _STYLE.pad_x, top + _STYLE.pad_y + (i + 0.5) * _STYLE.line, line, fontsize=8.5, family="monospace",
            color=_INK, va="center", fontweight="bold" if i == 0 else "normal",
        )


def _arrow(axes: Any, chain: tuple[Block, ...], x0: float, y0: float) -> None:
    """A curve through all blocks of a chain, level where it leaves, passes and arrives."""
    from matplotlib.patches import FancyArrowPatch
    from matplotlib.path import Path as Curve

    points = [(x0 + chain[0].left + chain[0].width, y0 + chain[0].middle)]
    codes = [Curve.MOVETO]
    for block in chain[1:]:
        x, y = x0 + block.left, y0 + block.middle
        bend = (points[-1][0] + x) / 2
        points += [(bend, points[-1][1]), (bend, y), (x, y)]
        codes += [Curve.CURVE4] * 3
        if not block.lines:
            points.append((x + block.width, y))
            codes.append(Curve.LINETO)
    axes.add_patch(FancyArrowPatch(
        path=Curve(points, codes), arrowstyle="-|>", mutation_scale=9, linewidth=1, color=_INK, shrinkA=0, shrinkB=0,
    ))


def draw_dot(graph: Graph, say: Describe = describe) -> str:
    """The graph in Graphviz' language; loops are clusters."""
    lines = ["digraph pipeline {", "  rankdir=LR; compound=true; node [shape=box, fontname=monospace];"]
    lines += [f"  {line}" for line in _dot(graph, "", say)]
    return "\n".join([*lines, "}"]) + "\n"


def _dot(graph: Graph, prefix: str, say: Describe) -> Iterator[str]:
    for name in graph.order:
        node, text = graph.nodes[name], "\\l".join(map(_escaped, say(name, graph.nodes[name])))
        if node.kind == "loop":
            yield f"subgraph {_quoted('cluster ' + prefix + name)} {{ label={chr(34)}{text}{chr(34)};"
            yield from (f"  {line}" for line in _dot(graph.loops[name], f"{prefix}{name}/", say))
            yield "}"
        else:
            dashed = ", style=dashed" if node.background else ""
            yield f'{_quoted(prefix + name)} [label="{text}\\l"{dashed}];'
    for name in graph.order:
        for parent in graph.nodes[name].after:
            ends = [f"{key}={_quoted('cluster ' + prefix + end)}" for key, end in (("ltail", parent), ("lhead", name))
                    if end in graph.loops]
            source, target = (_leaf(graph, prefix, end, last) for end, last in ((parent, True), (name, False)))
            yield f"{_quoted(source)} -> {_quoted(target)}{' [' + ', '.join(ends) + ']' if ends else ''};"


def _leaf(graph: Graph, prefix: str, name: str, last: bool) -> str:
    """A node that an edge can end at: the name itself, or the last (first) node within a loop."""
    while name in graph.loops:
        graph, prefix = graph.loops[name], f"{prefix}{name}/"
        name = graph.order[-1 if last else 0]
    return prefix + name


def _escaped(text: str) -> str:
    return text.replace("\\", "\\\\").replace('"', '\\"')


def _quoted(text: str) -> str:
    return f'"{_escaped(text)}"'
