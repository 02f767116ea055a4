"""`measure: llm`: steps of vLLM, its scheduler in process, over a grid of batches."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Any, ClassVar, Literal

from pydantic import Field

from hermes.calibration import pack
from hermes.calibration.measurements.base import FitOptions, Shown, again
from hermes.calibration.measurements.model import ModelMeasurement
from hermes.calibration.plan import Plan, PointPlan
from hermes.calibration.session import Measured
from hermes.calibration.steps import load_steps, save_steps
from hermes.calibration.vllm_plan import vllm_plan
from hermes.results.layout import Part, Section

__all__ = ["LlmMeasurement"]


class LlmMeasurement(ModelMeasurement):
    """Step times of an LLM engine over a grid of batches."""

    engines: ClassVar[tuple[str, ...]] = ("vllm", "torch")   # a torch engine wrote journals too, once
    format: ClassVar[str] = "hermes-steps/1"
    fit_options: ClassVar[frozenset[str]] = frozenset(("plot",))

    measure: Literal["llm"] = "llm"
    engine: Literal["vllm"] = "vllm"
    """vllm: the real engine, with dummy weights."""
    tensor_parallel: Annotated[int, Field(ge=1, le=1024)] = 1
    """Devices that share the model."""
    parts: Annotated[list[Literal["grid", "engine"]], Field(min_length=1)] = ["grid", "engine"]
    """grid: batches of all kinds, for a step profile; engine: full chunks beside decodes, and decode batches."""
    points: Annotated[int, Field(ge=1, le=100_000)] | None = None
    """Most points of the grid; null: all."""
    output: str = "steps.yaml"
    """Measured steps; plan and journal beside them."""

    def plan(self, base_dir: Path, python: str | None = None) -> Plan:
        """Return the plan. Raises `InputError` naming the key."""
        return vllm_plan(self.request(base_dir))

    def show_plan(self, plan: PointPlan) -> Shown:
        """Return the points, the memory and the time."""
        assert isinstance(plan, Plan)
        assert plan.memory is not None
        shown, memory = super().show_plan(plan), plan.memory
        sizes = ", ".join(f"{what} {size / 2**30:.2f} GiB" for what, size in (
            ("weights", memory.weights_bytes), ("KV", memory.kv_bytes), ("activations", memory.activation_bytes)))
        of = f" of {memory.capacity_bytes / 2**30:.1f}" if memory.capacity_bytes else ""
        return Shown({**shown.data, "memory": {**memory.model_dump(), "total_bytes": memory.total_bytes}}, [
            *shown.parts, f"memory of the device: {sizes}; {memory.total_bytes / 2**30:.2f}{of} GiB"])

    @classmethod
    def pack(cls, journal: Path, output: Path, *, command: str = "", clock: str | None = None,
             measured: Measured | None = None) -> Shown:
        """Write measured steps. Raises `InputError`."""
        steps = pack.pack(journal, clock=clock, command=command)
        save_steps(steps, output)
        header, usable = steps.header, len(steps.usable())
        data: dict[str, Any] = {
            "steps": str(output), "rows": len(steps.rows), "usable": usable, "noise": header.options.get("noise"),
            "drift": header.options.get("drift"), "notes": header.notes, "failed": header.excluded,
        }
        parts: list[Part] = []
        if measured is not None:
            progress = measured.progress
            data |= {"points": progress.points, "measured": progress.done, "complete": measured.complete}
            parts += ["; ".join([f"{progress.done} of {progress.points} points measured", *again(measured)])]
        parts.append(f"{len(steps.rows)} rows, {usable} usable")
        parts += [f"{what}: " + ", ".join(f"{key.replace('_', ' ')} {value}" for key, value in data[what].items())
                  for what in ("noise", "drift") if data[what]]
        parts += [f"note: {note}" for note in (*header.notes, *header.excluded)]
        return Shown(data, [*parts, f"written to {output}"])

    @classmethod
    def fit(cls, file: Path, options: FitOptions) -> Shown:
        """Fit one polynomial for each kind of step. Raises `InputError`."""
        from hermes.calibration.fit.plot import save_plot
        from hermes.calibration.fit.profile import fit_steps, phase_table, write_profile

        result = fit_steps(load_steps(file), options.name)
        if options.output is not None:
            write_profile(result, options.output)
        if options.plot is not None:
            save_plot(result, options.plot)
        head, rows = phase_table(result)
        written = (("profile", options.output), ("figure", options.plot))
        return Shown({
            "profile": result.profile.model_dump(mode="json"), "schemes": result.schemes, "excluded": result.excluded,
            "limits": result.limits,
        }, [
            Section(f"{result.profile.name}: errors on held-out configurations", list(head), rows),
            *(f"left out: {line}" for line in result.excluded),
            *(f"cannot be told apart: {line}" for line in result.limits),
            *(f"{what} written to {path}" for what, path in written if path is not None),
        ])
