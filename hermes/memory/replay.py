"""Replay a trace through a prompt cache without a clock: the share of its blocks that a store would have found.

Prompts are looked up and then stored one after the other in order of arrival. This is an upper bound for caches on the
clock, in which a prompt is of use only once it has been computed.
"""

from __future__ import annotations

from collections.abc import Hashable, Iterable, Sequence
from typing import NamedTuple

from hermes.memory.eviction import EVICTION
from hermes.memory.tiers import Store, find_chain

__all__ = ["Replay", "replay"]


class Replay(NamedTuple):
    """Blocks of all prompts, blocks found, distinct blocks, and evictions."""

    blocks: int
    hits: int
    distinct: int
    evictions: int

    @property
    def hit_rate(self) -> float:
        """Share of the blocks that were found."""
        return self.hits / self.blocks if self.blocks else 0.0


def replay(prompts: Iterable[Sequence[Hashable]], capacity_blocks: int | None = None, eviction: str = "lru") -> Replay:
    """Replay prompts through one store.

    Args:
        prompts: Chained block hashes of each prompt.
        capacity_blocks: Size of the store, None for no limit.
        eviction: A name of `EVICTION`.

    A block counts as found if all blocks before it are found as well.
    """
    store = Store(1 << 62 if capacity_blocks is None else capacity_blocks, EVICTION.get(eviction)())
    blocks = hits = 0
    distinct: set[Hashable] = set()
    for keys in prompts:
        blocks += len(keys)
        hits += len(find_chain([store], keys))
        distinct.update(keys)
        for key in reversed(keys):   # the head of the chain is evicted last
            if key not in store:
                store.put(key, 1)
    return Replay(blocks, hits, len(distinct), store.evictions)
