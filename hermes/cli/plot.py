"""The command that draws a run."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

__all__ = ["add_to"]

KINDS = ("breakdown", "latency", "utilisation", "clients", "queue")


def add_to(app: typer.Typer) -> None:
    app.command()(plot)


def plot(
    run: Annotated[Path, typer.Argument(metavar="RUN_DIR", help="A folder that `hermes run -o` wrote.")],
    output: Annotated[Path, typer.Option("-o", "--output", metavar="FILE", help="A .png, .svg or .pdf file.")],
    kind: Annotated[str, typer.Option("--kind", metavar="KIND", help=f"One of {', '.join(KINDS)}.")] = "breakdown",
) -> None:
    """Draw a run: where the time goes (breakdown), latency distributions, what is used how much, clients and queues."""
    from hermes.errors import InputError, suggest
    from hermes.results import breakdown_plots, plots
    from hermes.results.stored import open_run

    if kind not in KINDS:
        raise InputError(f"one of {', '.join(KINDS)}", kind, field="--kind", suggestion=suggest(kind, KINDS))
    if output.suffix not in (".png", ".svg", ".pdf"):
        raise InputError("a .png, .svg or .pdf file", str(output), field="--output")
    draw = {
        "breakdown": breakdown_plots.breakdown, "latency": plots.latency_cdf,
        "utilisation": breakdown_plots.utilisation, "clients": plots.client_timeseries, "queue": plots.queue,
    }[kind]
    draw(open_run(run)).savefig(output, dpi=120)
    print(f"written to {output}")
