"""Descriptions of language models: shapes, parameter counts, and the bytes of weights and KV cache.

A description comes from a shipped file (`hw_profiles/models/NAME.yaml`), a YAML file of the same form, or a Hugging
Face `config.json` (`hermes.hardware.hf_config`). It contains no speeds.
"""

from __future__ import annotations

import math
from pathlib import Path
from typing import Annotated, Literal, NamedTuple

from pydantic import Field, model_validator

from hermes.config import ConfigModel
from hermes.config.validation import load, validate
from hermes.errors import InputError, suggest
from hermes.hardware.files import find, read_json

__all__ = ["PRECISIONS", "ModelDescription", "Precision", "load_model", "precision"]


class Precision(NamedTuple):
    """Storage of the transformer layers' matrices, and the arithmetic of their products."""

    layer_bytes: float
    """Bytes per weight of the layers' matrices."""
    other_bytes: float
    """Bytes per weight of embeddings, output head and norms, which quantised checkpoints keep wide."""
    compute: str
    """Key of the device's peak FLOP/s."""
    dequantised: bool = False
    """Whether the kernel widens weights before it multiplies them (weight-only quantisation)."""


PRECISIONS = {
    "bf16": Precision(2.0, 2.0, "bf16"),
    "fp16": Precision(2.0, 2.0, "bf16"),
    "fp32": Precision(4.0, 4.0, "fp32"),
    "fp8": Precision(1.0, 2.0, "fp8"),
    "int8": Precision(1.0, 2.0, "int8"),
    # AWQ, groups of 128 weights: 4 bits each, a 16-bit scale and a 4-bit zero point per group; multiplied in 16 bits
    "int4-awq": Precision((4 + 20 / 128) / 8, 2.0, "bf16", dequantised=True),
}


def precision(dtype: str) -> Precision:
    """Return the precision of that name; `InputError` otherwise."""
    if dtype not in PRECISIONS:
        raise InputError(f"one of {', '.join(PRECISIONS)}", dtype, field="dtype", suggestion=suggest(dtype, PRECISIONS))
    return PRECISIONS[dtype]


Size = Annotated[int, Field(ge=1, le=2**31)]
Count = Annotated[int, Field(ge=0, le=2**31)]


class ModelDescription(ConfigModel):
    """The shape of a transformer. Counts are of the whole model unless a method says per device."""

    name: Annotated[str, Field(min_length=1, max_length=200)]
    hidden_size: Size
    num_layers: Size
    num_heads: Size
    num_kv_heads: Size
    """Key/value heads; fewer than `num_heads` for grouped-query attention."""
    head_dim: Size
    intermediate_size: Size
    """Inner width of the feed-forward network (of one expert in a mixture)."""
    vocab_size: Size
    gated_ffn: bool = True
    """Three matrices (gate, up, down: SwiGLU, GeGLU) instead of two."""
    output_head: Literal["separate", "tied", "none"] = "separate"
    """Output head: its own matrix, the embedding matrix, or (encoders) none."""
    causal: bool = True
    """False for encoders, whose tokens attend in both directions."""
    norm: Literal["rms", "layer"] = "rms"
    """RMSNorm has one vector, LayerNorm a scale and a bias."""
    norms_per_layer: Annotated[int, Field(ge=1, le=16)] = 2
    """Norms of a layer; Gemma 2 has four, before and after attention and feed-forward network."""
    qkv_bias: bool = False
    linear_bias: bool = False
    """Biases on every linear layer, qkv included."""
    qk_norm: bool = False
    """Norms on the query and key heads (Qwen3)."""
    embedding_norm: bool = False
    final_norm: bool = True
    pooler: bool = False
    learned_positions: Count = 0
    token_types: Count = 0
    num_experts: Count = 0
    """0: dense."""
    experts_per_token: Count = 0
    max_context: Size | None = None
    """Longest sequence (prompt and answer, in tokens) that the published model supports: `max_position_embeddings` of
    a config.json. None if its publisher states none."""
    top_p: bool = True
    """Whether the publisher's generation settings, which engines follow by default, keep the most probable tokens
    only (top-p): the sampler then works on the vocabulary of each sequence. For a `config.json`, what the
    `generation_config.json` beside it says; without one, no."""
    dtype: Literal["", "bf16", "fp16", "fp32", "fp8", "int8", "int4-awq"] = ""
    """Storage of the published weights of the layers; empty for 16 bits. It applies to `hardware: {kind: roofline}` and
    to the memory of the weights if neither scenario nor profile gives another."""
    source: str = ""
    """Source of the figures."""

    @model_validator(mode="after")
    def _consistent(self) -> ModelDescription:
        if self.num_heads % self.num_kv_heads:
            raise InputError(f"a divisor of num_heads ({self.num_heads})", self.num_kv_heads, field="num_kv_heads")
        if bool(self.num_experts) != bool(self.experts_per_token) or self.experts_per_token > self.num_experts:
            raise InputError(
                f"1 to num_experts ({self.num_experts}), or 0 for both", self.experts_per_token,
                field="experts_per_token",
            )
        return self

    @property
    def qkv_params(self) -> int:
        """Weights of the query, key and value projections of one layer."""
        return self.hidden_size * (self.num_heads + 2 * self.num_kv_heads) * self.head_dim

    @property
    def o_params(self) -> int:
        """Weights of the attention output projection of one layer."""
        return self.num_heads * self.head_dim * self.hidden_size

    @property
    def expert_params(self) -> int:
        """Weights of one feed-forward network (one expert)."""
        return (3 if self.gated_ffn else 2) * self.hidden_size * self.intermediate_size

    @property
    def layer_matrix_params(self) -> int:
        """Weights of all matrices of one layer, to which quantisation applies."""
        return self.qkv_params + self.o_params + self.expert_params * max(1, self.num_experts)

    def _layer_vector_params(self) -> int:
        norm = self.hidden_size * (2 if self.norm == "layer" else 1)
        total = self.norms_per_layer * norm + self.num_experts * self.hidden_size  # a router row per expert
        heads = (self.num_heads + 2 * self.num_kv_heads) * self.head_dim
        if self.qkv_bias or self.linear_bias:
            total += heads
        if self.linear_bias:
            total += self.hidden_size + self.hidden_size + self.intermediate_size * (2 if self.gated_ffn else 1)
        return total + (2 * self.head_dim if self.qk_norm else 0)

    def _outer_params(self) -> int:
        norm = self.hidden_size * (2 if self.norm == "layer" else 1)
        rows = self.vocab_size * (2 if self.output_head == "separate" else 1)
        rows += self.learned_positions + self.token_types
        total = rows * self.hidden_size + norm * (self.embedding_norm + self.final_norm)
        return total + (self.hidden_size * (self.hidden_size + 1) if self.pooler else 0)

    def num_params(self) -> int:
        """Return the number of parameters, biases and norms included."""
        return self.num_layers * (self.layer_matrix_params + self._layer_vector_params()) + self._outer_params()

    def active_params(self) -> int:
        """Return the parameters that one token uses: of the experts only `experts_per_token`."""
        idle = self.num_layers * self.expert_params * (self.num_experts - self.experts_per_token)
        return self.num_params() - idle

    def check_tp(self, tp: int) -> None:
        """Raise `InputError` unless the heads can be split over `tp` devices, as engines do: whole key-value heads on
        each, or copies of one on as many devices each."""
        if tp < 1 or self.num_heads % tp:
            raise InputError(f"a divisor of the {self.num_heads} attention heads of {self.name}", tp, field="tp")
        if self.num_kv_heads % tp and tp % self.num_kv_heads:
            raise InputError(f"a divisor or a multiple of the {self.num_kv_heads} key-value heads of {self.name}", tp,
                             field="tp")

    def check_pp(self, pp: int) -> None:
        """Raise `InputError` unless each of `pp` pipeline stages gets a layer."""
        if not 1 <= pp <= self.num_layers:
            raise InputError(f"1 to {self.num_layers} pipeline stages (layers of {self.name})", pp, field="pp")

    def weight_bytes(self, dtype: str = "bf16", tp: int = 1) -> int:
        """Return the bytes of weights on each of `tp` devices.

        Matrices and embeddings are split. Key and value projections are copied if there are more devices than key/value
        heads. Biases and norms (under 0.1%) count as split. Raises `InputError` for an unknown dtype or a `tp` that
        does not divide the heads.
        """
        kind = precision(dtype)
        self.check_tp(tp)
        copies = max(0, tp - self.num_kv_heads) * 2 * self.hidden_size * self.head_dim
        matrices = self.num_layers * (self.layer_matrix_params + copies)
        rest = self.num_params() - self.num_layers * self.layer_matrix_params
        return math.ceil((matrices * kind.layer_bytes + rest * kind.other_bytes) / tp)

    def kv_bytes_per_token(self, bytes_per_value: float = 2.0, tp: int = 1) -> int:
        """Return the bytes of KV cache of one token over the `tp` devices: 2 * layers * kv heads * head dim * bytes.

        If there are more devices than key/value heads, each device still keeps a whole head.
        """
        heads = max(self.num_kv_heads, tp)
        return math.ceil(2 * self.num_layers * heads * self.head_dim * bytes_per_value)


def load_model(name_or_path: str | Path, base_dir: Path | None = None) -> ModelDescription:
    """Load a shipped model by name (`llama-2-70b`), or a description file or Hugging Face `config.json` by path.

    A path is relative to `base_dir`, and may be a folder with a `config.json`. Raises `InputError` that names the file
    and the field for anything else.
    """
    path = find(name_or_path, base_dir, "models", "a model description")
    if path.suffix != ".json":
        return load(ModelDescription, path)
    try:
        from hermes.hardware.hf_config import from_hf_config

        fields = from_hf_config(read_json(path), path.parent.name if path.name == "config.json" else path.stem)
        fields["top_p"] = _keeps_the_probable(path.parent / "generation_config.json")
    except InputError as error:
        raise error.located(file=str(path)) from None
    return validate(ModelDescription, fields, str(path))


def _keeps_the_probable(generation: Path) -> bool:
    """Whether a model's `generation_config.json` asks for top-p; without the file, engines do not."""
    if not generation.is_file():
        return False
    settings = read_json(generation)
    top_p = settings.get("top_p") if isinstance(settings, dict) else None
    return isinstance(top_p, int | float) and 0.0 < top_p < 1.0
