"""Schedulers of LLM clients: step plans for a batch of generations."""

from hermes.core.sequence import Sequence
from hermes.schedulers.base import SCHEDULERS, LLMScheduler, Plan
from hermes.schedulers.chunked import ChunkedConfig, ChunkedScheduler
from hermes.schedulers.continuous import ContinuousConfig, ContinuousScheduler
from hermes.schedulers.mixed import MixedConfig, MixedScheduler
from hermes.schedulers.static import StaticConfig, StaticScheduler

__all__ = [
    "SCHEDULERS", "ChunkedConfig", "ChunkedScheduler", "ContinuousConfig", "ContinuousScheduler", "LLMScheduler",
    "MixedConfig", "MixedScheduler", "Plan", "Sequence", "StaticConfig", "StaticScheduler",
]
