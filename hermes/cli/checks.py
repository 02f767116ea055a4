"""Commands that answer yes or no: conform, compare, regress."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from hermes.cli.output import Json, print_json, print_table

__all__ = ["add_to"]

MODES = ("runs", "every_step")


def add_to(app: typer.Typer) -> None:
    app.command()(conform)


def conform(
    paths: Annotated[list[Path], typer.Argument(metavar="PATH...", help="Recorded schedules, or folders of them.")],
    stepping: Annotated[str, typer.Option(metavar="MODE", help="runs, every_step or both.")] = "both",
    as_json: Json = False,
) -> None:
    """Replay recorded engine schedules through the schedulers; exit 1 unless every step is identical."""
    from hermes.conform import conform_file, find_files
    from hermes.errors import InputError, suggest

    if stepping not in (*MODES, "both"):
        raise InputError(f"one of {', '.join((*MODES, 'both'))}", stepping, field="--stepping",
                         suggestion=suggest(stepping, (*MODES, "both")))
    results = [
        (mode, conform_file(path, every_step=mode == "every_step"))
        for path in find_files(paths) for mode in MODES if stepping in (mode, "both")
    ]
    wrong = [(mode, result) for mode, result in results if not result.ok]
    if as_json:
        print_json({
            "files": [{"stepping": mode, **vars(result)} for mode, result in results],
            "identical": len(results) - len(wrong), "replays": len(results),
        })
    else:
        rows = [[result.file, mode, result.steps, result.identical] for mode, result in results]
        print_table("", ["file", "stepping", "steps", "identical"], rows)
        for mode, result in wrong:
            print(f"first difference in {result.file} ({mode}):")
            print_json(result.first_difference)
        print(f"{len(results) - len(wrong)} of {len(results)} replays identical, "
              f"{sum(r.identical for _, r in results)} of {sum(r.steps for _, r in results)} steps")
    raise typer.Exit(1 if wrong else 0)
