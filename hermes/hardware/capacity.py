"""KV capacity of a client: memory x utilisation - weights - activation peak - engine, as vLLM computes it.

vLLM runs one step of the largest batch (`max_num_batched_tokens` tokens, `max_num_seqs` sampled rows) and measures its
peak. KV blocks get the rest of `gpu_memory_utilization` x total memory (vllm/v1/worker/gpu_worker.py,
determine_available_memory). Without a measurement this module estimates the peak from the shapes of that step. All
bytes are of one device; tensor parallelism and pipeline stages divide the model over devices.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, field

from hermes.errors import InputError, Verbatim
from hermes.hardware.models import ModelDescription, precision

__all__ = ["ENGINE_BYTES", "SAMPLER_BYTES", "KvBudget", "Part", "activation_peak_bytes", "engine_bytes",
           "stage_kv_bytes_per_token", "stage_weight_bytes"]

ENGINE_BYTES = 664 * 2**20
"""Memory outside PyTorch's allocator that vLLM counts: libraries' workspaces, loaded kernels, CUDA graphs (from 0.21).
Chosen so that the estimate meets one server's recorded block count (RTX 4090, vLLM 0.19.0, Llama-3.1-8B); that of
another (H100, vLLM 0.23.0, Qwen3-14B) comes out 0.7% lower."""
NCCL_BYTES = {1: 0, 2: 358_612_992, 4: 411_041_792}
"""Buffers of NCCL by tensor parallelism (from the system files of aiconfigurator-core 0.12.0, Apache-2.0)."""
SAMPLER_BYTES = 2 + 4 + 4 + 4
"""Of each sampled row and word of the vocabulary while vLLM samples with top-k and top-p: logits in 16 and in 32
bits, probabilities, noise (vllm/v1/sample, 0.19 to 0.32). Engines that sort say more (`sampling_bytes`)."""
# the kernel that filters by top-k and top-p has a buffer of a row for each multiprocessor
_FILTER_ROWS, _FILTER_BYTES = 128, 4


@dataclass(frozen=True)
class Part:
    """A number of bytes and its source."""

    bytes: int
    source: str


NOTHING = Part(0, "not given")


def stage_layers(model: ModelDescription, pp: int) -> int:
    """Return the layers of the fullest pipeline stage."""
    return math.ceil(model.num_layers / pp)


def stage_weight_bytes(model: ModelDescription, dtype: str, tp: int = 1, pp: int = 1, dp: int = 1) -> int:
    """Return the weight bytes on one device of the fullest pipeline stage (with the embedding or the output head).

    dp: ranks that share a mixture's experts
    """
    whole = model.weight_bytes(dtype, tp, dp)
    if pp == 1:
        return whole
    model.check_pp(pp)
    outer = model.outer_params() * precision(dtype).other_bytes / tp
    layer = (whole - outer) / model.num_layers
    table = model.vocab_size * model.hidden_size * precision(dtype).other_bytes / tp
    return math.ceil(layer * stage_layers(model, pp) + outer - (table if model.output_head == "separate" else 0.0))


def stage_kv_bytes_per_token(model: ModelDescription, value_bytes: float, tp: int = 1, pp: int = 1) -> float:
    """Return the KV bytes of one token on one device of the fullest pipeline stage."""
    return model.kv_bytes_per_token(value_bytes, tp) / tp * stage_layers(model, pp) / model.num_layers


def activation_peak_bytes(
    model: ModelDescription, *, tp: int = 1, dtype: str = "bf16", max_num_batched_tokens: int = 2048,
    max_num_seqs: int = 256, sampler_bytes: int = SAMPLER_BYTES,
) -> int:
    """Estimate the peak of one device's activations in a step of `max_num_batched_tokens` tokens.

    The peak is the larger of two: one layer (residual, and the widest pair of an operator's input and output), and
    sampling of `max_num_seqs` rows (`sampler_bytes` per word of the vocabulary; with tensor parallelism every device
    gathers all words) beside the step's final hidden states.
    """
    act, tokens = precision(dtype).other_bytes, max_num_batched_tokens
    heads = (model.num_heads + 2 * model.num_kv_heads) / tp * model.head_dim
    inner = model.intermediate_size / tp * max(1, model.experts_per_token)
    widest = max(heads + model.num_heads / tp * model.head_dim, (3 if model.gated_ffn else 2) * inner)
    layer = tokens * (model.hidden_size + widest) * act
    words = model.vocab_size if model.output_head != "none" else 0
    rows = min(max_num_seqs, tokens)
    sampling = words * (rows * sampler_bytes + min(rows, _FILTER_ROWS) * _FILTER_BYTES)
    return math.ceil(max(layer, sampling + tokens * model.hidden_size * act))


def engine_bytes(tp: int = 1) -> int:
    """Estimate the memory of one device that is neither weights, activations nor KV."""
    return ENGINE_BYTES + NCCL_BYTES[max(n for n in NCCL_BYTES if n <= tp)]


@dataclass(frozen=True)
class KvBudget:
    """The KV memory of one client and the terms of its computation; the terms are of one device."""

    block_size: int
    num_blocks: int
    kv_bytes_per_token: float = 0.0    # whole client; 0 if unknown
    devices: int = 1
    utilization: float = 1.0
    capacity: Part = field(default=NOTHING)
    weights: Part = field(default=NOTHING)
    activations: Part = field(default=NOTHING)
    engine: Part = field(default=NOTHING)
    source: str = "num_blocks given"

    @property
    def tokens(self) -> int:
        """Tokens that fit."""
        return self.num_blocks * self.block_size

    @property
    def bytes(self) -> int:
        """Bytes of all blocks on the whole client."""
        return round(self.tokens * self.kv_bytes_per_token)

    @property
    def unreserved_tokens(self) -> int | None:
        """Tokens whose KV would fit into the memory outside the engine's share; None if the memory is unknown."""
        if not (self.capacity.bytes and self.kv_bytes_per_token):
            return None
        return int(self.devices * self.capacity.bytes * (1 - self.utilization) / self.kv_bytes_per_token)


def cut_blocks(
    block_size: int, kv_bytes_per_token: float, devices: int, utilization: float, capacity: Part, weights: Part,
    activations: Part, engine: Part, weights_total: float | None = None,
) -> KvBudget:
    """Return the blocks that fit beside weights, activations and engine in all devices' memory.

    weights_total: Weights of the whole client if they are not `devices` times those of one. Raises `InputError` if not
    a single block fits; its message states what does not fit, and what to change.
    """
    taken = devices * weights.bytes if weights_total is None else weights_total
    left = devices * capacity.bytes * utilization - taken - devices * activations.bytes - devices * engine.bytes
    block = block_size * kv_bytes_per_token
    num_blocks = int(left // block)
    if num_blocks < 1:
        others = (("activations", devices * activations.bytes), ("the engine", devices * engine.bytes),
                  ("a KV block", block))
        missing = math.ceil(block - left)
        raise InputError(_no_room(devices, utilization, capacity, taken, others, missing), field="memory.capacity")
    return KvBudget(block_size, num_blocks, kv_bytes_per_token, devices, utilization, capacity, weights, activations,
                    engine, "computed")


def _no_room(
    devices: int, utilization: float, capacity: Part, weights: float, others: Sequence[tuple[str, float]], missing: int
) -> Verbatim:
    """Return one line: what does not fit into how much memory, how much is missing, and what helps.

    Where the weights alone do not fit, the others are left out, and what is missing is what the weights lack.
    """
    room = f"{devices} x {_size(capacity.bytes)}" if devices > 1 else _size(capacity.bytes)
    source = "" if capacity.source == "given" else f", {capacity.source}"
    usable = devices * capacity.bytes * utilization
    if utilization < 1:
        room = f"{_size(usable)} (gpu_memory_utilization {utilization:g} of {room}{source})"
    elif source:
        room += f" ({capacity.source})"
    if weights > usable:
        others, missing = (), math.ceil(weights - usable)
    what = " + ".join(f"{name} ({_size(size)})" for name, size in (("the weights", weights), *others) if size)
    return Verbatim(f"{what} do not fit in {room}: {_size(missing)} are missing; take more devices (tp), a larger one, "
                    "or fewer bits per weight")


def _size(size: float) -> str:
    """Return a size in decimal units, as on model cards, or in binary ones if it is a round number of them (80 GiB)."""
    for factor, unit in ((2**30, "GiB"), (2**20, "MiB")):
        if size >= factor and size % factor == 0:
            return f"{size / factor:,.6g} {unit}"
    for factor, unit in ((10**9, "GB"), (10**6, "MB"), (10**3, "kB")):
        if size >= factor:
            return f"{size / factor:,.{1 if size % factor else 0}f} {unit}"
    return f"{size:,.0f} bytes"
