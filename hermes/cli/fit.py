"""`hermes fit`: fit a profile to measured steps."""

from __future__ import annotations

from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Annotated

import typer

from hermes.cli.output import Answer

__all__ = ["fit"]


def fit(
    steps: Annotated[
        Path, typer.Argument(help="The header of measured steps, searches or terms, or a journal of them (.jsonl).",
                             show_default=False)],
    output: Annotated[Path | None, typer.Option("--output", "-o", metavar="FILE", help="Write the profile.")] = None,
    plot: Annotated[
        Path | None, typer.Option(metavar="FILE", help="Write a figure (PNG) of predicted against measured times.")
    ] = None,
    name: Annotated[str, typer.Option(help="Name of the profile; otherwise that of the steps.")] = "",
    engine_steps: Annotated[Path | None, typer.Option("--steps", metavar="STEPS.yaml", help=
        "With terms: measured steps of an engine, for its own time of each step.")] = None,
) -> Answer:
    """Fit a hardware profile to measured steps, or make kernel tables of measured terms.

    Fits one polynomial of batch statistics per kind of step, chosen by cross-validation over configurations and
    monotone in every feature. Prints the errors on held-out configurations, and which quantities the data leaves
    undetermined.
    """
    from hermes.calibration.measurements.base import FitOptions, kind_of_file
    from hermes.cli.calibrate import command_line
    from hermes.errors import InputError, Verbatim

    with TemporaryDirectory(prefix="hermes-") as folder:
        file, more = (path if path is None else _packed(path, Path(folder)) for path in (steps, engine_steps))
        assert file is not None
        kind = kind_of_file(file)
        options = FitOptions(output, name, command_line(), plot, more)
        for option in ("plot", "steps"):
            if getattr(options, option) and option not in kind.fit_options:
                raise InputError(Verbatim(f"{kind.format} takes no --{option}; leave it out"), field=f"--{option}",
                                 file=str(steps))
        return Answer(*kind.fit(file, options))


def _packed(path: Path, folder: Path) -> Path:
    """Return a measured file, that of a collector's journal, complete or cut off, if `path` is one."""
    from hermes.calibration.measurements.base import kind_of_journal
    from hermes.cli.calibrate import command_line

    if path.suffix != ".jsonl":
        return path
    file = folder / f"{path.name.partition('.')[0]}.yaml"
    kind_of_journal(path).pack(path, file, command=command_line())
    return file
