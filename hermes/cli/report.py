"""`hermes report`: a page about runs or a sweep."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from hermes.cli.paths import is_sweep

__all__ = ["report"]


def report(
    folders: Annotated[list[Path], typer.Argument(
        metavar="DIR...", help="Folders of runs, or the folder of a sweep.", show_default=False)],
    output: Annotated[Path, typer.Option("-o", "--output", metavar="FILE.html", help="The page.")],
) -> None:
    """Write one HTML file about runs, side by side, or about a sweep. It needs no network.

    The ten lines of each run, latency against the SLO, where time goes, queues and memory over time, the most used
    resources, and the scenario. Two runs: what is better and worse. A sweep: its figure, its points and their front.
    """
    from hermes.config.writing import write_text
    from hermes.errors import InputError, Verbatim
    from hermes.explore import open_sweep
    from hermes.explore.sweep.report import sweep_page
    from hermes.results.charts.report_page import MOST_BYTES, runs_page
    from hermes.results.files.stored import open_run

    sweeps = [folder for folder in folders if is_sweep(folder)]
    if sweeps and len(folders) > 1:
        raise InputError(Verbatim("a sweep has a page of its own; give its folder alone"), file=str(sweeps[0]))
    if sweeps:
        text = sweep_page(open_sweep(sweeps[0]))
    else:
        runs = [open_run(folder) for folder in folders]
        names = [str(run.meta.get("name") or folder.name) for run, folder in zip(runs, folders, strict=True)]
        if len(set(names)) < len(names):   # the same scenario several times
            names = [str(folder) for folder in folders]
        text = runs_page(list(zip(names, runs, strict=True)))
    output.parent.mkdir(parents=True, exist_ok=True)
    write_text(output, text)
    size = len(text.encode())
    more = "" if size < MOST_BYTES else "; it is larger than 2 MB"
    print(f"written to {output} ({size / 1e6:.1f} MB{more}); open it in a browser")
