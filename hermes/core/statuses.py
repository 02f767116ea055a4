"""HTTP statuses of requests that ended with an error.

    400  no client can ever serve it (too long, too large for the KV memory)
    429  too many requests: a rate, a queue that is full, or others that are more urgent
    499  its client gave up (nginx's number)
    502  its client went down, or could not be reached
    503  no endpoint was ready, or not in time
    504  it took longer than a time-out of the gateway or of its own client
    529  the engines have as many requests as they take (`max_num_queued_reqs`, `max_num_queued_tokens`)
"""

from __future__ import annotations

from hermes.core.reasons import GAVE_UP

__all__ = ["CLIENT_LATE", "FULL_ENGINE", "LIMITS_OF_ENGINES", "STATUS_OF_FATE", "status_of"]

STATUS_OF_FATE = {"failed": 502, "timed out": 504, "expired": 503, "unavailable": 503, "limited": 429,
                  "overloaded": 529, "shed": 429, "revoked": 429}
"""Status by the fate (`hermes.core.record.FATES`) that begins a reason."""
LIMITS_OF_ENGINES = ("max_num_queued_reqs:", "max_num_queued_tokens:")   # in reasons of an engine that is full
FULL_ENGINE = 529
CLIENT_LATE = "timed out: its client had no answer within "   # begins the reason of a client's own time-out


def status_of(reason: str) -> int:
    """Return the status of a request that was rejected for a reason."""
    fate, colon, _ = reason.partition(": ")
    if colon and fate in STATUS_OF_FATE:
        return STATUS_OF_FATE[fate]
    if reason.startswith(GAVE_UP):
        return 499
    if any(limit in reason for limit in LIMITS_OF_ENGINES):
        return FULL_ENGINE
    return 503 if reason == "no decode replica is ready" else 400
