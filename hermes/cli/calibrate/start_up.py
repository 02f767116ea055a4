"""`hermes calibrate start-up`: fit the phases of an engine's start, with the errors on models that were left out."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from hermes.cli.output import Answer

if TYPE_CHECKING:
    from hermes.results.layout import Section

__all__ = ["start_up"]


def start_up(
    data: Annotated[Path, typer.Option("--data", metavar="DIR", help="The folder of the reference sets.")],
    output: Annotated[Path | None, typer.Option(
        "-o", "--output", metavar="FILE.yaml", help="Write the parameters, fitted to all models.")] = None,
    verbose: Annotated[bool, typer.Option("--verbose", "-v", help="Print every model.")] = False,
) -> Answer:
    """Fit the phases of an engine's start to measured ones (`startup/a100.csv`).

    The table has the errors of each phase, and of the whole, on models that the fit did not see. A scenario uses the
    file as `fleet.start_up.times`.
    """
    import numpy as np

    from hermes.calibration.fit.start_up import (
        OTHER,
        PHASES,
        Error,
        errors,
        fit_start_up,
        measured_starts,
        start_up_text,
    )
    from hermes.config.writing import write_text
    from hermes.results.layout import Part, Section

    models = measured_starts(data)
    found = errors(models)
    rows: list[list[object]] = []
    summed: list[dict[str, Any]] = []
    for cache in ("warm", "cold"):
        for phase in PHASES:
            mine = [one for one in found if (one.cache, one.phase) == (cache, phase)]
            worst = max(mine, key=lambda one: abs(one.relative))
            measured, mean = (float(np.mean(each)) for each in (
                [one.measured_s for one in mine], [abs(one.relative) for one in mine]))
            rows.append([cache, phase, f"{measured:.1f}", f"{100 * mean:.1f}", f"{100 * worst.relative:+.1f}",
                         worst.model])
            summed.append({"cache": cache, "phase": phase, "measured_s": measured, "mean": mean,
                           "worst": worst.relative, "model": worst.model})
    parts: list[Part] = [Section(f"Starts of {len(models)} models, each predicted by a fit to the others",
                                 ["cache", "phase", "mean s", "error %", "worst %", "of"], rows)]

    def row(one: Error) -> list[object]:
        return [one.model, one.cache, one.phase, f"{one.predicted_s:.1f}", f"{100 * one.relative:+.1f}"]

    if verbose:
        parts.append(Section("By model", ["model", "cache", "phase", "predicted s", "error %"], [
            row(one) for one in found]))
    if (data / OTHER).is_file():
        parts.append(_of_other_host(data))
    if output is not None:
        write_text(output, start_up_text(fit_start_up(models)))
        parts.append(f"written to {output}")
    return Answer(summed, parts)


def _of_other_host(data: Path) -> Section:
    """Return how well the shipped times, with the factor of one warm start, predict another node."""
    import numpy as np

    from hermes.calibration.fit.start_up import other_host
    from hermes.hardware.start_up import load_start_up
    from hermes.results.layout import Section

    found = other_host(data, load_start_up("vllm-0.10", None))
    rows: list[list[object]] = []
    for cache in ("warm", "cold"):
        of: dict[str, list[tuple[float, bool]]] = {}
        for one in found:
            if one.cache == cache:
                of.setdefault(one.fitted, []).append(
                    (abs(one.predicted_s / one.measured_s - 1.0), one.low <= one.measured_s <= one.high))
        without = of.pop("")
        medians = [float(np.median([error for error, _ in each])) for each in of.values()]
        within = [held for each in of.values() for _, held in each]
        rows.append([cache, *(f"{100 * each:.0f}" for each in (
            float(np.median(medians)), max(medians), float(np.mean(within)),
            float(np.median([error for error, _ in without])), float(np.mean([held for _, held in without]))))])
    return Section("The second node, by the factor of one model's warm start there (medians over the other models)",
                   ["cache", "error %", "worst %", "in range %", "no factor %", "in range %"],
                   rows)
