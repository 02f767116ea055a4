"""Small tables as rich tables, plain text and HTML, and numbers and durations as text.

`fitted` fits a table to a width: it shortens long names in the middle, and cuts a table that is still too wide into
several tables that begin with the same column.
"""

from __future__ import annotations

import io
from collections.abc import Sequence
from dataclasses import dataclass, replace
from html import escape
from itertools import pairwise
from typing import Any

from rich.console import Console, Group
from rich.table import Table
from rich.text import Text

from hermes.errors import printable

__all__ = ["WIDTH", "Section", "fitted", "format_number", "format_s", "gibibytes", "percent", "sections_html",
           "sections_rich", "sections_text", "shortened"]

WIDTH = 80
LONGEST_NAME, SHORTEST_NAME = 32, 14


@dataclass(frozen=True)
class Section:
    """A small table: a title, column heads, rows of text. The first column is left-aligned, the others right."""

    title: str
    head: Sequence[str]
    rows: Sequence[Sequence[str]]
    note: str = ""


def format_s(value: float | None) -> str:
    """Format a duration with four significant digits and a suitable unit."""
    if value is None:
        return "-"
    for factor, unit in ((1.0, "s"), (1e3, "ms"), (1e6, "µs")):
        if abs(value) * factor >= 1 or unit == "µs" or value == 0:
            return f"{format_number(value * factor)} {unit}"
    raise AssertionError


def format_number(value: float | None) -> str:
    """Format a number with four significant digits and thousands separators; integers in full."""
    if value is None:
        return "-"
    if isinstance(value, int) or abs(value) >= 1000:
        return f"{value:,.0f}"
    return f"{value:.4g}"


def percent(value: float | None) -> str:
    if value is None:
        return "-"
    return f"{value:.1%}" if value == 0 or value >= 0.001 else f"{value * 100:.2g}%"


def gibibytes(value: float | None) -> str:
    """Format memory in GiB, as GPU memory is given."""
    if value is None:
        return "-"
    gib = value / 2**30
    return f"{gib:,.2f} GiB" if gib >= 1 or not gib else f"{gib:.3g} GiB"


def shortened(name: str, width: int) -> str:
    """Cut a name in the middle, where long names differ least, to at most `width` characters."""
    if len(name) <= width:
        return name
    head = (width - 1 + 1) // 2
    return f"{name[:head]}…{name[len(name) - (width - 1 - head):]}"


def fitted(part: Section, width: int = WIDTH, shortest: int = SHORTEST_NAME) -> list[Section]:
    """Return the same table, or several, at most `width` columns wide. shortest: To which names may be shortened."""
    widths = [max((len(row[i]) for row in (part.head, *part.rows)), default=0) for i in range(len(part.head))]
    gap = 2
    if sum(widths) + gap * (len(widths) - 1) <= width or not widths:
        return [part]
    if len(widths) == 2 and not any(part.head):   # label and text: the text is wrapped
        return [part]
    others = sum(widths[1:]) + gap * (len(widths) - 1)
    first = min(widths[0], max(width - others, shortest))
    if first + others > width:   # there will be several tables, so names need not be that short
        first = min(widths[0], max(LONGEST_NAME, shortest))
    rows = [(shortened(row[0], first), *row[1:]) for row in part.rows]
    cuts, used = [1], first
    for column in range(1, len(widths)):
        if used + gap + widths[column] > width and column > cuts[-1]:
            cuts.append(column)
            used = first
        used += gap + widths[column]
    bounds = [*cuts, len(widths)]
    tables = [
        Section(part.title if low == 1 else "", (part.head[0], *part.head[low:high]),
                [(row[0], *row[low:high]) for row in rows])
        for low, high in pairwise(bounds)
    ]
    return [*tables[:-1], replace(tables[-1], note=part.note)]


def sections_rich(parts: Sequence[Section]) -> Group:
    """Return sections as rich tables. Names come from users, so markup is not interpreted."""
    shown: list[Any] = []
    for part in parts:
        table = Table(title=Text(printable(part.title), style="bold"), title_justify="left", box=None, pad_edge=False,
                      show_header=any(part.head))
        for index, name in enumerate(part.head):
            table.add_column(Text(printable(name)), justify="left" if index == 0 or not any(part.head) else "right",
                             overflow="fold")
        for row in part.rows:
            table.add_row(*(Text(printable(cell)) for cell in row))
        shown += [table, *([Text(printable(part.note), style="dim")] if part.note else []), Text("")]
    return Group(*shown[:-1])


def sections_text(parts: Sequence[Section], width: int = 120) -> str:
    """Return sections as plain text, at most `width` columns wide."""
    console = Console(file=io.StringIO(), width=width, color_system=None, force_terminal=False, legacy_windows=False)
    with console.capture() as capture:
        console.print(sections_rich(parts))
    return "\n".join(line.rstrip() for line in capture.get().splitlines()) + "\n"


def sections_html(parts: Sequence[Section]) -> str:
    """Return sections as HTML tables; every text is escaped."""
    out = []
    for part in parts:
        out.append(f"<table><caption style='text-align:left'><b>{escape(part.title)}</b></caption>")
        if any(part.head):
            out.append("<tr>" + "".join(f"<th>{escape(name)}</th>" for name in part.head) + "</tr>")
        out += ["<tr>" + "".join(f"<td>{escape(cell)}</td>" for cell in row) + "</tr>" for row in part.rows]
        out.append("</table>")
        if part.note:
            out.append(f"<div><small>{escape(part.note)}</small></div>")
    return "<div>" + "".join(out) + "</div>"
