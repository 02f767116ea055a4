"""In which order a client serves: step plans for a batch of generations."""

from hermes.schedulers.base import SCHEDULERS, LLMScheduler, Plan
from hermes.schedulers.chunked import ChunkedConfig, ChunkedScheduler
from hermes.schedulers.continuous import ContinuousConfig, ContinuousScheduler
from hermes.schedulers.heterogeneous import HeterogeneousConfig, HeterogeneousScheduler
from hermes.schedulers.mixed import MixedConfig, MixedScheduler
from hermes.schedulers.sequence import Sequence
from hermes.schedulers.slots import SLOTS, BatchState, Resource, SlotPolicy, largest_split
from hermes.schedulers.static import StaticConfig, StaticScheduler

__all__ = [
    "SCHEDULERS", "SLOTS", "BatchState", "ChunkedConfig", "ChunkedScheduler", "ContinuousConfig", "ContinuousScheduler",
    "HeterogeneousConfig", "HeterogeneousScheduler", "LLMScheduler", "MixedConfig", "MixedScheduler", "Plan",
    "Resource", "Sequence", "SlotPolicy", "StaticConfig", "StaticScheduler", "largest_split",
]
