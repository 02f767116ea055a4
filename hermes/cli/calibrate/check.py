"""`hermes calibrate check`: measured steps beside a profile that was not fitted on them."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from hermes.cli.output import Json, print_json, print_table

__all__ = ["add_to"]


def add_to(app: typer.Typer) -> None:
    app.command()(check)


def check(
    steps: Annotated[Path, typer.Argument(help="The header of measured steps (hermes-steps/1).", show_default=False)],
    profile: Annotated[str, typer.Argument(help="A profile: shipped name or file.", show_default=False)],
    as_json: Json = False,
) -> None:
    """Price measured steps with a profile: by how much it is off, phase by phase."""
    from hermes.calibration.comparison import check_steps
    from hermes.calibration.steps import load_steps
    from hermes.hardware.polynomial import Polynomial

    measured = load_steps(steps)
    lines, _ = check_steps(measured, Polynomial(profile=profile).build(Path()))
    if as_json:
        print_json({"steps": measured.header.name, "profile": profile, "phases": [line.as_dict() for line in lines]})
        return
    print_table(
        f"{profile} on {measured.header.name} ({measured.header.hardware}, {measured.header.engine})",
        ["phase", "steps", "MAPE", "median", "p10", "p90", "worst", "outside", "worst step"],
        [[line.phase, line.errors.points, f"{line.errors.mape:.1%}",
          *(f"{value:+.1%}" for value in (line.errors.median, line.errors.p10, line.errors.p90, line.errors.worst)),
          line.out_of_range, line.worst_step] for line in lines],
    )
