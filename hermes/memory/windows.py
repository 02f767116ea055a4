"""KV memory of models with sliding windows: groups of layers that share the blocks of one pool.

vLLM puts layers of one kind into groups of equally many (`_get_kv_cache_groups_uniform_page_size` in
vllm/v1/core/kv_cache_utils.py), and a block of the pool holds so many tokens of one group. A sequence has blocks for
all of its tokens in the group without a window, and blocks for its last tokens in each group with one.

The pools count the first kind as always. What the groups with a window need is taken when a sequence is admitted and
kept until it leaves: the blocks of its window, or of its whole length if it stays shorter. To be admitted, a sequence
needs as much room as its prompt takes in them while it is computed. The engine takes the blocks as the sequence grows,
and keeps those of windows in the prefix cache.
"""

from __future__ import annotations

from typing import Any, ClassVar, NamedTuple

from hermes.memory.blocks import BlockHolder, BlockPool
from hermes.memory.prefix import PrefixBlockPool

__all__ = ["WindowGroups", "WindowPool", "WindowPrefixPool"]


class WindowGroups(NamedTuple):
    """Groups of layers.

    Args:
        layers: Layers of a group; a block holds the tokens of so many.
        windowed: Groups with a window; one more has none.
        window: Tokens of it.
        ahead: Tokens that a step may compute beyond the window: the engine wants as much room to admit a sequence.
    """

    layers: int
    windowed: int
    window: int
    ahead: int = 0

    def admission(self, num_tokens: int, block_size: int) -> int:
        """Return the blocks of the groups with a window that must be free to admit so many tokens at once."""
        most = -(-(self.window - 1 + self.ahead) // block_size) + 1
        return self.windowed * min(-(-num_tokens // block_size), most)

    def blocks(self, num_tokens: int, block_size: int) -> int:
        """Return the blocks of a sequence of so many tokens in the groups with a window."""
        held = -(-self.window // block_size) + 1   # the window need not begin where a block does
        return self.windowed * min(-(-num_tokens // block_size), held)


class _Windows:
    """Additions to both pools; stands before a pool among the bases."""

    windowed: ClassVar[bool] = True

    groups: WindowGroups
    block_size: int
    free_blocks: int
    _of: dict[Any, int]

    def extra_blocks(self, seq: Any) -> int:
        """Return the blocks to admit it with all of its tokens, as after a preemption before its last one."""
        return self._to_admit(seq, seq.prompt_tokens + seq.target_tokens - 1)

    def _held_blocks(self, seq: Any) -> int:
        return self.groups.blocks(seq.prompt_tokens + seq.target_tokens, self.block_size)

    def _to_admit(self, seq: Any, num_tokens: int) -> int:
        return max(self._held_blocks(seq), self.groups.admission(num_tokens, self.block_size))


    def reserve_windows(self: Any, seq: BlockHolder, num_tokens: int) -> bool:   # Any: takes from the pool after it
        """See `BlockPool`. What it needs to be admitted must be free."""
        if seq not in self._of:
            if self._to_admit(seq, num_tokens) + self.blocks_for(num_tokens) > self.free_blocks:
                return False
            self._of[seq] = extra = self._held_blocks(seq)
            self.take(extra)
        return True


class WindowPool(_Windows, BlockPool):
    """Without a prefix cache."""

    def __init__(self, num_blocks: int, block_size: int, *, groups: WindowGroups) -> None:
        super().__init__(num_blocks, block_size)
        self.groups, self._of = groups, {}

    def missing_blocks(self, seq: BlockHolder, num_tokens: int) -> int:
        missing = super().missing_blocks(seq, num_tokens)
        return missing if seq in self._of else missing + self._to_admit(seq, num_tokens)

    def admit(self, seq: BlockHolder, num_tokens: int, known: int | None = None) -> None:
        if seq not in self._of:
            self._of[seq] = extra = self._held_blocks(seq)
            self.take(extra)
        super().admit(seq, num_tokens, known)

    def free(self, seq: BlockHolder) -> None:
        super().free(seq)
        self.free_blocks += self._of.pop(seq, 0)


class WindowPrefixPool(_Windows, PrefixBlockPool):
    """With a prefix cache."""

    def __init__(self, num_blocks: int, block_size: int, *, groups: WindowGroups, unhashed_to_front: bool = True
                 ) -> None:
        super().__init__(num_blocks, block_size, unhashed_to_front=unhashed_to_front)
        self.groups, self._of = groups, {}

    def missing_blocks(self, seq: BlockHolder, num_tokens: int) -> int:
        missing = super().missing_blocks(seq, num_tokens)
        return missing if seq in self._of else missing + self._to_admit(seq, num_tokens)

    def admit(self, seq: BlockHolder, num_tokens: int, known: int | None = None) -> None:
        super().admit(seq, num_tokens, known)   # before, so that a sequence never evicts its own hits
        if seq not in self._of:
            self._of[seq] = extra = self._held_blocks(seq)
            self.take(extra)

    def free(self, seq: BlockHolder) -> None:
        super().free(seq)
        extra = self._of.pop(seq, 0)
        self.free_blocks += extra
        self._num_unhashed += extra
