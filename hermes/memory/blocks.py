"""Paged KV memory without a prefix cache: blocks are counted, not named.

Which physical block a sequence holds changes nothing, so the pool is one integer and each sequence's count. What the
branches of a prompt share is counted by a `CommonPrompt`. `PrefixBlockPool` has the same methods and names its blocks.
"""

from __future__ import annotations

from collections.abc import Hashable, Sequence
from typing import Protocol

from hermes.core.block_hashes import NameRuns
from hermes.core.common_prompt import CommonPrompt

__all__ = ["BlockHolder", "BlockPool"]


class BlockHolder(Protocol):
    """What the memory needs to know of a sequence."""

    num_blocks: int      # blocks held, common ones included
    num_computed: int    # tokens whose KV is in those blocks
    num_tokens: int      # prompt and outputs so far
    grouped: bool        # decodes in a group, whose clock implies the two above
    prompt_tokens: int
    common: CommonPrompt | None   # what it shares with others of one prompt

    def block_key(self, index: int, block_size: int) -> object:
        """Identity of the content of full block `index` and of everything before it (a chained hash)."""
        ...

    def name_runs(self, block_size: int) -> NameRuns:
        """The same for many blocks at once (`hermes.core.block_hashes`). What comes after the last run has the
        `own_name`.

        May be left out, together with `own_name`: the pool asks for each block's key then.
        """
        ...

    @property
    def own_name(self) -> Hashable:
        """Name of what no other sequence has."""
        ...


class BlockPool:
    """`num_blocks` blocks of `block_size` tokens. `free_blocks` never leaves [0, num_blocks].

    shared_blocks: references to blocks beyond the first of each, so that many more blocks would be in use if nobody
    shared; peak_shared_blocks: the most there were, and used_at_peak the blocks in use then; copied_blocks: partial
    blocks of a prompt that branches copied to write into.
    """

    caching = False
    by_block = False   # whether each sequence has to take its blocks itself (`grow`), also in a decode group

    def __init__(self, num_blocks: int, block_size: int) -> None:
        if num_blocks < 1 or block_size < 1:
            raise ValueError(f"a pool needs at least one block of one token, got {num_blocks} x {block_size}")
        self.num_blocks, self.block_size = num_blocks, block_size
        self.free_blocks = num_blocks
        self.shared_blocks = self.peak_shared_blocks = self.used_at_peak = self.copied_blocks = 0

    def blocks_for(self, num_tokens: int) -> int:
        """Blocks that hold `num_tokens` tokens: ceil(tokens / block_size)."""
        return -(-num_tokens // self.block_size)

    def hit_tokens(self, seq: BlockHolder) -> int:
        """Tokens of a waiting sequence that are in memory already (whole blocks, at most num_tokens - 1)."""
        common = seq.common
        return 0 if common is None or seq.num_blocks or not common.ready else common.num_tokens

    def missing_blocks(self, seq: BlockHolder, num_tokens: int) -> int:
        """Free blocks it would take for `seq` to hold its first `num_tokens` tokens, what is there considered.

        More than there are, where it has to wait for another that computes their common prompt.
        """
        need = -(-num_tokens // self.block_size) - seq.num_blocks
        common = seq.common
        if common is not None and not seq.num_blocks and common.holders:
            if not common.ready:
                return self.num_blocks + 1
            need -= common.num_blocks
        return max(0, need)

    def admit(self, seq: BlockHolder, num_tokens: int, known: int | None = None) -> None:
        """Take the blocks of a waiting sequence's first `num_tokens` tokens; `missing_blocks` was checked.

        known: as for `grow`; tokens that are computed later are not known yet, whoever holds their blocks.
        """
        common = seq.common
        if common is not None and not seq.num_blocks:
            if common.holders:
                seq.num_blocks = common.num_blocks
                self.shared_blocks += common.num_blocks
            common.holders[seq] = None
        need = -(-num_tokens // self.block_size) - seq.num_blocks
        if need > 0:
            self.free_blocks -= need
            seq.num_blocks += need
        self._note_shared()

    def grow(self, seq: BlockHolder, num_tokens: int, known: int | None = None) -> bool:
        """Let `seq` hold `num_tokens` tokens; False, and nothing changes, if the blocks are not there.

        known: of these, tokens whose identity is known, if not all (blocks that hold others cannot be hashed).
        """
        need = -(-num_tokens // self.block_size) - seq.num_blocks
        if need > self.free_blocks:
            return False
        if need > 0:
            self.free_blocks -= need
            seq.num_blocks += need
        return True

    def take(self, num_blocks: int) -> None:
        """A decode group takes so many free blocks, whichever of its members they are for."""
        self.free_blocks -= num_blocks

    def answers_alone(self, seq: BlockHolder) -> bool:
        """Whether no other sequence can look up what `seq` writes from here on."""
        return True

    def commit(self, seq: BlockHolder, num_tokens: int) -> None:
        """The first `num_tokens` tokens of `seq`, computed already, are known now; see `grow`."""

    def free(self, seq: BlockHolder) -> None:
        """Return all blocks of `seq` that nobody else holds."""
        if seq.common is None or not seq.num_blocks:
            self.free_blocks += seq.num_blocks
        else:
            if len(seq.common.holders) > 1:
                self.shared_blocks -= seq.common.num_blocks
            self.free_blocks += seq.common.leave(seq)
        seq.num_blocks = 0

    # -- branches of one prompt ------------------------------------------------------------------------------------

    def relate(self, lead: BlockHolder, others: Sequence[BlockHolder]) -> None:
        """`others` have the prompt of `lead`, which holds it now or is going to: its whole blocks are common to all."""
        whole = lead.prompt_tokens // self.block_size
        if not whole:
            return
        common = CommonPrompt(whole, self.block_size)
        if lead.num_blocks:
            common.holders[lead] = None
        for seq in (lead, *others):
            seq.common = common

    def share(self, lead: BlockHolder, seq: BlockHolder) -> None:
        """`seq` holds the whole blocks of the prompt of `lead` as well, computed there; this takes no block."""
        common = seq.common
        if common is not None:
            common.holders[seq] = None
            seq.num_blocks = common.num_blocks
            self._note_copies(lead, common.num_blocks)

    def _note_copies(self, lead: BlockHolder, num_blocks: int) -> None:
        """A branch shares so many whole blocks; the prompt's rest is copied, since it writes there."""
        self.shared_blocks += num_blocks
        self.copied_blocks += bool(lead.prompt_tokens % self.block_size)
        self._note_shared()

    def _note_shared(self) -> None:
        if self.shared_blocks > self.peak_shared_blocks:
            self.peak_shared_blocks = self.shared_blocks
            self.used_at_peak = self.num_blocks - self.free_blocks
