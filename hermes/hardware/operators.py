"""Work of a transformer's operators on one device: flops, bytes moved, kernels. No times, no devices.

Per layer: query/key/value projection, rotary embedding, attention of the prefill tokens, attention of the decodes,
output projection, feed-forward network (or experts), two norms. Once per step: the output head, on sampled tokens only.
(The operator list of GenZ, arXiv 2406.01698, plus the element-wise operators.) `hermes.hardware.roofline` turns work
into time, `hermes.hardware.power` into utilisation.

A linear layer with W weights on T tokens does 2 W T flops, and moves its weights once and its activations. Attention
does 4 * heads * head dim flops per pair of tokens, and reads the keys and values of its context once. In a step with
prefill and decode the linear layers process all tokens together.

Latent attention (MLA) projects queries, keys and values through latent vectors. Prompts attend to keys and values made
of them, decodes to the latent vectors themselves, of which the KV cache holds one for each token and layer. In layers
with a sliding window a token attends to the window only.

Tensor parallelism divides weights, heads and context reads by `tp` (key/value heads no further than whole heads) and
adds two all-reduces per layer. In each of them a device sends 2 (tp - 1) / tp of the activations (ring; R. Thakur et
al., IJHPCA 2005). Pipeline stages work one after the other on the one batch in flight: their work adds up, and every
boundary between stages sends the activations once. Data-parallel ranks share the experts: each device has as large a
part of them as if all were one rank, and computes its part for the tokens of all ranks (taken to be as many on each).
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any, Literal, NamedTuple

import numpy as np

from hermes.hardware.descriptions.models import ModelDescription, Precision, precision
from hermes.sums import float_sum

__all__ = ["Linear", "Work", "kv_value_bytes"]

LinearKind = Literal["qkv_o", "ffn", "experts"]
# weight-only quantisation: the kernel widens weights once per block of this many tokens (the tile of Marlin and AWQ
# kernels; E. Frantar et al., arXiv 2408.11743), with two vector operations each (subtract zero point, scale)
DEQUANT_TILE = 128
DEQUANT_FLOPS = 2
NARROW = ("fp8", "int8", "fp4")   # arithmetic whose inputs a kernel scales and narrows first


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
    compute: str
    """Arithmetic of the products, by what these weights are stored in: routed experts may differ from the layers."""
    dequantised: bool
    """Whether the kernel widens the weights before it multiplies them."""


@dataclass(frozen=True)
class Work:
    """Work of one model on one device (of every pipeline stage, added up).

    Per token, pair, context token or sampled row; see the module's docstring for the operators. Link bytes are those
    that one device sends.
    """

    linears: tuple[Linear, ...]
    experts: int                  # 0: dense
    ranks: int                    # data-parallel ranks, whose tokens the experts compute together
    idle_chance: float            # probability that a token does not use a given expert
    compute: str                  # arithmetic of the layers' matrices, but routers and experts (`Linear.compute`)
    wide: str                     # arithmetic of attention, routers and output head
    dequantised: bool             # those of `compute` are widened before they are multiplied
    causal: bool
    layers: int
    pair_flops: float             # per pair of a new and an earlier token of a prompt
    context_flops: float          # per context token of a decode
    windowed: tuple[float, int]   # share of the attention with a sliding window, and its tokens
    kv_bytes: float               # per context token
    query_bytes: float            # per prefill or decode token: queries read, outputs written
    elementwise: tuple[tuple[float, int], ...]   # (bytes per token of a kernel, kernels of that size)
    narrowing: tuple[tuple[float, int], ...]     # those among them that narrow inputs of 8-bit layers, but experts
    narrowing_experts: tuple[tuple[float, int], ...]   # and of routed experts
    activation_experts: tuple[tuple[float, int], ...]  # those of the activation of routed experts
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
        return float_sum(size * count for size, count in self.elementwise)

    @cached_property
    def token_flops(self) -> dict[str, float]:
        """Operations of the linear layers for a token (of each rank), by arithmetic."""
        kinds = dict.fromkeys(linear.compute for linear in self.linears)
        return {kind: 2 * float_sum(one.weights * self.calls(one) for one in self.linears if one.compute == kind)
                for kind in kinds}

    @property
    def elementwise_kernels(self) -> int:
        """Their number, without that of the embedding."""
        return sum(count for _, count in self.elementwise) - 1

    def on(self, computes: Callable[[str], bool]) -> Work:
        """Return the same on a device that may lack an arithmetic: it widens such weights, multiplies them in 16 bits,
        and narrows no inputs."""
        def own(compute: str, dequantised: bool) -> tuple[str, bool]:
            return (compute, dequantised) if computes(compute) else ("bf16", True)

        compute, dequantised = own(self.compute, self.dequantised)
        linears = []
        for one in self.linears:
            arithmetic, widened = own(one.compute, one.dequantised)
            linears.append(one._replace(compute=arithmetic, dequantised=widened))
        found = replace(self, linears=tuple(linears), compute=compute, dequantised=dequantised)
        if compute not in NARROW:
            found = replace(found.without(self.narrowing), narrowing=())
        if not any(one.kind == "experts" and one.compute in NARROW for one in linears):
            found = replace(found.without(self.narrowing_experts), narrowing_experts=())
        return found

    def without(self, parts: tuple[tuple[float, int], ...]) -> Work:
        """Return the same without some of the element-wise kernels."""
        left = list(self.elementwise)
        for part in parts:
            left.remove(part)
        return replace(self, elementwise=tuple(left))

    @classmethod
    def of(cls, model: ModelDescription, *, tp: int = 1, pp: int = 1, dp: int = 1, dtype: str = "bf16",
           kv_dtype: str = "auto") -> Work:
        """Return the work of `model` on each of `dp * tp * pp` devices. Raises `InputError` if it cannot be split."""
        model.check_tp(tp)
        model.check_pp(pp)
        kind, routed = precision(dtype), precision(model.expert_dtype or dtype)
        act, layers, hidden = kind.other_bytes, model.num_layers, model.hidden_size
        wide = "fp32" if dtype == "fp32" else "bf16"
        heads, kv_heads = model.num_heads / tp, max(model.num_kv_heads / tp, 1.0)
        hd, matrices = model.head_dim, 3 if model.gated_ffn else 2

        def linear(name: str, kind_: LinearKind, weights: float, width: float, kernels: int, count: int, times: int = 1,
                   share: float = 1.0, store: Precision = kind) -> Linear:
            return Linear(name, kind_, weights * times * share * count, weights * share * count,
                          weights * share * store.layer_bytes * count, width * act * times * share * count,
                          kernels * count, store.compute, store.dequantised)

        if model.mla is None:
            qkv = (heads + 2 * kv_heads) * hd
            linears = [linear("qkv", "qkv_o", hidden * qkv, hidden + qkv, 1, layers)]
        else:
            linears = [linear(name, "qkv_o", n * k, n + k, 1, layers)
                       for name, (n, k) in model.mla_shapes(tp).items()]
        out = heads * model.v_dim
        linears.append(linear("o_proj", "qkv_o", out * hidden, out + hidden, 1, layers))
        times = max(1, model.experts_per_token)
        sparse = model.expert_layers
        if sparse:  # the router is kept in 16 bits and copied to every device
            router = hidden * model.num_experts
            linears.append(Linear("router", "qkv_o", router * sparse, router * sparse, router * act * sparse,
                                  (hidden + model.num_experts) * act * sparse, sparse, wide, False))
        # the matrices of the feed-forward network run one after the other; gate and up are one kernel
        for name, inner, count in (
            ("ffn", model.intermediate_size if not sparse else model.dense_intermediate_size, layers - sparse),
            ("shared", model.shared_intermediate_size, sparse),
        ):
            if inner and count:
                linears.append(linear(name, "ffn", model.ffn_params(inner) / tp, 2 * hidden + matrices * inner / tp, 2,
                                      count))
        if sparse:
            linears.append(linear("experts", "experts", model.expert_params / tp,
                                  2 * hidden + matrices * model.intermediate_size / tp, 2, sparse, times, 1 / dp,
                                  routed))
        vocab = model.vocab_size / tp if model.output_head != "none" else 0.0
        rotated = 2 * (heads + kv_heads) * hd * act
        # of one layer: two norms that also add the residual, rotation, activation
        parts = [(4 * hidden * act, 2 * layers), (rotated, layers)]
        if model.norms_per_layer > 2:    # each of them reads and writes the hidden state
            parts.append((2 * hidden * act, (model.norms_per_layer - 2) * layers))
        chosen = [(model.intermediate_size / tp * times, sparse)] if sparse else []
        dense = model.dense_intermediate_size if sparse else model.intermediate_size
        inners = [(dense / tp, layers - sparse)] if layers > sparse else []
        inners += [(model.shared_intermediate_size / tp, sparse)] if model.shared_intermediate_size else []
        parts += [(matrices * inner * act, count) for inner, count in inners]
        active = [(matrices * inner * act, count) for inner, count in chosen]
        # norms of query and key heads are in the rotation's kernel: compiled engines launch and read nothing more
        narrowing, chosen_narrowing = [], []
        if kind.compute in NARROW:  # inputs of the four linear layers are scaled and narrowed: read, written
            narrowed = (act + kind.layer_bytes)
            narrowing = [(hidden * narrowed, 2 * layers), (out * narrowed, layers)]
            narrowing += [(inner * narrowed, count) for inner, count in inners]
        if routed.compute in NARROW:
            chosen_narrowing = [(inner * (act + routed.layer_bytes), count) for inner, count in chosen]
        elementwise = [(float(size), count) for size, count in (*parts, *active, *narrowing, *chosen_narrowing)]
        elementwise.append((2.0 * hidden * act, 1))    # embedding
        shared = 2 * (tp - 1) / tp * hidden * act
        values = kv_value_bytes(kv_dtype, dtype)
        if model.mla is None:
            pair = context = 4 * heads * hd
            cached, query = 2 * kv_heads * hd, 2 * heads * hd
        else:   # prompts unfold the latent vectors into heads; decodes attend to the latent vectors
            mla = model.mla
            pair = 2 * heads * (mla.qk_nope_head_dim + mla.qk_rope_head_dim + mla.v_head_dim)
            context = 2 * heads * (mla.cached + mla.kv_lora_rank)
            cached, query = float(mla.cached), heads * (mla.cached + mla.kv_lora_rank)
        return cls(
            linears=tuple(linears), experts=model.num_experts, ranks=dp,
            idle_chance=1 - times / model.num_experts if model.num_experts else 0.0,
            compute=kind.compute, wide=wide, dequantised=kind.dequantised,
            causal=model.causal, layers=layers, pair_flops=pair * layers, context_flops=context * layers,
            windowed=(model.window_layers / layers, model.window),
            kv_bytes=cached * values * layers,
            query_bytes=query * act * layers,
            elementwise=tuple(elementwise), narrowing=tuple((float(size), count) for size, count in narrowing),
            narrowing_experts=tuple((float(size), count) for size, count in chosen_narrowing),
            activation_experts=tuple((float(size), count) for size, count in active),
            head_flops=2 * hidden * vocab, head_bytes=hidden * vocab * act,
            head_row_bytes=(hidden + vocab) * act if vocab else 0.0,
            all_reduces=2 * layers if tp > 1 else 0, all_reduce_bytes=2 * layers * shared,
            hops=pp - 1, hop_bytes=(pp - 1) * hidden * act / tp,
        )

    def pairs(self, stats: Any, minimum: Callable[[Any, Any], Any] = min) -> Any:
        """Return the attention pairs of the prefill tokens, in layers without a window; bidirectional models attend to
        later tokens too. Layers with a window have at most so many pairs for each token."""
        pairs = stats.prefill_attn if self.causal else 2 * stats.prefill_attn - stats.prefill_tokens
        return self.within(pairs, stats.prefill_tokens, minimum)

    def within(self, pairs: Any, tokens: Any, minimum: Callable[[Any, Any], Any] = min) -> Any:
        """Return pairs (or context tokens) of so many tokens, less those that sliding windows leave out.

        The pairs of all tokens are taken together: exact where all of them are longer than the window, or none is.
        """
        share, window = self.windowed
        return pairs if not window else (1.0 - share) * pairs + share * minimum(pairs, window * tokens)

    def experts_read(self, tokens: Any) -> Any:
        """Return the expected number of distinct experts that `tokens` tokens of each rank choose evenly, alone."""
        return self.experts * (1 - self.idle_chance ** (self.ranks * tokens))

    def calls(self, linear: Linear) -> int:
        """Return how many ranks' tokens a linear layer computes."""
        return self.ranks if linear.kind == "experts" else 1

    def read_bytes(self, linear: Linear, tokens: Any) -> Any:
        """Return the weight bytes that a linear layer reads for a batch of `tokens`."""
        return linear.weight_bytes * (self.experts_read(tokens) if linear.kind == "experts" else 1.0)

    def ideal_s(self, stats: Any, peak: Callable[[str], float], bandwidth: float, link: float) -> tuple[Any, Any, Any]:
        """Return the seconds of arithmetic, of memory traffic and of link traffic of a step at the device's peak rates.

        `stats` holds `StepStats` fields, numbers or arrays. `peak` gives flop/s by arithmetic, the bandwidths are
        bytes/s. Each result is a lower bound of the step's time; divided by that time, it is the unit's utilisation.
        """
        least = np.minimum
        tokens = stats.prefill_tokens + stats.decode_seqs
        decoded = self.within(stats.decode_ctx + stats.decode_seqs, stats.decode_seqs, least)
        context = self.within(stats.prefill_past + stats.prefill_tokens, stats.prefill_tokens, least) + decoded
        layers_s = float_sum(flops * tokens / peak(compute) for compute, flops in self.token_flops.items())
        wide_flops = self.pair_flops * self.pairs(stats, least) + self.context_flops * decoded
        wide_flops = wide_flops + self.head_flops * stats.sampled
        moved = self.elementwise_bytes * tokens + self.kv_bytes * context + self.query_bytes * tokens
        for linear in self.linears:
            moved = moved + self.read_bytes(linear, tokens) + linear.token_bytes * self.calls(linear) * tokens
        moved = moved + (stats.sampled > 0) * self.head_bytes + self.head_row_bytes * stats.sampled
        sent = (self.all_reduce_bytes + self.hop_bytes) * tokens
        return layers_s + wide_flops / peak(self.wide), moved / bandwidth, sent / link
