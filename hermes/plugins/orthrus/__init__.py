"""Orthrus: embeddings and generations in one batch, with slots divided between them by a policy."""

from hermes.plugins.orthrus.heterogeneous import HeterogeneousConfig, HeterogeneousScheduler
from hermes.plugins.orthrus.slots import SLOTS, BatchState, Resource, SlotPolicy, largest_split

__all__ = [
    "SLOTS", "BatchState", "HeterogeneousConfig", "HeterogeneousScheduler", "Resource", "SlotPolicy", "largest_split",
]
