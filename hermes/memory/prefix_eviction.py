"""Prefix cache with a choice of eviction order: token-aware LRU, GDSF, LFU or FIFO.

`ReferencePrefixPool` takes blocks from the front of a queue (least recently used, tail of a chain first). This pool
takes blocks without a hash first, and then, of the blocks that no sequence holds:

- `tamm`: the block with the least recency / tokens (token-aware LRU over whole prompts). Recency is that of the last
  prompt that used the block (`hermes.memory.recency`), tokens are those of the shortest prompt that did.
- `gdsf`: least L + times the block was held / tokens of that sequence; L is the rank of the last evicted block
- `lfu`: fewest times the block was held
- `fifo`: first access that brought it in

All blocks have one size, so per block TAMM would be LRU; the prompts that they belong to differ in size. The head of a
chain, which every prompt through it needs, never goes before the rest: with `tamm` it was used at least as lately, and
by a prompt at least as short, and with `gdsf` and `lfu` a block keeps its highest rank so far. With `fifo` a head may
go before a tail that came later; the tail is then useless until it goes too.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable, Iterable, Sequence
from typing import Any, Literal

from hermes.memory.blocks import BlockHolder
from hermes.memory.eviction import Recency
from hermes.memory.indexed_heap import IndexedHeap
from hermes.memory.recency import RecencyOrder
from hermes.memory.reference import ReferencePrefixPool

__all__ = ["RankedPrefixPool", "TammPrefixPool"]


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


class _RecencyQueue:
    """Free blocks in the order in which `tamm` takes them, as the part of `OrderedDict` that a pool uses.

    Blocks that one prompt used last, and whose shortest prompts are equally long, are one entry of the order. They go
    in the order in which they became free.
    """

    def __init__(self, recency: Recency, key_of: Sequence[Any], num_blocks: int) -> None:
        self._key_of = key_of
        self._order = RecencyOrder(recency)
        self._access = 0
        self._shortest: dict[int, int] = {}   # block -> tokens of the shortest prompt that used its content
        self._plain: OrderedDict[int, None] = OrderedDict.fromkeys(range(num_blocks))   # blocks without a hash
        self._entry: dict[int, tuple[int, int]] = {}                        # block -> (access, tokens)
        self._blocks: dict[tuple[int, int], OrderedDict[int, None]] = {}    # the reverse

    def used(self, blocks: Iterable[int], tokens: int) -> None:
        """Note the blocks of a prompt that is about to free them."""
        self._access += 1
        self._order.tick()
        for block in blocks:
            self._shortest[block] = min(tokens, self._shortest.get(block, tokens))

    def __setitem__(self, block: int, value: None) -> None:
        if self._key_of[block] is None:
            self._plain[block] = None
            return
        entry = self._access, self._shortest[block]
        if entry not in self._blocks:
            self._blocks[entry] = OrderedDict()
            self._order.add(entry, entry[1])
        self._entry[block] = entry
        self._blocks[entry][block] = None

    def __delitem__(self, block: int) -> None:
        entry = self._entry.pop(block)   # a block without a hash is never hit
        del self._blocks[entry][block]
        if not self._blocks[entry]:
            del self._blocks[entry]
            self._order.remove(entry)

    def move_to_end(self, block: int, last: bool = True) -> None:
        """Move a block without a hash to the very front (`last=False`)."""
        self._plain.move_to_end(block, last=last)

    def popitem(self, last: bool = False) -> tuple[int, None]:
        """Remove and return the next block to take."""
        if self._plain:
            block, _none = self._plain.popitem(last=False)
        else:
            entry: Any = self._order.first()
            block = next(iter(self._blocks[entry]))
            del self[block]
        self._shortest.pop(block, None)
        return block, None


class TammPrefixPool(ReferencePrefixPool):
    """Prefix cache that evicts by recency per token; see the module's docstring."""

    def __init__(
        self, num_blocks: int, block_size: int, *, recency: Recency = "rank", unhashed_to_front: bool = True,
    ) -> None:
        super().__init__(num_blocks, block_size, unhashed_to_front=unhashed_to_front)
        self._recency_queue = _RecencyQueue(recency, self._key_of, num_blocks)
        queue: Any = self._recency_queue
        self._queue = queue

    def free(self, seq: BlockHolder) -> None:
        self._recency_queue.used(self._blocks.get(seq, ()), max(1, seq.num_tokens))
        super().free(seq)


class RankedPrefixPool(ReferencePrefixPool):
    """Prefix cache that evicts by `gdsf`, `lfu` or `fifo`; see the module's docstring."""

    def __init__(
        self, num_blocks: int, block_size: int, *, policy: Literal["gdsf", "lfu", "fifo"],
        unhashed_to_front: bool = True,
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
        if self.policy == "gdsf":
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
