"""The one renderer: sections as rich tables, plain text, HTML and Markdown; numbers and durations as text.

A section fits the width it is printed at: texts are wrapped between words; where that is not enough, `fitted` shortens
long names in the middle, and cuts the table into several that begin with the same column.
"""

from __future__ import annotations

import io
import re
from collections.abc import Sequence
from dataclasses import dataclass, replace
from itertools import pairwise
from typing import TYPE_CHECKING, Any

from hermes.errors import printable

if TYPE_CHECKING:   # a run that writes files prints no table
    from rich.console import Console, Group
    from rich.table import Table

__all__ = ["WIDTH", "Marked", "Part", "Section", "fitted", "format_number", "format_s", "gibibytes", "labelled",
           "markdown_table", "percent", "share_text", "short_number", "shortened", "to_html", "to_rich", "to_text"]

WIDTH = 80
LONGEST_NAME, SHORTEST_NAME = 32, 14
_GAP = 2   # blanks between two columns
_NUMBER = re.compile(r"-?[\d.,]*(e[-+]?\d+)?%?\*?\Z")       # a dash or an empty cell stands for no value
_FIGURE = re.compile(r"(?:[-+<>~]?[$x]?\d.{0,23}|-?)\Z")   # a number with its unit, or two of them
_HTML = '<pre style="white-space:pre;overflow-x:auto;line-height:normal;font-family:monospace">{code}</pre>'


class Marked(str):
    """Text of a cell with a colour for terminals, such as `green`."""

    colour: str

    def __new__(cls, text: str, colour: str) -> Marked:
        made = super().__new__(cls, text)
        made.colour = colour
        return made


@dataclass(frozen=True)
class Section:
    """A small table. Columns of figures are right-aligned, others left. Without heads, the first column holds labels.

    Attributes:
        head: A name for each column; empty strings for labels and texts.
        rows: Texts, or numbers.
        note: Text below the table.
    """

    title: str
    head: Sequence[str]
    rows: Sequence[Sequence[object]]
    note: str = ""


Part = Section | str
"""What a command prints: a table, or lines of text as they are."""


def labelled(lines: Sequence[tuple[str, str]]) -> Section:
    """Return (label, text) pairs as a section whose texts are wrapped beside the labels."""
    return Section("", ("", ""), lines)


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


def short_number(value: float | None) -> str:
    """Format a number with three significant digits; from 100 on as an integer."""
    if value is None:
        return "-"
    return f"{value:,.0f}" if abs(value) >= 100 else f"{value:.3g}"


def percent(value: float | None) -> str:
    if value is None:
        return "-"
    return f"{value:.1%}" if value == 0 or value >= 0.001 else f"{value * 100:.2g}%"


def share_text(value: float | None, asked: float | None = None) -> str:
    """Return a share in percent, with the digits that keep it from 100% if it is less, and from a share that is asked
    for and that it does not reach."""
    if value is None or value >= 1:
        return percent(value)
    over = [1.0] if asked is None or value >= asked else [1.0, asked]
    short = (f"{value:.{digits}%}" for digits in range(1, 6))
    whole, of = float(value).as_integer_ratio()   # exact: cut off where it cannot be rounded
    return next((text for text in short if all(float(text[:-1]) / 100 < limit for limit in over)),
                f"{whole * 10**6 // of / 1e4:.4f}%")


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


def _text(cell: object) -> str:
    return printable(f"{cell:,.6g}" if isinstance(cell, float) else str(cell))


def _figures(number: int, cells: Sequence[str]) -> bool:
    """Whether a column is right-aligned: numbers, and after the first column numbers with units."""
    return all(map((_FIGURE if number else _NUMBER).match, cells))


def fitted(part: Section, width: int = WIDTH, shortest: int = SHORTEST_NAME) -> list[Section]:
    """Return the same table, or several, at most `width` columns wide. shortest: To which names may be shortened."""
    texts = [[_text(cell) for cell in row] for row in part.rows]
    widths = [max((len(row[i]) for row in (part.head, *texts)), default=0) for i in range(len(part.head))]
    if sum(widths) + _GAP * (len(widths) - 1) <= width or not any(part.head):
        return [part]
    others = sum(widths[1:]) + _GAP * (len(widths) - 1)
    first = min(widths[0], max(width - others, shortest))
    if first + others > width:   # there will be several tables, so names need not be that short
        first = min(widths[0], max(LONGEST_NAME, shortest))
    rows = [(shortened(text[0], first), *row[1:]) for text, row in zip(texts, part.rows, strict=True)]
    cuts, used = [1], first
    for column in range(1, len(widths)):
        if used + _GAP + widths[column] > width and column > cuts[-1]:
            cuts.append(column)
            used = first
        used += _GAP + widths[column]
    bounds = [*cuts, len(widths)]
    tables = [
        Section(part.title if low == 1 else "", (part.head[0], *part.head[low:high]),
                [(row[0], *row[low:high]) for row in rows])
        for low, high in pairwise(bounds)
    ]
    return [*tables[:-1], replace(tables[-1], note=part.note)]


def _table(part: Section, *, whole: bool) -> Table:
    """Return a section as a rich table. whole: Wrap no figures and no names, since there is room for them."""
    from rich.table import Table
    from rich.text import Text

    table = Table(title=Text(printable(part.title), style="bold") if part.title else None, title_justify="left",
                  box=None, pad_edge=False, show_header=any(part.head), padding=(0, _GAP, 0, 0))
    for index, name in enumerate(part.head):
        cells = [_text(row[index]) for row in part.rows]
        figures = any(part.head) and _figures(index, cells)
        table.add_column(
            Text(printable(name)), justify="right" if figures else "left", overflow="fold",
            style="" if any(part.head) or index else "bold",
            no_wrap=whole and (figures or not any(" " in cell for cell in (name, *cells))
                               or not (index or any(part.head))))
    for row in part.rows:   # names come from users: do not interpret markup
        table.add_row(*(Text(_text(cell), cell.colour if isinstance(cell, Marked) else "") for cell in row))
    return table


def _least(part: Section) -> int:
    """Return the columns that a section needs if its texts are wrapped between words."""
    widths = []
    for index, name in enumerate(part.head):
        cells = [_text(row[index]) for row in part.rows]
        kept = any(part.head) and _figures(index, cells)
        widths.append(max((len(word) for cell in (name, *cells) for word in ([cell] if kept else cell.split())),
                          default=0))
    return sum(widths) + _GAP * (len(widths) - 1)


def to_rich(parts: Sequence[Part], width: int = WIDTH) -> Group:
    """Return parts for a rich console of `width` columns, with an empty line between two tables."""
    from rich.console import Group
    from rich.text import Text

    shown: list[Any] = []   # Any: of rich
    for number, part in enumerate(parts):
        if isinstance(part, str):
            shown.append(Text(printable(part), no_wrap=True, overflow="ignore"))   # commands and paths to copy
            continue
        if number and isinstance(parts[number - 1], Section):
            shown.append(Text(""))
        whole = _least(part) <= width
        tables = [part] if whole else fitted(part, width)
        for place, one in enumerate(tables):
            shown += [*([Text("")] if place else []), _table(one, whole=whole)]
        shown += [Text(printable(part.note), style="dim")] if part.note else []
    return Group(*shown)


def _recorded(parts: Sequence[Part], width: int) -> Console:
    from rich.console import Console

    console = Console(file=io.StringIO(), width=width, record=True, legacy_windows=False)
    console.print(to_rich(parts, width), crop=False)
    return console


def to_text(parts: Sequence[Part], width: int = WIDTH) -> str:
    """Return parts as plain text, at most `width` columns wide."""
    return "".join(f"{line.rstrip()}\n" for line in _recorded(parts, width).export_text().splitlines())


def to_html(parts: Sequence[Part], width: int = 100) -> str:
    """Return parts as HTML, as a terminal of `width` columns shows them; every text is escaped."""
    return _recorded(parts, width).export_html(inline_styles=True, code_format=_HTML)


def markdown_table(head: Sequence[object], rows: Sequence[Sequence[object]]) -> str:
    """Return a table in Markdown, without the last line end. Columns of figures are right-aligned."""
    cells = [[re.sub(r"(?<!\\)\|", r"\\|", " ".join(_text(cell).split("\n"))) for cell in row] for row in (head, *rows)]
    lines = [f"| {' | '.join(row)} |".replace("|  |", "| |") for row in cells]
    columns = list(zip(*cells[1:], strict=True)) or [()] * len(head)
    figures = [any(map(re.compile(r"\d").search, column)) and _figures(number, column)
               for number, column in enumerate(columns)]
    return "\n".join([lines[0], "| " + " | ".join("---:" if right else "---" for right in figures) + " |", *lines[1:]])
