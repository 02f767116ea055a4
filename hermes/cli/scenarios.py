"""Commands on scenarios: run, validate, schema, scenarios."""

from __future__ import annotations

import shlex
import sys
from collections.abc import Mapping, Sequence
from contextlib import nullcontext
from pathlib import Path
from typing import Annotated, Any

import typer

from hermes.cli.output import Answer, Overrides, Quiet, Scenario, Verbose, to_json
from hermes.cli.paths import Overwrite, free_folder
from hermes.site import page_url

__all__ = ["run", "scenarios", "schema", "validate"]


def run(
    scenario: Scenario,
    output: Annotated[
        Path | None, typer.Option("-o", "--output", metavar="DIR", help="Write results to this folder.")
    ] = None,
    overwrite: Overwrite = False,
    overrides: Overrides = [],  # noqa: B006  (typer copies it)
    seed: Annotated[str | None, typer.Option(metavar="N", help="Short for --set seed=N.")] = None,
    stepping: Annotated[str | None, typer.Option(metavar="MODE", help="Short for --set stepping=MODE.")] = None,
    trace: Annotated[bool, typer.Option("--trace", help="Write a Chrome trace to DIR, too.")] = False,
    trace_events: Annotated[
        int | None, typer.Option(min=1, max=10**9, metavar="N", help="Write one of at most N events [200,000].")
    ] = None,
    verbose: Verbose = False,
    quiet: Quiet = False,
) -> Answer:
    """Simulate a scenario: print ten lines, and write a summary and tables to DIR."""
    from hermes import __version__
    from hermes.api import simulate
    from hermes.errors import HermesError
    from hermes.results.brief import parts
    from hermes.results.files.export import TRACE, write_results
    from hermes.results.files.trace import MAX_TRACE_EVENTS
    from hermes.scenario import load_scenario, resolved_yaml

    shorts = {"seed": seed, "stepping": stepping}
    overrides = [*overrides, *(f"{key}={value}" for key, value in shorts.items() if value is not None)]
    trace_events = trace_events or (MAX_TRACE_EVENTS if trace else None)
    if trace_events and output is None:
        raise HermesError("a trace is written to the folder of the results: name one with -o DIR")
    checked = load_scenario(scenario, overrides)
    with nullcontext() if output is None else free_folder(output, overwrite=overwrite):
        results = simulate(checked, progress=not quiet and sys.stderr.isatty(), alternatives=True)
        if output is not None:
            results.meta["scenario_text"] = resolved_yaml(
                checked, f"hermes {__version__}", to_dir=output, defaults=True)
            write_results(results, output, trace_events=trace_events, held=True)
    results.meta["files"] = _files(scenario, output, overrides, verbose)
    if output is not None and "trace_cut" in results.meta:
        print(f"note: {output / TRACE}: {results.meta['trace_cut']} (--trace-events)", file=sys.stderr)
    if results.meta.get("interrupted"):
        print("results of what was simulated until the interruption", file=sys.stderr)
    code = 130 if results.meta.get("interrupted") else _all_were_rejected(results.summary["requests"])
    return Answer(results.summary, [*parts(results.summary, results.meta, verbose=verbose),
                                  *results.meta.get("remarks", [])], code)


def _files(scenario: str, output: Path | None, overrides: Sequence[str], verbose: bool) -> str:
    """Return the folder of a run's files and the next command to type."""
    if output is None:
        same = shlex.join([scenario, *(word for each in overrides for word in ("--set", each))])
        more = "" if verbose else " (-v: more)"
        return f"none; next: hermes run {same} -o {shlex.quote(f'runs/{Path(scenario).stem}')}{more}"
    folder = shlex.quote(str(output))
    return f"{folder}; next: hermes plot {folder} -o {shlex.quote(f'{output.name}.png')}"


def _all_were_rejected(requests: Mapping[str, Any]) -> int:
    """Print the reason on stderr and return 1 if every request was rejected; else return 0."""
    if not requests["rejected"] or requests["rejected"] < requests["total"]:
        return 0
    reasons = sorted(requests["reject_reasons"].items(), key=lambda item: -item[1])
    more = f" (and {len(reasons) - 1} other reasons)" if len(reasons) > 1 else ""
    said = f"all {requests['total']:,} requests were rejected: {reasons[0][0]}{more}"
    print(f"hermes: {said}", file=sys.stderr)
    return 1


def validate(
    scenario: Scenario,
    overrides: Overrides = [],  # noqa: B006
    resolved: Annotated[bool, typer.Option(help="Print the whole scenario with its defaults.")] = False,
) -> Answer:
    """Check a scenario without running it."""
    from hermes.errors import warn_all
    from hermes.scenario import load_scenario, resolved_yaml
    from hermes.scenario.build import build

    checked = load_scenario(scenario, overrides)
    # building finds missing files, models without a client and names that clash
    built = build(checked)
    warn_all(built.warnings)
    title = f"{scenario}, resolved; paths are relative to {checked.source.base_dir}"
    return Answer(checked.model_dump(mode="json"), [resolved_yaml(checked, title).rstrip("\n")] if resolved
                  else [f"{scenario}: valid", *built.remarks])


def schema(
    sweep: Annotated[bool, typer.Option("--sweep", help="Print the schema of sweeps instead.")] = False,
    explain: Annotated[str | None, typer.Option(
        metavar="KEY", help="Print the reference of a key instead, such as clients.scheduler or router.llm_d.")] = None,
) -> None:
    """Print the JSON Schema of scenarios."""
    from hermes.explore import sweep_schema
    from hermes.scenario.editor_schema import json_schema

    if explain is not None:
        print(_explained(explain), end="")
    else:
        print(to_json(sweep_schema() if sweep else json_schema()))


schema.__doc__ = f"Print the JSON Schema of scenarios, for editors, or explain a key: {page_url('reference/scenario')}"


def _explained(path: str) -> str:
    """Return the reference of a key, and of the keys or kinds below it, as text for a terminal."""
    from hermes.config.registry import Registry
    from hermes.results.layout import Part, Section, labelled, to_text
    from hermes.scenario.key_reference import Key, keys_of, kinds_of, places

    def words(key: Key) -> list[str]:
        return [text.replace("`", "").replace("**", "") for text in (key.type, key.default, key.text)]

    def about(kind: object) -> str:
        return " ".join((kind.__doc__ or "").split())

    found = places(path)
    alike: dict[tuple[str, ...], list[str]] = {}   # `fleet.start` is one key of three kinds of clients
    for place in found:
        said = words(place.key) if place.key else ["", "", about(place.section)]
        alike.setdefault(tuple(said), []).append(place.path)
    heads = ("type", "default", "meaning")
    parts: list[Part] = [labelled([
        *(("key", name) for name in dict.fromkeys(names)),
        *((head, text) for head, text in zip(heads, said, strict=True) if text)]) for said, names in alike.items()]
    for section in dict.fromkeys(place.section for place in found):
        if isinstance(section, Registry):
            rows = [[kind, about(section.get(kind))] for kind in section.names()]
            parts.append(Section("", ["kind", "meaning"], rows))
        elif section and (keys := keys_of(section)):
            parts.append(Section("".join(f"kind {kind}" for kind in kinds_of(section)[:1]), ["key", *heads],
                                 [[key.name, *words(key)] for key in keys]))
    return to_text(parts if path else parts[1:])


SECTIONS = {
    "": "scenarios (hermes run NAME)",
    "validation": "scenarios of comparisons with real engines and other simulators",
    "studies": "scenarios of studies (hermes study NAME runs a whole study)",
}


def scenarios() -> Answer:
    """List the scenarios that come with hermes; those of studies stand apart."""
    from hermes.config.yaml_document import load_yaml
    from hermes.results.layout import Section
    from hermes.scenario import builtin_scenarios

    rows = []
    for name, path in builtin_scenarios().items():
        description = load_yaml(path).child("description")
        group = name.split("/")[0]
        rows.append({"name": name, "description": " ".join(str(description.value).split()) if description else "",
                     "group": group if group in SECTIONS else ""})
    rows.sort(key=lambda row: row["name"] != "quickstart")   # the one to start with
    return Answer(rows, [
        Section(title, ["name", "description"], [[row["name"], row["description"]] for row in rows
                                                 if row["group"] == group]) for group, title in SECTIONS.items()])
