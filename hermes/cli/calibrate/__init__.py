"""`hermes calibrate`: measure an engine, pack what was measured."""

from __future__ import annotations

import typer

from hermes.cli.calibrate import check, link, llm, retrieval

__all__ = ["add_to"]


def add_to(app: typer.Typer) -> None:
    calibrate = typer.Typer(help="Measure hardware: engines, links, indices.", no_args_is_help=True)
    llm.add_to(calibrate)
    check.add_to(calibrate)
    link.add_to(calibrate)
    retrieval.add_to(calibrate)
    app.add_typer(calibrate, name="calibrate")
