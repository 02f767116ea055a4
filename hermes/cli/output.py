"""Output of commands: shared options, tables and JSON."""

from __future__ import annotations

import json
import math
import os
import re
import shlex
import shutil
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal

import typer

from hermes.cli import complete
from hermes.cli.streams import terminal
from hermes.errors import printable

if TYPE_CHECKING:
    from hermes.results import Results

__all__ = [
    "Address", "DiagramFile", "DiagramFormat", "ExecutorName", "Json", "Overrides", "Quiet", "Scenario", "Verbose",
    "Workers",
    "cores", "print_json", "print_lines", "print_table", "show", "show_run",
]

Scenario = Annotated[str, typer.Argument(
    help="A scenario file, or the name of a built-in one.", show_default=False, autocompletion=complete.scenarios)]
Overrides = Annotated[
    list[str],
    typer.Option("--set", metavar="KEY=VALUE", help=
                 "Set a.b=c or a.0.b=c in it, or append with a.b+=c; repeatable. `--plugin FILE` is short for "
                 "`--set plugins+=FILE`."),
]
Workers = Annotated[int, typer.Option(
    "--workers", min=-1, max=4096, help="Worker processes; 0 simulates in this process, -1 takes all cores.")]
ExecutorName = Annotated[str, typer.Option(
    "--executor", metavar="NAME", help="local: processes of this machine. ray: a Ray cluster. Or a plug-in's.")]
Address = Annotated[str, typer.Option(
    "--address", metavar="HOST:PORT", help="Cluster to use; left out, the one of this machine, or a new one.")]
Json = Annotated[bool, typer.Option("--json", help="Print JSON.")]
DiagramFile = Annotated[Path | None, typer.Option(
    "-o", "--output", metavar="FILE", help="Write to a .mmd (Mermaid) or .dot file instead of printing.")]
DiagramFormat = Annotated[Literal["mermaid", "dot"] | None, typer.Option(
    "--format", help="The language [the file's suffix, or Mermaid].")]
Quiet = Annotated[bool, typer.Option("--quiet", "-q", help="Print no progress.")]
Verbose = Annotated[bool, typer.Option("--verbose", "-v", help="Print every table instead of ten lines.")]


_NUMBER = re.compile(r"-?[\d.,]*(e[-+]?\d+)?%?\*?\Z")   # a dash or an empty cell stands for no value
_AFTER_ASCII = re.compile("[\x7f-\x9f\ud800-\udfff]")


def print_json(data: Any) -> None:
    """Print one JSON document on stdout; undefined numbers are null."""
    text = json.dumps(_defined(data), indent=2, ensure_ascii=False, default=_plain)
    print(_AFTER_ASCII.sub(lambda found: f"\\u{ord(found[0]):04x}", text))   # json.dumps leaves these unescaped


def _defined(data: Any) -> Any:
    """Replace NaN and infinities, which JSON lacks, by None."""
    if isinstance(data, dict):
        return {key: _defined(value) for key, value in data.items()}
    if isinstance(data, list | tuple):
        return [_defined(value) for value in data]
    return None if isinstance(data, float) and not math.isfinite(data) else data


def _plain(value: Any) -> Any:
    """Convert numpy scalars and paths."""
    return value.item() if hasattr(value, "item") else str(value)


def cores() -> int:
    """Return the number of cores of this machine."""
    return os.cpu_count() or 1


def print_table(title: str, columns: list[str], rows: Sequence[Sequence[Any]]) -> None:
    """Print a table fitted to the terminal, or to 80 columns; columns of numbers are right-aligned.

    Texts are wrapped between words. Where that is not enough, the table is cut into several with the same first column.
    """
    from rich.table import Table
    from rich.text import Text

    from hermes.results.layout import Section, fitted, sections_rich

    cells = [[f"{cell:,.6g}" if isinstance(cell, float) else printable(str(cell)) for cell in row] for row in rows]
    in_columns = list(zip(map(printable, columns), *cells, strict=True))
    width = _columns()
    if sum(max(len(word) for cell in texts for word in cell.split() or [""]) + 2 for texts in in_columns) - 2 > width:
        show(sections_rich(fitted(Section(title, columns, cells), width)))
        return
    table = Table(title=Text(printable(title)) if title else None, title_justify="left", box=None, pad_edge=False)
    for index, (head, *texts) in enumerate(in_columns):
        numeric = all(isinstance(row[index], int | float) or _NUMBER.match(str(row[index])) for row in rows)
        table.add_column(Text(head), justify="right" if numeric else "left", overflow="fold",
                         no_wrap=not any(" " in text for text in texts))
    for row in cells:   # names come from files: do not interpret markup
        table.add_row(*map(Text, row))
    show(table)


def print_lines(lines: Sequence[tuple[str, str]]) -> None:
    """Print (label, text) pairs, wrapped to 80 columns under the text."""
    import textwrap

    from hermes.results.layout import WIDTH

    label = max(len(name) for name, _ in lines) + 2
    for name, text in lines:
        for number, line in enumerate(textwrap.wrap(printable(text), WIDTH - label) or [""]):
            print((name if not number else "").ljust(label) + line)


def show(renderable: Any, width: int | None = None) -> None:
    """Print a rich renderable: coloured and fitted to a terminal, otherwise as plain text of 80 columns.

    Args:
        width: Largest width in columns.
    """
    from rich.console import Console

    class Plain(Console):
        def on_broken_pipe(self) -> None:   # rich would end the process with exit code 1
            raise BrokenPipeError

    drawn = sys.stdout.isatty()   # rich then writes escape sequences
    Plain(file=terminal() if drawn else sys.stdout, width=width or _columns()).print(renderable)


def _columns() -> int:
    """Return the columns of the terminal, or those of COLUMNS, or 80 where standard output is none."""
    from hermes.results.layout import WIDTH

    known = sys.stdout.isatty() or os.environ.get("COLUMNS", "").isdecimal()
    return shutil.get_terminal_size((WIDTH, 24)).columns if known else WIDTH


def show_run(results: Results, scenario: str, output: Path | None, *, verbose: bool) -> None:
    """Print the ten lines of a run; the last one gives the folder of its files and the next command to type."""
    from hermes.results.layout import WIDTH

    if output is None:
        folder = shlex.quote(f"runs/{Path(scenario).stem}")
        more = "" if verbose else " (-v: more)"
        results.meta["files"] = f"none; next: hermes run {shlex.quote(scenario)} -o {folder}{more}"
    else:
        folder = shlex.quote(str(output))
        results.meta["files"] = f"{folder}; next: hermes plot {folder} -o {shlex.quote(f'{output.name}.png')}"
    show(results.table(verbose=verbose), WIDTH)
