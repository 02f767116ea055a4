"""What fits: paged KV blocks, with and without a prefix cache."""

from hermes.memory.blocks import BlockPool
from hermes.memory.prefix import PrefixBlockPool

__all__ = ["BlockPool", "PrefixBlockPool"]
