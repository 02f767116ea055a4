"""Paged KV memory with a prefix cache, as vLLM V1's block pool does it, in segments.

`hermes.memory.reference` defines the prefix cache block by block; docs/background/vllm.md gives the rules. It cannot be
observed which physical block a sequence holds, so this pool does the same with ranges of blocks that have one history
(`hermes.memory.segments`). A request costs a few operations for each name in its prompt, not one for each block.

- A content gives its names in runs (`hermes.core.block_hashes.name_runs`). A sequence that shares nothing is one
  segment.
- Blocks without a hash have no identity. Those at the very front of the free queue are a count; with the engine's
  present rule that is all of them.
- A hit of a part of a segment splits it. Segments are not merged, except what a sequence hashes right after what it
  hashed last, where the result cannot differ.
- A decode group takes blocks as a number (`take`). The blocks that a member writes are its own: no lookup can hit them
  before it has left the group, so that they are hashed then (`commit`). Members whose answers others may look up by
  name meanwhile (`answers_alone` is False) are hashed as they decode; the next turn of a conversation mostly waits.
"""

from __future__ import annotations

from collections.abc import Hashable, Iterator, Sequence

from hermes.compiled import mypyc_attr
from hermes.core.block_hashes import ConversationText, name_runs, named_runs
from hermes.core.generation import Generation
from hermes.memory.blocks import BlockHolder, BlockPool
from hermes.memory.segments import Chain, FreeQueue, Segment, SegmentIndex

__all__ = ["PrefixBlockPool"]

Hit = tuple[Segment, int, int]   # (segment, first block, block after the last)


@mypyc_attr(allow_interpreted_subclasses=True)
class PrefixBlockPool(BlockPool):
    """See the module's docstring.

    Args:
        unhashed_to_front: Freed blocks without a hash go to the front of the free queue (vLLM 0.32), otherwise to the
            back (vLLM 0.19).
    """

    caching = True

    def __init__(self, num_blocks: int, block_size: int, *, unhashed_to_front: bool = True) -> None:
        super().__init__(num_blocks, block_size)
        self.unhashed_to_front = unhashed_to_front
        self._index = SegmentIndex()
        self._queue = FreeQueue()
        self._num_unhashed = num_blocks   # blocks without a hash in front of `_queue`
        self._chains: dict[BlockHolder, Chain] = {}
        # The latest lookup (sequence, its tokens, hits), valid until a segment changes.
        self._version = 0
        self._hits_of: BlockHolder | None = None
        self._hits_version = self._hits_tokens = 0
        self._hits: list[Hit] = []

    # -- lookups -------------------------------------------------------------------------------------------------

    def _find(self, seq: BlockHolder) -> list[Hit]:
        """Return the blocks that `seq` would hit: whole ones, up to the first miss, at most num_tokens - 1 tokens."""
        num_tokens = seq.num_tokens
        if self._hits_of is seq and self._hits_version == self._version and self._hits_tokens == num_tokens:
            return self._hits
        self._hits_of, self._hits_version, self._hits_tokens = seq, self._version, num_tokens
        hits: list[Hit] = []
        self._hits = hits
        match, block = self._index.match, 0
        limit = (num_tokens - 1) // self.block_size
        for name, end in name_runs(seq, self.block_size, self.hash_lookahead):
            if block >= limit:
                break
            if end > block:
                end = min(end, limit)
                block = match(name, block, end, hits)
                if block < end:
                    break
        else:
            if block < limit:
                match(seq.own_name, block, limit, hits)
        if self.drop_last_hit and hits:
            segment, first, end = hits.pop()
            if end - first > 1:
                hits.append((segment, first, end - 1))
        return hits

    def hit_tokens(self, seq: BlockHolder) -> int:
        hits = self._find(seq)
        return hits[-1][2] * self.block_size if hits else 0

    def missing_blocks(self, seq: BlockHolder, num_tokens: int) -> int:
        need = -(-num_tokens // self.block_size)
        if seq in self._chains:
            return max(0, need - seq.num_blocks)
        hits = self._find(seq)
        if not hits:
            return need
        # A hit block without a holder is in the free queue: taking it costs a free block just as a new one does.
        return max(0, need - hits[-1][2]) + sum([end - first for segment, first, end in hits if not segment.refs])

    def cached_blocks(self) -> Iterator[tuple[Hashable, int, int]]:
        for known in self._index.by_name.values():
            for segment in known if type(known) is list else [known]:
                yield segment.name, segment.lo, segment.hi

    def block_names(self, seq: BlockHolder) -> list[tuple[Hashable, int, int]]:
        return named_runs(seq, self.block_size, self.hash_lookahead)

    # -- taking --------------------------------------------------------------------------------------------------

    def _chain(self, seq: BlockHolder) -> Chain:
        """Return the chain of a sequence that holds nothing yet."""
        names = name_runs(seq, self.block_size, self.hash_lookahead)
        chain = self._chains[seq] = Chain(names, getattr(seq, "own_name", None))
        return chain

    def admit(self, seq: BlockHolder, num_tokens: int, known: int | None = None) -> None:
        if seq not in self._chains:
            hits = self._find(seq)
            chain = self._chain(seq)
            if hits:
                # before taking new blocks, so that a sequence never evicts its own hits
                chain.parts = [self._hold(*hit) for hit in hits]
                chain.end = seq.num_blocks = hits[-1][2]
            self._note_shared()
        self.grow(seq, num_tokens, known)

    def _hold(self, segment: Segment, first: int, end: int) -> Segment:
        """Add a holder to these blocks of `segment`; return the segment of exactly these blocks."""
        while segment.hi <= first:   # split since the lookup
            assert segment.rest is not None
            segment = segment.rest
        if segment.refs:
            self.shared_blocks += end - first
            if segment.lo < first:
                segment = self._split(segment, first)
            if end < segment.hi:
                self._split(segment, end)
            segment.refs += 1
            return segment
        self.free_blocks -= end - first
        if segment.lo == first and segment.hi == end:
            self._queue.remove(segment)
            segment.refs = 1
            return segment
        # The other parts stay in their place in the free queue.
        self._version += 1
        if end < segment.hi:
            if segment.lo < first:
                tail = Segment(segment.name, end, segment.hi)
                self._index.add_part(segment, tail)
                self._queue.put_before(tail, segment)
                segment.hi, segment.rest = first, tail
            else:
                segment.lo = end
        else:
            segment.hi = first
        part = Segment(segment.name, first, end)
        self._index.add_part(segment, part)
        part.refs = 1
        return part

    def _split(self, segment: Segment, block: int) -> Segment:
        """Split a segment that has holders; return the part from `block` on."""
        part = Segment(segment.name, block, segment.hi)
        part.refs, part.rest = segment.refs, segment.rest
        segment.hi, segment.rest = block, part
        self._index.add_part(segment, part)
        self._version += 1
        return part

    def grow(self, seq: BlockHolder, num_tokens: int, known: int | None = None) -> bool:
        chain = self._chains.get(seq) or self._chain(seq)
        need = -(-num_tokens // self.block_size) - seq.num_blocks
        if need > 0:
            if need > self.free_blocks:
                return False
            self.take(need)
            seq.num_blocks += need
        if known is None:
            known = num_tokens if num_tokens < seq.num_tokens else seq.num_tokens
        if self.hash_lookahead:
            known = min(known, seq.num_tokens - self.hash_lookahead)
        full = known // self.block_size
        if full > chain.end:
            self._hash(chain, full)
        return True

    def take(self, num_blocks: int) -> None:
        """Take blocks from the front of the free queue, which evicts their content."""
        if num_blocks > self.free_blocks:
            raise ValueError(f"{num_blocks} blocks taken of {self.free_blocks} free ones")
        self.free_blocks -= num_blocks
        if num_blocks <= self._num_unhashed:
            self._num_unhashed -= num_blocks
            return
        num_blocks -= self._num_unhashed
        self._num_unhashed = 0
        self._version += 1
        if self.log is not None:
            self._note_evictions(num_blocks)
        ring, remove = self._queue.ring, self._index.remove
        segment = ring.after
        while num_blocks:
            size = segment.hi - segment.lo
            if size > num_blocks:
                segment.hi -= num_blocks
                break
            num_blocks -= size
            if segment.name is not None:
                remove(segment)
            gone, segment = segment, segment.after
            gone.before = gone.after = ring   # or they would keep each other alive: garbage collection is paused
        ring.after, segment.before = segment, ring

    def may_evict(self, num_blocks: int) -> bool:
        return num_blocks > self._num_unhashed

    def _note_evictions(self, num_blocks: int) -> None:
        """Note the blocks at the front of the free queue, which are about to be taken."""
        assert self.log is not None
        for segment in self._queue:
            taken = min(num_blocks, segment.hi - segment.lo)
            if segment.name is not None:
                self.log.note(False, segment.name, segment.hi - taken, segment.hi)
            num_blocks -= taken
            if not num_blocks:
                return

    # -- hashing -------------------------------------------------------------------------------------------------

    def commit(self, seq: BlockHolder, num_tokens: int) -> None:
        chain = self._chains[seq]
        if self.hash_lookahead:
            num_tokens = min(num_tokens, seq.num_tokens - self.hash_lookahead)
        full = num_tokens // self.block_size
        if full <= chain.end:
            return
        if full <= chain.name_end and self.log is None and chain.parts:   # what a decode adds, mostly
            last, known = chain.parts[-1], self._index.by_name.get(chain.name)
            if last.refs == 1 and (known is last or (type(known) is list and known[-1] is last)):   # as in `_hash`
                self._version += 1
                last.hi = chain.end = full
                return
        self._hash(chain, full)

    def _hash(self, chain: Chain, full: int) -> None:
        """Hash the blocks up to `full`, which are full (visible within the same step)."""
        self._version += 1
        by_name, parts = self._index.by_name, chain.parts
        while chain.end < full:
            if chain.end >= chain.name_end:
                chain.next_name()
            first, name = chain.end, chain.name
            chain.end = end = full if full < chain.name_end else chain.name_end
            if self.log is not None:
                self.log.note(True, name, first, end)
            known = by_name.get(name)
            if known is not None and parts:
                last = parts[-1]
                # The segment that it hashed last has no other holder and is the youngest of this name (unless it was
                # split): extend it.
                if last.refs == 1 and (known is last or (type(known) is list and known[-1] is last)):
                    last.hi = end
                    continue
            segment = Segment(name, first, end)
            segment.refs = 1
            parts.append(segment)
            if known is None:
                by_name[name] = segment
            elif type(known) is list:
                known.append(segment)
            else:
                by_name[name] = [known, segment]

    def answers_alone(self, seq: BlockHolder) -> bool:
        chain = self._chains[seq]
        if chain.end >= chain.name_end:
            chain.next_name()
        if chain.runs is None:
            return True
        content = seq.content if isinstance(seq, Generation) else None
        return self.log is None and type(content) is ConversationText and content.awaited

    # -- giving back ---------------------------------------------------------------------------------------------

    def free(self, seq: BlockHolder) -> None:
        chain = self._chains.pop(seq, None)
        if chain is None:
            seq.num_blocks = 0
            return
        unhashed = seq.num_blocks - chain.end
        seq.num_blocks = 0
        if unhashed:
            self.free_blocks += unhashed
            if self.unhashed_to_front:
                self._num_unhashed += unhashed
            else:
                self._queue.append(Segment(None, 0, unhashed))
        ring = self._queue.ring
        for segment in reversed(chain.segments()):   # the tail is evicted first
            size = segment.hi - segment.lo
            segment.refs -= 1
            if segment.refs:
                self.shared_blocks -= size
            else:
                self.free_blocks += size
                segment.rest = None
                last = ring.before   # `FreeQueue.append`, inlined
                segment.before, segment.after = last, ring
                last.after = ring.before = segment

    # -- branches of one prompt ------------------------------------------------------------------------------------

    def relate(self, lead: BlockHolder, others: Sequence[BlockHolder]) -> None:
        """Forget the latest lookup: `others` find their common blocks by the content of `lead`, which may be new."""
        chain = self._chains.get(lead)
        if chain is not None:
            chain.rename(name_runs(lead, self.block_size))

    def share(self, lead: BlockHolder, seq: BlockHolder) -> None:
        whole = lead.prompt_tokens // self.block_size   # the lead has computed them
        chain = self._chain(seq)
        for segment in self._chains[lead].segments():
            if segment.lo >= whole:
                break
            if segment.hi > whole:
                self._split(segment, whole)
            segment.refs += 1
            chain.parts.append(segment)
        chain.end = seq.num_blocks = whole
        self._note_copies(lead, whole)
