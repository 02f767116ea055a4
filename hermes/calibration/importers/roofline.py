"""Importer of roofline times: any analytical description, priced on the common grid.

A regression fitted on these steps matches the roofline inside the grid. It is as accurate as the roofline (see the
factors named in the header).
"""

from __future__ import annotations

from typing import Annotated, Literal

import numpy as np
from pydantic import Field

from hermes.calibration.importers.base import IMPORTERS, ImporterConfig, Progress, no_progress
from hermes.calibration.importers.grid import rows_of, step_grid
from hermes.calibration.steps import STATS, MeasuredSteps, StepsHeader
from hermes.errors import InputError
from hermes.hardware.roofline import Dtype, Roofline, RooflineModel

__all__ = ["RooflineSteps"]


@IMPORTERS.register("roofline")
class RooflineSteps(ImporterConfig):
    """Step times of our own roofline, for a regression that replaces it."""

    kind: Literal["roofline"] = "roofline"
    profile: str = ""
    """A shipped analytical description or a file (then model and device may be left out)."""
    model: str = ""
    """A model description: shipped name, YAML file, config.json."""
    device: str = ""
    """A device description: shipped name or YAML file."""
    tp: Annotated[int, Field(ge=1, le=1024)] = 1
    """Degree of tensor parallelism."""
    pp: Annotated[int, Field(ge=1, le=1024)] = 1
    """Pipeline stages, one batch in flight."""
    dtype: Dtype = "auto"
    """Weights: auto (what the model description says, else bf16), bf16, fp16, fp32, fp8, int8, int4-awq."""
    kv_dtype: Literal["auto", "bf16", "fp16", "fp32", "fp8"] = "auto"
    """KV cache: auto, bf16, fp16, fp32, fp8."""
    efficiency: str = "auto"
    """Efficiency factors: shipped name or file; auto is the device's."""

    def steps(self, progress: Progress = no_progress) -> MeasuredSteps:
        """Return one step per batch of the grid."""
        given = {name: getattr(self, name) for name in type(self).model_fields if name != "kind"}
        fields = {name: value for name, value in given.items() if value != type(self).model_fields[name].default}
        model: RooflineModel = Roofline(**fields).build()
        batches = step_grid()
        progress(0, 1)
        nothing = {phase: [1.0] * len(part) for phase, part in batches._asdict().items()}
        rows, _, _ = rows_of(batches, nothing)
        if rows.empty:
            raise InputError("a grid of batches", "none")
        rows["time_s"] = np.maximum(model.seconds({name: rows[name].to_numpy() for name in STATS}), 1e-9)
        progress(1, 1)
        return MeasuredSteps(self._header(model), rows)

    def _header(self, model: RooflineModel) -> StepsHeader:
        options = model.options
        factors = model.factors_file
        held = "not fitted" if factors.mape is None else f"{factors.mape:.1%} MAPE on held-out models"
        return StepsHeader(
            name=model.name, hardware=f"{model.device.name} (analytical)", engine="roofline", model=model.model.name,
            tensor_parallel=options.tp, pipeline_parallel=options.pp, dtype=options.dtype, kv_dtype=options.kv_dtype,
            date="not measured", clock="analytical, nothing was measured", collected_by=self.command(),
            source=f"the roofline of hermes, efficiency factors {factors.name} ({held})",
            notes=["analytical: errors of a fit on these steps are distances from the roofline, not from hardware"],
        )
