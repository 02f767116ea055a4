"""Prefix cache that records which of its blocks were taken in a step.

KV offload needs it: a block of a request that has ended may still be copied to host memory when another request gets
it, which has to wait for the copy then (`hermes.schedulers.offloading`). So it needs the numbers of blocks, which only
the block-by-block pool has.
"""

from __future__ import annotations

from hermes.memory.blocks import BlockHolder
from hermes.memory.reference import ReferencePrefixPool

__all__ = ["FencedPool"]


class FencedPool(ReferencePrefixPool):
    """A `ReferencePrefixPool`. The blocks taken since `taken` was cleared are in it, hits of admitted requests too."""

    def __init__(self, num_blocks: int, block_size: int, *, unhashed_to_front: bool = True) -> None:
        super().__init__(num_blocks, block_size, unhashed_to_front=unhashed_to_front)
        self.taken: set[int] = set()

    def blocks_of(self, seq: BlockHolder) -> list[int]:
        """Return the blocks that a sequence holds, in order. Do not change the list."""
        return self._blocks.get(seq, [])

    def admit(self, seq: BlockHolder, num_tokens: int, known: int | None = None) -> None:
        super().admit(seq, num_tokens, known)
        self.taken.update(self._blocks[seq])

    def grow(self, seq: BlockHolder, num_tokens: int, known: int | None = None) -> bool:
        held = seq.num_blocks
        if not super().grow(seq, num_tokens, known):
            return False
        if seq.num_blocks > held:
            self.taken.update(self._blocks[seq][held:])
        return True
