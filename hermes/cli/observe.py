"""`hermes observe`: drive a live server with a scenario's own requests."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from hermes.cli.output import Answer, Overrides, Scenario

if TYPE_CHECKING:
    from hermes.calibration.observe.session import Outcome
    from hermes.results.compare.observed import ObservedReport

__all__ = ["observe"]


def observe(
    scenario: Scenario,
    url: Annotated[str, typer.Argument(
        metavar="URL", help="Address of an OpenAI-compatible server, up to /v1.", show_default=False)],
    output: Annotated[Path, typer.Option(
        "-o", "--output", metavar="DIR", help="Folder of what was observed; a repeated call continues.")],
    overrides: Overrides = [],  # noqa: B006
    model: Annotated[str, typer.Option("--model", metavar="NAME", help="Model to ask for; the server's first.")] = "",
    vocab_size: Annotated[int, typer.Option(
        min=0, metavar="N", help="Token ids of prompts are below it; 0: that of the scenario's model.")] = 0,
    warmup: Annotated[int, typer.Option(min=0, max=1000, help="Requests before the first, not recorded.")] = 2,
    timeout: Annotated[float, typer.Option(min=0.1, metavar="SECONDS", help="Longest time of a request.")] = 600.0,
    max_in_flight: Annotated[int, typer.Option(min=1, max=60000, help="Most requests under way.")] = 1000,
    headers: Annotated[list[str], typer.Option(
        "--header", metavar="NAME: VALUE", help="Header of each request, such as a key; repeatable.")] = [],  # noqa: B006
    repetitions: Annotated[int, typer.Option(
        min=1, max=100, metavar="N", help="Times to send all requests; their noise is stored.")] = 1,
    most: Annotated[int | None, typer.Option(
        "--max-attempts", min=1, max=1000, metavar="N", help="Most attempts, disturbed ones included [twice the "
        "repetitions; 1 for one].")] = None,
) -> Answer:
    """Send a scenario's requests to a live server and record when their tokens come.

    Prompts are token ids on /v1/completions; texts that requests share in the scenario are shared here. Writes
    DIR/observed.parquet, and DIR/observed.json about the attempts: one that other load on this machine disturbed is
    kept, named and repeated. Exit code 1 if every request failed.
    """
    from hermes.calibration.observe.session import Target, observe_repeatedly
    from hermes.results.layout import labelled
    from hermes.scenario import load_scenario

    target = Target(url, model, vocab_size, warmup, timeout, max_in_flight, tuple(_header(text) for text in headers))
    report, outcomes = observe_repeatedly(load_scenario(scenario, overrides), target, output, repetitions, most,
                                          _progress if sys.stderr.isatty() else None)
    sums = {name: sum(getattr(one, name) for one in outcomes) for name in ("requests", "failed", "miscounted")}
    data = {**report.model_dump(mode="json"), **sums, "file": str(outcomes[0].file),
            "first_error": next((one.first_error for one in outcomes if one.first_error), "")}
    return Answer(data, [labelled(_lines(report, outcomes, output))],
                  int(all(one.failed == one.requests for one in outcomes)))


def _lines(report: ObservedReport, outcomes: list[Outcome], folder: Path) -> list[tuple[str, str]]:
    requests, failed = (sum(getattr(one, name) for one in outcomes) for name in ("requests", "failed"))
    lines = [("requests", f"{requests}, {failed} failed")]
    if len(outcomes) > 1:
        accepted = sum(one.accepted for one in report.attempts)
        lines.append(("repetitions", f"{accepted} accepted in {len(outcomes)} attempts"))
    lines += [("note", remark) for remark in report.remarks()]
    errors = [one.first_error for one in outcomes if one.first_error]
    lines += [("first error", errors[0])] if errors else []
    miscounted = sum(one.miscounted for one in outcomes)
    if miscounted:
        lines.append(("miscounted", f"{miscounted} answers of which the server counts other tokens"))
    parts = sum(one.parts for one in outcomes)
    if parts > len(outcomes):
        lines.append(("parts", f"{parts}: each began on an idle server"))
    late = max(one.late_s for one in outcomes)
    lines.append(("sent late", f"p99 {late * 1e3:.1f} ms after the scenario's time"))
    lines += [(f"noise, {metric.upper()}", ", ".join(f"{stat} {100 * found['cv']:.1f}%" for stat, found in each.items())
               + " between the repetitions (CV)") for metric, each in report.noise.items()]
    return [*lines, ("files", f"{outcomes[0].file}; next: hermes compare RUN {folder}")]


def _header(text: str) -> tuple[str, str]:
    name, colon, value = text.partition(":")
    if not colon or not name.strip():
        raise typer.BadParameter(f"{text!r} is not NAME: VALUE", param_hint="--header")
    return name.strip(), value.strip()


def _progress(attempt: int, done: int, total: int) -> None:
    end = "" if done < total else "\n"
    print(f"\rattempt {attempt}: {done} of {total} requests", end=end, file=sys.stderr, flush=True)
