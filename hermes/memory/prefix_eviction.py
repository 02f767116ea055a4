"""Prefix cache with a choice of eviction order: token-aware LRU, GDSF, LFU or FIFO.

`ReferencePrefixPool` takes blocks from the front of a queue (least recently used, tail of a chain first). This pool
ranks a block with a hash when its last holder leaves, and evicts the block with the least rank first:

- `tamm`: number of the access / tokens of the sequence that left (token-aware LRU over whole prompts)
- `gdsf`: L + times the block was held / tokens of that sequence; L is the rank of the last evicted block
- `lfu`: times the block was held
- `fifo`: number of the access that brought it in

All blocks have one size, so per block TAMM would be LRU; the prompts that they belong to differ in size. A block keeps
its highest rank so far, so that the head of a chain, which every prompt through it needs, never goes before the rest.
With `fifo` a head may go before a tail that came later; the tail is then useless until it goes too.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from hermes.memory.blocks import BlockHolder
from hermes.memory.eviction import PrefixEviction
from hermes.memory.indexed_heap import IndexedHeap
from hermes.memory.reference import ReferencePrefixPool

__all__ = ["RankedPrefixPool"]



class _Ranking:
    """Free blocks in the order in which they are taken, as the part of `OrderedDict` that a pool uses.

    Blocks without a hash go first. Blocks of equal rank go in the order in which they became free.
    """

    def __init__(self, rank: Callable[[int], float], taken: Callable[[int, float], None], num_blocks: int) -> None:
        self._rank, self._taken = rank, taken
        self._heap: IndexedHeap[int] = IndexedHeap()
        self._front = 0
        for block in range(num_blocks):
            self._heap.push(block, (-1.0, block))

    def __setitem__(self, block: int, value: None) -> None:
        self._heap.push(block, (self._rank(block), 0))

    def __delitem__(self, block: int) -> None:
        self._heap.remove(block)

    def move_to_end(self, block: int, last: bool = True) -> None:
        """Move a block without a hash to the very front (`last=False`)."""
        self._front -= 1
        self._heap.update(block, (-1.0, self._front))

    def popitem(self, last: bool = False) -> tuple[int, None]:
        """Remove and return the next block to take."""
        block = self._heap.peek()
        self._taken(block, self._heap.key(block)[0])
        self._heap.pop()
        return block, None


class RankedPrefixPool(ReferencePrefixPool):
    """See the module's docstring. policy: The rank to use."""

    def __init__(
        self, num_blocks: int, block_size: int, *, policy: PrefixEviction = "tamm", unhashed_to_front: bool = True,
    ) -> None:
        super().__init__(num_blocks, block_size, unhashed_to_front=unhashed_to_front)
        self.policy = policy
        self._ranks: dict[int, float] = {}   # of blocks with a hash
        self._uses: dict[int, int] = {}
        self._accesses = 0
        self._tokens = 1                     # of the sequence that leaves
        self._age = 0.0
        queue: Any = _Ranking(self._rank, self._took, num_blocks)
        self._queue = queue

    def free(self, seq: BlockHolder) -> None:
        self._accesses += 1
        self._tokens = max(1, seq.num_tokens)
        for block in self._blocks.get(seq, ()):
            self._uses[block] = self._uses.get(block, 0) + 1
        super().free(seq)

    def _rank(self, block: int) -> float:
        if self._key_of[block] is None:
            return -1.0
        if self.policy == "tamm":
            rank = self._accesses / self._tokens
        elif self.policy == "gdsf":
            rank = self._age + self._uses[block] / self._tokens
        elif self.policy == "fifo":
            rank = self._ranks.get(block, float(self._accesses))
        else:
            rank = float(self._uses[block])
        self._ranks[block] = rank = max(rank, self._ranks.get(block, 0.0))
        return rank

    def _took(self, block: int, rank: float) -> None:
        """Forget the rank and uses of a block that goes to another sequence."""
        self._ranks.pop(block, None)
        self._uses.pop(block, None)
        self._age = max(self._age, rank)
