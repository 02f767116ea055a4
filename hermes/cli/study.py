"""`hermes study`: run a study, print its tables, and write its report."""

from __future__ import annotations

import sys
import time
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from hermes.cli.output import Answer, cores

if TYPE_CHECKING:
    from hermes.results.layout import Part
    from hermes.study import Report

__all__ = ["study"]


def study(
    name: Annotated[str, typer.Argument(
        metavar="[NAME]", help="A study of this checkout, or a study's folder [list the studies].")] = "",
    listed: Annotated[bool, typer.Option("--list", help="List the studies of this checkout.")] = False,
    changes: Annotated[list[str], typer.Option(
        "--set", metavar="KEY=VALUE", help="Set an assumption of the study; repeatable.")] = [],  # noqa: B006
    quick: Annotated[bool, typer.Option("--quick", help="Run a version of under two minutes on two cores.")] = False,
    output: Annotated[Path | None, typer.Option(
        "-o", "--output", metavar="DIR", help="Folder of points and report [runs/studies/NAME].")] = None,
    workers: Annotated[int, typer.Option(min=1, max=4096, help="Processes.")] = cores(),
    data: Annotated[
        Path | None, typer.Option(metavar="DIR", help="Reference data that does not come with hermes.")] = None,
) -> Answer:
    """Run a study: simulate its points; print and write its tables, plots and findings.

    Run the command again to continue an interrupted study. `--set` changes an assumption of its study.yaml.
    """
    from hermes.study import load_study
    from hermes.study.report import refuse_source

    if listed or not name:
        return _list()
    chosen = load_study(name)
    out = output or Path("runs") / "studies" / (f"{chosen.name}-quick" if quick else chosen.name)
    context = chosen.context(out, quick=quick, workers=workers, data=data, changes=changes,
                             say=lambda text: print(text, file=sys.stderr, flush=True))
    refuse_source(out)
    out.mkdir(parents=True, exist_ok=True)
    started = time.perf_counter()
    report = chosen.run(context)
    written = report.write(out)
    took = f"{len(written)} files in {out} ({written[-1]}), {time.perf_counter() - started:.1f} s"
    return Answer({**report.plain(), "files": written}, [*_parts(report), "", took])


def _list() -> Answer:
    from hermes.results.layout import Section
    from hermes.study import known_studies, load_study

    found = [load_study(name) for name in known_studies()]
    data = [{"study": study.name, "asks": study.title, "assumptions": list(study.config.assumptions)}
            for study in found]
    if not found:
        return Answer(data, ["no studies: they are not part of the installed package. Clone the repository and run "
                             "the command in it, or give the path of a study's folder."])
    return Answer(data, [Section("", ["study", "asks", "assumptions"], [
        [study.name, study.title, ", ".join(study.config.assumptions)] for study in found])])


def _parts(report: Report) -> list[Part]:
    parts: list[Part] = [report.title, *(f"  {line}" for line in [*report.notes, *report.changed()]), ""]
    parts += [section for table in report.tables for section in table.sections()]
    if report.findings:
        parts += ["", "Findings", *(f"- {line}" for line in report.findings)]
    return parts
