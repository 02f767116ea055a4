"""`hermes fit-roofline`: fit a card's efficiency factors to measured steps."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Any

import typer

from hermes.cli.output import Answer

__all__ = ["fit_roofline"]


def fit_roofline(
    steps: Annotated[list[Path], typer.Argument(metavar="STEPS.yaml...", help="Measured steps, all of one card.")],
    device: Annotated[str, typer.Option(metavar="DEVICE", help="The card: a shipped device description or a file.")],
    output: Annotated[
        Path | None, typer.Option("-o", "--output", metavar="FILE.yaml", help="Write the factors to this file.")
    ] = None,
    model: Annotated[
        str | None, typer.Option(metavar="MODEL", help="Model of all steps, if their headers name no known one.")
    ] = None,
) -> Answer:
    """Fit the roofline's efficiency factors to measured steps of one card; models and parallelism may be mixed.

    Each model is held out in turn (with one model, its configurations); the error is printed and stored. A scenario
    names the file as `efficiency:`.
    """
    from hermes.calibration.fit.roofline import data_set, efficiency_file, fit_card
    from hermes.calibration.steps import load_steps
    from hermes.errors import inside
    from hermes.hardware.descriptions.devices import load_device
    from hermes.hardware.descriptions.models import load_model
    from hermes.hardware.fitted.profile import dump_yaml
    from hermes.results.layout import Part, Section
    from hermes.results.progress import ProgressBar

    card = load_device(device)
    described = None if model is None else load_model(model)
    loaded = [load_steps(path) for path in steps]
    sets = []
    for path, one in zip(steps, loaded, strict=True):
        with inside(str(path)):
            sets.append(data_set(one, described))
    with ProgressBar("fits") as bar:
        fit = fit_card(sets, card, bar.update)
    file = efficiency_file(output.stem if output else card.name, card, [one.header for one in loaded], sets, fit)
    if output is not None:
        dump_yaml(file, output, f"Shares of the peak rates of {card.name} that classes of operators reach.")
    rows = [[row.steps, row.points, *(f"{value:.1%}" for value in (row.mape, row.bias, row.worst))]
            for row in file.held_out]
    parts: list[Part] = [Section("held out", ["steps", "points", "MAPE", "bias", "worst"], rows)] if rows else []
    parts += [Section(name, ["", ""], _flat(factors.model_dump()))
              for name, factors in (("factors", file.factors), ("factors of 8-bit weights", file.factors_8bit))
              if factors is not None]
    return Answer(file.model_dump(mode="json"), [*parts, *([] if output is None else [f"written to {output}"])])


def _flat(data: dict[Any, Any], prefix: str = "") -> list[tuple[str, str]]:
    rows: list[tuple[str, str]] = []
    for key, value in data.items():
        name = f"{prefix}{key}"
        if isinstance(value, list):
            value = {part.pop("devices"): part for part in value}
        rows += _flat(value, f"{name}.") if isinstance(value, dict) else [(name, f"{value:.4g}")]
    return rows
