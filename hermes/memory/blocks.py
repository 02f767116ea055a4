"""Paged KV memory without a prefix cache: the pool counts blocks and does not name them.

It does not matter which physical block a sequence holds, so the pool is one integer plus a count per sequence. A
`CommonPrompt` counts the blocks that branches of a prompt share. `PrefixBlockPool` has the same methods and names
blocks.
"""

from __future__ import annotations

from collections.abc import Hashable, Iterator, Sequence
from typing import TYPE_CHECKING, ClassVar, Protocol

from hermes.compiled import check_overrides, mypyc_attr
from hermes.core.block_hashes import NameRuns

if TYPE_CHECKING:
    from hermes.core.common_prompt import CommonPrompt
    from hermes.memory.cache_log import CacheLog

__all__ = ["BlockHolder", "BlockPool"]


class BlockHolder(Protocol):
    """The fields of a sequence that the memory reads."""

    num_blocks: int      # blocks held, common ones included
    num_computed: int    # tokens whose KV is in those blocks
    num_tokens: int      # prompt and outputs so far
    grouped: bool        # decodes in a group, whose clock implies the two above
    prompt_tokens: int
    common: CommonPrompt | None   # prompt blocks shared with other branches

    def block_key(self, index: int, block_size: int) -> object:
        """Return a key for the content of full block `index` and everything before it (a chained hash)."""
        ...

    def name_runs(self, block_size: int) -> NameRuns:
        """Return the names of many blocks at once (`hermes.core.block_hashes`). Blocks after the last run have the
        `own_name`.

        May be left out, together with `own_name`: the pool then asks for the key of each block.
        """
        ...

    @property
    def own_name(self) -> Hashable:
        """Name of blocks that no other sequence has."""
        ...


@mypyc_attr(allow_interpreted_subclasses=True)
class BlockPool:
    """`num_blocks` blocks of `block_size` tokens. `free_blocks` stays within [0, num_blocks].

    Attributes:
        shared_blocks: References to blocks beyond the first of each: the blocks that sharing saves.
        peak_shared_blocks: Most shared blocks so far.
        used_at_peak: Blocks in use at that time.
        copied_blocks: Partial blocks of a prompt that branches copied before writing.
        log: What the prefix cache gains and loses is noted there; None for nowhere.
    """

    caching: ClassVar[bool] = False
    # whether each sequence must take its own blocks (`grow`), also in a decode group
    by_block: ClassVar[bool] = False
    # whether layers with a sliding window have blocks of their own
    windowed: ClassVar[bool] = False

    def __init_subclass__(cls) -> None:
        check_overrides(cls)

    def __init__(self, num_blocks: int, block_size: int) -> None:
        if num_blocks < 1 or block_size < 1:
            raise ValueError(f"a pool needs at least one block of one token, got {num_blocks} x {block_size}")
        self.num_blocks, self.block_size = num_blocks, block_size
        self.free_blocks = num_blocks
        self.drop_last_hit = False   # the last block that a lookup finds is computed again (EAGLE, MTP)
        self.hash_lookahead = 0      # tokens after a block that its hash covers (EAGLE, MTP from vLLM 0.33 on)
        self.shared_blocks = self.peak_shared_blocks = self.used_at_peak = self.copied_blocks = 0
        self.log: CacheLog | None = None

    def blocks_for(self, num_tokens: int) -> int:
        """Return the blocks that hold `num_tokens` tokens: ceil(tokens / block_size)."""
        return -(-num_tokens // self.block_size)

    def extra_blocks(self, seq: BlockHolder) -> int:
        """Return the blocks that `seq` needs in addition to those of its tokens (`hermes.memory.windows`)."""
        return 0

    def hit_tokens(self, seq: BlockHolder) -> int:
        """Return the tokens of a waiting sequence already in memory (whole blocks, at most num_tokens - 1)."""
        common = seq.common
        return 0 if common is None or seq.num_blocks or not common.ready else common.num_tokens

    def held_tokens(self, seq: BlockHolder) -> int:
        """Return what `hit_tokens` returns for a sequence that is elsewhere; the blocks do not count as used."""
        return self.hit_tokens(seq)

    def cached_blocks(self) -> Iterator[tuple[Hashable, int, int]]:
        """Yield name, first block and block after the last of all that the prefix cache holds, as `log` notes it."""
        yield from ()

    def log_into(self, log: CacheLog) -> None:
        """Note from now on what the prefix cache gains and loses."""
        self.log = log

    def block_names(self, seq: BlockHolder) -> list[tuple[Hashable, int, int]]:
        """Return name, first block and block after the last of the blocks of `seq` that others may share, in order."""
        return []

    def missing_blocks(self, seq: BlockHolder, num_tokens: int) -> int:
        """Return the free blocks that `seq` needs to hold its first `num_tokens` tokens, beyond those in memory; more
        than there are, if it must wait for another sequence that computes their common prompt."""
        need = -(-num_tokens // self.block_size) - seq.num_blocks
        common = seq.common
        if common is not None and not seq.num_blocks and common.holders:
            if not common.ready:
                return self.num_blocks + 1
            need -= common.num_blocks
        return need if need > 0 else 0

    def admit(self, seq: BlockHolder, num_tokens: int, known: int | None = None) -> None:
        """Take the blocks of a waiting sequence's first `num_tokens` tokens, after a check of `missing_blocks`.

        known: As for `grow`. Tokens that are computed later are not known yet, even if their blocks are held.
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
        if common is not None:
            self._note_shared()

    def grow(self, seq: BlockHolder, num_tokens: int, known: int | None = None) -> bool:
        """Let `seq` hold `num_tokens` tokens; return False, without any change, if the blocks are not free.

        known: Number of these tokens whose identity is known; all if None. Blocks with unknown tokens get no hash.
        """
        need = -(-num_tokens // self.block_size) - seq.num_blocks
        if need > self.free_blocks:
            return False
        if need > 0:
            self.free_blocks -= need
            seq.num_blocks += need
        return True

    def reserve_windows(self, seq: BlockHolder, num_tokens: int) -> bool:
        """Take what `seq`, whose KV is about to arrive, holds besides the blocks of its tokens; return False, without
        any change, if that and its first `num_tokens` tokens do not fit (`hermes.memory.windows`)."""
        return True

    def take(self, num_blocks: int) -> None:
        """Take `num_blocks` free blocks for a decode group as a whole."""
        self.free_blocks -= num_blocks

    def may_evict(self, num_blocks: int) -> bool:
        """Return whether taking `num_blocks` free blocks may evict what other sequences look up."""
        return True

    def answers_alone(self, seq: BlockHolder) -> bool:
        """Whether no other sequence can look up the blocks that `seq` writes from here on."""
        return True

    def commit(self, seq: BlockHolder, num_tokens: int) -> None:
        """Mark the first `num_tokens` tokens of `seq`, already computed, as known; see `grow`."""

    def free(self, seq: BlockHolder) -> None:
        """Return all blocks of `seq` that no other sequence holds."""
        if seq.common is None or not seq.num_blocks:
            self.free_blocks += seq.num_blocks
        else:
            if len(seq.common.holders) > 1:
                self.shared_blocks -= seq.common.num_blocks
            self.free_blocks += seq.common.leave(seq)
        seq.num_blocks = 0

    # -- branches of one prompt ------------------------------------------------------------------------------------

    def relate(self, lead: BlockHolder, others: Sequence[BlockHolder]) -> None:
        """Relate `others` to `lead`, whose prompt they have: its whole blocks are common to all."""
        whole = lead.prompt_tokens // self.block_size
        if not whole:
            return
        from hermes.core.common_prompt import CommonPrompt  # most prompts have one answer

        common = CommonPrompt(whole, self.block_size)
        if lead.num_blocks:
            common.holders[lead] = None
        for seq in (lead, *others):
            seq.common = common

    def share(self, lead: BlockHolder, seq: BlockHolder) -> None:
        """Let `seq` hold the whole blocks of the prompt that `lead` computed; this takes no block."""
        common = seq.common
        if common is not None:
            common.holders[seq] = None
            seq.num_blocks = common.num_blocks
            self._note_copies(lead, common.num_blocks)

    def _note_copies(self, lead: BlockHolder, num_blocks: int) -> None:
        """Count the copy of the prompt's partial block: a branch shares `num_blocks` whole blocks and writes there."""
        self.shared_blocks += num_blocks
        self.copied_blocks += bool(lead.prompt_tokens % self.block_size)
        self._note_shared()

    def _note_shared(self) -> None:
        if self.shared_blocks > self.peak_shared_blocks:
            self.peak_shared_blocks = self.shared_blocks
            self.used_at_peak = self.num_blocks - self.free_blocks
