"""Plans: the points that a collector measures (`hermes-plan/1`, a JSON file).

A plan is complete: its collector needs no other part of hermes, on this machine or another. Points are specific to the
measurement; all have a `name`, a `level` (coarse points first) and an `estimate_s`.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Annotated, Any, ClassVar, Literal, Self, TypeVar

from pydantic import Field, model_validator

from hermes.calibration.steps import COLUMNS
from hermes.config import ConfigModel
from hermes.config.files import read_json
from hermes.config.validation import validate
from hermes.config.writing import write_text
from hermes.errors import InputError, inside
from hermes.hardware.models import ModelDescription

__all__ = [
    "DTYPES", "KV_SHARE", "Plan", "PlanMemory", "PointPlan", "check_dense", "load_plan", "powers", "save_plan",
]

DTYPES = ("bf16", "fp16", "fp32")
"""Precisions that collectors compute in."""
KV_SHARE = 0.9
"""Share of a device's memory that a plan uses, weights and activations included."""


class PlanMemory(ConfigModel):
    """Bytes that one device will need."""

    weights_bytes: Annotated[int, Field(ge=0)]
    kv_bytes: Annotated[int, Field(ge=0)]
    activation_bytes: Annotated[int, Field(ge=0)]
    capacity_bytes: Annotated[int, Field(ge=0)] = 0
    """Memory of the device, from its description; 0: unknown."""

    @property
    def total_bytes(self) -> int:
        return self.weights_bytes + self.kv_bytes + self.activation_bytes


class PointPlan(ConfigModel):
    """Common part of plans; the session that measures a plan reads only `name`, `level` and `estimate_s` of a point."""

    row_columns: ClassVar[dict[str, str]] = {"repetition": "int64", "time_s": "float64"}
    """Columns of a journal's rows and their types; as `hermes.calibration.steps.COLUMNS`."""
    record_fields: ClassVar[tuple[str, ...]] = ()
    """Keys that a journal must hold for a measured point beside its rows."""
    point: ClassVar[type[ConfigModel] | None] = None
    """What each of `points` has to be; None for a plan that checks them itself."""

    format: Literal["hermes-plan/1"] = "hermes-plan/1"
    engine: str
    collector: str
    """Module that measures it: `python -m COLLECTOR PLAN JOURNAL`."""
    clock: Literal["wall", "cpu", "cuda-events"]
    """Clock of the plan: it judges noise, and `pack` takes it for `time_s` by default."""
    warmup_s: Annotated[float, Field(ge=0, le=3600)]
    points: Annotated[list[dict[str, Any]], Field(min_length=1, max_length=100_000)]

    @model_validator(mode="after")
    def _named_points(self) -> Self:
        names = [point.get("name") for point in self.points]
        if not all(isinstance(name, str) and name for name in names) or len(set(names)) != len(names):
            raise InputError("points with different names", field="points")
        if self.point:
            for index, point in enumerate(self.points):
                with inside(f"points.{index}"):
                    validate(self.point, point)
        return self

    @property
    def estimate_s(self) -> float:
        """Return the seconds of all points, including warm-up but not reference points and start-up."""
        return self.warmup_s + sum(float(point.get("estimate_s", 0.0)) for point in self.points)


class Plan(PointPlan):
    """A grid of points for one LLM engine, model, parallelism and precision."""

    row_columns: ClassVar[dict[str, str]] = COLUMNS

    model: ModelDescription
    config_json: dict[str, Any]
    """The Hugging Face config.json of the model; written from the description if the model had none."""
    device: Literal["cpu", "cuda"]
    hardware: str = ""
    """Device description of the estimates."""
    dtype: str
    tensor_parallel: Annotated[int, Field(ge=1, le=1024)] = 1
    repetitions: Annotated[int, Field(ge=1, le=1000)]
    reference_every_s: Annotated[float, Field(ge=0, le=1e6)] = 60.0
    options: dict[str, Any] = Field(default_factory=dict)
    """Settings of the engine."""
    memory: PlanMemory | None = None
    reference: dict[str, Any] | None = None
    """Point measured during warm-up and repeatedly later, to show drift."""


def powers(low: int, high: int, factor: int) -> list[int]:
    """Return `low`, `low * factor`, ... below `high`, and `high`."""
    out = []
    while low < high:
        out.append(low)
        low *= factor
    return [*out, high]


def check_dense(model: ModelDescription) -> None:
    """Raise `InputError` for a model that is no dense decoder of the Llama family."""
    if not (model.gated_ffn and model.causal and model.norm == "rms" and not model.num_experts
            and not model.linear_bias and not model.embedding_norm and model.output_head != "none"):
        raise InputError("a dense decoder with RMSNorm, rotary embedding and SwiGLU (Llama, Mistral, Qwen2, Qwen3)",
                         model.name, field="model")


P = TypeVar("P", bound=PointPlan)


def load_plan(path: Path, kind: type[P]) -> P:
    """Load a plan file. Raises `InputError` naming the file and the field."""
    return validate(kind, read_json(path), str(path))


def save_plan(plan: PointPlan, path: Path) -> None:
    """Write a plan, one point per line, for readable differences."""
    content = plan.model_dump(mode="json")
    points = content.pop("points")
    head = json.dumps(content, indent=1)[:-2]
    lines = ",\n".join("  " + json.dumps(point, separators=(",", ":")) for point in points)
    write_text(path, f'{head},\n "points": [\n{lines}\n ]\n}}\n')
