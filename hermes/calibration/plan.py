"""Plans: the points that a collector measures (`hermes-plan/1`, a JSON file).

A plan is complete: its collector needs no other part of hermes, on this machine or another. Points are specific to the
measurement; all have a `name`, a `level` (coarse points first) and an `estimate_s`.
"""

from __future__ import annotations

import json
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any, ClassVar, Literal, Self, TypeVar

from pydantic import Field, model_validator

from hermes.calibration.steps import COLUMNS
from hermes.config import ConfigModel
from hermes.config.files import read_json
from hermes.config.validation import validate
from hermes.config.writing import write_text
from hermes.errors import InputError, inside
from hermes.hardware.devices import DeviceDescription, load_device
from hermes.hardware.files import find
from hermes.hardware.models import ModelDescription, load_model

__all__ = [
    "DTYPES", "KV_SHARE", "PARTS", "Plan", "PlanMemory", "PointPlan", "Request", "check_dense", "load_plan", "powers",
    "request_for", "save_plan",
]

PARTS = ("grid", "engine")
"""Parts of an LLM engine's plan: a grid of batches, which step profiles are fitted to; and what tells the engine's own
time from its kernels: full chunks beside decodes, and decode batches of all sizes."""

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


@dataclass(frozen=True)
class Request:
    """What to measure of a model on a device, with every default filled in."""

    model: ModelDescription
    config_json: dict[str, Any]
    device: Literal["cpu", "cuda"]
    hardware: DeviceDescription
    hardware_name: str
    dtype: str
    """A name of `hermes.hardware.models.PRECISIONS`."""
    clock: Literal["wall", "cpu", "cuda-events"]
    tensor_parallel: int = 1
    repetitions: int = 5
    warmup_s: float = 20.0
    max_num_batched_tokens: int = 2048
    max_num_seqs: int = 256
    max_context: int = 8192
    threads: int = 1
    points: int | None = None
    """Most points of the grid; None: all."""
    parts: tuple[str, ...] = ("grid",)
    """`PARTS` of the plan."""
    seed: int = 0


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


def config_of(model: ModelDescription) -> dict[str, Any]:
    """Return a config.json for a description: Llama's, or Qwen2's or Qwen3's if the model has their biases or norms."""
    kind = "qwen3" if model.qk_norm else "qwen2" if model.qkv_bias else "llama"
    architecture = {"qwen3": "Qwen3ForCausalLM", "qwen2": "Qwen2ForCausalLM", "llama": "LlamaForCausalLM"}[kind]
    return {
        "architectures": [architecture], "model_type": kind, "hidden_size": model.hidden_size,
        "intermediate_size": model.intermediate_size, "num_hidden_layers": model.num_layers,
        "num_attention_heads": model.num_heads, "num_key_value_heads": model.num_kv_heads,
        "head_dim": model.head_dim, "vocab_size": model.vocab_size, "hidden_act": "silu", "rms_norm_eps": 1e-5,
        "rope_theta": 10000.0, "tie_word_embeddings": model.output_head == "tied",
        "max_position_embeddings": model.max_context or 131072,
    }


def request_for(model: str, device: str, hardware: str | None = None, dtype: str | None = None,
                clock: str | None = None, base_dir: Path | None = None, **more: Any) -> Request:
    """Return the request of a measurement's file, with defaults. Raises `InputError` naming the key.

    Args:
        model: Shipped description, description file or config.json; a path is relative to `base_dir`.
        hardware: Device description, by default `cpu-core` times the threads, or `h100-sxm`.
        dtype: By default bf16 on a GPU and fp32 on a CPU.
        clock: `cuda-events` on a GPU, else `wall` or `cpu`.
    """
    kind: Literal["cpu", "cuda"]
    if device == "cuda":
        kind = "cuda"
    elif device == "cpu":
        kind = "cpu"
    else:
        raise InputError("cpu or cuda", device, field="device")
    chosen: Literal["wall", "cpu", "cuda-events"] = "cuda-events" if kind == "cuda" else "wall"
    if clock == "cpu" and kind == "cpu":
        chosen = "cpu"
    elif clock is not None and clock != chosen:
        raise InputError("cuda-events" if kind == "cuda" else "wall or cpu", clock, field="clock")
    description = load_model(model, base_dir)
    path = find(model, base_dir, "models", "a model description")
    config = read_json(path) if path.suffix == ".json" else config_of(description)
    name = hardware or ("cpu-core" if kind == "cpu" else "h100-sxm")
    described = load_device(name, base_dir)
    if name == "cpu-core":
        described = described.model_copy(update={
            "flops": {key: peak * more.get("threads", 1) for key, peak in described.flops.items()},
        })
    return Request(
        model=description, config_json=config, device=kind, hardware=described, hardware_name=name,
        dtype=dtype or ("bf16" if kind == "cuda" else "fp32"), clock=chosen, **more,
    )


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
