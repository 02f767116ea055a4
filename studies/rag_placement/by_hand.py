"""Embedding time from flops and bytes, computed from the shapes, independently of the simulator's models.

A prefill of n tokens through L layers of width h, heads of d (k of them with keys and values), an inner width f:

    matrices    W = h (heads + 2k) d + heads d h + (2 or 3) h f weights a layer; 2 W L n flops
                W L bytes of weights once, and each token's reads and writes of every matrix
    attention   4 heads d L flops for each pair of tokens (all of n^2, or half of it if only the past is looked at)
    vectors     norms, residuals, activation function: bytes that are read and written besides
    launches    time of a nearly empty kernel, 8 a layer and one for attention

Arithmetic at peak x share, bytes at bandwidth x share; of the shorter of the two a part `1 - overlap` is not hidden.
Shares, overlap and latencies are those of the device's file of efficiency factors, peaks those of its data sheet.
"""

from __future__ import annotations

from dataclasses import dataclass

from hermes.hardware.descriptions.devices import load_device
from hermes.hardware.descriptions.models import load_model
from hermes.hardware.efficiency import load_efficiency
from hermes.sums import float_sum

__all__ = ["Embedding", "embedding_by_hand"]


@dataclass(frozen=True)
class Embedding:
    """Seconds of one embedding by cause; flops and bytes of its matrices."""

    flops: float
    num_bytes: float
    arithmetic_s: float
    memory_s: float
    exposed: float
    attention_s: float
    vectors_s: float
    launches_s: float

    @property
    def seconds(self) -> float:
        longer, shorter = max(self.arithmetic_s, self.memory_s), min(self.arithmetic_s, self.memory_s)
        return longer + self.exposed * shorter + self.attention_s + self.vectors_s + self.launches_s


def embedding_by_hand(model_name: str, device_name: str, pieces: list[int]) -> Embedding:
    """Compute one prefill of sequences of these lengths; 4-byte numbers on a CPU (fp32), 2-byte ones on a GPU
    (bf16)."""
    m, device = load_model(model_name), load_device(device_name)
    share = load_efficiency(device.efficiency).factors
    on_gpu = "bf16" in device.flops
    peak, byte = (device.flops["bf16"], 2) if on_gpu else (device.flops["fp32"], 4)
    heads, kv = m.num_heads * m.head_dim, m.num_kv_heads * m.head_dim
    inner, matrices = m.intermediate_size, 2 + m.gated_ffn
    tokens, layers, h = sum(pieces), m.num_layers, m.hidden_size

    projections, feed_forward = h * (2 * heads + 2 * kv), matrices * h * inner
    flops = 2.0 * (projections + feed_forward) * layers * tokens
    around = (h + heads + 2 * kv) + (heads + h)              # read and written by the projections, per token
    within = 2 * h + matrices * inner
    traffic = [(projections + around * tokens) * layers * byte, (feed_forward + within * tokens) * layers * byte]
    arithmetic = (
        2.0 * projections * layers * tokens / (peak * share.qkv_o.compute)
        + 2.0 * feed_forward * layers * tokens / (peak * share.ffn.compute)
    )
    memory = (traffic[0] / share.qkv_o.memory + traffic[1] / share.ffn.memory) / device.memory_bandwidth

    pairs = float_sum(n * (n + 1) / 2 if m.causal else n * n for n in pieces) + share.attention_tile * tokens
    attention = 4.0 * heads * layers * pairs / (peak * share.prefill_attention.compute)
    read = 2 * (heads + kv) * layers * tokens * byte / (device.memory_bandwidth * share.prefill_attention.memory)
    vectors = (8 * h + 2 * (heads + kv) + matrices * inner) * layers * tokens * byte
    vectors_s = vectors / (device.memory_bandwidth * share.elementwise)
    launches = layers * (8 * share.kernel_latency + share.prefill_attention_latency)
    return Embedding(flops, float_sum(traffic), arithmetic, memory, 1 - share.overlap,
                     attention + (1 - share.overlap) * read, vectors_s, launches)
