"""Printing: options that several commands share, and JSON beside text."""

from __future__ import annotations

import json
import sys
from typing import Annotated, Any

import typer

from hermes.cli import complete

__all__ = ["Json", "Overrides", "Scenario", "print_json", "print_table", "show"]

Scenario = Annotated[str, typer.Argument(
    help="A scenario file, or the name of a built-in one.", show_default=False, autocompletion=complete.scenarios)]
Overrides = Annotated[
    list[str],
    typer.Option("--set", metavar="KEY=VALUE", help="Set a.b=c or a.0.b=c in it; may be given often."),
]
Json = Annotated[bool, typer.Option("--json", help="Print JSON.")]


def print_json(data: Any) -> None:
    """One JSON document on stdout."""
    print(json.dumps(data, indent=2, ensure_ascii=False, default=_plain))


def _plain(value: Any) -> Any:
    """numpy scalars and paths."""
    return value.item() if hasattr(value, "item") else str(value)


def print_table(title: str, columns: list[str], rows: list[list[Any]]) -> None:
    """A table for people; numbers to the right."""
    from rich.table import Table

    table = Table(title=title or None, title_justify="left", box=None, pad_edge=False)
    for index, column in enumerate(columns):
        numeric = all(isinstance(row[index], int | float) for row in rows)
        table.add_column(column, justify="right" if numeric else "left", overflow="fold")
    for row in rows:
        table.add_row(*(f"{cell:,.6g}" if isinstance(cell, float) else str(cell) for cell in row))
    show(table)


def show(renderable: Any) -> None:
    """Print something rich can render: coloured and fitted on a terminal, 120 columns of plain text elsewhere."""
    from rich.console import Console

    Console(file=sys.stdout, width=None if sys.stdout.isatty() else 120, soft_wrap=False).print(renderable)
