"""What sequences shared of a client's KV memory: blocks that would be in use besides, if each had its own."""

from __future__ import annotations

from typing import Any

from hermes.core.record import RunRecord

__all__ = ["sharing_summary"]


def sharing_summary(record: RunRecord) -> dict[str, Any]:
    """`sharing` of the summary, where there was any: the client that saved most at one time, and blocks copied by all.

    saved_share: saved over what would have been in use without sharing
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
