"""`measure: terms`: single operators of a card, and the kernel tables made of them."""

from __future__ import annotations

from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, ClassVar, Literal

from pydantic import Field

from hermes.calibration.measurements.base import FitOptions, Shown, again
from hermes.calibration.measurements.model import Count, ModelMeasurement
from hermes.calibration.plan import PointPlan
from hermes.calibration.session import Measured
from hermes.calibration.steps import load_steps
from hermes.calibration.terms import MeasuredTerms, load_terms, pack_terms
from hermes.calibration.terms_plan import HOLD_S, SAMPLE_S, TermsPlan, terms_plan, terms_table
from hermes.config import Bytes
from hermes.config.yaml_writer import to_flow
from hermes.errors import InputError
from hermes.results.layout import Part, Section

if TYPE_CHECKING:
    from hermes.calibration.fit.kernels import EngineFit, FittedTerms

__all__ = ["TermsMeasurement", "hardware_lines"]

MOST_REASONS = 6


class TermsMeasurement(ModelMeasurement):
    """Single operators and watts of a card: the terms of the composed hardware model."""

    format: ClassVar[str] = "hermes-terms/1"
    fit_options: ClassVar[frozenset[str]] = frozenset(("steps",))

    measure: Literal["terms"] = "terms"
    device: Literal["cpu", "cuda"] = "cpu"
    """cuda: by the kernels of vLLM (bf16 or fp16); cpu: by numpy (fp32)."""
    ranks: Annotated[list[Annotated[int, Field(ge=1, le=1024)]], Field(min_length=1, max_length=20)] = [1]
    """Numbers of devices that share a layer; the shapes of one of them are measured."""
    repetitions: Annotated[int, Field(ge=2, le=1000)] = 5
    """Measurements of every operator."""
    max_num_batched_tokens: Count = 8192
    """Most tokens of a step."""
    cache: Bytes = 0
    """Bytes that repetitions walk through, so that weights and KV are in no cache; 0: twice the device's cache."""
    sample_s: Annotated[float, Field(gt=0, le=10)] = SAMPLE_S
    """Least seconds of a repetition: short operators are repeated within it."""
    hold_s: Annotated[float, Field(gt=0, le=600)] = HOLD_S
    """Seconds of each load whose watts are read."""
    output: str = "terms.yaml"
    """Measured terms; plan and journal beside them."""

    def plan(self, base_dir: Path, python: str | None = None) -> TermsPlan:
        """Return the plan. Raises `InputError` naming the key."""
        return terms_plan(self.request(base_dir))

    def show_plan(self, plan: PointPlan) -> Shown:
        """Return the terms and their minutes."""
        assert isinstance(plan, TermsPlan)
        rows = terms_table(plan)
        return Shown({
            "points": plan.points, "estimate_s": round(plan.estimate_s, 1),
            "terms": {term: {"points": points, "sizes": sizes, "minutes": took} for term, points, sizes, took in rows},
        }, [
            Section("", ["term", "points", "sizes", "minutes"], [list(row) for row in rows]),
            f"{plan.backend}, {plan.model.name}, {plan.dtype}, tp {', '.join(map(str, plan.tensor_parallel))}, "
            f"{plan.device} ({plan.hardware}): {len(plan.points)} points, {plan.repetitions} repetitions each",
            f"time: about {plan.estimate_s / 60:.1f} minutes, {plan.warmup_s:.0f} s of warm-up included (a roofline's "
            "estimate; corrected while measuring)",
        ])

    @classmethod
    def pack(cls, journal: Path, output: Path, *, command: str = "", clock: str | None = None,
             measured: Measured | None = None) -> Shown:
        """Write measured terms. Raises `InputError`."""
        terms = pack_terms(journal, output.stem, command, clock)
        terms.save(output)
        header = terms.header
        data: dict[str, Any] = {
            "terms": str(output), "rows": len(terms.rows), "points": header.planned, "measured": header.measured,
            "estimated_s": header.estimated_s, "taken_s": header.taken_s, "noise": header.options.get("noise"),
            "unavailable": header.unavailable, "notes": header.notes,
        }
        if measured is not None:
            data["complete"] = measured.complete
        missing = header.unavailable[:MOST_REASONS]
        if len(header.unavailable) > MOST_REASONS:
            missing = [*missing, f"{len(header.unavailable) - MOST_REASONS} more, in the file"]
        return Shown(data, [
            f"{header.measured} of {header.planned} points measured in {header.taken_s / 60:.1f} minutes "
            f"(estimated {header.estimated_s / 60:.1f}); noise: {header.options.get('noise')}",
            *(f"note: {note}" for note in header.notes), *(f"without: {line}" for line in missing), *again(measured),
            f"written to {output}; next: hermes fit {output} -o KERNELS.yaml",
        ])

    @classmethod
    def fit(cls, file: Path, options: FitOptions) -> Shown:
        """Make kernel tables; fit the engine's own time to `options.steps`. Raises `InputError`."""
        from hermes.calibration.fit.kernels import fit_engine, fit_terms, save_kernels

        output, steps = options.output, options.steps
        if output is not None and output.suffix not in (".yaml", ".yml"):
            raise InputError("a file name that ends in .yaml", str(output), field="output")
        measured = load_terms(file)
        made = fit_terms(measured, options.name or (output.stem if output else measured.header.name))
        engine = fit_engine(load_steps(steps), measured, made.tables(), made.beside) if steps is not None else None
        lines = hardware_lines(made, engine, output)
        if output is not None:
            save_kernels(made.file, made.arrays, output, "\n".join(["Kernel times. In a scenario:", "", *lines]))
        return _fitted(measured, made, engine, lines, output)


def hardware_lines(made: FittedTerms, engine: EngineFit | None, output: Path | None) -> list[str]:
    """Return the lines of a scenario's client that use the tables."""
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


def _fitted(terms: MeasuredTerms, made: FittedTerms, engine: EngineFit | None, lines: list[str], output: Path | None,
            ) -> Shown:
    """Return kernel tables, their errors at the measured points, watts, and the lines of a scenario."""
    data = {
        "tables": made.file.tables, "errors": {term: asdict(found) for term, found in made.errors.items()},
        "beside": None if made.beside is None else made.beside.beside.model_dump(),
        "step": None if engine is None else engine.step.model_dump(), "watts": [asdict(found) for found in made.watts],
        "power": None if made.power is None else made.power.model_dump(), "notes": made.notes, "hardware": lines,
    }
    errors: dict[str, Any] = dict(made.errors)
    if made.beside is not None:
        errors["added by decodes beside a prompt"] = made.beside.errors
    if engine is not None:
        errors["whole steps"] = engine.errors
    parts: list[Part] = [Section(
        f"{made.file.name}: composed and measured", ["term", "points", "error", "median", "worst"],
        [[term, found.points, f"{found.mape:.1%}", f"{found.median:+.1%}", f"{found.worst:+.1%}"]
         for term, found in errors.items()])]
    if engine is not None:
        parts.append(f"engine: {engine.step.source}; the kernels leave it {engine.unexplained:.1%} of a step (median)")
    for found in made.watts:
        load = found.load if found.load == "idle" else f"{found.load}, {found.share:.0%} of the time"
        unit = {"memory": f", {found.rate / 1e9:,.0f} GB/s", "arithmetic": f", {found.rate / 1e12:,.0f} Tflop/s"}
        parts.append(f"watts: {load}: {found.power_w:.0f} W{unit.get(found.load, '')}")
    parts += [f"note: {note}" for note in (*made.notes, *terms.header.notes)]
    idle = next((found for found in made.watts if found.load == "idle"), None)
    if made.power is not None and idle is not None:
        power = to_flow(made.power.model_dump(exclude_defaults=True))
        parts.append(f"in the device description:\n    idle_w: {idle.power_w:.0f}\n    power: {power}")
    parts += ["in a scenario, for the clients on this card:", *(f"    {line}" for line in lines)]
    return Shown(data, [*parts, *([f"written to {output}"] if output else [])])
