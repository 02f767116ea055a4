"""`hermes optimize`: the settings of a scenario that no others beat."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from hermes.cli.output import Answer, Overrides, SearchOptions, Verbose
from hermes.units import counted

__all__ = ["optimize"]


def optimize(
    source: Annotated[Path, typer.Argument(metavar="SPACE.yaml", help="Keys to vary, objectives, constraints.",
                                           show_default=False)],
    output: Annotated[Path, typer.Option("-o", "--output", metavar="DIR", help="Folder of the search; a repeated call "
                                         "continues.")],
    overrides: Overrides = [],  # noqa: B006
    trials: Annotated[int | None, typer.Option(min=1, help="Settings to try, instead of the file's.")] = None,
    search: SearchOptions = SearchOptions(),  # noqa: B008  (frozen)
    verbose: Verbose = False,
) -> Answer:
    """Search for the settings of a scenario that no others beat in all objectives.

    Writes the front as a table, a figure and scenarios. Exit code 1 if no settings meet the constraints, or if a
    simulation failed twice (its worker was killed): the front may then lack settings.
    """
    from dataclasses import replace

    from hermes.explore.optimize import optimize as find
    from hermes.explore.optimize.files import failed_lines, front_rows, plain, write
    from hermes.explore.optimize.space import load_space
    from hermes.results.layout import Section, labelled
    from hermes.results.progress import SearchProgress

    space = load_space(source, overrides)
    if trials is not None:
        space = replace(space, config=space.config.model_copy(update={"trials": trials}))
    with search.executor_of() as executor, SearchProgress(quiet=search.quiet, verbose=verbose) as progress:
        found = find(space, output, executor, progress)
    files = write(found, output)
    refused = sum(bool(one.refused) for one in found.tried)
    feasible = sum(one.feasible for one in found.tried)
    unsettled = sum(bool(one.unsettled) for one in found.tried)
    following = f"; next: hermes run {output / 'best-0.yaml'}" if found.front else ""
    return Answer(plain(found), [
        Section("front, incomplete" if found.failed else "front", *front_rows(found)),
        labelled([
            ("tried", f"{counted(len(found.tried), 'setting')}{', all that there are' if found.whole else ''}; "
                      f"{feasible} within the constraints, {refused} cannot be simulated, {len(found.failed)} failed"
                      + (f", {unsettled} did not settle" if unsettled else "")),
            *(("failed", line) for line in failed_lines(found)),
            ("files", f"{output}: {', '.join(files)}{following}"),
        ])], int(bool(found.failed or not found.front)))
