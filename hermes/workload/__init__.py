"""Workloads: arrivals and lengths of requests, with priorities, prefixes and sessions; their extension points.

`WorkloadConfig` is a scenario's workload. `WorkloadConfig.draw` makes it a `RequestTable`, the only form that the
simulator reads.
"""

from hermes.config.streams import stream
from hermes.core.request_table import RequestTable
from hermes.workload.arrivals import ARRIVALS
from hermes.workload.base import ArrivalProcess, ClosedLoopProcess, LengthModel, Lengths, TokenCounts, seconds_to_ns
from hermes.workload.lengths import LENGTHS, TOKEN_COUNTS
from hermes.workload.workload import WorkloadConfig

__all__ = [
    "ARRIVALS", "LENGTHS", "TOKEN_COUNTS", "ArrivalProcess", "ClosedLoopProcess", "LengthModel", "Lengths",
    "RequestTable", "TokenCounts", "WorkloadConfig", "seconds_to_ns", "stream",
]
