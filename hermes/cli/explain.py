"""`hermes explain`: the terms of a step, with the source of each."""

from __future__ import annotations

from typing import Annotated, Any

import typer

from hermes.cli.output import Json, Overrides, Scenario, print_json, print_table

__all__ = ["add_to"]


def add_to(app: typer.Typer) -> None:
    app.command("explain")(explain)


def explain(
    scenario: Scenario,
    overrides: Overrides = [],  # noqa: B006
    decodes: Annotated[int, typer.Option(min=0, max=10**6, help="Sequences that decode.")] = 16,
    context: Annotated[int, typer.Option(min=1, max=10**9, help="Cached tokens of each of them.")] = 1000,
    prompt: Annotated[int, typer.Option(min=0, max=10**9, help="New tokens of a prompt in the same step.")] = 0,
    past: Annotated[int, typer.Option(min=0, max=10**9, help="Cached tokens of that prompt.")] = 0,
    as_json: Json = False,
) -> None:
    """Print how long a step takes on each kind of LLM client, by term, and where each term comes from.

    A hardware model fitted to whole steps has one term.
    """
    from hermes.clients.llm import LLMClient
    from hermes.errors import InputError
    from hermes.hardware.monotone import Batch
    from hermes.scenario import load_scenario
    from hermes.scenario.build import build

    if not decodes and not prompt:
        raise InputError("a step with at least one decode or one prompt token", 0, field="--decodes")
    stats = Batch(((prompt, past),) if prompt else (), (context,) * decodes).stats()
    seen: dict[int, dict[str, Any]] = {}
    for client in build(load_scenario(scenario, overrides)).clients:
        if isinstance(client, LLMClient) and id(client.hardware) not in seen:
            seen[id(client.hardware)] = {"client": client.name, **_step(client.hardware, stats)}
    if as_json:
        print_json(list(seen.values()))
        return
    if not seen:
        print("no client of this scenario serves generations")
    for step in seen.values():
        title = f"{step['client']}: {step['step_s'] * 1e3:.4g} ms"
        print_table(title, ["term", "ms", "%", "source"], [
            [row["term"], f"{row['seconds'] * 1e3:.4g}", f"{100 * row['seconds'] / step['step_s']:.1f}", row["source"]]
            for row in step["terms"]])


def _step(hardware: Any, stats: Any) -> dict[str, Any]:
    """Return the seconds of a step, and of its terms with their sources."""
    total = hardware.step_ns(stats) / 1e9
    if not hasattr(hardware, "terms_ns"):
        text = getattr(hardware, "description", "") or getattr(hardware, "name", type(hardware).__name__)
        return {"step_s": total, "terms": [{"term": "whole step", "seconds": total, "source": text}]}
    sources = hardware.sources_of()
    rows = [{"term": name, "seconds": ns / 1e9, "source": sources.get(name, "")}
            for name, ns in hardware.terms_ns(stats).items()]
    return {"step_s": total, "terms": rows}
