"""Hashes of the pages of a prompt whose tokens are known, and what sequences save by sharing pages.

A full page is identified by the SHA-256 of its tokens, chained with that of the page before. Equal hashes mean equal
content of the whole prefix, and two prompts share all leading pages that they have in common. The clients' pools
(`BlockPool`, `PrefixBlockPool`) use these hashes as keys (`hermes.core.block_hashes`).
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterator, Sequence

import numpy as np

__all__ = ["page_hashes", "shared_savings"]


def page_hashes(tokens: Sequence[int], page_tokens: int) -> Iterator[bytes]:
    """Yield the chained SHA-256 of each full page: of the hash before it (none for the first page) and the page's
    tokens as 64-bit little-endian integers."""
    if page_tokens < 1:
        raise ValueError(f"page_tokens must be at least 1, got {page_tokens}")
    data, before = np.asarray(tokens, dtype="<i8"), b""
    for start in range(0, len(data) - page_tokens + 1, page_tokens):
        before = hashlib.sha256(before + data[start:start + page_tokens].tobytes()).digest()
        yield before


def shared_savings(prefix_tokens: int, total_tokens: int, sequences: int, page_tokens: int) -> float:
    """Return the share of the pages that `sequences` of `total_tokens` save by a common prefix of `prefix_tokens`:
    floor(p / page) (N - 1) / (N ceil(total / page))."""
    whole = prefix_tokens // page_tokens
    return whole * (sequences - 1) / (sequences * -(-total_tokens // page_tokens))
