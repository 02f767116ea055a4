"""`hermes sweep`: run a scenario in many variants; continue an interrupted sweep."""

from __future__ import annotations

import sys
import time
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from hermes.cli import complete
from hermes.cli.output import Answer, Overrides, SearchOptions, cores
from hermes.cli.paths import is_sweep
from hermes.units import counted

if TYPE_CHECKING:
    from hermes.explore import Plan, SweepResults
    from hermes.results.layout import Part

__all__ = ["sweep"]

SHOWN = 12   # failed points to print; the rest is counted


def sweep(
    source: Annotated[str, typer.Argument(
        metavar="SWEEP", help="A sweep file, a built-in sweep, or the folder of a finished sweep.",
        show_default=False, autocompletion=complete.sweeps)],
    output: Annotated[Path | None, typer.Option("-o", "--output", metavar="DIR", help="Folder that keeps its points.")]
    = None,
    overrides: Overrides = [],  # noqa: B006  (typer copies it)
    dry_run: Annotated[bool, typer.Option("--dry-run", help="Check and list the points without running them.")] = False,
    search: SearchOptions = SearchOptions(),  # noqa: B008  (frozen)
) -> Answer:
    """Run the points of a sweep that DIR has no results of yet, and print a table of all. Exit 1 if a point failed.

    For the folder of a sweep, print its table.
    """
    from hermes.config.registry import plugin_modules
    from hermes.errors import InputError
    from hermes.explore import open_sweep, plan_sweep, run_sweep
    from hermes.explore.assumed import assumes_of_first_point
    from hermes.explore.sweep.hashing import OTHER_REGISTRIES
    from hermes.results.layout import labelled
    from hermes.results.progress import ProgressBar

    if output is None and not dry_run and is_sweep(Path(source)):
        opened = open_sweep(source)
        return Answer(opened.frame().to_dict("records"), [opened.to_text().rstrip("\n"), *_failed(opened)])
    ran: list[int] = []   # number of points with an outcome, at the start and after each run
    with ProgressBar("points", show=not search.quiet) as bar:
        def progress(what: str, done: int, total: int) -> None:
            bar.update(done, total, what)
            if what == "run":
                ran.append(done)

        if dry_run:
            plan = plan_sweep(source, output, overrides=overrides, progress=progress,
                              workers=search.workers if search.workers >= 0 else cores())
        elif output is None:
            raise InputError("a folder for the results: -o DIR", None, field="--output")
        else:
            started = time.perf_counter()
            try:
                with search.executor_of(plugin_modules(OTHER_REGISTRIES)) as executor:
                    results = run_sweep(source, output, overrides=overrides, progress=progress, executor=executor)
            except KeyboardInterrupt:
                print(f"{output} keeps {counted(ran[-1] if ran else 0, 'finished point')}; the same command continues",
                      file=sys.stderr)
                raise
            took = time.perf_counter() - started
    if dry_run:
        return _planned(plan)
    failed, run = results.failed(), len(ran) - 1
    assumes = [("assumes", line) for line in assumes_of_first_point(source, overrides, results)]
    parts: list[Part] = [labelled(assumes), ""] if assumes else []
    return Answer(
        {"name": results.name, "points": len(results), "failed": failed, "run": run, "wall_s": took},
        [results.to_text(), *parts,
         f"{results.name}: {counted(len(results), 'point')}, {run} run in {took:.1f} s, {len(failed)} failed; "
         f"written to {results.path / 'results.parquet'}", *_failed(results)], int(bool(failed)))


def _planned(plan: Plan) -> Answer:
    from hermes.results.layout import Section

    config = plan.sweep.config
    rows: list[dict[str, Any]] = [
        {"point": p.point.index, **p.point.settings, "seed": p.seed, "finished": p.hash in plan.finished}
        for p in plan.points
    ]
    columns = list(dict.fromkeys(name for row in rows for name in row))
    return Answer({"name": config.name, "points": rows, "to_run": len(plan.waiting)}, [
        Section("", columns, [[_cell(row.get(name, "")) for name in columns] for row in rows]),
        f"{config.name}: {counted(len(rows), 'point')}, {len(plan.waiting)} to run"])


def _cell(value: Any) -> Any:
    return {True: "yes", False: "no"}[value] if isinstance(value, bool) else value


def _failed(results: SweepResults) -> list[str]:
    failed = results.failed()
    lines = []
    for number, reason in list(failed.items())[:SHOWN]:
        said = ", ".join(f"{name}={value}" for name, value in results.settings(number).items())
        lines.append(f"point {number} ({said}): {reason}")
    return [*lines, *([f"... and {len(failed) - SHOWN} more"] if len(failed) > SHOWN else [])]
