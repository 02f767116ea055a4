"""Commands on scenarios: run, validate, schema, scenarios."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Annotated

import typer

from hermes.cli.output import Json, Overrides, Scenario, Verbose, print_json, print_table, show_run

__all__ = ["add_to"]


def add_to(app: typer.Typer) -> None:
    for command in (run, validate, schema, scenarios):
        app.command()(command)


def run(
    scenario: Scenario,
    output: Annotated[
        Path | None, typer.Option("-o", "--output", metavar="DIR", help="Write results to this folder.")
    ] = None,
    overrides: Overrides = [],  # noqa: B006  (typer copies it)
    seed: Annotated[str | None, typer.Option(metavar="N", help="Short for --set seed=N.")] = None,
    stepping: Annotated[str | None, typer.Option(metavar="MODE", help="Short for --set stepping=MODE.")] = None,
    as_json: Json = False,
    verbose: Verbose = False,
    quiet: Annotated[bool, typer.Option("--quiet", "-q", help="Print no progress.")] = False,
) -> None:
    """Simulate a scenario: print ten lines, and write summary, tables and a Chrome trace to DIR."""
    from hermes import __version__
    from hermes.api import simulate
    from hermes.results import write_results
    from hermes.scenario import load_scenario, resolved_yaml

    shorts = {"seed": seed, "stepping": stepping}
    overrides = [*overrides, *(f"{key}={value}" for key, value in shorts.items() if value is not None)]
    checked = load_scenario(scenario, overrides)
    if output is not None:  # found out now, not after the simulation
        output.mkdir(parents=True, exist_ok=True)
    results = simulate(checked, progress=not quiet and sys.stderr.isatty())
    if output is not None:
        results.meta["scenario_text"] = resolved_yaml(checked, f"hermes {__version__}", to_dir=output)
        write_results(results, output)
    if as_json:
        print_json(results.summary)
    else:
        show_run(results, scenario, output, verbose=verbose)
    if results.meta.get("interrupted"):
        print("results of what was simulated until the interruption", file=sys.stderr)
        raise typer.Exit(130)


def validate(
    scenario: Scenario,
    overrides: Overrides = [],  # noqa: B006
    resolved: Annotated[bool, typer.Option(help="Print the whole scenario, defaults included.")] = False,
    as_json: Json = False,
) -> None:
    """Check a scenario without running it."""
    from hermes.scenario import load_scenario, resolved_yaml
    from hermes.simulation import Simulation

    checked = load_scenario(scenario, overrides)
    Simulation.of(checked)   # what only shows when it is put together: files, models nobody serves, names that clash
    if as_json:
        print_json(checked.model_dump(mode="json"))
    elif resolved:
        print(resolved_yaml(checked, f"{scenario}, resolved; paths are relative to {checked.source.base_dir}"), end="")
    else:
        print(f"{scenario}: valid")


def schema() -> None:
    """Print the JSON Schema of scenarios, for editors."""
    from hermes.scenario import json_schema

    print_json(json_schema())


def scenarios(as_json: Json = False) -> None:
    """List the scenarios that come with hermes."""
    from hermes.scenario import builtin_scenarios
    from hermes.yamlfile import load_yaml

    rows = []
    for name, path in builtin_scenarios().items():
        description = load_yaml(path).child("description")
        rows.append({"name": name, "description": " ".join(str(description.value).split()) if description else ""})
    if as_json:
        print_json(rows)
    else:
        print_table("", ["name", "description"], [[row["name"], row["description"]] for row in rows])
