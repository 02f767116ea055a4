"""Workloads: arrivals and lengths of requests, with priorities, prefixes and sessions.

`WorkloadConfig` is a scenario's workload. `WorkloadConfig.draw` makes it a `RequestTable`, the only form that the
simulator reads. Importing this package registers the built-in arrival processes, length models and trace importers.
"""

from hermes.config.streams import stream
from hermes.core.request_table import RequestTable
from hermes.workload.arrivals import ARRIVALS
from hermes.workload.attributes import Prefixes, Priorities, Sessions
from hermes.workload.base import ArrivalProcess, ClosedLoopProcess, LengthModel, Lengths, TokenCounts
from hermes.workload.conversations import ConversationLengths
from hermes.workload.importers import TRACE_IMPORTERS, TraceImporter, import_trace
from hermes.workload.lengths import LENGTHS, TOKEN_COUNTS
from hermes.workload.profiles import WorkloadProfile, load_workload_profile, workload_profile_names
from hermes.workload.token_traces import TokenTrace
from hermes.workload.traces import describe, read_trace, write_trace
from hermes.workload.workload import WorkloadConfig

__all__ = [
    "ARRIVALS", "LENGTHS", "TOKEN_COUNTS", "TRACE_IMPORTERS", "ArrivalProcess", "ClosedLoopProcess",
    "ConversationLengths", "LengthModel", "Lengths", "Prefixes", "Priorities", "RequestTable", "Sessions",
    "TokenCounts", "TokenTrace", "TraceImporter", "WorkloadConfig", "WorkloadProfile", "describe", "import_trace",
    "load_workload_profile", "read_trace", "stream", "workload_profile_names", "write_trace",
]
