"""`hermes capacity`: the highest load, or the fewest clients, with which a scenario meets its SLO."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from hermes.cli.output import Answer, Overrides, Scenario, SearchOptions, Verbose

__all__ = ["capacity"]


def capacity(
    scenario: Scenario,
    slo: Annotated[str | None, typer.Option(
        metavar="LIMITS", help="Limits such as ttft_p99=1s,tpot_p99=50ms, instead of the scenario's.")] = None,
    over: Annotated[str, typer.Option(
        metavar="WHAT", help="rate: the load. clients, or clients:NAME: the number of clients.")] = "rate",
    overrides: Overrides = [],  # noqa: B006
    output: Annotated[Path | None, typer.Option(
        "-o", "--output", metavar="DIR", help="Keep the simulations here, as a sweep; a repeated call continues.")]
    = None,
    seeds: Annotated[int, typer.Option(min=1, max=10, help="Most seeds to repeat the search with.")] = 5,
    within: Annotated[float, typer.Option(
        min=0.001, max=1.0, help="Half width of the 95% interval that is narrow enough, relative.")] = 0.02,
    runs: Annotated[int, typer.Option(min=2, max=100, help="Most simulations of one seed at one length; those for the "
                                      "ends of the interval come on top.")] = 12,
    search: SearchOptions = SearchOptions(),  # noqa: B008  (frozen)
    verbose: Verbose = False,
) -> Answer:
    """Find the highest load, or the fewest clients, with which a scenario meets its SLO.

    A load is met if the SLO holds and the queue does not grow. Loads are 1% apart. Exit code 1 if the SLO is missed
    at every load tried.
    """
    from hermes.explore.capacity import capacity as find
    from hermes.explore.capacity.text import lines, plain, trial_heads, trial_rows
    from hermes.explore.objective import limits_text, slo_overrides
    from hermes.results.layout import Section, labelled
    from hermes.results.progress import SearchProgress
    from hermes.scenario import load_scenario

    settings = [*overrides, *(slo_overrides(slo) if slo is not None else [])]
    with search.executor_of() as executor, SearchProgress(quiet=search.quiet, verbose=verbose) as progress:
        found = find(scenario, over=over, overrides=settings, seeds=seeds, within=within, max_runs=runs, out=output,
                     executor=executor, progress=progress)
    files = [] if output is None else [("files", f"{output}; next: hermes sweep {output}")]
    return Answer(plain(found), [
        labelled([*lines(found, limits_text(load_scenario(scenario, settings).slo)), *files]),
        *([Section("simulations", trial_heads(found), trial_rows(found))] if verbose else [])],
        int(found.value is None))
