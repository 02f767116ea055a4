"""In which order a client serves: step plans for a batch of generations."""

from hermes.schedulers.base import SCHEDULERS, LLMScheduler, Plan
from hermes.schedulers.chunked import ChunkedConfig, ChunkedScheduler
from hermes.schedulers.sequence import Sequence

__all__ = ["SCHEDULERS", "ChunkedConfig", "ChunkedScheduler", "LLMScheduler", "Plan", "Sequence"]
