"""Output of `hermes calibrate` and `hermes fit` about terms: plans, measurements, kernel tables."""

from __future__ import annotations

from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Any

from hermes.cli.output import print_json, print_table

if TYPE_CHECKING:
    from hermes.calibration.fit.engine import EngineFit
    from hermes.calibration.fit.kernels import FittedTerms
    from hermes.calibration.session import Measured
    from hermes.calibration.terms import MeasuredTerms
    from hermes.calibration.terms_plan import TermsPlan

__all__ = ["fitted_terms", "hardware_lines", "measured_terms", "terms_plan"]

MOST_REASONS = 6


def terms_plan(made: TermsPlan, as_json: bool) -> dict[str, Any]:
    """Print a plan's terms and minutes; return what JSON shows of it."""
    from hermes.calibration.terms_plan import terms_table

    rows = terms_table(made)
    minutes = made.estimate_s / 60
    if not as_json:
        print_table("", ["term", "points", "sizes", "minutes"], [list(row) for row in rows])
        print(f"{made.backend}, {made.model.name}, {made.dtype}, tp {', '.join(map(str, made.tensor_parallel))}, "
              f"{made.device} ({made.hardware}): {len(made.points)} points, {made.repetitions} repetitions each")
        print(f"time: about {minutes:.1f} minutes, {made.warmup_s:.0f} s of warm-up included (a roofline's estimate; "
              "corrected while measuring)")
    return {"points": made.points, "estimate_s": round(made.estimate_s, 1),
            "terms": {term: {"points": points, "sizes": sizes, "minutes": took} for term, points, sizes, took in rows}}


def measured_terms(terms: MeasuredTerms, output: Path, as_json: bool, measured: Measured | None, again: str) -> None:
    """Print what a journal held. `again`: what to say of a measurement that its budget cut off."""
    header = terms.header
    data: dict[str, Any] = {
        "terms": str(output), "rows": len(terms.rows), "points": header.planned, "measured": header.measured,
        "estimated_s": header.estimated_s, "taken_s": header.taken_s, "noise": header.options.get("noise"),
        "unavailable": header.unavailable, "notes": header.notes,
    }
    if measured is not None:
        data["complete"] = measured.complete
    if as_json:
        print_json(data)
        return
    print(f"{header.measured} of {header.planned} points measured in {header.taken_s / 60:.1f} minutes "
          f"(estimated {header.estimated_s / 60:.1f}); noise: {header.options.get('noise')}")
    for note in header.notes:
        print(f"note: {note}")
    for line in header.unavailable[:MOST_REASONS]:
        print(f"without: {line}")
    if len(header.unavailable) > MOST_REASONS:
        print(f"without: {len(header.unavailable) - MOST_REASONS} more, in the file")
    if measured is not None and not measured.complete:
        print(again)
    print(f"written to {output}; next: hermes fit {output} -o KERNELS.yaml")


def hardware_lines(made: FittedTerms, engine: EngineFit | None, output: Path | None) -> list[str]:
    """Return the lines of a scenario's client that use the tables."""
    from hermes.config.yaml_writer import to_flow

    lines = ["hardware:", "  kind: composed", f"  kernels: ./{output.name if output else 'KERNELS.yaml'}"]
    if engine is not None:
        found = engine.step
        times = {key: f"{getattr(found, key) * 1e6:.4g} us" for key in
                 ("exposed", "exposed_per_seq", "uncaptured", "host", "host_per_seq") if getattr(found, key)}
        lines.append(f"  step: {to_flow(times | {'largest_graph': found.largest_graph})}")
    if made.beside is not None:
        beside = made.beside.beside
        lines.append("  beside: " + to_flow({"per_seq": f"{beside.per_seq * 1e9:.4g} ns",
                                             "per_seq_token": beside.per_seq_token, "read": round(beside.read, 4)}))
    return lines


def fitted_terms(
    terms: MeasuredTerms, made: FittedTerms, engine: EngineFit | None, written: list[Path], as_json: bool,
) -> None:
    """Print kernel tables, their errors at the measured points, watts, and the lines of a scenario.

    written: the files, the tables first
    """
    from hermes.config.yaml_writer import to_flow

    lines = hardware_lines(made, engine, written[0] if written else None)
    if as_json:
        print_json({
            "tables": made.file.tables, "errors": {term: asdict(found) for term, found in made.errors.items()},
            "beside": None if made.beside is None else made.beside.beside.model_dump(),
            "step": None if engine is None else engine.step.model_dump(),
            "watts": [asdict(found) for found in made.watts],
            "power": None if made.power is None else made.power.model_dump(), "notes": made.notes, "hardware": lines,
        })
        return
    errors = dict(made.errors)
    if made.beside is not None:
        errors["added by decodes beside a prompt"] = made.beside.errors
    if engine is not None:
        errors["whole steps"] = engine.errors
    print_table(f"{made.file.name}: composed beside measured",
                ["term", "points", "error", "median", "worst"],
                [[term, found.points, f"{found.mape:.1%}", f"{found.median:+.1%}", f"{found.worst:+.1%}"]
                 for term, found in errors.items()])
    if engine is not None:
        print(f"engine: {engine.step.source}; the kernels leave it {engine.unexplained:.1%} of a step (median)")
    for found in made.watts:
        load = found.load if found.load == "idle" else f"{found.load}, {found.share:.0%} of the time"
        unit = {"memory": f", {found.rate / 1e9:,.0f} GB/s", "arithmetic": f", {found.rate / 1e12:,.0f} Tflop/s"}
        print(f"watts: {load}: {found.power_w:.0f} W{unit.get(found.load, '')}")
    for note in (*made.notes, *terms.header.notes):
        print(f"note: {note}")
    idle = next((found for found in made.watts if found.load == "idle"), None)
    if made.power is not None and idle is not None:
        power = to_flow(made.power.model_dump(exclude_defaults=True))
        print(f"in the device description:\n    idle_w: {idle.power_w:.0f}\n    power: {power}")
    print("in a scenario, for the clients on this card:")
    print("\n".join(f"    {line}" for line in lines))
    for path in written:
        print(f"written to {path}")
