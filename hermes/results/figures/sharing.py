"""KV blocks that sequences of a client shared: the blocks that would be in use in addition without sharing."""

from __future__ import annotations

from typing import Any

from hermes.core.record import RunRecord

__all__ = ["sharing_summary"]


def sharing_summary(record: RunRecord) -> dict[str, Any]:
    """Return `sharing` of the summary, if there was any: the client with the largest saving at one time, and blocks
    copied by all.

    saved_share: Blocks saved over blocks in use without sharing.
    """
    if not record.sharing:
        return {}
    most = max(record.sharing, key=lambda info: info.peak_shared_blocks)
    return {"sharing": {
        "client": record.clients[most.client].name, "saved_blocks": most.peak_shared_blocks,
        "used_blocks": most.used_at_peak,
        "saved_share": most.peak_shared_blocks / (most.peak_shared_blocks + most.used_at_peak),
        "copied_blocks": sum(info.copied_blocks for info in record.sharing),
    }}
