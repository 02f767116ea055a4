"""Workloads: arrivals, lengths, priorities, prefixes and sessions; the extension points for each.

`WorkloadConfig` is what stands in a scenario; `WorkloadConfig.draw` makes it a `RequestTable`, which is all that the
simulator sees.
"""

from hermes.config.streams import stream
from hermes.core.request_table import RequestTable
from hermes.workload.arrivals import ARRIVALS
from hermes.workload.base import (
    ArrivalProcess,
    ClosedLoopProcess,
    IntArray,
    LengthModel,
    Lengths,
    TokenCounts,
    seconds_to_ns,
)
from hermes.workload.lengths import LENGTHS, TOKEN_COUNTS
from hermes.workload.workload import WorkloadConfig

__all__ = [
    "ARRIVALS", "LENGTHS", "TOKEN_COUNTS", "ArrivalProcess", "ClosedLoopProcess", "IntArray", "LengthModel", "Lengths",
    "RequestTable", "TokenCounts", "WorkloadConfig", "seconds_to_ns", "stream",
]
