"""`hermes init`: a first scenario with comments, which meets its own SLO."""

from __future__ import annotations

import sys
import textwrap
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

if TYPE_CHECKING:
    from hermes.explore.first_load import Lone

__all__ = ["init"]

TPS = (1, 2, 4, 8, 16)
MACHINE = 8         # devices of a usual machine
FIRST_RATE = 10.0   # where the search for a rate begins
WIDTH = 100
TEMPLATE = """\
# A scenario of HERMES. `hermes validate --resolved {file}` prints every key with its default.
name: {name}
seed: 1
workload:
  requests: {requests}   # or a time of arrivals, `duration: 100 s`
{why_rate}
  # others: gamma, trace, closed_loop, ...
  arrivals: {{kind: poisson, rate: {rate:g} /s}}
  # others: conversations, trace, independent, ...
  lengths: {{kind: empirical, profile: {workload}}}
{cut}clients:
  - name: llm
    count: {count}   # engines; 3P1D stands for three that prefill and one that decodes
    model: {model}   # or the path of a config.json
    device: {device}
{why_tp}
    parallel: {{tp: {tp}}}   # devices of one engine
# to the engine with the fewest requests
router: {{kind: least_loaded, load: requests}}
{why_slo}
slo: {{ttft: {ttft}, tpot: {tpot}}}
"""


def init(
    file: Annotated[Path, typer.Argument(metavar="FILE.yaml", help="The file to write.", show_default=False)],
    model: Annotated[str, typer.Option(metavar="NAME", help="Model, or the path of its config.json.")]
    = "llama-3.1-70b",
    device: Annotated[str, typer.Option(metavar="NAME", help="Device.")] = "h100-sxm",
    workload: Annotated[str, typer.Option(metavar="NAME", help="Workload profile.")] = "azure-conv-2023",
    rate: Annotated[str | None, typer.Option(
        metavar="RATE", help="Requests per second; left out, 80% of the highest that meets the SLO.")] = None,
    count: Annotated[int, typer.Option(min=1, max=100_000, help="Engines.")] = 4,
) -> None:
    """Write a first scenario, with comments: a model on engines that hold it and its KV, at a rate that meets the SLO.

    A short search of a few seconds finds devices per engine and rate; comments in the file say why.
    """
    from hermes.config.writing import write_text
    from hermes.errors import InputError
    from hermes.explore.first_load import fit
    from hermes.explore.objective import rate_option

    if file.exists():
        raise InputError("a file that does not exist yet", str(file), field="FILE.yaml")
    asked = None if rate is None else rate_option(rate)
    document: dict[str, Any] = {
        "name": file.stem, "seed": 1,
        "workload": {"requests": 1, "arrivals": {"kind": "poisson", "rate": asked or FIRST_RATE * count / 4},
                     "lengths": {"kind": "empirical", "profile": workload}},
        "clients": [{"name": "llm", "count": count, "model": model, "device": device}],
        "router": {"kind": "least_loaded", "load": "requests"}, "slo": {"ttft": "1 s", "tpot": "50 ms"},
    }
    alone, why_tp = _choose_tp(document)
    found = fit(alone, asked)
    filled, why = found.document, found.reasons
    load, slo = filled["workload"], filled["slo"]
    most = load.get("max_total_tokens")
    cut = "" if most is None else f"{_comment(why['max_total_tokens'], 2)}\n  max_total_tokens: {most}\n"
    why_slo = "; ".join(["at the 99th percentile", *([why["slo"]] if "slo" in why else [])])
    write_text(file, TEMPLATE.format(
        file=file.name, name=file.stem, requests=load["requests"], rate=load["arrivals"]["rate"], workload=workload,
        cut=cut, count=count, model=model, device=device, tp=filled["clients"][0]["parallel"]["tp"], ttft=slo["ttft"],
        tpot=slo["tpot"], why_tp=_comment(why_tp, 4), why_rate=_comment(f"rate: {why['rate']}", 2),
        why_slo=_comment(why_slo, 0)))
    for note in found.notes:
        print(f"hermes: note: {note}", file=sys.stderr)
    print(f"written to {file}; next: hermes run {file}")


def _choose_tp(document: dict[str, Any]) -> tuple[Lone, str]:
    """Choose the fewest devices with which an engine holds the model and the KV of several requests, and a lone request
    meets the SLO. Return what a lone request sees, and why it is this many.

    If a lone request meets the SLO with none, those are taken with which it comes nearest. Raises `InputError`, that of
    the most devices, if none of `TPS` holds the model.
    """
    from hermes.errors import InputError
    from hermes.explore.first_load import lone

    refused: dict[int, InputError] = {}
    held: dict[int, Lone] = {}
    for tp in TPS:
        [client] = document["clients"]
        try:
            one = lone({**document, "clients": [{**client, "parallel": {"tp": tp}}]})
        except InputError as error:
            refused[tp] = error
            continue
        held[tp] = one
        if one.roomy and not one.over:
            break
    if not held:
        last = refused[max(refused)]
        raise InputError(last.expected, last.found, field=last.field, suggestion=last.suggestion)
    tp = max(held)
    if held[tp].over or not held[tp].roomy:
        tp = min(held, key=lambda tp: (not held[tp].roomy, tp > MACHINE, held[tp].worst, tp))
    why = f"tp {tp}: {held[tp].memory_text()}"
    less = max((other for other in TPS if other < tp), default=None)
    if less is not None:
        why += f" (tp {less}: {_short(held[less]) if less in held else refused[less].expected.split('; ')[0]})"
    return held[tp], why


def _short(one: Lone) -> str:
    from hermes.results.layout import format_s

    return one.memory_text() if not one.roomy else "a lone request takes " + ", ".join(
        f"{format_s(value)} of {format_s(limit)} {metric.upper()}"
        for metric, (value, limit) in one.values.items() if metric in one.over)


def _comment(text: str, indent: int) -> str:
    return textwrap.fill(text, WIDTH, initial_indent=" " * indent + "# ", subsequent_indent=" " * indent + "# ")
