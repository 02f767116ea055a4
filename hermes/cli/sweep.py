"""`hermes sweep`: run a scenario in many variants, and go on where an earlier run of it stopped."""

from __future__ import annotations

import os
import sys
import time
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from hermes.cli import complete
from hermes.cli.output import Json, Overrides, print_json, print_table

if TYPE_CHECKING:
    from hermes.explore import Plan, SweepResults

__all__ = ["add_to"]

SHOWN = 12   # points that failed, before the rest is only counted


def add_to(app: typer.Typer) -> None:
    app.command("sweep")(sweep)


def sweep(
    source: Annotated[str, typer.Argument(
        metavar="SWEEP", help="A sweep's file, the name of a built-in one, or the folder of one that was run.",
        show_default=False, autocompletion=complete.sweeps)],
    output: Annotated[Path | None, typer.Option("-o", "--output", metavar="DIR", help="Where its points are kept.")]
    = None,
    overrides: Overrides = [],  # noqa: B006  (typer copies it)
    workers: Annotated[int, typer.Option(min=0, max=4096, help="Processes; 0 runs everything in this one.")]
    = os.cpu_count() or 1,
    dry_run: Annotated[bool, typer.Option("--dry-run", help="Check and list the points, run nothing.")] = False,
    as_json: Json = False,
    quiet: Annotated[bool, typer.Option("--quiet", "-q", help="Print no progress.")] = False,
) -> None:
    """Run the points of a sweep that DIR has no results of yet, and print a table of all. Exit code 1 if any failed.

    Given the folder of a sweep, print its table.
    """
    from hermes.errors import InputError
    from hermes.explore import open_sweep, plan_sweep, run_sweep

    if output is None and not dry_run and (Path(source) / "sweep.json").is_file():
        opened = open_sweep(source)
        if as_json:
            print_json(opened.frame().to_dict("records"))
        else:
            print(opened.to_text(), end="")
            _show_failed(opened, opened.failed())
        return
    with _Bar(show=not quiet and sys.stderr.isatty()) as bar:
        if dry_run:
            plan = plan_sweep(source, output, overrides=overrides, workers=workers, progress=bar.update)
        elif output is None:
            raise InputError("a folder for the results: -o DIR", None, field="--output")
        else:
            started = time.perf_counter()
            results = run_sweep(source, output, overrides=overrides, workers=workers, progress=bar.update)
            took = time.perf_counter() - started
    if dry_run:
        _show_plan(plan, as_json)
        return
    failed = results.failed()
    if as_json:
        print_json({"name": results.name, "points": len(results), "failed": failed, "run": bar.run, "wall_s": took})
    else:
        _show_results(results, failed, bar.run, took)
    if failed:
        raise typer.Exit(1)


def _show_plan(plan: Plan, as_json: bool) -> None:
    config = plan.sweep.config
    rows: list[dict[str, Any]] = [
        {"point": p.point.index, **p.point.settings, "seed": p.seed, "finished": p.hash in plan.finished}
        for p in plan.points
    ]
    if as_json:
        print_json({"name": config.name, "points": rows, "to_run": len(plan.waiting)})
        return
    columns = list(dict.fromkeys(name for row in rows for name in row))
    print_table("", columns, [[_cell(row.get(name, "")) for name in columns] for row in rows])
    print(f"{config.name}: {len(rows)} points, {len(plan.waiting)} to run")


def _cell(value: Any) -> Any:
    return {True: "yes", False: "no"}[value] if isinstance(value, bool) else value


def _show_results(results: SweepResults, failed: dict[int, str], run: int, took: float) -> None:
    print(results.to_text())
    print(f"{results.name}: {len(results)} points, {run} run in {took:.1f} s, {len(failed)} failed; "
          f"written to {results.path / 'results.parquet'}")
    _show_failed(results, failed)


def _show_failed(results: SweepResults, failed: dict[int, str]) -> None:
    for number, reason in list(failed.items())[:SHOWN]:
        said = ", ".join(f"{name}={value}" for name, value in results.settings(number).items())
        print(f"point {number} ({said}): {reason}")
    if len(failed) > SHOWN:
        print(f"... and {len(failed) - SHOWN} more")


class _Bar:
    """A progress bar over points, on a terminal; counts what was run."""

    def __init__(self, show: bool) -> None:
        from rich.console import Console
        from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn

        self._progress = Progress(
            TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn(), TimeRemainingColumn(),
            console=Console(stderr=True), disable=not show, transient=True,
        )
        self._task = self._progress.add_task("points", total=None)
        self.run = 0
        self._before: int | None = None

    def __enter__(self) -> _Bar:
        self._progress.start()
        return self

    def __exit__(self, *exc: object) -> None:
        self._progress.stop()

    def update(self, what: str, done: int, total: int) -> None:
        if what == "run":
            self._before = done if self._before is None else self._before
            self.run = done - self._before
        self._progress.update(self._task, description=what, completed=done, total=total)
