"""Importer of GenZ (genz-llm): an analytical model of tens of milliseconds per query; a fit of it is 1000 times faster.

The package is an optional extra and may live in another interpreter (`--python`). A thinned grid is priced. GenZ lacks
launch times and the engine's own CPU time, and uses one precision for weights, activations and KV cache.
"""

from __future__ import annotations

from typing import Annotated, Any, Literal

from pydantic import Field

from hermes.calibration.importers.base import IMPORTERS, ImporterConfig, Progress, known_model, no_progress
from hermes.calibration.importers.grid import rows_of, step_grid
from hermes.calibration.importers.query import ask
from hermes.calibration.steps import MeasuredSteps, StepsHeader
from hermes.errors import InputError
from hermes.hardware.devices import load_device
from hermes.hardware.files import names_in

__all__ = ["Genz"]

THIN = 2  # every second value of each axis of the grid


@IMPORTERS.register("genz")
class Genz(ImporterConfig):
    """Step times computed by the analytical model GenZ (genz-llm, MIT)."""

    kind: Literal["genz"] = "genz"
    model: str
    """A model GenZ knows: meta-llama/llama-3.1-8b, Qwen/Qwen2.5-32B, ..."""
    device: str
    """A system GenZ knows (H100_GPU, A100_80GB_GPU, MI300X, ...), or one of our device descriptions (h100-sxm)."""
    tp: Annotated[int, Field(ge=1, le=64)] = 1
    """Degree of tensor parallelism."""
    dtype: Literal["bf16", "fp8", "int8", "int4"] = "bf16"
    """Precision of weights, activations and KV cache together."""
    efficiency: Annotated[float, Field(gt=0, le=1)] = 0.75
    """Efficiency: share of peak arithmetic and bandwidth."""
    python: str | None = None
    """Interpreter that has genz-llm (default: this one)."""

    def _system(self) -> str | dict[str, Any]:
        """Return GenZ's name, or the figures (TFLOP/s, GB, GB/s) of one of our descriptions."""
        if self.device not in names_in("devices"):
            return self.device
        device = load_device(self.device)
        return {
            "Flops": device.peak("bf16") / 1e12, "Memory_size": device.memory / 2**30, "real_values": True,
            "Memory_BW": device.memory_bandwidth / 1e9, "ICN": device.link_bandwidth / 1e9,
        }

    def steps(self, progress: Progress = no_progress) -> MeasuredSteps:
        """Return one step per batch of a thinned grid that fits into the memory."""
        batches = step_grid(THIN)
        request = {
            "model": self.model, "system_name": self._system(), "system_eff": self.efficiency, "bits": self.dtype,
            "tp": self.tp, "batches": batches._asdict(),
        }
        answer = ask("ask_genz.py", request, self.python, "genz", progress)
        rows, _, unknown = rows_of(batches, answer["seconds"])
        if rows.empty:
            raise InputError("a system that holds the model", "no batch fits into its memory", field="device")
        model = known_model(self.model)
        excluded = [f"{unknown} batches of the grid that GenZ refused (they do not fit into the memory)"]
        header = StepsHeader(
            name=f"{model.rsplit('/', 1)[-1].lower()}-{self.device.lower()}-tp{self.tp}-{self.dtype}-genz",
            hardware=self.device, engine="genz-llm", engine_version=answer["version"], model=model,
            tensor_parallel=self.tp, dtype=self.dtype, kv_dtype=self.dtype, date="computed, not measured",
            clock="analytical model", source=f"genz-llm {answer['version']} (PyPI, MIT)", collected_by=self.command(),
            options={"efficiency": self.efficiency, "system": self._system()},
            environment={"genz-llm": answer["version"]}, excluded=excluded if unknown else [],
            notes=["computed by a roofline per operator, nothing was measured; launch times and the engine's own time "
                   "are not in it"],
        )
        return MeasuredSteps(header, rows)
