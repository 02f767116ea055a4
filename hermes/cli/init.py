"""`hermes init`: a first scenario with comments."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

__all__ = ["add_to"]

TPS = (1, 2, 4, 8, 16)
TEMPLATE = """\
# A scenario of HERMES. `hermes validate --resolved {file}` prints every key with its default.
name: {name}
seed: 1
workload:
  requests: {requests}   # or a time of arrivals, `duration: 100 s`
  # others: gamma, trace, closed_loop, ...
  arrivals: {{kind: poisson, rate: {rate:g} /s}}
  # others: conversations, trace, independent, ...
  lengths: {{kind: empirical, profile: {workload}}}
clients:
  - name: llm
    count: {count}   # engines; 3P1D stands for three that prefill and one that decodes
    model: {model}   # or the path of a config.json
    device: {device}
    parallel: {{tp: {tp}}}   # devices of one engine
# to the engine with the fewest requests
router: {{kind: least_loaded, load: requests}}
# at the 99th percentile
slo: {{ttft: 1 s, tpot: 50 ms}}
"""


def add_to(app: typer.Typer) -> None:
    app.command()(init)


def init(
    file: Annotated[Path, typer.Argument(metavar="FILE.yaml", help="The file to write.", show_default=False)],
    model: Annotated[str, typer.Option(metavar="NAME", help="Model, or the path of its config.json.")]
    = "llama-3.1-70b",
    device: Annotated[str, typer.Option(metavar="NAME", help="Device.")] = "h100-sxm",
    workload: Annotated[str, typer.Option(metavar="NAME", help="Workload profile.")] = "azure-conv-2023",
    rate: Annotated[str, typer.Option(metavar="RATE", help="Requests per second.")] = "10/s",
    count: Annotated[int, typer.Option(min=1, max=100_000, help="Engines.")] = 4,
) -> None:
    """Write a first scenario, with comments: one model on engines of the fewest devices that hold it."""
    from hermes.config.writing import write_text
    from hermes.errors import InputError, inside
    from hermes.units import parse_rate

    if file.exists():
        raise InputError("a file that does not exist yet", str(file), field="FILE.yaml")
    with inside("--rate"):
        per_s = parse_rate(rate)
    filled = {"file": file.name, "name": file.stem, "requests": int(min(max(100 * per_s, 500), 20_000)), "rate": per_s,
              "workload": workload, "count": count, "model": model, "device": device}
    write_text(file, TEMPLATE.format(**filled, tp=_fewest(filled)))
    print(f"written to {file}; next: hermes run {file}")


def _fewest(filled: dict[str, object]) -> int:
    """Return the fewest devices that hold the model. Raises `InputError`, that of the most devices, if none of `TPS`
    does."""
    from hermes.config.yaml_document import parse_yaml
    from hermes.errors import InputError
    from hermes.scenario import scenario_of
    from hermes.scenario.build import build

    last: InputError | None = None
    for tp in TPS:
        try:
            build(scenario_of(parse_yaml(TEMPLATE.format(**filled, tp=tp)), Path()))
        except InputError as error:
            last = error
            continue
        return tp
    assert last is not None
    raise InputError(last.expected, last.found, field=last.field, suggestion=last.suggestion)
