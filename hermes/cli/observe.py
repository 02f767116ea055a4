"""`hermes observe`: drive a live server with a scenario's own requests."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Annotated

import typer

from hermes.cli.output import Json, Overrides, Scenario, print_json, print_lines

__all__ = ["add_to"]


def add_to(app: typer.Typer) -> None:
    app.command("observe")(observe)


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
    as_json: Json = False,
) -> None:
    """Send a scenario's requests to a live server and record when their tokens come.

    Prompts are token ids on /v1/completions; texts that requests share in the scenario are shared here. Writes
    DIR/observed.parquet. Exit code 1 if every request failed.
    """
    from dataclasses import asdict

    from hermes.calibration.observe.session import Target
    from hermes.calibration.observe.session import observe as run
    from hermes.scenario import load_scenario

    target = Target(url, model, vocab_size, warmup, timeout, max_in_flight, tuple(_header(text) for text in headers))
    found = run(load_scenario(scenario, overrides), target, output, _progress if sys.stderr.isatty() else None)
    if as_json:
        print_json({**asdict(found), "file": str(found.file)})
    else:
        lines = [("requests", f"{found.requests}, {found.failed} failed"),
                 ("sent late", f"p99 {found.late_s * 1e3:.1f} ms after the scenario's time"),
                 ("files", f"{found.file}; next: hermes compare RUN {found.file}")]
        if found.parts > 1:
            lines.insert(1, ("parts", f"{found.parts}: each began on an idle server"))
        if found.miscounted:
            lines.insert(1, ("miscounted", f"{found.miscounted} answers of which the server counts other tokens"))
        if found.first_error:
            lines.insert(1, ("first error", found.first_error))
        print_lines(lines)
    if found.failed == found.requests:
        raise typer.Exit(1)


def _header(text: str) -> tuple[str, str]:
    name, colon, value = text.partition(":")
    if not colon or not name.strip():
        raise typer.BadParameter(f"{text!r} is not NAME: VALUE", param_hint="--header")
    return name.strip(), value.strip()


def _progress(done: int, total: int) -> None:
    print(f"\r{done} of {total} requests", end="" if done < total else "\n", file=sys.stderr, flush=True)
