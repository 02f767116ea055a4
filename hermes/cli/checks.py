"""Commands that check or compare predictions: conform, compare, regress."""

from __future__ import annotations

import sys
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from hermes.cli.evidence import checkout
from hermes.cli.output import Answer, Overrides, Plugins, command_group, to_json
from hermes.cli.paths import scenario_of
from hermes.units import counted

if TYPE_CHECKING:
    from hermes.results.layout import Part

__all__ = ["compare", "conform", "regress"]

MODES = ("runs", "every_step")
ENGINES = ("vllm", "sglang")
Golden = Annotated[Path, typer.Option("-f", "--file", metavar="FILE", help="The golden file, YAML or JSON.")]


def conform(
    paths: Annotated[list[Path], typer.Argument(metavar="PATH...", help="Recorded schedules, or folders of them.")],
    stepping: Annotated[str, typer.Option(metavar="MODE", help="runs, every_step or both.")] = "both",
    engine: Annotated[str | None, typer.Option(
        metavar="NAME", help="vllm or sglang: PATH is a scenario, whose schedules are compared with those of the "
        "engine itself.")]
    = None,
    python: Annotated[str, typer.Option(metavar="PATH", show_default="this one",
                                           help="Interpreter that has the engine.")] = sys.executable,
    overrides: Overrides = [],  # noqa: B006
) -> Answer:
    """Compare schedules with an engine's, step by step; exit 1 unless every step is identical.

    Either recorded ones, replayed through the schedulers, or with --engine those of a scenario, for which the engine's
    own scheduler runs without a model. Recorded schedules and SGLang's scheduler need a checkout.
    """
    from hermes.errors import InputError, Verbatim, suggest
    from hermes.results.layout import Section

    if engine is not None:
        if engine not in ENGINES or len(paths) != 1:
            raise InputError("vllm or sglang, and one scenario", engine, field="--engine",
                             suggestion=suggest(engine, ENGINES))
        return _conform_scenario(str(paths[0]), engine, python, overrides)
    if overrides:
        raise InputError(Verbatim("belongs to --engine: a recorded schedule has its own settings"), field="--set")
    if stepping not in (*MODES, "both"):
        raise InputError(f"one of {', '.join((*MODES, 'both'))}", stepping, field="--stepping",
                         suggestion=suggest(stepping, (*MODES, "both")))
    with checkout("a replay of recorded schedules"):
        from evidence.schedules.vllm_replay import conform_file, find_files

    results = [
        (mode, conform_file(path, every_step=mode == "every_step"))
        for path in find_files(paths) for mode in MODES if stepping in (mode, "both")
    ]
    wrong = [(mode, result) for mode, result in results if not result.ok]
    rows = [[result.file, mode, result.steps, result.identical] for mode, result in results]
    parts: list[Part] = [Section("", ["file", "stepping", "steps", "identical"], rows)]
    for mode, result in wrong:
        parts += [f"first difference in {result.file} ({mode}):", to_json(result.first_difference)]
    parts.append(f"{len(results) - len(wrong):,} of {counted(len(results), 'replay')} identical, "
                 f"{sum(r.identical for _, r in results):,} of {counted(sum(r.steps for _, r in results), 'step')}")
    return Answer({"files": [{"stepping": mode, **vars(result)} for mode, result in results],
                   "identical": len(results) - len(wrong), "replays": len(results)}, parts, int(bool(wrong)))


def _conform_scenario(scenario: str, engine: str, python: str, overrides: list[str]) -> Answer:
    from dataclasses import asdict

    from hermes.results.layout import Section

    if engine == "vllm":
        from hermes.deploy.engine_conform import conform_scenario
    else:
        with checkout("a comparison with SGLang's scheduler"):
            from evidence.schedules.sglang_conform import conform_scenario

    results = conform_scenario(scenario, python, overrides)
    wrong = [result for result in results if not result.ok]
    rows = [[one.client, f"{engine} {one.version}", one.steps, one.theirs, one.identical] for one in results]
    parts: list[Part] = [Section("", ["client", "engine", "steps here", "in the engine", "identical"], rows)]
    for one in wrong:
        parts += [f"first difference of {one.client}:", to_json(one.first_difference)]
    alike = f"{len(results) - len(wrong):,} of {counted(len(results), 'client')} identical"
    parts.append(alike if wrong else f"identical, {counted(sum(one.steps for one in results), 'step')}")
    return Answer([asdict(result) for result in results], parts, int(bool(wrong)))


def compare(
    run: Annotated[Path, typer.Argument(
        metavar="RUN", help="A folder that `hermes run -o` wrote; with --log, also a scenario.")],
    reference: Annotated[Path | None, typer.Argument(
        metavar="[REFERENCE]", help="A folder of another run or of `hermes observe`; per-request times (CSV, JSON, "
        "JSON lines, Parquet); or a load driver's summary.")] = None,
    columns: Annotated[
        list[str], typer.Option("--map", metavar="FIELD=COLUMN[:UNIT]", help="Map metric to column, e.g. ttft=t1:ms.")
    ] = [],  # noqa: B006  (typer copies it)
    mapping: Annotated[Path | None, typer.Option(metavar="FILE.yaml", help="A file with such a mapping.")] = None,
    preset: Annotated[str | None, typer.Option(metavar="NAME", help="A known format, e.g. splitwise.")] = None,
    allow_different_requests: Annotated[
        bool, typer.Option("--allow-different-requests", help="Compare runs of different requests, too.")
    ] = False,
    part: Annotated[int | None, typer.Option(
        metavar="N", min=0, help="Which of several results in REFERENCE, from 0.")] = None,
    log: Annotated[Path | None, typer.Option(
        metavar="FILE", help="A start-up log of vLLM, SGLang or TensorRT-LLM instead: which term of the KV memory "
        "differs.")] = None,
    plugins: Plugins = False,
) -> Answer:
    """Compare a run with another run, or with measured latencies.

    Both sides must hold the same requests: the command checks ids, arrivals (to 0.1 s) and lengths, where known.
    Without --map, --mapping or --preset it recognises columns by their names (ttft_s, e2e_ms, ...).
    """
    from hermes.errors import InputError, Verbatim

    if log is not None:
        if reference is not None:
            raise InputError(Verbatim("give REFERENCE or --log, not both"), field="--log")
        with scenario_of(str(run), plugins=plugins) as file:
            return _compare_log(file, log)
    if reference is None:
        raise InputError(Verbatim("missing: a run, measured times, or --log FILE"), field="REFERENCE")
    from hermes.results.compare import compare as table_of
    from hermes.results.compare.reference import mapping_from_options

    given = mapping_from_options(columns, mapping) if columns or mapping is not None else preset
    table = table_of(run, reference, given, allow_different_requests=allow_different_requests, part=part)
    return Answer(table.to_dict(), table.sections())


def _compare_log(scenario: str, log: Path) -> Answer:
    """Return the terms of the memory of each group of LLM clients with those of a start-up log."""
    from hermes.config.files import read_text
    from hermes.deploy.start_log import differing, read_log
    from hermes.results.layout import Section
    from hermes.scenario import load_scenario
    from hermes.scenario.starts import budgets

    found, data, parts = read_log(read_text(log), str(log)), [], []
    for config, budget, longest, _ in budgets(load_scenario(scenario)):
        rows = differing(budget, longest, found)
        wrong = [row for row in rows if row.outside]
        data.append({"client": config.name, "differ": [row.name for row in wrong],
                     "terms": [row._asdict() for row in rows if row.log is not None]})
        most = max(wrong, key=lambda row: abs((row.log or 0) - row.here) / row.unit, default=None)
        said = "every figure of the log lies in its range" if most is None else (
            f"outside their range: {', '.join(row.name for row in wrong)}")
        parts.append(Section(
            f"{config.name}: GiB of one device", ["term", "here", "range", "log", "log - here", "engine's words"],
            [[row.name, row.text(row.here), row.range_text(), row.text(row.log),
              f"{(row.log - row.here) / row.unit:+,.2f}", row.words] for row in rows if row.log is not None], said))
    return Answer(data, parts or ["no client of this scenario serves generations"])


def _summary(scenario: str) -> Mapping[str, Any]:
    from hermes.api import simulate

    return simulate(scenario, whole=True).summary


def record(
    scenarios: Annotated[
        list[str] | None, typer.Argument(metavar="[SCENARIO]...", help="Scenarios [those of the golden file].")
    ] = None,
    file: Golden = Path("golden.yaml"),
    tolerances: Annotated[
        list[str],
        typer.Option("--tolerance", metavar="GLOB=REL", help="Relative tolerance of metrics, e.g. 'energy.*=1e-9'."),
    ] = [],  # noqa: B006
) -> Answer:
    """Run scenarios and record their predictions in a golden file."""
    from hermes.results.compare.regress import record as write
    from hermes.results.compare.regress import recorded_scenarios
    from hermes.results.layout import Section

    golden = write(scenarios or recorded_scenarios(file), file, _summary, _tolerances(tolerances))
    counts = {name: len(entry.metrics) for name, entry in golden.scenarios.items()}
    return Answer({"file": str(file), "metrics": counts}, [
        Section("", ["scenario", "metrics"], list(counts.items())), f"written to {file}"])


def _tolerances(options: list[str]) -> dict[str, float] | None:
    from hermes.errors import InputError

    found = {}
    for option in options:
        glob, equals, text = option.rpartition("=")
        try:
            found[glob] = float(text)
        except ValueError:
            equals = ""
        if not equals or not glob or not found[glob] >= 0:
            raise InputError("GLOB=NUMBER", option, field="--tolerance")
    return found or None


def _summary_of_seed(scenario: str, seed: int) -> Mapping[str, Any]:
    from hermes.api import simulate

    return simulate(scenario, seed=seed, whole=True).summary


def check(
    file: Golden = Path("golden.yaml"),
    seeds: Annotated[
        int, typer.Option(min=0, max=1000, metavar="N",
                          help="Show the spread over N seeds of changed predictions (0: no).")
    ] = 5,
    metrics: Annotated[list[str], typer.Option(
        metavar="GLOB", help="Check only these metrics, e.g. 'latency.ttft_s.*'; repeatable.")] = [],  # noqa: B006
    markdown: Annotated[Path | None, typer.Option(
        metavar="FILE.md", help="Also write the differences as Markdown, for a pull request.")] = None,
    junit: Annotated[Path | None, typer.Option(
        metavar="FILE.xml", help="Also write them as JUnit XML, for a CI system.")] = None,
) -> Answer:
    """Run the scenarios of a golden file again. Exit 1 and list the changes if a prediction differs."""
    from hermes.config.writing import write_text
    from hermes.results.compare.regress import check as differences
    from hermes.results.compare.regress import recorded_scenarios
    from hermes.results.compare.regress_reports import to_junit, to_markdown

    report = differences(file, _summary, seeds, _summary_of_seed, metrics)
    if markdown is not None:
        write_text(markdown, to_markdown(report))
    if junit is not None:
        write_text(junit, to_junit(report, recorded_scenarios(file)))
    return Answer(report.to_dict(), report.parts(), report.exit_code)


regress = command_group("Record golden predictions of scenarios and check them.", {"record": record, "check": check})
