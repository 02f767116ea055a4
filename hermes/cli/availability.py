"""`hermes availability`: the share of a month in which a scenario keeps its SLO while replicas fail."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from hermes.cli.output import Answer, Overrides, Scenario, SearchOptions, Verbose

__all__ = ["availability"]


def availability(
    scenario: Scenario,
    slo: Annotated[str | None, typer.Option(
        metavar="LIMITS", help="Limits such as ttft_p99=1s,tpot_p99=50ms, instead of the scenario's.")] = None,
    days: Annotated[float, typer.Option(min=0.01, max=3650, help="Days of a month.")] = 30.0,
    months: Annotated[int, typer.Option(min=1, max=1000, help="Months to simulate; the interval is over them.")] = 20,
    overrides: Overrides = [],  # noqa: B006
    output: Annotated[Path | None, typer.Option(
        "-o", "--output", metavar="DIR", help="Keep the simulations here, as two sweeps; a repeated call continues.")]
    = None,
    search: SearchOptions = SearchOptions(),  # noqa: B008  (frozen)
    verbose: Verbose = False,
) -> Answer:
    """Find the share of a month in which a scenario keeps its SLO while its replicas fail at random.

    Quiet time is skipped: incidents are simulated without requests, each state and each kind of incident once with
    them. A closed form stands beside.
    """
    from hermes.explore.availability import availability as find
    from hermes.explore.availability.text import lines, plain, states_table, windows_table
    from hermes.explore.objective import slo_overrides
    from hermes.results.layout import labelled
    from hermes.results.progress import SearchProgress

    settings = [*overrides, *(slo_overrides(slo) if slo is not None else [])]
    with search.executor_of() as executor, SearchProgress(quiet=search.quiet, verbose=verbose) as progress:
        found = find(scenario, days=days, months=months, overrides=settings, out=output, executor=executor,
                     progress=progress)
    files = [] if output is None else [("files", f"{output}; next: hermes sweep {output}/windows")]
    tables = [states_table(found), *([windows_table(found)] if found.windows else [])]
    return Answer(plain(found), [labelled([*lines(found), *files]), *tables])
