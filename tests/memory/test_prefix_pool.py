"""The prefix cache against a literal one, and its rules one by one."""

from __future__ import annotations

from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule
from naive_pool import NaivePool, NaiveSequence

from hermes.core.block_hashes import GroupPrefix, HashedPrompt
from hermes.core.generation import Generation
from hermes.memory import PrefixBlockPool


class PoolsAgree(RuleBasedStateMachine):
    """Drives both pools as a scheduler does; after each action, every question they can be asked has one answer."""

    @initialize(
        num_blocks=st.integers(3, 12), block_size=st.sampled_from([1, 2, 4]),
        unhashed_to_front=st.sampled_from([True, True, False]),
    )
    def build(self, num_blocks: int, block_size: int, unhashed_to_front: bool) -> None:
        self.num_blocks, self.block_size = num_blocks, block_size
        self.naive = NaivePool(num_blocks, block_size, unhashed_to_front=unhashed_to_front)
        self.pool = PrefixBlockPool(num_blocks, block_size, unhashed_to_front=unhashed_to_front)
        self.waiting: list[NaiveSequence] = []
        self.running: list[NaiveSequence] = []
        self.count = 0

    @rule(prompt=st.integers(1, 24), group=st.integers(0, 1), shared=st.integers(0, 24))
    def arrive(self, prompt: int, group: int, shared: int) -> None:
        self.count += 1
        self.waiting.append(NaiveSequence(self.count, prompt, group, min(prompt, shared)))

    @precondition(lambda self: self.waiting)
    @rule(which=st.integers(0, 3), chunk=st.integers(1, 30))
    def admit(self, which: int, chunk: int) -> None:
        seq = self.waiting[which % len(self.waiting)]
        hit = self.pool.hit_tokens(seq)
        tokens = min(hit + chunk, seq.num_tokens)
        if self.pool.missing_blocks(seq, tokens) > self.pool.free_blocks:
            return
        self.waiting.remove(seq)
        self.running.append(seq)
        self.naive.admit(seq, tokens)
        self.pool.admit(seq, tokens)
        seq.num_computed = tokens

    @precondition(lambda self: self.running)
    @rule(which=st.integers(0, 3), chunk=st.integers(1, 9))
    def go_on(self, which: int, chunk: int) -> None:
        seq = self.running[which % len(self.running)]
        tokens = min(seq.num_computed + chunk, seq.num_tokens)
        fits = self.naive.need(seq, tokens) <= len(self.naive.queue)
        assert self.pool.grow(seq, tokens) == fits
        if not fits:
            return
        self.naive.take(seq, tokens)
        seq.num_computed = tokens
        if seq.num_computed == seq.num_tokens:
            seq.num_tokens += 1

    @precondition(lambda self: self.running)
    @rule(which=st.integers(0, 3), back=st.booleans())
    def leave(self, which: int, back: bool) -> None:
        """Finish, or be preempted and wait again with the outputs kept."""
        seq = self.running.pop(which % len(self.running))
        self.naive.free(seq)
        self.pool.free(seq)
        seq.num_computed = 0
        if back:
            self.waiting.append(seq)

    @invariant()
    def free_blocks_agree(self) -> None:
        if not hasattr(self, "pool"):
            return
        assert self.pool.free_blocks == len(self.naive.queue)
        assert len(self.naive.queue) + len([b for b, refs in self.naive.refs.items() if refs]) == self.num_blocks

    @invariant()
    def lookups_agree(self) -> None:
        if not hasattr(self, "pool"):
            return
        probes = [NaiveSequence(0, 25, group, 24) for group in (0, 1)]
        for seq in [*self.waiting, *probes]:
            assert self.pool.hit_tokens(seq) == len(self.naive.hits(seq)) * self.block_size
            for tokens in (1, seq.num_tokens):
                assert self.pool.missing_blocks(seq, tokens) == self.naive.need(seq, tokens)
        for seq in self.running:
            assert self.pool.missing_blocks(seq, seq.num_tokens) == self.naive.need(seq, seq.num_tokens)
            assert seq.num_blocks == len(self.naive.held[seq])


PoolsAgree.TestCase.settings = settings(max_examples=150, stateful_step_count=40, deadline=None, derandomize=True)
TestPoolsAgree = PoolsAgree.TestCase


def computed(pool: PrefixBlockPool, name: int, tokens: int, group: int = 0, shared: int = 0) -> NaiveSequence:
    """A sequence whose whole prompt is in memory."""
    seq = NaiveSequence(name, tokens, group, shared)
    pool.admit(seq, tokens)
    seq.num_computed = tokens
    return seq


def wanting(tokens: int, group: int = 0, name: int = 99) -> NaiveSequence:
    return NaiveSequence(name, tokens, group, tokens)


def test_a_hit_is_whole_blocks_and_never_everything() -> None:
    pool = PrefixBlockPool(10, 4)
    computed(pool, 1, 10, shared=10)
    assert [pool.hit_tokens(wanting(n)) for n in (4, 5, 8, 9, 12, 13)] == [0, 4, 4, 8, 8, 8]
    assert pool.hit_tokens(wanting(13, group=1)) == 0


def test_a_remembered_lookup_ends_with_a_longer_segment() -> None:
    pool = PrefixBlockPool(20, 4)
    writes, waits = (Generation(20, 4, arrival_order=i, content=GroupPrefix(1, 20)) for i in (1, 2))
    pool.admit(writes, 20, 4)
    found = [pool.hit_tokens(waits)]
    for tokens in (8, 11, 16):
        pool.commit(writes, tokens)   # which extends the segment of the first block
        found.append(pool.hit_tokens(waits))
    assert found == [4, 8, 8, 16]


def test_blocks_are_shared_and_counted_once() -> None:
    pool = PrefixBlockPool(10, 4)
    computed(pool, 1, 8, shared=8)
    assert pool.free_blocks == 8
    assert pool.missing_blocks(wanting(12), 12) == 1
    second = computed(pool, 2, 12, shared=12)
    assert pool.free_blocks == 7
    pool.free(second)
    assert pool.free_blocks == 8


def test_blocks_in_use_cost_nothing_and_free_ones_do() -> None:
    pool = PrefixBlockPool(10, 4)
    first = computed(pool, 1, 8, shared=8)
    assert pool.missing_blocks(wanting(9), 9) == 1
    pool.free(first)
    assert pool.free_blocks == 10
    assert pool.missing_blocks(wanting(9), 9) == 3


def test_a_hash_is_visible_before_the_step_has_run() -> None:
    pool = PrefixBlockPool(10, 4)
    first = NaiveSequence(1, 9, 0, 9)
    pool.admit(first, 5)   # a chunk of 5 tokens is scheduled, none is computed
    assert first.num_computed == 0
    assert pool.hit_tokens(wanting(9)) == 4


def test_the_tail_of_the_oldest_is_evicted_first() -> None:
    pool = PrefixBlockPool(4, 4)
    first = computed(pool, 1, 8, group=0, shared=8)
    second = computed(pool, 2, 8, group=1, shared=8)
    pool.free(first)
    pool.free(second)
    computed(pool, 3, 4, group=2)   # one block: the first sequence's second
    assert pool.hit_tokens(wanting(9, group=0)) == 4
    assert pool.hit_tokens(wanting(9, group=1)) == 8


def test_blocks_without_a_hash_are_taken_before_any_is_evicted() -> None:
    for front, left in ((True, 4), (False, 0)):   # vLLM 0.19.0 frees every block to the back
        pool = PrefixBlockPool(3, 4, unhashed_to_front=front)
        hashed = computed(pool, 1, 4, group=0, shared=4)
        partial = computed(pool, 2, 7, group=1)
        pool.free(hashed)
        pool.free(partial)
        computed(pool, 3, 3, group=2)
        assert pool.hit_tokens(wanting(5, group=0)) == left


def test_a_sequence_never_evicts_its_own_hits() -> None:
    pool = PrefixBlockPool(3, 4)
    pool.free(computed(pool, 1, 8, shared=8))
    again = NaiveSequence(2, 12, 0, 12)
    assert pool.hit_tokens(again) == 8
    assert pool.missing_blocks(again, 12) == 3
    pool.admit(again, 12)
    assert (pool.free_blocks, again.num_blocks) == (0, 3)


def test_of_two_blocks_with_one_hash_the_older_is_hit() -> None:
    pool = PrefixBlockPool(4, 4)
    first = computed(pool, 1, 4, shared=4)
    second = computed(pool, 2, 4, shared=4)   # cached as a whole: its block is computed again, in one of its own
    assert pool.free_blocks == 2
    pool.free(second)
    assert pool.missing_blocks(wanting(5), 5) == 1, "the hit block is the first sequence's, which is in use"
    pool.free(first)
    assert pool.missing_blocks(wanting(5), 5) == 2


def test_a_preempted_sequence_hits_what_it_computed() -> None:
    pool = PrefixBlockPool(10, 4)
    seq = computed(pool, 1, 9)
    seq.num_tokens = 11
    pool.grow(seq, 10)
    pool.free(seq)
    seq.num_computed = 0
    assert pool.hit_tokens(seq) == 8


def test_answers_to_equal_hashed_prompts_are_not_shared() -> None:
    """A prompt of 6 tokens in hashed units of 4, and two answers that fill its second block."""
    pool = PrefixBlockPool(20, 4)
    first, second = (Generation(6, 4, arrival_order=i, content=HashedPrompt((7, 8), 4, 6)) for i in (1, 2))
    for seq in (first, second):
        assert pool.hit_tokens(seq) == (0 if seq is first else 4)
        seq.num_tokens = 9
        pool.admit(seq, 9)
        seq.num_computed = 9
    pool.free(second)
    pool.free(first)
    second.num_computed = 0
    assert first.block_key(1, 4) != second.block_key(1, 4)
    assert pool.hit_tokens(second) == 8    # its own answer, as it was not evicted


def test_growing_beyond_the_memory_changes_nothing() -> None:
    pool = PrefixBlockPool(3, 4)
    seq = computed(pool, 1, 8)
    seq.num_tokens = 17
    assert not pool.grow(seq, 17)
    assert (pool.free_blocks, seq.num_blocks) == (1, 2)
    assert pool.grow(seq, 12)
