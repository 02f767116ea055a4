"""KV capacity of a client, as results print it."""

from __future__ import annotations

from typing import Any

from hermes.core.record import ClientInfo

__all__ = ["memory_summary"]


def memory_summary(info: ClientInfo) -> dict[str, Any] | None:
    """Return the KV capacity of a client for the summary; None without KV memory."""
    if not info.num_blocks:
        return None
    tokens = info.num_blocks * info.block_size
    return {
        "kv_tokens": info.kv_tokens_printed or tokens, "kv_concurrency": info.kv_concurrency or None,
        "kv_low_bytes": info.kv_low_bytes or None, "kv_high_bytes": info.kv_high_bytes or None,
        "kv_blocks": info.num_blocks, "block_size": info.block_size,
        "kv_bytes": round(tokens * info.kv_bytes_per_token) or None,
        "memory_bytes": info.memory_bytes or None, "utilization": info.memory_utilization or None,
        "weights_bytes": info.weights_bytes if info.memory_bytes else None,
        "activation_bytes": info.activation_bytes if info.memory_bytes else None,
        "engine_bytes": info.engine_bytes if info.memory_bytes else None,
        "source": info.memory_source or None,
    }
