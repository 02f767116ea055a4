"""`hermes plot`: draw figures of a run or a sweep."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from hermes.cli import complete
from hermes.cli.paths import is_sweep

if TYPE_CHECKING:
    from matplotlib.figure import Figure

__all__ = ["add_to"]

FIGURES = ("breakdown", "latency", "utilisation", "clients", "queue")   # as in `hermes.results.drawing`


def add_to(app: typer.Typer) -> None:
    app.command()(plot)


def plot(
    run: Annotated[Path, typer.Argument(
        metavar="DIR", help="A folder that `hermes run -o` or `hermes sweep -o` wrote.", show_default=False)],
    output: Annotated[Path, typer.Option("-o", "--output", metavar="FILE", help="A .png, .svg or .pdf file.")],
    kind: Annotated[
        str | None, typer.Option("--kind", metavar="KIND", autocompletion=complete.plots,
                                 help=f"Of a run, one of {', '.join(FIGURES)} [breakdown].")
    ] = None,
) -> None:
    """Draw a run or a sweep.

    Figures of a run: where time goes (breakdown), latency distributions, utilisation, clients and queues over time.
    Figure of a sweep: latency, throughput and goodput of every point.
    """
    from hermes.config.writing import replacing
    from hermes.errors import InputError, Verbatim, suggest

    if kind is not None and kind not in FIGURES:
        raise InputError(f"one of {', '.join(FIGURES)}", kind, field="--kind", suggestion=suggest(kind, FIGURES))
    if output.suffix not in (".png", ".svg", ".pdf"):
        raise InputError("a .png, .svg or .pdf file", str(output), field="--output")
    if is_sweep(run):
        if kind is not None:
            raise InputError(Verbatim("a sweep has one figure: leave --kind out, or name the folder of a run"),
                             field="--kind")
        figure = _of_sweep(run)
    else:
        figure = _of_run(run, kind or "breakdown")
    with replacing(output) as path:
        figure.savefig(path, dpi=120, format=output.suffix[1:])
    print(f"written to {output}")


def _of_sweep(folder: Path) -> Figure:
    from hermes.explore import open_sweep
    from hermes.explore.plots import overview

    return overview(open_sweep(folder))


def _of_run(folder: Path, kind: str) -> Figure:
    from hermes.results.plots import interruption
    from hermes.results.stored import open_run

    results = open_run(folder)
    said = interruption(results)
    if said is not None:
        print(f"note: the run was {said}", file=sys.stderr)
    return results.plot(kind)
