"""One rank of a transformer of the Llama family with random weights, over a KV cache. numpy and torch only.

RMSNorm, rotary embedding, grouped queries, SwiGLU; biases on query, key and value (Qwen2) and norms of query and key
heads (Qwen3) if the model has them. With tensor parallelism `tp` a rank holds heads / tp, inner width / tp and
vocabulary / tp; the all-reduces between ranks are left out here.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
import torch.nn.functional as F  # noqa: N812

__all__ = ["Attend", "Shape", "Transformer"]

Tensor = Any
MODEL_TYPES = ("llama", "mistral", "qwen2", "qwen3")
Attend = Callable[[Tensor, Tensor, Tensor], Tensor]
"""(queries, key pool, value pool) of a layer -> attention, of the queries' shape."""


@dataclass(frozen=True)
class Shape:
    """Sizes of one rank."""

    hidden: int
    layers: int
    heads: int
    kv_heads: int
    head_dim: int
    inner: int
    vocab: int
    qkv_bias: bool = False
    qk_norm: bool = False
    tied: bool = False
    eps: float = 1e-5
    theta: float = 10000.0

    @classmethod
    def of(cls, config: dict[str, Any], tp: int = 1) -> Shape:
        """Read a config.json of the family (model types llama, mistral, qwen2, qwen3). Raises `ValueError`."""
        kind = config.get("model_type")
        if kind not in MODEL_TYPES:
            raise ValueError(f"model_type: expected one of {', '.join(MODEL_TYPES)}, found {kind!r}")
        heads, hidden = config["num_attention_heads"], config["hidden_size"]
        kv_heads, inner = config.get("num_key_value_heads") or heads, config["intermediate_size"]
        if heads % tp or inner % tp or (kv_heads % tp and tp % kv_heads):
            raise ValueError(f"{heads} heads, {kv_heads} key/value heads and {inner} columns cannot be cut into {tp}")
        return cls(
            hidden=hidden, layers=config["num_hidden_layers"], heads=heads // tp, kv_heads=max(1, kv_heads // tp),
            head_dim=config.get("head_dim") or hidden // heads, inner=inner // tp,
            vocab=-(-config["vocab_size"] // tp), qkv_bias=kind == "qwen2" or bool(config.get("attention_bias")),
            qk_norm=kind == "qwen3", tied=bool(config.get("tie_word_embeddings")),
            eps=float(config.get("rms_norm_eps") or 1e-5), theta=float(config.get("rope_theta") or 10000.0),
        )

    def kv_bytes_per_token(self, width: int) -> int:
        """Return bytes of one token's keys and values over all layers, `width` bytes per value."""
        return 2 * self.layers * self.kv_heads * self.head_dim * width


@dataclass
class Layer:
    """Weights of one layer."""

    norm_in: Tensor
    qkv: Tensor
    qkv_bias: Tensor | None
    query_norm: Tensor | None
    key_norm: Tensor | None
    out: Tensor
    norm_ffn: Tensor
    gate_up: Tensor
    down: Tensor


class Transformer:
    """Weights and KV pools of one rank."""

    def __init__(self, shape: Shape, dtype: Any, device: Any, pool_tokens: int, longest: int, seed: int = 0) -> None:
        """Allocate weights and pools.

        Args:
            pool_tokens: Tokens of KV cache.
            longest: Positions of the rotary embedding.

        All values are random, those of the cache too: they would be so in service, and a GPU draws less power (and
        clocks higher) on zeros.
        """
        self.shape, self.dtype, self.device = shape, dtype, device
        self._generator = torch.Generator(device=device).manual_seed(seed)
        self.embedding = self._random(shape.vocab, shape.hidden, deviation=1.0)
        self.layers = [self._layer() for _ in range(shape.layers)]
        self.norm = self._ones(shape.hidden)
        self.head = self.embedding if shape.tied else self._random(shape.vocab, shape.hidden)
        pool = (pool_tokens, shape.kv_heads, shape.head_dim)
        self.pools = [
            (self._random(*pool, deviation=1.0), self._random(*pool, deviation=1.0)) for _ in range(shape.layers)
        ]
        rates = shape.theta ** (-torch.arange(0, shape.head_dim, 2, device=device).float() / shape.head_dim)
        angles = torch.arange(longest, device=device).float()[:, None] * rates[None, :]
        self.cos, self.sin = angles.cos().to(dtype), angles.sin().to(dtype)

    def _random(self, *size: int, deviation: float = 0.02) -> Tensor:
        empty = torch.empty(*size, dtype=self.dtype, device=self.device)
        return empty.normal_(0.0, deviation, generator=self._generator)

    def _ones(self, size: int) -> Tensor:
        return torch.ones(size, dtype=self.dtype, device=self.device)

    def _layer(self) -> Layer:
        shape = self.shape
        rows = (shape.heads + 2 * shape.kv_heads) * shape.head_dim
        return Layer(
            norm_in=self._ones(shape.hidden), qkv=self._random(rows, shape.hidden),
            qkv_bias=self._random(rows) if shape.qkv_bias else None,
            query_norm=self._ones(shape.head_dim) if shape.qk_norm else None,
            key_norm=self._ones(shape.head_dim) if shape.qk_norm else None,
            out=self._random(shape.hidden, shape.heads * shape.head_dim), norm_ffn=self._ones(shape.hidden),
            gate_up=self._random(2 * shape.inner, shape.hidden), down=self._random(shape.hidden, shape.inner),
        )

    def forward(self, tokens: Tensor, positions: Tensor, slots: Tensor, rows: Tensor | None, attend: Attend) -> Tensor:
        """Compute one step. Afterwards the tokens' keys and values are in the pools.

        Args:
            tokens, positions, slots: int64, shape (tokens,): ids, places in their sequences, places in the KV pool.
            rows: int64: the tokens whose successors are sampled; None: all.

        Returns the most likely successors, int64, shape (rows,).
        """
        shape = self.shape
        x = F.embedding(tokens, self.embedding)
        cos, sin = self.cos[positions][:, None, :], self.sin[positions][:, None, :]
        for layer, (keys, values) in zip(self.layers, self.pools, strict=True):
            h = F.rms_norm(x, (shape.hidden,), layer.norm_in, shape.eps)
            x = x + self._attention(layer, h, cos, sin, slots, keys, values, attend)
            h = F.rms_norm(x, (shape.hidden,), layer.norm_ffn, shape.eps)
            gate, up = F.linear(h, layer.gate_up).chunk(2, dim=-1)
            x = x + F.linear(F.silu(gate) * up, layer.down)
        if rows is not None:
            x = x[rows]
        if not x.shape[0]:
            return rows   # no sampled row: skip the output head
        return F.linear(F.rms_norm(x, (shape.hidden,), self.norm, shape.eps), self.head).argmax(-1)

    def _attention(
        self, layer: Layer, h: Tensor, cos: Tensor, sin: Tensor, slots: Tensor, keys: Tensor, values: Tensor,
        attend: Attend,
    ) -> Tensor:
        shape = self.shape
        qkv = F.linear(h, layer.qkv, layer.qkv_bias).view(h.shape[0], -1, shape.head_dim)
        qk, v = qkv.split((shape.heads + shape.kv_heads, shape.kv_heads), dim=1)
        if layer.query_norm is not None:
            q, k = qk.split((shape.heads, shape.kv_heads), dim=1)
            size = (shape.head_dim,)
            qk = torch.cat((F.rms_norm(q, size, layer.query_norm, shape.eps),
                            F.rms_norm(k, size, layer.key_norm, shape.eps)), dim=1)
        first, second = qk.chunk(2, dim=-1)   # rotary embedding on query and key heads at once
        qk = torch.cat((first * cos - second * sin, second * cos + first * sin), dim=-1)
        q, k = qk.split((shape.heads, shape.kv_heads), dim=1)
        keys.index_copy_(0, slots, k)
        values.index_copy_(0, slots, v)
        return F.linear(attend(q.contiguous(), keys, values).reshape(h.shape[0], -1), layer.out)
