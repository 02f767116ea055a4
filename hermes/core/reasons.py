"""Reasons why work waits: recorded where admission stops, counted by `hermes.results.figures.binding_resource`.

A scheduler leaves the reason for which its latest plan stopped admitting in `LLMScheduler.stopped`; the client writes
it into the run's row (`stopped`, `stopped_ns`) if a sequence waits. Waits outside steps go to `RunRecord.stalls`.
"""

from __future__ import annotations

from enum import IntEnum

__all__ = [
    "CAPACITY", "CUT_OFF", "DEAD", "DRAINS", "EARLY", "ENDED", "FLOW_CONTROL", "GAVE_UP", "LATE", "NAMES", "NEVER_FITS",
    "NO_REPLICA", "Reason",
]

GAVE_UP = "its client gave up: "   # begins the reason for which an impatient client's request counts as rejected
# In the reason for which a request that never fits a client's KV memory is rejected.
NEVER_FITS = (" KV blocks of ", "the client's memory (")

# What binds at a gateway: its capacity, the limits of flow control while the engines have room, no replica is ready.
CAPACITY, FLOW_CONTROL, NO_REPLICA = "capacity", "flow control", "replicas"
# What binds in a fleet: a replica that is down and still chosen, time-outs, requests bound before others were free, and
# replicas that are stopped while they drain.
DEAD, LATE, EARLY, DRAINS = "dead replica", "time-outs", "early binding", "drains"


# What becomes of a replica whose drain is over; the second: it has told its clients that their answers end.
CUT_OFF = "was stopped while it drained"
ENDED = f"{CUT_OFF}, and ended its answers"


class Reason(IntEnum):
    """Why a sequence that waits is not admitted."""

    NONE = 0
    SLOTS = 1           # the batch has `max_num_seqs` sequences
    KV_MEMORY = 2       # too few free KV blocks, or a sequence was preempted for blocks
    ADAPTERS = 3        # `max_loras` adapters are in the step, and only sequences of other adapters wait
    TOKEN_BUDGET = 4    # the step has `max_num_batched_tokens` tokens
    BATCH_ENDS = 5      # a batch that returns together runs, or it is another kind's or prompts' turn later
    HOST_LOAD = 6       # KV is on its way from host memory
    FRONT_END = 7       # the serving stack's thread has other requests before it
    QUEUE_LIMIT = 8     # `max_num_queued_reqs` or `max_num_queued_tokens` rejects requests
    PATIENCE = 9        # clients give up before they are served
    LINK = 10           # data is on its way over a full link
    TIER = 11           # KV is being read from a store outside the devices
    COMPUTE = 12        # the hardware, or a service's workers, have as much work as they can do


NAMES = {
    Reason.NONE: "none", Reason.SLOTS: "slots", Reason.KV_MEMORY: "KV memory", Reason.ADAPTERS: "adapter slots",
    Reason.TOKEN_BUDGET: "token budget", Reason.BATCH_ENDS: "batch in flight", Reason.HOST_LOAD: "host loads",
    Reason.FRONT_END: "front end", Reason.QUEUE_LIMIT: "queue limit", Reason.PATIENCE: "patience",
    Reason.LINK: "link", Reason.TIER: "tier", Reason.COMPUTE: "compute",
}
