"""`hermes calibrate from-requests`: fit a scenario to the times of observed requests."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from hermes.cli.output import Answer, Overrides, Scenario, Verbose

if TYPE_CHECKING:
    from hermes.calibration.fit.requests import FittedRequests

__all__ = ["from_requests"]

_WORDS = {
    "front_end_s": ("front end", 1e3, "ms"), "per_prompt_token_s": ("front end, each prompt token", 1e6, "us"),
    "fixed_s": ("each step", 1e3, "ms"), "per_seq_s": ("each sequence of a step", 1e3, "ms"),
    "prompts": ("prompts, times", 1.0, ""), "decodes": ("decodes, times", 1.0, ""),
}


def from_requests(
    observed: Annotated[Path, typer.Argument(
        metavar="OBSERVED", help="Requests with TTFT and E2E: CSV, JSON lines or Parquet.", show_default=False)],
    scenario: Scenario,
    output: Annotated[Path, typer.Option("-o", "--output", metavar="FILE.yaml", help="The fitted scenario.")],
    overrides: Overrides = [],  # noqa: B006
    columns: Annotated[list[str], typer.Option(
        "--map", metavar="FIELD=COLUMN[:UNIT]", help="Map metric to column, e.g. ttft=t1:ms.")] = [],  # noqa: B006
    verbose: Verbose = False,
) -> Answer:
    """Fit what request times can tell of a server: factors of prompts and decodes, time of each step, front end.

    The requests must be the scenario's, served by one kind of LLM client. A third of them is held out for the errors.
    """
    from hermes.calibration.fit.requests import fit_file
    from hermes.config.writing import write_text
    from hermes.results.compare.reference import mapping_from_options
    from hermes.results.layout import Section, labelled
    from hermes.scenario import load_scenario
    from hermes.scenario.document import resolved_yaml

    report = (lambda text: print(text, file=sys.stderr)) if verbose else None
    found = fit_file(load_scenario(scenario, overrides), observed, mapping_from_options(columns) if columns else None,
                     report)
    output.parent.mkdir(parents=True, exist_ok=True)
    header = f"fitted to {found.fit.requests} requests by hermes calibrate from-requests"
    write_text(output, resolved_yaml(found.scenario, header, output.parent.resolve()))
    figures = Section("", ["figure", "before", "fitted", "95% range", ""], [
        [_WORDS[each.name][0], *_cells(each.name, getattr(found.fit.start, each.name), each.value),
         _range(each.name, each.low, each.high) if each.identified else "",
         "" if each.identified else "not determined by these requests: kept"]
        for each in found.fit.ranges])
    errors = Section(f"{found.held_out_requests} requests held out", [
        "", "", "observed", "before", "fitted", "error"], [
        [row.metric.upper(), row.statistic, _ms(row.observed_s), _ms(row.before_s), _ms(row.after_s),
         f"{row.after_s / row.observed_s - 1.0:+.1%}" if row.observed_s else ""] for row in found.held_out])
    lines = [("files", f"{output}; next: hermes run {output}")]
    if not found.fit.settled:
        lines.insert(0, ("not settled", "the figures still moved when the search ended; fit at a lower load"))
    return Answer(_plain(found, output), [figures, errors, labelled(lines)])


def _cells(name: str, before: float, after: float) -> tuple[str, str]:
    _, factor, unit = _WORDS[name]
    return f"{before * factor:.3g} {unit}".strip(), f"{after * factor:.3g} {unit}".strip()


def _range(name: str, low: float, high: float) -> str:
    _, factor, unit = _WORDS[name]
    return f"{low * factor:.3g} to {high * factor:.3g} {unit}".strip()


def _ms(seconds: float) -> str:
    return f"{seconds * 1e3:,.1f} ms"


def _plain(found: FittedRequests, output: Path) -> dict[str, object]:
    from dataclasses import asdict

    fit = found.fit
    return {
        "figures": [{**asdict(each), "before": getattr(fit.start, each.name)} for each in fit.ranges],
        "settled": fit.settled, "error": fit.error, "requests": fit.requests,
        "held_out": [asdict(row) for row in found.held_out], "held_out_requests": found.held_out_requests,
        "file": str(output),
    }
