"""FlashAttention as vLLM builds it, over the pools of `torch_attention`: prompts and decodes in one launch.

vLLM reads its KV cache in pages. Regions of a pool begin at multiples of a page and are contiguous, so that the page
table of a sequence is a range; it is made once for a plan, whose regions therefore have to stay where they are. Needs
torch and vLLM; `torch_attention.choose` compares it with attention written out before anything trusts it.
"""

from __future__ import annotations

from typing import Any

import torch
from vllm.vllm_flash_attn import flash_attn_varlen_func

from hermes.calibration.collect.torch_attention import Chunks, Decodes

__all__ = ["VllmFlash"]

Tensor = Any
PAGE = 16
NEWEST = (3, 2)   # versions of FlashAttention, in the order of vLLM's choice before Blackwell


class VllmFlash:
    """vLLM's kernel; every call is one launch, whatever the sequences."""

    static = True

    def __init__(self) -> None:
        self.version = next(version for version in NEWEST if _supported(version))
        self.name = f"vLLM's FlashAttention {self.version}"

    def decode(self, q: Tensor, k: Tensor, v: Tensor, plan: Decodes) -> Tensor:
        return self._call(q, k, v, plan, 1)

    def prefill(self, q: Tensor, k: Tensor, v: Tensor, plan: Chunks) -> Tensor:
        return self._call(q, k, v, plan, plan.longest_chunk)

    def _call(self, q: Tensor, k: Tensor, v: Tensor, plan: Decodes | Chunks, longest: int) -> Tensor:
        pages = len(k) // PAGE
        shape = (pages, PAGE, *k.shape[1:])
        return flash_attn_varlen_func(
            q=q, k=k[: pages * PAGE].view(shape), v=v[: pages * PAGE].view(shape), max_seqlen_q=longest,
            cu_seqlens_q=plan.queries, max_seqlen_k=plan.longest, seqused_k=plan.used, causal=True,
            block_table=self._table(plan), fa_version=self.version)

    def _table(self, plan: Decodes | Chunks) -> Tensor:
        """Return the pages of each sequence. They stay with the plan, since a recorded graph reads them again."""
        found = getattr(plan, "pages", None)
        if found is None:
            first = plan.starts[: len(plan.used)] // PAGE
            steps = torch.arange(-(-plan.longest // PAGE), dtype=torch.int32, device=first.device)
            found = plan.pages = (first[:, None] + steps[None, :]).contiguous()   # type: ignore[union-attr]
        return found


def _supported(version: int) -> bool:
    from vllm.vllm_flash_attn import is_fa_version_supported

    return bool(is_fa_version_supported(version))
