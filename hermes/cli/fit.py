"""`hermes fit`: measured steps become a profile."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from hermes.cli.output import Json, print_json, print_table

__all__ = ["add_to"]


def add_to(app: typer.Typer) -> None:
    app.command("fit")(fit)


def fit(
    steps: Annotated[Path, typer.Argument(help="The header of measured steps (hermes-steps/1).", show_default=False)],
    output: Annotated[Path | None, typer.Option("--output", "-o", metavar="FILE", help="Write the profile.")] = None,
    report: Annotated[Path | None, typer.Option(metavar="FILE", help="Write a report in Markdown.")] = None,
    plot: Annotated[
        Path | None, typer.Option(metavar="FILE", help="Write a figure (PNG) of predicted against measured times.")
    ] = None,
    name: Annotated[str, typer.Option(help="Name of the profile; otherwise that of the steps.")] = "",
    as_json: Json = False,
) -> None:
    """Fit a hardware profile on measured steps.

    Polynomials of batch statistics per kind of step, chosen by cross-validation over configurations and monotone in
    every feature. Prints errors on configurations the fit has not seen, and what the data cannot tell.
    """
    from hermes.calibration.fit import fit_steps, write_profile
    from hermes.calibration.fit_plot import save_plot
    from hermes.calibration.fit_report import phase_table
    from hermes.calibration.fit_report import report as markdown
    from hermes.calibration.steps import load_steps
    from hermes.config.writing import write_text

    result = fit_steps(load_steps(steps), name)
    if output is not None:
        write_profile(result, output)
    if report is not None:
        write_text(report, markdown(result))
    if plot is not None:
        save_plot(result, plot)
    if as_json:
        print_json({
            "profile": result.profile.model_dump(mode="json"), "schemes": result.schemes,
            "excluded": result.excluded, "limits": result.limits,
        })
        return
    head, rows = phase_table(result)
    print_table(f"{result.profile.name}: errors on held-out configurations", head, [list(row) for row in rows])
    for title, lines in (("left out", result.excluded), ("cannot be told", result.limits)):
        for line in lines:
            print(f"{title}: {line}")
    for what, path in (("profile", output), ("report", report), ("figure", plot)):
        if path is not None:
            print(f"{what} written to {path}")
