"""A prompt that several sequences read: its whole blocks are held once, whoever of them runs.

Without a prefix cache blocks have no names, so the pool counts: the sequences that hold the common blocks stand in a
`CommonPrompt`, and the blocks come back with the last of them. (With a prefix cache blocks have reference counts and
are found by their content; no such object is needed there.)

The sequence that computes the prompt is the first holder; nobody else can join before all the common blocks are
computed. A sequence that loses its blocks (it is done, or preempted) leaves. When it comes back it joins again if
somebody still holds them, waits if somebody is computing them anew, and else computes them itself for all.
"""

from __future__ import annotations

from typing import Protocol

__all__ = ["CommonPrompt"]


class Holder(Protocol):
    """A sequence, as far as it matters here."""

    grouped: bool
    num_computed: int
    num_blocks: int


class CommonPrompt:
    """`num_blocks` whole blocks of `num_tokens` tokens in all, and who holds them now, in order of joining."""

    __slots__ = ("holders", "num_blocks", "num_tokens")

    def __init__(self, num_blocks: int, block_size: int) -> None:
        self.num_blocks = num_blocks
        self.num_tokens = num_blocks * block_size
        self.holders: dict[Holder, None] = {}

    @property
    def ready(self) -> bool:
        """Whether somebody holds the blocks, and all of them are computed (or scheduled, which a step makes equal)."""
        holders = self.holders
        if len(holders) != 1:
            return bool(holders)   # nobody joins a holder that is not ready
        (seq,) = holders
        return seq.grouped or seq.num_computed >= self.num_tokens

    def leave(self, seq: Holder) -> int:
        """`seq` gives up its blocks; how many of them come free."""
        del self.holders[seq]
        return seq.num_blocks - self.num_blocks if self.holders else seq.num_blocks
