"""Reference prefix cache: vLLM V1's block pool, block by block.

`hermes.memory.prefix.PrefixBlockPool` does the same for ranges of blocks at a time, and is what simulations use. This
module is its definition: tests drive both with the same operations, and `stepping: every_step` uses this one. The
eviction orders other than LRU (`hermes.memory.prefix_eviction`) rank single blocks and build on it.

Blocks have numbers here, because a later request can hit a freed block that still carries the hash of its content,
until the block is allocated again. The free queue is the eviction order. Allocation takes from its front. The blocks of
a freed sequence enter tail first, those with a hash at the back, those without at the front (engine versions before
0.32: all at the back). Two blocks may carry the same hash; a lookup returns the older one.

A block's hash chains its parent's with its tokens, so equal keys mean equal content of the whole prefix. The simulator
has no tokens; `block_key` of a sequence replaces the hash.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable, Hashable, Iterator, Sequence
from typing import Any

from hermes.core.block_hashes import name_runs
from hermes.memory.blocks import BlockHolder, BlockPool

__all__ = ["ReferencePrefixPool"]


class ReferencePrefixPool(BlockPool):
    """Reference-counted blocks with hashes.

    Args:
        unhashed_to_front: Freed blocks without a hash go to the front of the free queue (vLLM 0.32), otherwise to the
            back (vLLM 0.19).
    """

    caching = True
    by_block = True

    def __init__(self, num_blocks: int, block_size: int, *, unhashed_to_front: bool = True) -> None:
        super().__init__(num_blocks, block_size)
        self.unhashed_to_front = unhashed_to_front
        self._queue: OrderedDict[int, None] = OrderedDict.fromkeys(range(num_blocks))
        self._refs = [0] * num_blocks
        self._key_of: list[Any] = [None] * num_blocks
        self._cached: dict[Any, int | list[int]] = {}   # key -> the block with that key, or several, oldest first
        self._blocks: dict[Any, list[int]] = {}         # sequence -> its blocks, in order
        self._committed: dict[Any, int] = {}            # sequence -> number of its blocks offered to the cache

    def _hits(self, seq: BlockHolder) -> list[int]:
        cached, bs, block_key = self._cached, self.block_size, self._keys(seq)
        hits: list[int] = []
        for index in range((seq.num_tokens - 1) // bs):
            block = cached.get(block_key(index, bs))
            if block is None:
                break
            hits.append(block if type(block) is int else block[0])  # type: ignore[index]
        if self.drop_last_hit and hits:
            hits.pop()
        return hits

    def _keys(self, seq: BlockHolder) -> Callable[[int, int], object]:
        """Return `block_key` of a sequence, of which `hash_lookahead` makes the key of the text up to a later token."""
        ahead = self.hash_lookahead
        if not ahead:
            return seq.block_key
        return lambda index, size: seq.block_key((index + 1) * size + ahead - 1, 1)

    def hit_tokens(self, seq: BlockHolder) -> int:
        return len(self._hits(seq)) * self.block_size

    def cached_blocks(self) -> Iterator[tuple[Hashable, int, int]]:
        for key, carriers in self._cached.items():
            for _ in [carriers] if type(carriers) is int else carriers:  # type: ignore[union-attr]
                yield key, 0, 1

    def block_names(self, seq: BlockHolder) -> list[tuple[Hashable, int, int]]:
        keys = self._keys(seq)
        return [(keys(index, self.block_size), 0, 1) for index in range((seq.num_tokens - 1) // self.block_size)]

    def missing_blocks(self, seq: BlockHolder, num_tokens: int) -> int:
        held = self._blocks.get(seq)
        if held is not None:
            return max(0, self.blocks_for(num_tokens) - len(held))
        hits = self._hits(seq)
        refs = self._refs
        # A hit block without a holder is in the free queue: taking it costs a free block just as a new one does.
        return max(0, self.blocks_for(num_tokens) - len(hits)) + sum(1 for b in hits if refs[b] == 0)

    def admit(self, seq: BlockHolder, num_tokens: int, known: int | None = None) -> None:
        if seq not in self._blocks:
            hits = self._hits(seq)
            for block in hits:   # before allocating, so that a sequence never evicts its own hits
                if self._refs[block] == 0:
                    del self._queue[block]
                    self.free_blocks -= 1
                else:
                    self.shared_blocks += 1
                self._refs[block] += 1
            self._note_shared()
            self._blocks[seq] = hits
            self._committed[seq] = seq.num_blocks = len(hits)
        self.grow(seq, num_tokens, known)

    def grow(self, seq: BlockHolder, num_tokens: int, known: int | None = None) -> bool:
        held = self._blocks.setdefault(seq, [])
        need = self.blocks_for(num_tokens) - len(held)
        if need > self.free_blocks:
            return False
        for _ in range(need):
            block, _none = self._queue.popitem(last=False)
            key = self._key_of[block]
            if key is not None:
                self._evict(block, key)
            self._refs[block] = 1
            held.append(block)
        if need > 0:
            self.free_blocks -= need
            seq.num_blocks = len(held)
        self._commit(seq, held, min(num_tokens, seq.num_tokens) if known is None else known)
        return True

    def answers_alone(self, seq: BlockHolder) -> bool:
        committed = self._committed.get(seq, 0)
        return all(end <= committed for _name, end in name_runs(seq, self.block_size, self.hash_lookahead))

    def commit(self, seq: BlockHolder, num_tokens: int) -> None:
        self._commit(seq, self._blocks[seq], num_tokens)

    def _evict(self, block: int, key: Any) -> None:
        self._key_of[block] = None
        if self.log is not None:
            self.log.note(False, key, 0, 1)
        carriers = self._cached[key]
        if type(carriers) is int:
            del self._cached[key]
            return
        carriers.remove(block)  # type: ignore[union-attr]
        if len(carriers) == 1:  # type: ignore[arg-type]
            self._cached[key] = carriers[0]  # type: ignore[index]

    def _commit(self, seq: BlockHolder, held: list[int], num_tokens: int) -> None:
        """Hash the blocks that are full once `num_tokens` tokens are scheduled (visible within the same step)."""
        first, bs = self._committed.get(seq, 0), self.block_size
        if self.hash_lookahead:
            num_tokens = min(num_tokens, seq.num_tokens - self.hash_lookahead)
        full = num_tokens // bs
        if full <= first:
            return
        self._committed[seq] = full
        cached, key_of, block_key = self._cached, self._key_of, self._keys(seq)
        for index in range(first, full):
            block = held[index]
            key_of[block] = key = block_key(index, bs)
            if self.log is not None:
                self.log.note(True, key, 0, 1)
            carriers = cached.setdefault(key, block)
            if carriers is not block and carriers != block:
                if type(carriers) is int:
                    cached[key] = [carriers, block]
                else:
                    carriers.append(block)  # type: ignore[union-attr]

    def relate(self, lead: BlockHolder, others: Sequence[BlockHolder]) -> None:
        """Do nothing: `others` find their common blocks by the content of `lead`."""

    def share(self, lead: BlockHolder, seq: BlockHolder) -> None:
        held = self._blocks[lead][: lead.prompt_tokens // self.block_size]
        for block in held:
            self._refs[block] += 1
        self._note_copies(lead, len(held))
        self._blocks[seq] = held
        self._committed[seq] = seq.num_blocks = len(held)

    def free(self, seq: BlockHolder) -> None:
        held = self._blocks.pop(seq, [])
        self._committed.pop(seq, None)
        seq.num_blocks = 0
        refs, key_of, queue = self._refs, self._key_of, self._queue
        unhashed: list[int] = []
        for block in reversed(held):
            refs[block] -= 1
            if refs[block]:
                self.shared_blocks -= 1
            else:
                self.free_blocks += 1
                if key_of[block] is None and self.unhashed_to_front:
                    unhashed.append(block)
                else:
                    queue[block] = None
        for block in reversed(unhashed):   # the tail block comes to the very front
            queue[block] = None
            queue.move_to_end(block, last=False)
