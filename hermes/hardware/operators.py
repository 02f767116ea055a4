"""Work of a transformer's operators on one device: flops, bytes moved, kernels. No times, no devices.

Per layer: query/key/value projection, rotary embedding, attention of the prefill tokens, attention of the decodes,
output projection, feed-forward network (or experts), two norms. Once per step: the output head, on sampled tokens only.
(The operator list of GenZ, arXiv 2406.01698, plus the element-wise operators.) `hermes.hardware.roofline` turns work
into time, `hermes.hardware.power` into utilisation.

A linear layer with W weights on T tokens does 2 W T flops, and moves its weights once and its activations. Attention
does 4 * heads * head dim flops per pair of tokens, and reads the keys and values of its context once. In a step with
prefill and decode the linear layers process all tokens together.

Tensor parallelism divides weights, heads and context reads by `tp` (key/value heads no further than whole heads) and
adds two all-reduces per layer. In each of them a device sends 2 (tp - 1) / tp of the activations (ring; R. Thakur et
al., IJHPCA 2005). Pipeline stages work one after the other on the one batch in flight: their work adds up, and every
boundary between stages sends the activations once.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import cached_property
from typing import Any, Literal, NamedTuple

from hermes.hardware.models import ModelDescription, precision

__all__ = ["KV_DTYPES", "Linear", "Work", "kv_value_bytes"]

KV_DTYPES = ("auto", "bf16", "fp16", "fp32", "fp8")
LinearKind = Literal["qkv_o", "ffn", "experts"]
# weight-only quantisation: the kernel widens weights once per block of this many tokens (the tile of Marlin and AWQ
# kernels; E. Frantar et al., arXiv 2408.11743), with two vector operations each (subtract zero point, scale)
DEQUANT_TILE = 128
DEQUANT_FLOPS = 2


def kv_value_bytes(kv_dtype: str, dtype: str) -> float:
    """Return the bytes of one value in the KV cache; `auto` is the activation type that goes with `dtype`."""
    return precision(dtype).other_bytes if kv_dtype == "auto" else precision(kv_dtype).layer_bytes


class Linear(NamedTuple):
    """One kind of matrix multiplication, all layers together, on one device."""

    name: str
    kind: LinearKind
    weights: float
    """Weights that one token multiplies with."""
    stored: float
    """Weights that are read for any number of tokens; of one expert for `experts`."""
    weight_bytes: float
    """Bytes of the stored weights."""
    token_bytes: float
    """Activation bytes read and written per token."""
    kernels: int


@dataclass(frozen=True)
class Work:
    """Work of one model on one device (of every pipeline stage, added up).

    Per token, pair, context token or sampled row; see the module's docstring for the operators. Link bytes are those
    that one device sends.
    """

    linears: tuple[Linear, ...]
    experts: int                  # 0: dense
    idle_chance: float            # probability that a token does not use a given expert
    compute: str                  # arithmetic of the layers' matrices
    wide: str                     # arithmetic of attention and output head
    dequantised: bool             # weights are widened before they are multiplied
    causal: bool
    layers: int
    pair_flops: float
    kv_bytes: float               # per context token
    query_bytes: float            # per prefill or decode token: queries read, outputs written
    elementwise: tuple[tuple[float, int], ...]   # (bytes per token of a kernel, kernels of that size)
    head_flops: float             # per sampled row
    head_bytes: float
    head_row_bytes: float
    all_reduces: int              # per step; 0 with tp 1
    all_reduce_bytes: float       # per token, all of them
    hops: int                     # boundaries between pipeline stages
    hop_bytes: float              # per token, all of them

    @cached_property
    def elementwise_bytes(self) -> float:
        """Bytes per token of all element-wise kernels."""
        return sum(size * count for size, count in self.elementwise)

    @property
    def elementwise_kernels(self) -> int:
        """Their number, without that of the embedding."""
        return sum(count for _, count in self.elementwise) - 1

    @classmethod
    def of(cls, model: ModelDescription, *, tp: int = 1, pp: int = 1, dtype: str = "bf16",
           kv_dtype: str = "auto") -> Work:
        """Return the work of `model` on each of `tp * pp` devices. Raises `InputError` if it cannot be split so."""
        model.check_tp(tp)
        model.check_pp(pp)
        kind = precision(dtype)
        act, layers, hidden = kind.other_bytes, model.num_layers, model.hidden_size
        heads, kv_heads = model.num_heads / tp, max(model.num_kv_heads / tp, 1.0)
        inner, hd = model.intermediate_size / tp, model.head_dim
        matrices = 3 if model.gated_ffn else 2

        def linear(name: str, kind_: LinearKind, weights: float, width: float, kernels: int, times: int = 1) -> Linear:
            return Linear(name, kind_, weights * times * layers, weights * layers, weights * kind.layer_bytes * layers,
                          width * act * times * layers, kernels * layers)

        qkv = (heads + 2 * kv_heads) * hd
        linears = [
            linear("qkv", "qkv_o", hidden * qkv, hidden + qkv, 1),
            linear("o_proj", "qkv_o", heads * hd * hidden, heads * hd + hidden, 1),
        ]
        if model.num_experts:  # the router is kept in 16 bits and copied to every device
            router = hidden * model.num_experts
            linears.append(Linear("router", "qkv_o", router * layers, router * layers, router * act * layers,
                                  (hidden + model.num_experts) * act * layers, layers))
        times = max(1, model.experts_per_token)
        # the matrices of the feed-forward network run one after the other; gate and up are one kernel
        linears.append(linear("ffn", "experts" if model.num_experts else "ffn", model.expert_params / tp,
                              2 * hidden + matrices * inner, 2, times))
        vocab = model.vocab_size / tp if model.output_head != "none" else 0.0
        rotated = 2 * (heads + kv_heads) * hd * act
        # of one layer: two norms that also add the residual, rotation, activation
        parts = [(4 * hidden * act, 2), (rotated, 1), (matrices * inner * times * act, 1)]
        if model.norms_per_layer > 2:    # each of them reads and writes the hidden state
            parts.append((2 * hidden * act, model.norms_per_layer - 2))
        # norms of query and key heads are in the rotation's kernel: compiled engines launch and read nothing more
        if kind.compute in ("fp8", "int8"):  # inputs of the four linear layers are scaled and narrowed: read, written
            narrowed = (act + kind.layer_bytes)
            parts += [(hidden * narrowed, 2), (heads * hd * narrowed, 1), (inner * times * narrowed, 1)]
        elementwise = [(float(size), count * layers) for size, count in parts]
        elementwise.append((2.0 * hidden * act, 1))    # embedding
        shared = 2 * (tp - 1) / tp * hidden * act
        return cls(
            linears=tuple(linears), experts=model.num_experts,
            idle_chance=1 - times / model.num_experts if model.num_experts else 0.0,
            compute=kind.compute, wide="fp32" if dtype == "fp32" else "bf16", dequantised=kind.dequantised,
            causal=model.causal, layers=layers,
            pair_flops=4 * heads * hd * layers,
            kv_bytes=2 * kv_heads * hd * kv_value_bytes(kv_dtype, dtype) * layers,
            query_bytes=2 * heads * hd * act * layers,
            elementwise=tuple(elementwise),
            head_flops=2 * hidden * vocab, head_bytes=hidden * vocab * act,
            head_row_bytes=(hidden + vocab) * act if vocab else 0.0,
            all_reduces=2 * layers if tp > 1 else 0, all_reduce_bytes=2 * layers * shared,
            hops=pp - 1, hop_bytes=(pp - 1) * hidden * act / tp,
        )

    def pairs(self, stats: Any) -> Any:
        """Return the attention pairs of the prefill tokens; bidirectional models attend to later tokens too."""
        return stats.prefill_attn if self.causal else 2 * stats.prefill_attn - stats.prefill_tokens

    def experts_read(self, tokens: Any) -> Any:
        """Return the expected number of distinct experts that `tokens` tokens choose independently and evenly."""
        return self.experts * (1 - self.idle_chance**tokens)

    def read_bytes(self, linear: Linear, tokens: Any) -> Any:
        """Return the weight bytes that a linear layer reads for a batch of `tokens`."""
        return linear.weight_bytes * (self.experts_read(tokens) if linear.kind == "experts" else 1.0)

    def ideal_s(self, stats: Any, peak: Callable[[str], float], bandwidth: float, link: float) -> tuple[Any, Any, Any]:
        """Return the seconds of arithmetic, of memory traffic and of link traffic of a step at the device's peak rates.

        `stats` holds `StepStats` fields, numbers or arrays. `peak` gives flop/s by arithmetic, the bandwidths are
        bytes/s. Each result is a lower bound of the step's time; divided by that time, it is the unit's utilisation.
        """
        tokens = stats.prefill_tokens + stats.decode_seqs
        context = stats.prefill_past + stats.prefill_tokens + stats.decode_ctx + stats.decode_seqs
        layer_flops = 2 * sum(linear.weights for linear in self.linears) * tokens
        pairs = self.pairs(stats) + stats.decode_ctx + stats.decode_seqs
        wide_flops = self.pair_flops * pairs + self.head_flops * stats.sampled
        moved = self.elementwise_bytes * tokens + self.kv_bytes * context + self.query_bytes * tokens
        for linear in self.linears:
            moved = moved + self.read_bytes(linear, tokens) + linear.token_bytes * tokens
        moved = moved + (stats.sampled > 0) * self.head_bytes + self.head_row_bytes * stats.sampled
        sent = (self.all_reduce_bytes + self.hop_bytes) * tokens
        return layer_flops / peak(self.compute) + wide_flops / peak(self.wide), moved / bandwidth, sent / link
