"""`hermes fit-overhead`: fit the serving stack's time per request to measured rates of a saturated engine."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Annotated

import typer

from hermes.cli.output import Answer, Overrides, Scenario

__all__ = ["fit_overhead"]

Rate = Annotated[float | None, typer.Option(min=1e-6, metavar="RATE", help="Measured requests per second.")]


def fit_overhead(
    scenario: Scenario,
    embed: Rate = None,
    generate: Rate = None,
    source: Annotated[str, typer.Option(help="Source of the rates, for the profile's provenance.")] = "",
    output: Annotated[Path | None, typer.Option("-o", "--output", metavar="FILE", help="Write the profile.")] = None,
    overrides: Overrides = [],  # noqa: B006 - typer copies it
) -> Answer:
    """Fit the serving stack's time per embedding and per generation to the rates of one saturated engine.

    The scenario needs one engine, a closed loop that saturates it, and a `measure` window. Each rate is measured with
    requests of its kind alone.
    """
    from hermes.errors import InputError
    from hermes.plugins.orthrus.overhead_fit import fit_overhead as fit
    from hermes.plugins.orthrus.overhead_fit import write_overhead
    from hermes.results.layout import Section
    from hermes.scenario import load_scenario

    measured = {kind: rate for kind, rate in (("embed", embed), ("generate", generate)) if rate is not None}
    if not measured:
        raise InputError("a measured rate", None, field="--embed or --generate")
    checked = load_scenario(scenario, overrides)
    fitted = fit(checked, measured, lambda text: print(text, file=sys.stderr, flush=True))
    if output is not None:
        rates = ", ".join(f"{rate:g} {kind}/s" for kind, rate in measured.items())
        write_overhead(fitted, output.stem, [
            f"fitted to {rates} of one saturated engine{f' ({source})' if source else ''}, and to nothing else",
            f"hermes fit-overhead {checked.name}",
        ], output)
    head = ["kind", "mode", "measured/s", "without/s", "overhead ms", "fitted/s"]
    rows = [[one.kind, one.mode, one.measured_per_s, one.bare_per_s, one.overhead_s * 1e3, one.fitted_per_s]
            for one in fitted]
    return Answer([vars(one) for one in fitted], [
        Section("time of the serving stack per request", head, rows),
        *([] if output is None else [f"profile written to {output}"])])
