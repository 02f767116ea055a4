"""`hermes study`: run a study, print its tables, and write its report."""

from __future__ import annotations

import os
import sys
import time
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from hermes.cli.output import print_table

if TYPE_CHECKING:
    from hermes.study import Report

__all__ = ["add_to"]


def add_to(app: typer.Typer) -> None:
    app.command("study")(study)


def study(
    name: Annotated[str, typer.Argument(
        metavar="[NAME]", help="A study of this checkout, or a study's folder [list the studies].")] = "",
    listed: Annotated[bool, typer.Option("--list", help="List the studies of this checkout.")] = False,
    changes: Annotated[list[str], typer.Option(
        "--set", metavar="KEY=VALUE", help="Set an assumption of the study; repeatable.")] = [],  # noqa: B006
    quick: Annotated[bool, typer.Option("--quick", help="Run a version of under two minutes on two cores.")] = False,
    output: Annotated[Path | None, typer.Option(
        "-o", "--output", metavar="DIR", help="Folder of points and report [runs/studies/NAME].")] = None,
    workers: Annotated[int, typer.Option(min=1, max=4096, help="Processes.")] = os.cpu_count() or 1,
    data: Annotated[
        Path | None, typer.Option(metavar="DIR", help="Reference data that does not come with hermes.")] = None,
) -> None:
    """Run a study: simulate its points; print and write its tables, plots and findings.

    Run the command again to continue an interrupted study. `--set` changes an assumption of its study.yaml.
    """
    from hermes.study import load_study
    from hermes.study.report import refuse_source

    if listed or not name:
        _list()
        return
    chosen = load_study(name)
    out = output or Path("runs") / "studies" / (f"{chosen.name}-quick" if quick else chosen.name)
    context = chosen.context(out, quick=quick, workers=workers, data=data, changes=changes,
                             say=lambda text: print(text, file=sys.stderr, flush=True))
    refuse_source(out)
    out.mkdir(parents=True, exist_ok=True)
    started = time.perf_counter()
    report = chosen.run(context)
    _print(report)
    written = report.write(out)
    print(f"{len(written)} files in {out} ({written[-1]}), {time.perf_counter() - started:.1f} s")


def _list() -> None:
    from hermes.study import known_studies, load_study

    found = [load_study(name) for name in known_studies()]
    if not found:
        print("no studies: they are not part of the installed package. Clone the repository, or give the path of a "
              "study's folder.")
        return
    print_table("", ["study", "asks", "assumptions"], [
        [study.name, study.title, ", ".join(study.config.assumptions)] for study in found])


def _print(report: Report) -> None:
    print(report.title)
    for line in [*report.notes, *report.changed()]:
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
