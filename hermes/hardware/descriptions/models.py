"""Descriptions of language models: shapes, parameter counts, and the bytes of weights and KV cache.

A description comes from a shipped file (`hw_profiles/models/NAME.yaml`), a YAML file of the same form, or a Hugging
Face `config.json` (`hermes.hardware.descriptions.hf_config`). It contains no speeds.
"""

from __future__ import annotations

import math
from pathlib import Path
from typing import Annotated, Literal, NamedTuple

from pydantic import Field, model_validator

from hermes.config import ConfigModel, Name
from hermes.config.validation import load, validate
from hermes.errors import InputError, suggest
from hermes.hardware.descriptions.files import find, names_in, read_json

__all__ = ["PRECISIONS", "Mla", "ModelDescription", "Precision", "load_model", "precision"]


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
    # blocks of 128 x 128 weights with a 32-bit scale each (DeepSeek)
    "fp8-block": Precision(1.0 + 4 / 128**2, 2.0, "fp8"),
    # OCP microscaling: 4 bits a weight, 8 bits of scale for 32 of them; the second has activations in 4 bits too (AMD's
    # Quark). NVIDIA's: 8 bits for 16, multiplied in 4 bits
    "mxfp4": Precision((4 + 8 / 32) / 8, 2.0, "bf16", dequantised=True),
    "mxfp4-w4a4": Precision((4 + 8 / 32) / 8, 2.0, "fp4"),
    "nvfp4": Precision((4 + 8 / 16) / 8, 2.0, "fp4"),
    # compressed-tensors, groups of 32 weights with a 16-bit scale
    "int4": Precision((4 + 16 / 32) / 8, 2.0, "bf16", dequantised=True),
}


def precision(dtype: str) -> Precision:
    """Return the precision of that name; `InputError` otherwise."""
    if dtype not in PRECISIONS:
        raise InputError(f"one of {', '.join(PRECISIONS)}", dtype, field="dtype", suggestion=suggest(dtype, PRECISIONS))
    return PRECISIONS[dtype]


Size = Annotated[int, Field(ge=1, le=2**31)]
Count = Annotated[int, Field(ge=0, le=2**31)]


Dtypes = Literal["", "bf16", "fp16", "fp32", "fp8", "fp8-block", "int8", "int4-awq", "int4", "mxfp4", "mxfp4-w4a4",
                 "nvfp4"]


class Mla(ConfigModel):
    """Multi-head latent attention (DeepSeek-V2, arXiv 2405.04434): the KV cache holds one latent vector of a token."""

    q_lora_rank: Count = 0
    """Width of the queries' latent vector; 0: queries are projected at once."""
    kv_lora_rank: Size
    """Width of the latent vector that keys and values are made of."""
    qk_nope_head_dim: Size
    qk_rope_head_dim: Size
    """Width of the rotated part of a key, which all heads share and the KV cache holds beside the latent vector."""
    v_head_dim: Size

    @property
    def cached(self) -> int:
        """Values in the KV cache of one layer and token."""
        return self.kv_lora_rank + self.qk_rope_head_dim


class Vision(ConfigModel):
    """A vision tower: a transformer over patches of pictures."""

    num_layers: Size
    hidden_size: Size
    intermediate_size: Size
    patches: Size
    """Patches of a picture."""
    tokens: Size
    """Tokens that a picture becomes."""

    @property
    def params(self) -> int:
        """Weights of its layers: attention and two matrices each."""
        return self.num_layers * self.hidden_size * (4 * self.hidden_size + 2 * self.intermediate_size)

    def profiled_bytes(self, tokens: int) -> int:
        """Return the peak of a profile run over as many pictures as a step of so many tokens may have."""
        pictures = max(1, tokens // self.tokens)
        return 2 * pictures * self.patches * (4 * self.hidden_size + self.intermediate_size)


class ModelDescription(ConfigModel):
    """The shape of a transformer. Counts are of the whole model unless a method says per device."""

    name: Name
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
    shared_intermediate_size: Count = 0
    """Inner width of the experts that every token uses, all together (mixtures)."""
    dense_layers: Count = 0
    """First layers of a mixture whose feed-forward network is dense."""
    dense_intermediate_size: Count = 0
    """Inner width of their feed-forward network."""
    expert_dtype: Dtypes = ""
    """Storage of the experts' weights where it differs from that of the other layers' matrices (gpt-oss)."""
    mla: Mla | None = None
    """Shape of multi-head latent attention; `head_dim` is then that of queries and keys, `num_kv_heads` the heads."""
    window: Count = 0
    """Tokens that a layer with a sliding window attends to; 0: no layer has one."""
    window_layers: Count = 0
    """Layers with the sliding window."""
    vision: Vision | None = None
    """Shape of the tower that turns pictures into tokens; it counts for memory alone."""
    max_context: Size | None = None
    """Longest sequence (prompt and answer, in tokens) that the published model supports: `max_position_embeddings` of
    a config.json. None if its publisher states none."""
    top_p: bool = True
    """Whether the publisher's generation settings, which engines follow by default, keep the most probable tokens
    only (top-p): the sampler then works on the vocabulary of each sequence. For a `config.json`, what the
    `generation_config.json` beside it says; without one, no."""
    dtype: Dtypes = ""
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
        if self.dense_layers > (self.num_layers if self.num_experts else 0):
            raise InputError("at most the layers of a mixture of experts", self.dense_layers, field="dense_layers")
        if bool(self.dense_layers) != bool(self.dense_intermediate_size):
            raise InputError("the inner width of the dense layers, or 0 without any", self.dense_intermediate_size,
                             field="dense_intermediate_size")
        if bool(self.window) != bool(self.window_layers) or self.window_layers > self.num_layers:
            raise InputError(f"1 to num_layers ({self.num_layers}) beside a window, else 0", self.window_layers,
                             field="window_layers")
        return self

    @property
    def qkv_params(self) -> int:
        """Weights of the query, key and value projections of one layer."""
        if self.mla is None:
            return self.hidden_size * (self.num_heads + 2 * self.num_kv_heads) * self.head_dim
        return sum(n * k for n, k in self.mla_shapes().values())

    def mla_shapes(self, tp: int = 1) -> dict[str, tuple[int, int]]:
        """Return (outputs, inputs) of the projections of latent attention on each of `tp` devices, by name.

        The projections to latent vectors are on every device, those to heads are split (vLLM's
        MultiHeadLatentAttention).
        """
        mla, heads = self.mla, self.num_heads // tp
        assert mla is not None
        query = mla.qk_nope_head_dim + mla.qk_rope_head_dim
        if mla.q_lora_rank:   # both latent vectors come from one product
            down = {"qkv_a": (mla.q_lora_rank + mla.cached, self.hidden_size), "q_b": (heads * query, mla.q_lora_rank)}
        else:
            down = {"kv_a": (mla.cached, self.hidden_size), "q": (heads * query, self.hidden_size)}
        return down | {"kv_b": (heads * (mla.qk_nope_head_dim + mla.v_head_dim), mla.kv_lora_rank)}

    @property
    def o_params(self) -> int:
        """Weights of the attention output projection of one layer."""
        return self.num_heads * self.v_dim * self.hidden_size

    @property
    def v_dim(self) -> int:
        """Width of a head's values."""
        return self.head_dim if self.mla is None else self.mla.v_head_dim

    @property
    def expert_params(self) -> int:
        """Weights of one feed-forward network (one expert)."""
        return self.ffn_params(self.intermediate_size)

    def ffn_params(self, inner: int) -> int:
        """Weights of a feed-forward network of so much inner width."""
        return (3 if self.gated_ffn else 2) * self.hidden_size * inner

    @property
    def expert_layers(self) -> int:
        """Layers with a mixture of experts."""
        return self.num_layers - self.dense_layers if self.num_experts else 0

    @property
    def layer_matrix_params(self) -> int:
        """Weights of all matrices of one layer, to which quantisation applies; of a mixture, one with experts."""
        return (self.qkv_params + self.o_params + self.expert_params * max(1, self.num_experts)
                + self.ffn_params(self.shared_intermediate_size))

    def _routed_params(self) -> int:
        """Weights of all routed experts of all layers."""
        return self.expert_layers * self.num_experts * self.expert_params

    def _other_matrix_params(self) -> int:
        """Weights of all other matrices of the layers."""
        dense = self.dense_layers if self.num_experts else self.num_layers
        inner = self.dense_intermediate_size if self.num_experts else self.intermediate_size
        return (self.num_layers * (self.qkv_params + self.o_params) + dense * self.ffn_params(inner)
                + self.expert_layers * self.ffn_params(self.shared_intermediate_size))

    def _layer_vector_params(self) -> int:
        norm = self.hidden_size * (2 if self.norm == "layer" else 1)
        total = self.norms_per_layer * norm
        if self.mla is not None:
            return total + self.mla.q_lora_rank + self.mla.kv_lora_rank
        heads = (self.num_heads + 2 * self.num_kv_heads) * self.head_dim
        if self.qkv_bias or self.linear_bias:
            total += heads
        if self.linear_bias:
            total += self.hidden_size + self.hidden_size + self.intermediate_size * (2 if self.gated_ffn else 1)
        return total + (2 * self.head_dim if self.qk_norm else 0)

    def outer_params(self) -> int:
        """Return the parameters outside the layers: embeddings, output head, last norm."""
        norm = self.hidden_size * (2 if self.norm == "layer" else 1)
        rows = self.vocab_size * (2 if self.output_head == "separate" else 1)
        rows += self.learned_positions + self.token_types
        total = rows * self.hidden_size + norm * (self.embedding_norm + self.final_norm)
        return total + (self.hidden_size * (self.hidden_size + 1) if self.pooler else 0)

    def num_params(self) -> int:
        """Return the number of parameters, biases and norms included."""
        routers = self.expert_layers * self.num_experts * self.hidden_size   # a row per expert
        return (self._routed_params() + self._other_matrix_params() + routers
                + self.num_layers * self._layer_vector_params() + self.outer_params())

    @property
    def vision_params(self) -> int:
        """Weights of the vision tower, which quantised checkpoints keep in 16 bits."""
        return 0 if self.vision is None else self.vision.params

    def active_params(self) -> int:
        """Return the parameters that one token uses: of the experts only `experts_per_token`."""
        idle = self.expert_layers * self.expert_params * (self.num_experts - self.experts_per_token)
        return self.num_params() - idle

    def check_tp(self, tp: int) -> None:
        """Raise `InputError` unless the heads can be split over `tp` devices, as engines do: whole key-value heads on
        each, or copies of one on as many devices each."""
        if tp < 1 or self.num_heads % tp:
            raise InputError(f"a divisor of the {self.num_heads} attention heads of {self.name}", tp, field="tp")
        if self.mla is None and self.num_kv_heads % tp and tp % self.num_kv_heads:
            raise InputError(f"a divisor or a multiple of the {self.num_kv_heads} key-value heads of {self.name}", tp,
                             field="tp")

    def check_pp(self, pp: int) -> None:
        """Raise `InputError` unless each of `pp` pipeline stages gets a layer."""
        if not 1 <= pp <= self.num_layers:
            raise InputError(f"1 to {self.num_layers} pipeline stages (layers of {self.name})", pp, field="pp")

    def weight_bytes(self, dtype: str = "bf16", tp: int = 1, dp: int = 1) -> int:
        """Return the bytes of weights on each device of `dp` ranks with `tp` devices each.

        Matrices and embeddings are split over the devices of a rank, routed experts over those of all ranks. Key and
        value projections are copied if there are more devices than key/value heads, the projections to latent vectors
        are on every device. Biases and norms (under 0.1%) count as split. Raises `InputError` for an unknown dtype or
        a `tp` that does not divide the heads.
        """
        kind, routed = precision(dtype), precision(self.expert_dtype or dtype)
        self.check_tp(tp)
        if self.mla is None:
            copies = max(0, tp - self.num_kv_heads) * 2 * self.hidden_size * self.head_dim
        else:
            copies = (tp - 1) * self.hidden_size * (self.mla.q_lora_rank + self.mla.cached)
        matrices = self._other_matrix_params() + self.num_layers * copies
        rest = self.num_params() - self._routed_params() - self._other_matrix_params()
        rest += self.vision_params
        return math.ceil((matrices * kind.layer_bytes + rest * kind.other_bytes) / tp
                         + self._routed_params() * routed.layer_bytes / (tp * dp))

    def kv_bytes_per_token(self, bytes_per_value: float = 2.0, tp: int = 1) -> int:
        """Return the bytes of KV cache of one token over the `tp` devices: 2 * layers * kv heads * head dim * bytes.

        If there are more devices than key/value heads, each device still keeps a whole head; of latent attention each
        keeps the whole latent vector.
        """
        if self.mla is not None:
            return math.ceil(self.num_layers * tp * self.mla.cached * bytes_per_value)
        heads = max(self.num_kv_heads, tp)
        return math.ceil(2 * self.num_layers * heads * self.head_dim * bytes_per_value)


def load_model(name_or_path: str | Path, base_dir: Path | None = None) -> ModelDescription:
    """Load a shipped model by name (`llama-2-70b`), or a description file or Hugging Face `config.json` by path.

    A checkpoint's name at Hugging Face gives the description of its model with the precision and the longest sequence
    of the checkpoint (`hermes.hardware.descriptions.checkpoints`). A path is relative to `base_dir`, and may be a
    folder with a `config.json`. Raises `InputError` that names the file and the field for anything else.
    """
    if isinstance(name_or_path, str) and name_or_path not in names_in("models"):
        from hermes.hardware.descriptions.checkpoints import checkpoint  # most names are those of files

        if (found := checkpoint(name_or_path, base_dir)) is not None:
            return load_model(found.model).model_copy(update=found.changes())
    path = find(name_or_path, base_dir, "models", "a model description")
    if path.suffix != ".json":
        return load(ModelDescription, path)
    try:
        from hermes.hardware.descriptions.hf_config import from_hf_config

        data = _with_modelopt(read_json(path), path.parent / "hf_quant_config.json")
        fields = from_hf_config(data, path.parent.name if path.name == "config.json" else path.stem)
        fields["top_p"] = _keeps_the_probable(path.parent / "generation_config.json")
    except InputError as error:
        raise error.located(file=str(path)) from None
    return validate(ModelDescription, fields, str(path))


def _with_modelopt(config: object, beside: Path) -> object:
    """Return a config with the quantisation that ModelOpt writes to a file beside it; engines read it so, too."""
    if not isinstance(config, dict) or config.get("quantization_config") is not None or not beside.is_file():
        return config
    found = read_json(beside)
    if not isinstance(found, dict) or not isinstance(found.get("quantization"), dict):
        raise InputError("an object with `quantization`", found, field=beside.name)
    return config | {"quantization_config": {"quant_method": "modelopt", **found["quantization"]}}


def _keeps_the_probable(generation: Path) -> bool:
    """Whether a model's `generation_config.json` asks for top-p; without the file, engines do not."""
    if not generation.is_file():
        return False
    settings = read_json(generation)
    top_p = settings.get("top_p") if isinstance(settings, dict) else None
    return isinstance(top_p, int | float) and 0.0 < top_p < 1.0
