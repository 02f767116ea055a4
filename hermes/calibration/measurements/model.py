"""Measurements of a model on a device: the keys that they share, and the descriptions that the keys name."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Any, ClassVar, Generic, Literal, NamedTuple, Self, TypeVar

from pydantic import Field

from hermes.calibration.measurements.base import Measurement
from hermes.config.files import read_json
from hermes.errors import InputError
from hermes.hardware.descriptions.devices import DeviceDescription, load_device
from hermes.hardware.descriptions.files import find
from hermes.hardware.descriptions.models import ModelDescription, load_model

__all__ = ["Count", "ModelMeasurement", "Request", "config_of"]

Count = Annotated[int, Field(ge=1, le=2**31)]


class ModelMeasurement(Measurement):
    """A measurement whose points depend on a model, a device and the limits of a step."""

    clock_choice: ClassVar[bool] = True

    measure: str = ""
    model: str
    """A shipped model, or the path of a config.json."""
    device: Literal["cpu", "cuda"] = "cpu"
    """cpu or cuda."""
    hardware: str | None = None
    """Device description: peak rates for estimates and fits; null: cpu-core, h100-sxm."""
    dtype: str | None = None
    """Precision; null: bf16 on a GPU, fp32 on a CPU."""
    clock: Literal["wall", "cpu"] | None = None
    """On a CPU: wall or cpu; null: wall."""
    repetitions: Annotated[int, Field(ge=1, le=1000)] = 5
    """Measurements of every point."""
    warmup_s: Annotated[float, Field(ge=0, le=3600)] = 20.0
    """Seconds of work before the first measurement."""
    max_num_batched_tokens: Count = 2048
    """Most tokens of a step."""
    max_num_seqs: Count = 256
    """Most sequences of a step."""
    max_context: Count = 8192
    """Longest sequence."""
    threads: Annotated[int, Field(ge=1, le=4096)] = 1
    """CPU threads."""
    seed: Annotated[int, Field(ge=0)] = 0
    """Of random numbers."""

    def request(self, base_dir: Path) -> Request[Self]:
        """Return the measurement with its descriptions and defaults. Raises `InputError` naming the key.

        base_dir: Folder that the paths of the model and the device description are relative to.
        """
        cuda = self.device == "cuda"
        if cuda and self.clock is not None:
            raise InputError("cuda-events", self.clock, field="clock")
        description = load_model(self.model, base_dir)
        path = find(self.model, base_dir, "models", "a model description")
        config = read_json(path) if path.suffix == ".json" else config_of(description)
        name = self.hardware or ("h100-sxm" if cuda else "cpu-core")
        device = load_device(name, base_dir)
        if name == "cpu-core":
            flops = {key: peak * self.threads for key, peak in device.flops.items()}
            device = device.model_copy(update={"flops": flops})
        return Request(self, description, config, device, name, self.dtype or ("bf16" if cuda else "fp32"),
                       "cuda-events" if cuda else self.clock or "wall")


M = TypeVar("M", bound=ModelMeasurement)


class Request(NamedTuple, Generic[M]):
    """A measurement, with every default filled in.

    Attributes:
        hardware_name: Name or file of `hardware`.
        dtype: A name of `hermes.hardware.descriptions.models.PRECISIONS`.
    """

    asked: M
    model: ModelDescription
    config_json: dict[str, Any]
    hardware: DeviceDescription
    hardware_name: str
    dtype: str
    clock: Literal["wall", "cpu", "cuda-events"]


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
