"""`hermes fit`: fit a profile to measured steps."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from hermes.cli.output import Json

__all__ = ["add_to"]


def add_to(app: typer.Typer) -> None:
    app.command("fit")(fit)


def fit(
    steps: Annotated[
        Path, typer.Argument(help="The header of measured steps, searches or terms.", show_default=False)],
    output: Annotated[Path | None, typer.Option("--output", "-o", metavar="FILE", help="Write the profile.")] = None,
    report: Annotated[Path | None, typer.Option(metavar="FILE", help="Write a report in Markdown.")] = None,
    plot: Annotated[
        Path | None, typer.Option(metavar="FILE", help="Write a figure (PNG) of predicted against measured times.")
    ] = None,
    name: Annotated[str, typer.Option(help="Name of the profile; otherwise that of the steps.")] = "",
    engine_steps: Annotated[Path | None, typer.Option("--steps", metavar="STEPS.yaml", help=
        "With terms: measured steps of an engine, for its own time of each step.")] = None,
    link: Annotated[Path | None, typer.Option(metavar="LINK.yaml", help=
        "With terms: write the measured all-reduces as a link, for `link:` of a device or client.")] = None,
    as_json: Json = False,
) -> None:
    """Fit a hardware profile to measured steps, or make kernel tables of measured terms.

    Fits one polynomial of batch statistics per kind of step, chosen by cross-validation over configurations and
    monotone in every feature. Prints the errors on held-out configurations, and which quantities the data leaves
    undetermined.
    """
    from hermes.calibration.measurements.base import FitOptions, kind_of_file
    from hermes.cli.calibrate import command_line, print_shown
    from hermes.errors import InputError, Verbatim

    kind, options = kind_of_file(steps), FitOptions(
        output, name, command_line(), report, plot, engine_steps, link)
    for option in ("report", "plot", "steps", "link"):
        if getattr(options, option) and option not in kind.fit_options:
            flag = f"--{option.replace('_', '-')}"
            raise InputError(Verbatim(f"{kind.format} takes no {flag}; leave it out"), field=flag, file=str(steps))
    print_shown(kind.fit(steps, options), as_json)
