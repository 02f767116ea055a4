"""`hermes plot`: draw a chart of a run or a sweep."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Annotated, Literal

import typer

from hermes.cli import complete
from hermes.cli.paths import is_sweep

__all__ = ["plot"]

# `hermes.results.charts.run_charts.KINDS`
FIGURES = ("latency", "itl", "breakdown", "utilisation", "clients", "notes", "queue", "fleet", "gateway")


def plot(
    run: Annotated[Path, typer.Argument(
        metavar="DIR", help="A folder that `hermes run -o` or `hermes sweep -o` wrote.", show_default=False)],
    output: Annotated[Path, typer.Option("-o", "--output", metavar="FILE", help="A .png or .svg file.")],
    kind: Annotated[
        str | None, typer.Option("--kind", metavar="KIND", autocompletion=complete.plots,
                                 help=f"Of a run, one of {', '.join(FIGURES)} [latency].")
    ] = None,
    x: Annotated[str | None, typer.Option("--x", metavar="COLUMN", help="Of a sweep, with --y: a column of its frame, "
                                          "to draw one against the other.")] = None,
    y: Annotated[str | None, typer.Option("--y", metavar="COLUMN", help="The other column.")] = None,
) -> None:
    """Draw a run or a sweep.

    Figures of a run: latency distributions against the SLO, inter-token latency and queueing (itl), where time goes
    (breakdown), utilisation, clients and queues over time, numbers noted about requests (notes), replicas that come
    and go (fleet), what waits at a gateway (gateway). Figure of a sweep: latency and goodput over its grid, with the
    SLO and the best point; with --x and --y one column against another.
    """
    from hermes.config.writing import replacing
    from hermes.errors import InputError, Verbatim, suggest
    from hermes.results.plots import image

    if kind is not None and kind not in FIGURES:
        raise InputError(f"one of {', '.join(FIGURES)}", kind, field="--kind", suggestion=suggest(kind, FIGURES))
    suffix: Literal["png", "svg"] = "svg" if output.suffix == ".svg" else "png"
    if output.suffix != f".{suffix}":
        raise InputError("a .png or .svg file", str(output), field="--output")
    if (x is None) != (y is None) or (x is not None and not is_sweep(run)):
        raise InputError(Verbatim("--x and --y go together, and with the folder of a sweep"),
                         field="--x" if x is not None else "--y")
    if is_sweep(run):
        from hermes.explore import open_sweep
        from hermes.explore.sweep.plots import plane_chart, sweep_chart

        if kind is not None:
            raise InputError(Verbatim("a sweep has one figure: leave --kind out, or name the folder of a run"),
                             field="--kind")
        made = sweep_chart(open_sweep(run)) if x is None or y is None else plane_chart(open_sweep(run), x, y)
    else:
        from hermes.results.charts.run_charts import chart, interruption
        from hermes.results.files.stored import open_run

        results = open_run(run)
        if (said := interruption(results)) is not None:
            print(f"note: the run was {said}", file=sys.stderr)
        made = chart([(str(results.meta.get("name") or run.name), results)], kind or "latency")
    with replacing(output) as path:
        path.write_bytes(image(made, suffix))
    print(f"written to {output}")
