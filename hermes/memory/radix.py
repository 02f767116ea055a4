"""Paged KV memory with a radix tree of prefixes, as SGLang keeps it (docs/background/sglang.md, rules 14 to 20).

The tree's edges are texts of whole blocks. A sequence holds the blocks on its path (the node that it locked, and all
above) and blocks of its own behind them, which enter the tree at checkpoints: when its prompt is computed, after each
chunk, and when it is done. Leaves that no sequence holds are evicted as a whole, the least recently used first.

A text is given in runs of names (`hermes.core.block_hashes.name_runs`). Two texts share block i, and everything before
it, if block i has the same name in both.
"""

from __future__ import annotations

from collections.abc import Hashable, Iterator
from heapq import heappop, heappush

from hermes.compiled import mypyc_attr
from hermes.core.block_hashes import name_runs, named_runs
from hermes.memory.blocks import BlockHolder, BlockPool
from hermes.memory.cache_log import CacheLog

__all__ = ["Node", "RadixPool", "RadixTree", "Runs"]

ENDLESS = 1 << 60
TICK = 1 << 20   # ticks of the clock are this far apart: the nodes of one path share a tick, ordered by depth

Runs = list[tuple[Hashable, int]]


def runs_of(seq: BlockHolder, block_size: int) -> Runs:
    """Return the runs of a sequence's text that are not empty; the last, its own, does not end."""
    runs: Runs = []
    end = 0
    for name, until in name_runs(seq, block_size):
        if until > end:
            runs.append((name, until))
            end = until
    runs.append((seq.own_name, ENDLESS))
    return runs


class Node:
    """Blocks `lo` to `hi` of all texts below it. `refs`: sequences that hold it. `time`: its last use."""

    __slots__ = ("children", "hi", "lo", "number", "parent", "queued", "refs", "runs", "time")

    def __init__(self, parent: Node | None, lo: int, hi: int, runs: Runs, time: int) -> None:
        self.parent, self.lo, self.hi, self.runs, self.time = parent, lo, hi, runs, time
        self.children: dict[Hashable, Node] = {}   # by the name of their first block
        self.refs = 0
        self.queued = False   # has an entry in the queue of evictable leaves
        self.number = 0

    def agrees_until(self, runs: Runs, place: int, limit: int) -> tuple[int, int]:
        """Return (block, place in `runs`) up to which this node's text is that of `runs`, at most `limit`."""
        block = self.lo
        for name, end in self.runs:
            while block < end:
                if runs[place][0] != name:
                    return block, place
                block = min(end, runs[place][1])
                if block >= limit:
                    return limit, place
                if block == runs[place][1]:
                    place += 1
        return block, place


class RadixTree:
    """Texts that share beginnings. It counts the blocks of nodes that no request holds (`evictable`)."""

    def __init__(self) -> None:
        self.root = Node(None, 0, 0, [], 0)
        self.evictable = 0
        self.shared = 0   # blocks times holders beyond the first
        self._clock = 0
        self._numbers = 0
        self._leaves: list[tuple[int, int, Node]] = []   # lower bounds of the times of evictable leaves
        self.log: CacheLog | None = None

    def _tick(self) -> int:
        self._clock += TICK
        return self._clock

    def match(self, runs: Runs, limit: int) -> Node:
        """Return the node that ends where the longest known beginning of a text ends, at most `limit` blocks.

        The node is split there if need be; it and those above count as used, the deepest last.
        """
        node, place = self.root, 0
        while node.hi < limit:
            while runs[place][1] <= node.hi:
                place += 1
            child = node.children.get(runs[place][0])
            if child is None:
                break
            end, place = child.agrees_until(runs, place, limit)
            if end < child.hi:
                node = self._split(child, end)
                break
            node = child
        if limit > 0:
            now, used = self._tick(), node
            while used.parent is not None:
                used.time = now
                now -= 1
                used = used.parent
        return node

    def reach(self, runs: Runs, limit: int) -> int:
        """Return the block where the longest known beginning of a text ends, at most `limit`. No node counts as
        used."""
        node, place = self.root, 0
        while node.hi < limit:
            while runs[place][1] <= node.hi:
                place += 1
            child = node.children.get(runs[place][0])
            if child is None:
                break
            end, place = child.agrees_until(runs, place, limit)
            if end < child.hi:
                return end
            node = child
        return node.hi

    def note(self, node: Node, *, stored: bool) -> None:
        """Note the blocks of a node in the log."""
        assert self.log is not None
        first = node.lo
        for name, end in node.runs:
            self.log.note(stored, name, first, end)
            first = end

    def insert(self, runs: Runs, end: int) -> tuple[Node, int]:
        """Add the first `end` blocks of a text; return (its node, blocks of it that were there)."""
        node, place = self.root, 0
        while node.hi < end:
            while runs[place][1] <= node.hi:
                place += 1
            name = runs[place][0]
            child = node.children.get(name)
            if child is None:
                there = node.hi
                leaf = node.children[name] = Node(node, there, end, _cut(runs, there, end), self._tick())
                self.evictable += end - there
                self._offer(leaf)
                if self.log is not None:
                    self.note(leaf, stored=True)
                return leaf, there
            child.time = self._tick()
            until, place = child.agrees_until(runs, place, end)
            node = self._split(child, until) if until < child.hi else child
        return node, node.hi

    def _split(self, child: Node, block: int) -> Node:
        """Cut a node in two; return the upper part. Both count as used."""
        parent = child.parent
        assert parent is not None
        upper = Node(parent, child.lo, block, _cut(child.runs, child.lo, block), self._tick())
        upper.refs = child.refs
        upper.children[_name_at(child.runs, block)] = child
        parent.children[child.runs[0][0]] = upper
        child.parent, child.runs, child.lo = upper, _cut(child.runs, block, child.hi), block
        child.time = self._tick()
        return upper

    def idle_blocks(self, node: Node) -> int:
        """Return the blocks of a path that no sequence holds."""
        blocks = 0
        while node.parent is not None and not node.refs:
            blocks += node.hi - node.lo
            node = node.parent
        return blocks

    def lock(self, node: Node) -> None:
        """Hold a node and all above."""
        while node.parent is not None:
            if not node.refs:
                self.evictable -= node.hi - node.lo
            else:
                self.shared += node.hi - node.lo
            node.refs += 1
            node = node.parent

    def unlock(self, node: Node) -> None:
        """Undo `lock`."""
        while node.parent is not None:
            node.refs -= 1
            if not node.refs:
                self.evictable += node.hi - node.lo
                self._offer(node)
            else:
                self.shared -= node.hi - node.lo
            node = node.parent

    def _offer(self, node: Node) -> None:
        """Queue a node for eviction if it is a leaf that no request holds."""
        if not node.refs and not node.children and not node.queued and node.parent is not None:
            node.queued = True
            self._numbers += 1
            heappush(self._leaves, (node.time, self._numbers, node))

    def evict(self, blocks: int) -> None:
        """Remove leaves that no request holds, least recently used first, until `blocks` are gone or none is left."""
        leaves = self._leaves
        while blocks > 0 and leaves:
            time, _number, node = heappop(leaves)
            node.queued = False
            if node.refs or node.children:
                continue
            if node.time > time:   # used since
                self._offer(node)
                continue
            parent = node.parent
            assert parent is not None
            del parent.children[node.runs[0][0]]
            if self.log is not None:
                self.note(node, stored=False)
            blocks -= node.hi - node.lo
            self.evictable -= node.hi - node.lo
            self._offer(parent)

    def walk(self, node: Node | None = None) -> Iterator[Node]:
        """Yield all nodes but the root, in any order."""
        for child in (node or self.root).children.values():
            yield child
            yield from self.walk(child)


def _cut(runs: Runs, lo: int, hi: int) -> Runs:
    """Return the runs of blocks `lo` to `hi`."""
    cut: Runs = []
    for name, end in runs:
        if end > lo:
            if end >= hi:
                cut.append((name, hi))
                return cut
            cut.append((name, end))
    return cut


def _name_at(runs: Runs, block: int) -> Hashable:
    return next(name for name, end in runs if end > block)


@mypyc_attr(allow_interpreted_subclasses=True)
class RadixPool(BlockPool):
    """See the module's docstring. `free_blocks` includes blocks in the tree that no sequence holds."""

    caching = True

    def __init__(self, num_blocks: int, block_size: int) -> None:
        super().__init__(num_blocks, block_size)
        self.tree = RadixTree()
        self._texts: dict[BlockHolder, Runs] = {}
        self._paths: dict[BlockHolder, Node] = {}   # the node that each sequence holds

    def log_into(self, log: CacheLog) -> None:
        self.log = self.tree.log = log

    def held_tokens(self, seq: BlockHolder) -> int:
        limit = (seq.num_tokens - 1) // self.block_size
        return self.tree.reach(runs_of(seq, self.block_size), limit) * self.block_size

    def cached_blocks(self) -> Iterator[tuple[Hashable, int, int]]:
        for node in self.tree.walk():
            first = node.lo
            for name, end in node.runs:
                yield name, first, end
                first = end

    def block_names(self, seq: BlockHolder) -> list[tuple[Hashable, int, int]]:
        return named_runs(seq, self.block_size, self.hash_lookahead)

    @property
    def available(self) -> int:
        """Blocks that hold nothing."""
        return self.free_blocks - self.tree.evictable

    def make_room(self, num_blocks: int) -> None:
        """Evict until `num_blocks` blocks hold nothing, or nothing can be evicted."""
        short = num_blocks - self.available
        if short > 0:
            self.tree.evict(short)

    def runs(self, seq: BlockHolder) -> Runs:
        """Return the runs of a sequence's text."""
        found = self._texts.get(seq)
        if found is None:
            found = self._texts[seq] = runs_of(seq, self.block_size)
        return found

    def match(self, seq: BlockHolder, num_tokens: int) -> Node:
        """Look up whole blocks of the first `num_tokens` tokens of a waiting sequence, which count as used."""
        return self.tree.match(self.runs(seq), num_tokens // self.block_size)

    def hold(self, seq: BlockHolder, node: Node) -> None:
        """Let a sequence that holds nothing hold the blocks down to `node`."""
        self.free_blocks -= self.tree.idle_blocks(node)
        self.tree.lock(node)
        self._paths[seq] = node
        seq.num_blocks = node.hi
        self.shared_blocks = self.tree.shared
        self._note_shared()

    def commit(self, seq: BlockHolder, num_tokens: int) -> None:
        """Put the whole blocks of the first `num_tokens` tokens, already computed, into the tree.

        The sequence holds them there from now on; blocks of its own that the tree had already are free. The tree is
        cut where the prompt's last whole block ends, so that an answer can be evicted without its prompt.
        """
        tree, runs = self.tree, self.runs(seq)
        end, prompt = num_tokens // self.block_size, seq.prompt_tokens // self.block_size
        held = self._paths.get(seq, tree.root)
        before = tree.evictable
        node, there = tree.insert(runs, end)
        if 0 < prompt < end:
            tree.insert(runs, prompt)
        before += end - there
        self.free_blocks += end - held.hi   # they are the tree's now, or copies of what it has
        tree.unlock(held)
        tree.lock(node)
        self.free_blocks += tree.evictable - before
        self._paths[seq] = node

    # -- the interface of pools ----------------------------------------------------------------------------------

    def hit_tokens(self, seq: BlockHolder) -> int:
        return self.match(seq, seq.num_tokens - 1).hi * self.block_size

    def missing_blocks(self, seq: BlockHolder, num_tokens: int) -> int:
        need = -(-num_tokens // self.block_size) - seq.num_blocks
        if seq in self._paths or seq.num_blocks:
            return max(0, need)
        node = self.match(seq, seq.num_tokens - 1)
        return max(0, need - node.hi) + self.tree.idle_blocks(node)

    def admit(self, seq: BlockHolder, num_tokens: int, known: int | None = None) -> None:
        if seq not in self._paths and not seq.num_blocks:
            self.hold(seq, self.match(seq, seq.num_tokens - 1))
        self.grow(seq, num_tokens)

    def grow(self, seq: BlockHolder, num_tokens: int, known: int | None = None) -> bool:
        need = -(-num_tokens // self.block_size) - seq.num_blocks
        if need > self.free_blocks:
            return False
        if need > 0:
            self.make_room(need)
            self.free_blocks -= need
            seq.num_blocks += need
        return True

    def take(self, num_blocks: int) -> None:
        self.make_room(num_blocks)
        self.free_blocks -= num_blocks

    def free(self, seq: BlockHolder) -> None:
        """Return what a sequence holds; blocks in the tree stay there."""
        node = self._paths.pop(seq, None)
        self._texts.pop(seq, None)
        self.free_blocks += seq.num_blocks
        if node is not None:
            before = self.tree.evictable
            self.tree.unlock(node)
            self.free_blocks += self.tree.evictable - before - node.hi
            self.shared_blocks = self.tree.shared
        seq.num_blocks = 0
