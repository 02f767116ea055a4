"""Hardware model `roofline`: a transformer's operators on a device, each bound by arithmetic or by memory.

Per layer: query/key/value projection, attention of the prefill tokens, attention of the decodes, output projection,
feed-forward network; once per step: the output head, on sampled tokens only. An operator takes

    max(flops / (peak * compute_efficiency), bytes / (memory bandwidth * memory_efficiency))

(S. Williams et al., "Roofline", CACM 2009; the operator list as in GenZ, arXiv 2406.01698). A linear layer with W
weights on T tokens does 2 W T flops and moves its weights once and its activations. Attention does 4 * heads * head dim
flops per pair and reads the keys and values of its context once. Norms, rotary embedding, residuals, embedding
look-up and sampling are left out: they are in the efficiencies and in `step_overhead`. In a step with prefill and
decode the linear layers see all tokens together.

Tensor parallelism divides weights, heads and context reads by `tp` (key/value heads no further than whole heads) and
adds two ring all-reduces per layer, each 2 (tp - 1) / tp of the activations over the link and 2 (tp - 1) hop latencies
(R. Thakur et al., IJHPCA 2005).

Only the decodes' attention changes within a run, and its time is proportional to the context: a step costs
`fixed + slope * (decode_ctx + decode_seqs)`.
"""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Literal

import numpy as np
from pydantic import Field

from hermes.config import ConfigModel, Duration
from hermes.errors import inside
from hermes.hardware.base import HARDWARE, IntArray, StepStats
from hermes.hardware.devices import DeviceDescription, load_device
from hermes.hardware.models import ModelDescription, load_model, precision
from hermes.units import NS_PER_S

__all__ = ["Roofline", "RooflineModel"]

Dtype = Literal["bf16", "fp16", "fp32", "fp8", "int8", "int4-awq"]
Efficiency = Annotated[float, Field(gt=0, le=1)]
Reference = Annotated[str, Field(min_length=1, max_length=4096)]


@HARDWARE.register("roofline")
class Roofline(ConfigModel):
    """Analytical step times for any model description on any device.

    The default efficiencies, hop latency and overhead were set by hand so that Llama-3.1-8B and 70B on H100 come within
    15% of aiconfigurator-core 0.12.0 (kernels measured under vLLM 0.24.0, bf16); a test holds the figures.
    """

    kind: Literal["roofline"] = "roofline"
    model: Reference
    """A model description: shipped name, YAML file, or Hugging Face config.json."""
    device: Reference
    """A device description: shipped name or YAML file."""
    tp: Annotated[int, Field(ge=1, le=1024)] = 1
    """Devices that share every layer (tensor parallelism)."""
    dtype: Dtype = "bf16"
    """Storage of the layers' weights; activations are 16 bits (32 with fp32)."""
    kv_dtype: Literal["auto", "bf16", "fp16", "fp32", "fp8"] = "auto"
    """Storage of the KV cache; auto is that of the activations."""
    compute_efficiency: Efficiency = 0.68
    """Part of the peak FLOP/s that large operators reach."""
    memory_efficiency: Efficiency = 0.77
    """Part of the memory bandwidth that is reached."""
    link_efficiency: Efficiency = 0.7
    """Part of the link bandwidth that an all-reduce reaches."""
    hop_latency: Duration = 1.3e-6
    """Latency of one of the 2 (tp - 1) hops of a ring all-reduce."""
    step_overhead: Duration = 2e-4
    """Time per step outside the operators (launches, sampling, the engine)."""

    def build(self, base_dir: Path | None = None) -> RooflineModel:
        """The model. Raises `InputError` for unknown or malformed descriptions and a `tp` that does not fit."""
        with inside("model"):
            model = load_model(self.model, base_dir)
        with inside("device"):
            device = load_device(self.device, base_dir)
        model.check_tp(self.tp)
        return RooflineModel(self, model, device)


class RooflineModel:
    """The operators of one model on one device, reduced to nanoseconds per token, pair and context token."""

    def __init__(self, options: Roofline, model: ModelDescription, device: DeviceDescription) -> None:
        self.options, self.model, self.device = options, model, device
        self.name = f"{model.name}-{device.name}-tp{options.tp}-{options.dtype}"
        self.description = f"roofline of {model.name} on {options.tp} x {device.name}, {options.dtype}"
        kind, tp = precision(options.dtype), options.tp
        act = kind.other_bytes
        kv_bytes = act if options.kv_dtype == "auto" else precision(options.kv_dtype).layer_bytes
        # ns per flop of the layers' arithmetic, ns per flop in 16 (32) bits, ns per byte
        flop = NS_PER_S / (device.peak(kind.compute) * options.compute_efficiency)
        wide = NS_PER_S / (device.peak("fp32" if options.dtype == "fp32" else "bf16") * options.compute_efficiency)
        byte = NS_PER_S / (device.memory_bandwidth * options.memory_efficiency)
        layers, hidden = model.num_layers, model.hidden_size
        heads = model.num_heads / tp
        kv_heads = max(model.num_kv_heads / tp, 1.0)

        def linear(weights: float, width: float) -> tuple[float, float, float]:
            """(flop ns per token, weight ns, activation ns per token) of a layer's matrix on one device."""
            weight_bytes, act_bytes = weights * kind.layer_bytes, width * act
            return 2 * weights * flop * layers, weight_bytes * byte * layers, act_bytes * byte * layers

        qkv = (heads + 2 * kv_heads) * model.head_dim
        self._dense = [
            linear(hidden * qkv, hidden + qkv),
            linear(heads * model.head_dim * hidden, heads * model.head_dim + hidden),
        ]
        # the matrices of the feed-forward network run one after the other and read and write the same kinds of rows
        inner = model.intermediate_size / tp
        per_token = max(1, model.experts_per_token)
        width = 2 * hidden + (3 if model.gated_ffn else 2) * inner
        ffn_flop, ffn_weight, ffn_act = linear(model.expert_params / tp, width)
        self._ffn = (ffn_flop * per_token, ffn_weight, ffn_act * per_token)
        self._experts = model.num_experts
        self._idle_chance = 1 - per_token / model.num_experts if model.num_experts else 0.0
        vocab = model.vocab_size / tp if model.output_head != "none" else 0.0
        self._head_flop = 2 * hidden * vocab * wide
        self._head_weight = hidden * vocab * act * byte
        self._pair = 4 * heads * model.head_dim * wide * layers
        self._kv_byte = 2 * kv_heads * model.head_dim * kv_bytes * byte * layers
        self._query_byte = 2 * heads * model.head_dim * act * byte * layers
        self._slope = max(self._pair, self._kv_byte)
        self._step = options.step_overhead * NS_PER_S
        self._link = 0.0
        if tp > 1:
            link = NS_PER_S / (device.link_bandwidth * options.link_efficiency)
            self._link = 2 * layers * 2 * (tp - 1) / tp * hidden * act * link
            self._step += 2 * layers * 2 * (tp - 1) * options.hop_latency * NS_PER_S

    def operators_ns(self, stats: StepStats) -> dict[str, float]:
        """Nanoseconds by operator, all layers together; for reports. `step_ns` adds them in this order."""
        tokens = stats.prefill_tokens + stats.decode_seqs
        names = ("qkv", "o_proj")
        out = {name: max(f * tokens, w + a * tokens) for name, (f, w, a) in zip(names, self._dense, strict=True)}
        f, w, a = self._ffn
        if self._experts:
            # experts that some token chose, when tokens choose independently
            w *= self._experts * (1 - self._idle_chance**tokens)
        out["ffn"] = max(f * tokens, w + a * tokens)
        pairs = stats.prefill_attn if self.model.causal else 2 * stats.prefill_attn - stats.prefill_tokens
        context = stats.prefill_past + stats.prefill_tokens
        out["prefill_attention"] = max(
            self._pair * pairs, self._kv_byte * context + self._query_byte * stats.prefill_tokens
        )
        if stats.sampled:
            out["lm_head"] = max(self._head_flop * stats.sampled, self._head_weight)
        out["all_reduce"] = self._link * tokens
        out["overhead"] = self._step
        return out

    def _fixed(self, stats: StepStats) -> float:
        """Everything but the decodes' attention, in nanoseconds: constant over a run."""
        return sum(self.operators_ns(stats).values())

    def step_ns(self, stats: StepStats) -> int:
        """Duration of one step in nanoseconds."""
        ns = self._fixed(stats) + self._slope * (stats.decode_ctx + stats.decode_seqs)
        return round(ns) if ns > 1.0 else 1

    def run_ns(self, stats: StepStats, num_steps: int) -> IntArray:
        """Durations of `num_steps` steps in nanoseconds, int64, shape (num_steps,)."""
        seqs = stats.decode_seqs
        context = np.arange(num_steps, dtype=np.float64) * seqs + (stats.decode_ctx + seqs)
        ns = self._fixed(stats) + self._slope * context
        return np.maximum(np.rint(ns), 1.0).astype(np.int64)

    def out_of_range(self, columns: dict[str, IntArray], num_steps: IntArray) -> IntArray:
        """Zeros: an analytical model was measured nowhere."""
        return np.zeros(len(num_steps), dtype=np.int64)
