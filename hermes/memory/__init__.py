"""KV memory: paged blocks with and without a prefix cache, and stores outside the device with their eviction."""

from hermes.memory.blocks import BlockPool
from hermes.memory.prefix import PrefixBlockPool
from hermes.memory.prefix_eviction import RankedPrefixPool
from hermes.memory.reference import ReferencePrefixPool
from hermes.memory.size_aware import Gdsf, Tamm

__all__ = ["BlockPool", "Gdsf", "PrefixBlockPool", "RankedPrefixPool", "ReferencePrefixPool", "Tamm"]
