"""`hermes study`: run one of the studies, print its tables, write them with its plots."""

from __future__ import annotations

import os
import sys
import time
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from hermes.cli.output import print_table

if TYPE_CHECKING:
    from hermes.studies import Report

__all__ = ["add_to"]


def add_to(app: typer.Typer) -> None:
    app.command("study")(study)


def study(
    name: Annotated[str, typer.Argument(metavar="[NAME]", help="The study; without it, they are listed.")] = "",
    quick: Annotated[bool, typer.Option("--quick", help="A smaller version, under two minutes on two cores.")] = False,
    output: Annotated[
        Path | None, typer.Option("-o", "--output", metavar="DIR", help="Where it writes [studies/NAME].")] = None,
    workers: Annotated[int, typer.Option(min=1, max=4096, help="Processes.")] = os.cpu_count() or 1,
    data: Annotated[
        Path | None, typer.Option(metavar="DIR", help="Reference data that does not ship with the product.")] = None,
) -> None:
    """Run a study: its simulations, tables (ours beside the reference), plots and findings."""
    from hermes.studies import Context, load_studies

    studies = load_studies()
    if not name:
        print_table("", ["study", "asks"], [[known, studies.get(known).title] for known in studies])
        return
    chosen = studies.get(name)()
    out = output or Path("studies") / (f"{name}-quick" if quick else name)
    out.mkdir(parents=True, exist_ok=True)
    started = time.perf_counter()
    report = chosen.run(Context(name, out, quick, workers, data, lambda text: print(text, file=sys.stderr, flush=True)))
    _print(report)
    written = report.write(out)
    print(f"{len(written)} files in {out} ({written[-1]}), {time.perf_counter() - started:.1f} s")


def _print(report: Report) -> None:
    print(report.title)
    for line in report.assumptions:
        print(f"  {line}")
    for table in report.tables:
        print()
        columns, cells = table.rows()
        print_table(table.title, columns, cells)
        if table.note:
            print(table.note)
    if report.findings:
        print("\nFindings")
        for line in report.findings:
            print(f"- {line}")
    print()
