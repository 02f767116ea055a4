"""KV memory: paged blocks with and without a prefix cache; the extension point for eviction policies of KV tiers."""

from hermes.memory.blocks import BlockPool
from hermes.memory.eviction import EVICTION, EvictionPolicy
from hermes.memory.prefix import PrefixBlockPool

__all__ = ["EVICTION", "BlockPool", "EvictionPolicy", "PrefixBlockPool"]
