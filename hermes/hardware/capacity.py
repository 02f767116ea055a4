"""KV capacity of a client: what an engine's own sum leaves of its devices' memory.

- vLLM runs one step of the largest batch (`max_num_batched_tokens` tokens, `max_num_seqs` sampled rows) and measures
  its peak. KV gets `gpu_memory_utilization` x memory - weights - peak - engine (`determine_available_memory` of
  vllm/v1/worker/gpu_worker.py).
- SGLang: `mem_fraction_static` x what was free before the weights came - weights; the rest of the memory is for
  activations and graphs.
- TensorRT-LLM: `free_gpu_memory_fraction` x what is free besides weights, activations and engine.

Without a measurement this module estimates the peak from the shapes of that step. All bytes are of one device; tensor
parallelism and pipeline stages divide the model over devices.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Protocol

from hermes.errors import InputError, Verbatim
from hermes.hardware.descriptions.models import ModelDescription, precision
from hermes.hardware.engine_memory import FILTER_ROWS, NEWEST_RULES, MemoryRules, Part, SamplerRows
from hermes.sums import float_sum

__all__ = ["KvBudget", "Part", "activation_peak", "cut_blocks", "stage_kv_bytes_per_token", "stage_weight_bytes"]

NOTHING = Part(0, "not given")
PRINTS_LONGEST = (0, 20)
LEAST, MOST = 0.7, 1.3     # range of an estimated peak
LEAST_SORTED = 0.28        # where FlashInfer samples, as images of vLLM do until 0.10 and others may
MOST_SHARE = 0.97   # of the memory, that an engine may be told to take
AGAIN = 1000 * 2**20   # bytes by which the same command differs from start to start


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


def activation_peak(
    model: ModelDescription, sampler: SamplerRows, *, tp: int = 1, dp: int = 1, ep: bool = False, dtype: str = "bf16",
    tokens: int = 2048, seqs: int = 256, latent: int = 0,
) -> Part:
    """Estimate the peak of one device's activations in a step of so many tokens.

    The peak is the largest of three: one layer (residual, and the widest pair of an operator's input and output; of a
    mixture what `fused_experts` of vllm/model_executor/layers/fused_moe/fused_moe.py holds for all ranks' tokens; of
    latent attention keys and values of `latent` tokens), sampling of `seqs` rows (with tensor parallelism every device
    gathers all words) besides the final hidden states, and the vision tower's pictures.
    """
    act, hidden = precision(dtype).other_bytes, model.hidden_size
    heads = (model.num_heads + 2 * model.num_kv_heads) / tp * model.head_dim
    widest = heads + model.num_heads / tp * model.v_dim
    if model.num_experts:
        inner = model.intermediate_size / (1 if ep else tp)
        routed = model.experts_per_token * (max((2 if model.gated_ffn else 1) * inner, hidden) + inner)
        widest = max(widest, dp * (hidden + routed))
    else:
        widest = max(widest, (3 if model.gated_ffn else 2) * model.intermediate_size / tp)
    layer = tokens * (hidden + widest) * act
    if model.mla is not None:
        layer += latent * model.num_heads / tp * (model.mla.qk_nope_head_dim + model.mla.v_head_dim) * act
    words = model.vocab_size if model.output_head != "none" else 0
    rows = min(seqs, tokens)
    sampling = words * (rows * sampler.word + min(rows, FILTER_ROWS) * sampler.filtered) + tokens * hidden * act
    sizes = {"a layer": layer, f"sampling ({sampler.source})": sampling,
             "pictures": 0.0 if model.vision is None else model.vision.profiled_bytes(tokens)}
    what = max(sizes, key=lambda name: sizes[name])
    peak, low = math.ceil(sizes[what]), LEAST_SORTED if sampler.sorts and what.startswith("sampling") else LEAST
    return Part(peak, f"estimate for {tokens:,} tokens and {seqs:,} sequences a step: {what}", round(peak * low),
                round(peak * MOST))


class Windows(Protocol):
    """Groups of layers with and without a window (`hermes.memory.windows.WindowGroups`)."""

    @property
    def windowed(self) -> int: ...
    @property
    def window(self) -> int: ...
    @property
    def ahead(self) -> int: ...


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
    rules: MemoryRules = NEWEST_RULES
    terms: Mapping[str, Part] = field(default_factory=dict)   # of `engine`
    windows: Windows | None = None   # groups of layers that share the blocks; None for one

    @property
    def tokens(self) -> int:
        """Tokens that fit."""
        return self.num_blocks * self.block_size

    def fits(self, longest: int) -> float:
        """Return how many requests of so many tokens fit at once ("Maximum concurrency"), as vLLM counts them: layers
        with a window hold it, a step's tokens, and one block more (`SlidingWindowSpec.max_memory_usage_bytes`)."""
        blocks = math.ceil(longest / self.block_size)
        if (groups := self.windows) is not None:
            held = min(groups.window - 1 + groups.ahead, longest)
            blocks += groups.windowed * (math.ceil(held / self.block_size) + 1)
        return self.num_blocks / blocks

    def printed(self, longest: int | None) -> int:
        """Return the tokens that the engine prints ("GPU KV cache size"): until vLLM 0.20 those of one group of layers,
        since then those of the longest requests that fit."""
        if self.windows is None:
            return self.tokens
        if longest is None or self.rules.version < PRINTS_LONGEST:
            return self.num_blocks // (self.windows.windowed + 1) * self.block_size
        return int(self.fits(longest) * longest)

    @property
    def bytes(self) -> int:
        """Bytes of all blocks on the whole client."""
        return round(self.tokens * self.kv_bytes_per_token)

    @property
    def device_bytes(self) -> int:
        """Bytes of the blocks on one device."""
        return round(self.bytes / self.devices)

    @property
    def range(self) -> tuple[int, int]:
        """Least and most KV bytes of one device: how far the terms may be off, and what two starts differ by."""
        if self.source != "computed":
            return self.device_bytes, self.device_bytes
        parts = [self.weights, *([self.activations] if self.rules.counts_activations else []),
                 *(self.terms or {"": self.engine}).values()]
        again = 0 if all(part.low is None for part in parts) else AGAIN
        less, more = ([part.ends[1] - part.bytes for part in parts], [part.bytes - part.ends[0] for part in parts])
        share = self.utilization if self.rules.sums == "trtllm" else 1.0
        down, up = (share * math.hypot(again, *those) for those in (less, more))
        return max(0, round(self.device_bytes - down)), round(self.device_bytes + up)

    @property
    def unreserved_tokens(self) -> int | None:
        """Tokens whose KV would fit into the memory outside the engine's share; None if the memory is unknown."""
        if not (self.capacity.bytes and self.kv_bytes_per_token):
            return None
        return int(self.devices * self.capacity.bytes * (1 - self.utilization) / self.kv_bytes_per_token)


def cut_blocks(
    block_size: int, kv_bytes_per_token: float, devices: int, utilization: float, capacity: Part, weights: Part,
    activations: Part, engine: Part, weights_total: float | None = None, rules: MemoryRules = NEWEST_RULES,
    terms: Mapping[str, Part] | None = None,
) -> KvBudget:
    """Return the blocks that fit besides weights, activations and engine in all devices' memory.

    weights_total: Weights of the whole client if they are not `devices` times those of one. Raises `InputError` if not
    a single block fits; its message states what does not fit, and what to change.
    """
    taken = devices * weights.bytes if weights_total is None else weights_total
    before, beside = devices * engine.bytes, devices * (activations.bytes + engine.bytes)
    usable, block = devices * capacity.bytes * utilization, block_size * kv_bytes_per_token
    needs = [("the weights", taken), ("activations", devices * activations.bytes), ("the engine", before)]
    if rules.sums == "sglang":
        usable, needs = usable - utilization * before, needs[:1]
    left, room, share = usable - float_sum(size for _, size in needs), usable, 1.0
    if rules.sums == "trtllm":   # its share is of what they leave
        left, room, share = usable - utilization * (taken + beside), devices * capacity.bytes, utilization
    num_blocks = int(left // block)
    budget = KvBudget(block_size, num_blocks, kv_bytes_per_token, devices, utilization, capacity, weights, activations,
                      engine, "computed", rules, terms or {})
    if num_blocks < 1:
        missing = math.ceil((block - left) / share)   # in the error too, for searches
        raise InputError(_no_room(budget, room, [*needs, ("a KV block", block)], missing), missing,
                         field="memory.capacity")
    return budget


def _no_room(budget: KvBudget, usable: float, needs: Sequence[tuple[str, float]], missing: int) -> Verbatim:
    """Return one line: what does not fit into how much memory, how much is missing, and what helps.

    Where the weights alone do not fit, the others are left out, and what is missing is what the weights lack.
    """
    devices, capacity, utilization = budget.devices, budget.capacity, budget.utilization
    room = f"{devices} x {_size(capacity.bytes)}" if devices > 1 else _size(capacity.bytes)
    source = "" if capacity.source == "given" else f", {capacity.source}"
    if utilization < 1 and budget.rules.sums != "trtllm":
        room = f"{_size(usable)} ({budget.rules.flag} {utilization:g} of {room}{source})"
    elif source:
        room += f" ({capacity.source})"
    if needs[0][0] == "the weights" and needs[0][1] > usable:
        needs, missing = needs[:1], math.ceil(needs[0][1] - usable)
    what = " + ".join(f"{name} ({_size(size)})" for name, size in needs if size)
    return Verbatim(f"{what} do not fit in {room}: {_size(missing)} are missing; {_helps(budget, missing, len(needs))}")


def _helps(budget: KvBudget, missing: int, needs: int) -> str:
    """Return the flags that would help, the cheapest first."""
    more, found = "take more devices (tp), a larger one, or fewer bits per weight", []
    if needs > 1 and budget.capacity.source != "given" and budget.rules.sums != "trtllm":
        raised = budget.utilization + missing / max(1, budget.devices * budget.capacity.bytes)
        if raised <= MOST_SHARE:
            found.append(f"--{budget.rules.flag.replace('_', '-')} {math.ceil(raised * 100) / 100:g}")
        if missing < budget.devices * budget.activations.bytes and budget.rules.sums == "vllm":
            found.append("a lower --max-num-seqs or --max-num-batched-tokens (activations)")
    return f"{', '.join(found)} would help; or {more}" if found else more


def _size(size: float) -> str:
    """Return a size in decimal units, as on model cards, or in binary ones if it is a round number of them (80 GiB)."""
    for factor, unit in ((2**30, "GiB"), (2**20, "MiB")):
        if size >= factor and size % factor == 0:
            return f"{size / factor:,.6g} {unit}"
    for factor, unit in ((10**9, "GB"), (10**6, "MB"), (10**3, "kB")):
        if size >= factor:
            return f"{size / factor:,.{1 if size % factor else 0}f} {unit}"
    return f"{size:,.0f} bytes"
