"""Attention over a KV cache in torch: decodes of unequal contexts, prompt chunks with a past, grouped queries.

The cache of a layer is one pool of shape (tokens, key/value heads, head dim); a sequence owns a contiguous region.
Two backends, one interface: `FlashVarlen` hands all sequences to one kernel (CUDA); `PerSequence` calls
`scaled_dot_product_attention` for each (any device). `choose` compares a backend with attention written out in float32
before it is trusted. numpy and torch only.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, Protocol

import torch
import torch.nn.functional as F  # noqa: N812

__all__ = ["Attention", "Chunks", "Decodes", "FlashVarlen", "PerSequence", "choose", "written_out"]

Tensor = Any
QUERY_BLOCK = 128   # rows of a prompt chunk that attend together: keys after their last one are skipped


@dataclass
class Decodes:
    """One query per sequence, which sees `used` tokens from `starts` on."""

    starts: Tensor
    """int32, shape (sequences + 1,): where each region begins; the last entry closes the list."""
    used: Tensor
    """int32, shape (sequences,): tokens of each sequence, the new one included."""
    queries: Tensor
    """int32, 0 to sequences."""
    longest: int
    """At least the maximum of `used`."""


@dataclass
class Chunks:
    """Several queries per sequence, the last tokens of what it has; each sees itself and what is before it."""

    starts: Tensor
    used: Tensor
    queries: Tensor
    """int32, shape (sequences + 1,): where each sequence's queries begin."""
    longest: int
    longest_chunk: int


class Attention(Protocol):
    """q: (queries, heads, head dim); k, v: the pools; answers have q's shape."""

    name: str
    static: bool
    """Whether `decode` reads nothing back from the device, so that it can be part of a CUDA graph."""

    def decode(self, q: Tensor, k: Tensor, v: Tensor, plan: Decodes) -> Tensor: ...

    def prefill(self, q: Tensor, k: Tensor, v: Tensor, plan: Chunks) -> Tensor: ...


class FlashVarlen:
    """FlashAttention over sequences of different lengths, inside torch (CUDA, 16 bits, compute capability 8.0 on).

    `cum_seq_k` says where regions begin, `seqused_k` how much of each is used, so that the pool is read in place; a
    causal kernel aligns the last query with the last key, which is what a chunk with a past needs.
    """

    name = "flash, variable length"
    static = True

    def decode(self, q: Tensor, k: Tensor, v: Tensor, plan: Decodes) -> Tensor:
        return self._call(q, k, v, plan, 1, False)

    def prefill(self, q: Tensor, k: Tensor, v: Tensor, plan: Chunks) -> Tensor:
        return self._call(q, k, v, plan, plan.longest_chunk, True)

    def _call(self, q: Tensor, k: Tensor, v: Tensor, plan: Decodes | Chunks, longest: int, causal: bool) -> Tensor:
        return torch.ops.aten._flash_attention_forward(
            q, k, v, plan.queries, plan.starts, longest, plan.longest, 0.0, causal, False, seqused_k=plan.used
        )[0]


class PerSequence:
    """One call per sequence, and per block of a chunk's rows. Queries that share a key/value head are rows of one
    matrix, so that keys and values are never copied."""

    name = "scaled_dot_product_attention per sequence"
    static = False

    def __init__(self, shape: Any, longest: int, dtype: Any, device: Any) -> None:
        """`longest`: most tokens of a sequence. The mask of any block is a window of one strip, made here."""
        self.group = shape.heads // shape.kv_heads
        self.longest = longest
        rows = torch.arange(QUERY_BLOCK, device=device).repeat_interleave(self.group)[:, None]
        columns = torch.arange(longest + QUERY_BLOCK, device=device)[None, :]
        strip = torch.zeros(rows.shape[0], columns.shape[1], dtype=dtype, device=device)
        self.strip = strip.masked_fill_(columns > rows + longest, float("-inf"))

    def decode(self, q: Tensor, k: Tensor, v: Tensor, plan: Decodes) -> Tensor:
        kv_heads, dim = k.shape[1], k.shape[2]
        grouped = q.view(q.shape[0], 1, kv_heads, self.group, dim)
        out = torch.empty_like(q)
        for row, (start, used) in enumerate(zip(plan.starts.tolist(), plan.used.tolist(), strict=False)):
            keys, values = self._region(k, start, used), self._region(v, start, used)
            out[row] = F.scaled_dot_product_attention(grouped[row], keys, values).view(-1, dim)
        return out

    def prefill(self, q: Tensor, k: Tensor, v: Tensor, plan: Chunks) -> Tensor:
        out = torch.empty_like(q)
        begins = plan.queries.tolist()
        for index, (start, used) in enumerate(zip(plan.starts.tolist(), plan.used.tolist(), strict=False)):
            begin, end = begins[index], begins[index + 1]
            past = used - (end - begin)
            for first in range(begin, end, QUERY_BLOCK):
                last = min(end, first + QUERY_BLOCK)
                out[first:last] = self._block(q[first:last], k, v, start, past + first - begin)
        return out

    def _block(self, q: Tensor, k: Tensor, v: Tensor, start: int, position: int) -> Tensor:
        """Rows of one sequence; the first stands at `position`."""
        rows, heads, dim = q.shape
        kv_heads, seen = k.shape[1], position + rows
        grouped = q.view(rows, kv_heads, self.group, dim).permute(1, 0, 2, 3).reshape(1, kv_heads, -1, dim)
        mask = self.strip[: rows * self.group, self.longest - position : self.longest + rows]
        keys, values = self._region(k, start, seen), self._region(v, start, seen)
        out = F.scaled_dot_product_attention(grouped, keys, values, attn_mask=mask)
        return out.view(kv_heads, rows, self.group, dim).permute(1, 0, 2, 3).reshape(rows, heads, dim)

    @staticmethod
    def _region(pool: Tensor, start: int, used: int) -> Tensor:
        """(1, key/value heads, used, head dim), a view."""
        return pool[start : start + used].transpose(0, 1)[None]


def written_out(q: Tensor, k: Tensor, v: Tensor, plan: Decodes | Chunks) -> Tensor:
    """The same attention in float32, step by step, as the reference for backends."""
    out = torch.empty_like(q, dtype=torch.float32)
    group = q.shape[1] // k.shape[1]
    begins = plan.queries.tolist()
    for index, (start, used) in enumerate(zip(plan.starts.tolist(), plan.used.tolist(), strict=False)):
        begin, end = begins[index], begins[index + 1]
        keys = k[start : start + used].float().repeat_interleave(group, 1)
        values = v[start : start + used].float().repeat_interleave(group, 1)
        scores = torch.einsum("qhd,khd->hqk", q[begin:end].float(), keys) / q.shape[2] ** 0.5
        positions = torch.arange(used - (end - begin), used, device=q.device)
        hidden = torch.arange(used, device=q.device)[None, :] > positions[:, None]
        weights = scores.masked_fill(hidden[None], float("-inf")).softmax(-1)
        out[begin:end] = torch.einsum("hqk,khd->qhd", weights, values)
    return out


def _trial(shape: Any, dtype: Any, device: Any, parts: Sequence[tuple[int, int, int]]) -> tuple[Any, ...]:
    """Return random queries and pools, and the plan of (start, used, queries) parts."""
    def ints(values: list[int]) -> Tensor:
        return torch.tensor(values, dtype=torch.int32, device=device)

    total = -(-max(start + used for start, used, _ in parts) // 16) * 16   # whole pages
    count = sum(n for _, _, n in parts)
    generator = torch.Generator(device=device).manual_seed(1)
    q = torch.randn(count, shape.heads, shape.head_dim, dtype=dtype, device=device, generator=generator)
    k, v = (torch.randn(total, shape.kv_heads, shape.head_dim, dtype=dtype, device=device, generator=generator)
            for _ in range(2))
    begins = [sum(n for _, _, n in parts[:index]) for index in range(len(parts) + 1)]
    starts, used = [start for start, _, _ in parts], [used for _, used, _ in parts]
    return q, k, v, ints([*starts, total]), ints(used), ints(begins), max(used), max(n for _, _, n in parts)


def difference(attention: Attention, shape: Any, dtype: Any, device: Any) -> float:
    """Return the largest absolute difference between a backend and the reference, on a few sequences."""
    worst = 0.0
    q, k, v, starts, used, begins, longest, _ = _trial(shape, dtype, device, [(0, 33, 1), (48, 1, 1), (64, 150, 1)])
    decodes = Decodes(starts, used, begins, longest)
    worst = max(worst, float((attention.decode(q, k, v, decodes) - written_out(q, k, v, decodes)).abs().max()))
    parts = [(16, 40, 40), (64, 170, 150), (240, 190, 2)]
    q, k, v, starts, used, begins, longest, longest_chunk = _trial(shape, dtype, device, parts)
    chunks = Chunks(starts, used, begins, longest, longest_chunk)
    return max(worst, float((attention.prefill(q, k, v, chunks) - written_out(q, k, v, chunks)).abs().max()))


def choose(shape: Any, longest: int, dtype: Any, device: Any,
           first: Sequence[Callable[[], Attention]] = (FlashVarlen,)) -> tuple[Attention, list[str]]:
    """Return the fastest correct backend, and notes on the others.

    first: backends to try on a GPU, the fastest first
    """
    notes = []
    tolerance = 1e-4 if dtype == torch.float32 else 0.03
    per_sequence = PerSequence(shape, longest, dtype, device)
    candidates: list[Attention] = []
    for make in first if device.type == "cuda" else ():
        try:
            candidates.append(make())
        except (ImportError, StopIteration, RuntimeError) as error:
            notes.append(f"attention by {getattr(make, '__name__', 'a backend')}: {' '.join(str(error).split())[:200]}")
    for candidate in [*candidates, per_sequence]:
        try:
            off = difference(candidate, shape, dtype, device)
        except (RuntimeError, AttributeError, TypeError, NotImplementedError) as error:
            notes.append(f"attention by {candidate.name}: {' '.join(str(error).split())[:200]}")
            continue
        if off <= tolerance:
            if candidate is per_sequence and device.type == "cuda":
                notes.append("attention is launched per sequence: decode steps are bound by launches")
            return candidate, notes
        notes.append(f"attention by {candidate.name}: wrong by {off:.3g}")
    raise RuntimeError("; ".join(notes))
