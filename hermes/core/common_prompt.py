"""Prompt blocks that several sequences share in a pool without a prefix cache.

Without a prefix cache blocks have no names, so the pool counts holders. A `CommonPrompt` lists the sequences that hold
the common blocks; the blocks become free when the last of them leaves. (With a prefix cache blocks have reference
counts and are found by content, so this object is not needed.)

The sequence that computes the prompt is the first holder. Others join when all the common blocks are computed. A
sequence that loses its blocks (it is done, or preempted) leaves. When it comes back it joins again if the blocks still
have a holder, waits if another sequence is computing them again, and otherwise computes them itself for all.
"""

from __future__ import annotations

from typing import Protocol

__all__ = ["CommonPrompt"]


class Holder(Protocol):
    """The fields of a sequence that a common prompt reads."""

    grouped: bool
    num_computed: int
    num_blocks: int


class CommonPrompt:
    """The common blocks (`num_blocks` blocks, `num_tokens` tokens in all) and their holders in order of joining."""

    __slots__ = ("holders", "num_blocks", "num_tokens")

    def __init__(self, num_blocks: int, block_size: int) -> None:
        self.num_blocks = num_blocks
        self.num_tokens = num_blocks * block_size
        self.holders: dict[Holder, None] = {}

    @property
    def ready(self) -> bool:
        """Whether the blocks have a holder and are all computed (or scheduled, which a step makes equal)."""
        holders = self.holders
        if len(holders) != 1:
            return bool(holders)   # a second holder joins only when the first is ready
        (seq,) = holders
        return seq.grouped or seq.num_computed >= self.num_tokens

    def leave(self, seq: Holder) -> int:
        """Remove `seq` from the holders; return how many of its blocks become free."""
        del self.holders[seq]
        return seq.num_blocks - self.num_blocks if self.holders else seq.num_blocks
