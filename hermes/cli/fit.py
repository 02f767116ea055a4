"""`hermes fit`: fit a profile to measured steps."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from hermes.cli.output import Json, print_json, print_table

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
    from hermes.config.yaml_document import load_yaml
    from hermes.errors import InputError, Verbatim

    stated = load_yaml(steps).child("format")
    kind = None if stated is None else stated.value
    for option, path in (("--steps", engine_steps), ("--link", link)):
        if path is not None and kind != "hermes-terms/1":
            raise InputError("measured terms (hermes-terms/1) with it", Verbatim(str(kind)), field=option,
                             file=str(steps))
    if kind in ("hermes-retrieval/1", "hermes-terms/1"):
        what = "searches" if kind == "hermes-retrieval/1" else "terms"
        if report is not None or plot is not None:
            raise InputError(f"no --report and no --plot: these are {what}")
        if what == "searches":
            _searches(steps, output, name, as_json)
        else:
            _terms(steps, output, engine_steps, link, name, as_json)
        return
    _polynomials(steps, output, report, plot, name, as_json)


def _terms(
    terms: Path, output: Path | None, steps: Path | None, link: Path | None, name: str, as_json: bool,
) -> None:
    """Make kernel tables of measured terms, and a link of their all-reduces; fit the engine's own time to `steps`."""
    from hermes.calibration.fit.engine import fit_engine
    from hermes.calibration.fit.kernels import fit_link, fit_terms
    from hermes.calibration.kernel_files import save_kernels
    from hermes.calibration.steps import load_steps
    from hermes.calibration.terms import load_terms
    from hermes.cli.calibrate.show_terms import fitted_terms, hardware_lines
    from hermes.errors import InputError
    from hermes.hardware.profile import dump_yaml

    for option, path in (("output", output), ("--link", link)):
        if path is not None and path.suffix not in (".yaml", ".yml"):
            raise InputError("a file name that ends in .yaml", str(path), field=option)
    measured = load_terms(terms)
    joined = fit_link(measured, link.stem) if link is not None else None
    made = fit_terms(measured, name or (output.stem if output else measured.header.name))
    engine = fit_engine(load_steps(steps), measured, made.tables(), made.beside) if steps is not None else None
    if output is not None:
        lines = hardware_lines(made, engine, output)
        save_kernels(made.file, made.arrays, output, "\n".join(["Kernel times. In a scenario:", "", *lines]))
    if joined is not None and link is not None:
        dump_yaml(joined, link, "All-reduces. In a scenario or a device description: link: ./" + link.name)
    fitted_terms(measured, made, engine, [path for path in (output, link) if path is not None], as_json)


def _searches(steps: Path, output: Path | None, name: str, as_json: bool) -> None:
    """Fit the cost model of searches."""
    from hermes.calibration.fit.retrieval import fit_retrieval
    from hermes.calibration.retrieval_steps import load_searches
    from hermes.cli.calibrate import command_line
    from hermes.cli.calibrate.show import fitted_searches
    from hermes.services.retrieval_profile import save_retrieval_profile

    searches = load_searches(steps)
    fitted = fit_retrieval(searches, name or (output or steps).stem, command_line())
    if output is not None:
        save_retrieval_profile(fitted, output)
    fitted_searches(searches, fitted, [output], True, as_json)


def _polynomials(
    steps: Path, output: Path | None, report: Path | None, plot: Path | None, name: str, as_json: bool
) -> None:
    from hermes.calibration.fit import fit_steps, write_profile
    from hermes.calibration.fit.plot import save_plot
    from hermes.calibration.fit.report import phase_table
    from hermes.calibration.fit.report import report as markdown
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
