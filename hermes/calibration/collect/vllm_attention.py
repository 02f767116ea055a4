"""Attention over a KV cache by vLLM's FlashAttention: prompts with a past and decodes in one launch.

The cache of a layer is one pool of shape (tokens, key/value heads, head dim); a sequence owns a contiguous region that
begins at a multiple of a page, so that its page table is a range. `difference` compares the kernel with attention
written out in float32. Needs torch and vLLM.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import torch
from vllm.vllm_flash_attn import flash_attn_varlen_func, is_fa_version_supported

__all__ = ["PAGE", "Sequences", "VllmFlash", "difference", "written_out"]

Tensor = Any
PAGE = 16         # tokens
NEWEST = (3, 2)   # versions of FlashAttention, in the order of vLLM's choice before Blackwell


@dataclass
class Sequences:
    """Sequences of one launch. The queries of each are the last tokens that it has; each sees itself and what is before
    it."""

    used: Tensor
    """int32, shape (sequences,): tokens of each sequence, the new ones included."""
    queries: Tensor
    """int32, shape (sequences + 1,): where each sequence's queries begin."""
    pages: Tensor
    """int32, shape (sequences, pages of the longest): pages of each region."""
    longest: int
    longest_new: int

    @classmethod
    def of(cls, parts: Sequence[tuple[int, int]], device: Any) -> tuple[Sequences, int]:
        """Return the plan of (past, new) tokens of each sequence, and the tokens of its pool."""
        def ints(values: list[int]) -> Tensor:
            return torch.tensor(values, dtype=torch.int32, device=device)

        used, news = [past + new for past, new in parts], [new for _, new in parts]
        regions = [-(-tokens // PAGE) for tokens in used]
        first = ints([1 + sum(regions[:index]) for index in range(len(parts))])   # page 0 stays unused, as in vLLM
        steps = torch.arange(max(regions), dtype=torch.int32, device=device)
        begins = ints([sum(news[:index]) for index in range(len(parts) + 1)])
        pages = (first[:, None] + steps[None, :]).contiguous()
        return cls(ints(used), begins, pages, max(used), max(news)), PAGE * (1 + sum(regions))


class VllmFlash:
    """vLLM's kernel; every call is one launch, whatever the sequences."""

    def __init__(self) -> None:
        """Raises StopIteration where vLLM has no FlashAttention for the device."""
        self.version = next(version for version in NEWEST if is_fa_version_supported(version))
        self.name = f"vLLM's FlashAttention {self.version}"

    def __call__(self, q: Tensor, k: Tensor, v: Tensor, plan: Sequences) -> Tensor:
        """Return answers of the shape of q: (queries, heads, head dim); k, v: the pools."""
        shape = (len(k) // PAGE, PAGE, *k.shape[1:])
        return flash_attn_varlen_func(
            q=q, k=k.view(shape), v=v.view(shape), max_seqlen_q=plan.longest_new, cu_seqlens_q=plan.queries,
            max_seqlen_k=plan.longest, seqused_k=plan.used, causal=True, block_table=plan.pages,
            fa_version=self.version)


def written_out(q: Tensor, k: Tensor, v: Tensor, plan: Sequences) -> Tensor:
    """The same attention in float32, step by step, as the reference for the kernel."""
    out = torch.empty_like(q, dtype=torch.float32)
    group = q.shape[1] // k.shape[1]
    begins = plan.queries.tolist()
    for index, used in enumerate(plan.used.tolist()):
        begin, end = begins[index], begins[index + 1]
        start = int(plan.pages[index][0]) * PAGE
        keys = k[start : start + used].float().repeat_interleave(group, 1)
        values = v[start : start + used].float().repeat_interleave(group, 1)
        scores = torch.einsum("qhd,khd->hqk", q[begin:end].float(), keys) / q.shape[2] ** 0.5
        positions = torch.arange(used - (end - begin), used, device=q.device)
        hidden = torch.arange(used, device=q.device)[None, :] > positions[:, None]
        weights = scores.masked_fill(hidden[None], float("-inf")).softmax(-1)
        out[begin:end] = torch.einsum("hqk,khd->qhd", weights, values)
    return out


def difference(attention: Any, shape: Any, dtype: Any, device: Any) -> float:
    """Return the largest absolute difference between a kernel and the reference, on a few sequences: decodes, then
    decodes beside prompts with and without a past."""
    worst = 0.0
    generator = torch.Generator(device=device).manual_seed(1)
    for parts in ([(32, 1), (0, 1), (149, 1)], [(0, 40), (20, 150), (188, 2), (64, 1)]):
        plan, tokens = Sequences.of(parts, device)
        q = torch.randn(sum(new for _, new in parts), shape.heads, shape.head_dim, dtype=dtype, device=device,
                        generator=generator)
        k, v = (torch.randn(tokens, shape.kv_heads, shape.head_dim, dtype=dtype, device=device, generator=generator)
                for _ in range(2))
        worst = max(worst, float((attention(q, k, v, plan) - written_out(q, k, v, plan)).abs().max()))
    return worst
