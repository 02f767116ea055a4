"""vLLM 0.32.0's block pool in the simplest way: lists, searched from the front.

Blocks are numbered; every rule is one line of vLLM's `block_pool.py` and `kv_cache_manager.py`, written down without a
thought for speed.
"""

from __future__ import annotations

from collections.abc import Hashable


class NaiveSequence:
    """A request: its first `shared` tokens are those of `group`, the rest is its own."""

    def __init__(self, name: int, prompt: int, group: int, shared: int) -> None:
        self.name, self.prompt, self.group, self.shared = name, prompt, group, shared
        self.num_tokens = prompt      # prompt and outputs so far
        self.num_computed = 0
        self.num_blocks = 0           # kept by the pool under test
        self.prompt_tokens = prompt
        self.common = None

    def key(self, index: int, block_size: int) -> Hashable:
        end = (index + 1) * block_size
        return ("group", self.group, end) if end <= self.shared else ("own", self.name, end)

    def block_key(self, index: int, block_size: int) -> object:
        return self.key(index, block_size)


class NaivePool:
    def __init__(self, num_blocks: int, block_size: int, *, unhashed_to_front: bool = True) -> None:
        self.block_size, self.unhashed_to_front = block_size, unhashed_to_front
        self.queue = list(range(num_blocks))                # free blocks, next to be taken first
        self.refs = dict.fromkeys(self.queue, 0)
        self.hashes: dict[int, Hashable] = {}               # block -> hash of its content, if it has one
        self.carriers: dict[Hashable, list[int]] = {}       # hash -> blocks that carry it, oldest first
        self.held: dict[NaiveSequence, list[int]] = {}
        self.cached: dict[NaiveSequence, int] = {}          # how many of its blocks were hashed

    def blocks(self, tokens: int) -> int:
        return tokens // self.block_size + (tokens % self.block_size > 0)

    def hits(self, seq: NaiveSequence) -> list[int]:
        """At most num_tokens - 1 tokens, whole blocks, up to the first miss; the oldest carrier of each hash."""
        found = []
        for index in range((seq.num_tokens - 1) // self.block_size):
            carriers = self.carriers.get(seq.key(index, self.block_size), [])
            if not carriers:
                break
            found.append(carriers[0])
        return found

    def need(self, seq: NaiveSequence, tokens: int) -> int:
        """Free blocks it takes: new ones, and hit ones that nobody holds (they lie in the free queue)."""
        if seq in self.held:
            return max(0, self.blocks(tokens) - len(self.held[seq]))
        hits = self.hits(seq)
        return max(0, self.blocks(tokens) - len(hits)) + len([block for block in hits if self.refs[block] == 0])

    def admit(self, seq: NaiveSequence, tokens: int) -> None:
        hits = self.hits(seq)
        for block in hits:
            if self.refs[block] == 0:
                self.queue.remove(block)
            self.refs[block] += 1
        self.held[seq], self.cached[seq] = hits, len(hits)
        self.take(seq, tokens)

    def take(self, seq: NaiveSequence, tokens: int) -> None:
        held = self.held[seq]
        while len(held) < self.blocks(tokens):
            block = self.queue.pop(0)
            if block in self.hashes:
                self.carriers[self.hashes.pop(block)].remove(block)
            self.refs[block] = 1
            held.append(block)
        while self.cached[seq] < min(tokens, seq.num_tokens) // self.block_size:
            index = self.cached[seq]
            key = seq.key(index, self.block_size)
            self.hashes[held[index]] = key
            self.carriers.setdefault(key, []).append(held[index])
            self.cached[seq] += 1

    def free(self, seq: NaiveSequence) -> None:
        """Tail first: blocks without a hash to the front of the queue, those with one to its end."""
        front: list[int] = []
        for block in reversed(self.held.pop(seq)):
            self.refs[block] -= 1
            if self.refs[block] == 0:
                if block in self.hashes or not self.unhashed_to_front:
                    self.queue.append(block)
                else:
                    front.append(block)
        self.queue = front + self.queue
        del self.cached[seq]
