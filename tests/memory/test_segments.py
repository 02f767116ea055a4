"""The prefix cache in segments equals the reference, block by block; and who would notice if it did not."""

from __future__ import annotations

import random
from typing import Any

import pytest
import segment_mutants
from hypothesis import given
from hypothesis import strategies as st
from long_runs import count
from pool_pair import PER_WORLD, Keyed, Talk, contents, drive

from hermes.compiled import is_compiled
from hermes.core.block_hashes import GroupPrefix, HashedPieces, HashedPrompt, TokenPrompt, name_runs
from hermes.core.generation import Generation
from hermes.memory import PrefixBlockPool
from hermes.memory.prefix_eviction import RankedPrefixPool
from hermes.memory.reference import ReferencePrefixPool


@pytest.mark.feature("LLM clients", "Prefix cache, in segments as block by block")
@pytest.mark.long
def test_segments_equal_blocks() -> None:
    """20,000 random operations, the free queue and all holders compared after each."""
    done = drive(range(100), PER_WORLD)
    assert sum(done.values()) == 20_000
    assert min(done.values()) >= 50, f"an operation that hardly ever happens: {done}"


@pytest.mark.long
@pytest.mark.thorough
def test_segments_equal_blocks_in_many_operations() -> None:
    """Ten times as many as a thorough run: python tests/memory/pool_pair.py 1e7"""
    worlds = count(400, 400, thorough=5000)
    assert sum(drive(range(100, 100 + worlds), PER_WORLD).values()) == worlds * PER_WORLD


@pytest.mark.drawn
@pytest.mark.skipif(is_compiled(PrefixBlockPool), reason="changes the sources, which compiled code does not read")
@pytest.mark.parametrize("mutant", segment_mutants.MUTANTS, ids=lambda mutant: mutant.what)
def test_a_mistake_in_the_segments_is_noticed(mutant: segment_mutants.Mutant) -> None:
    assert segment_mutants.noticed(mutant), "the random operations pass although the code is wrong"


def keys_and_runs(content: Any, block_size: int, blocks: int) -> tuple[list[Any], list[Any]]:
    """Per block: its key, and its (name, index); None where the content gives none."""
    keys = [content.block_key(i, block_size) for i in range(blocks)]
    named: list[Any] = []
    for name, end in name_runs(content, block_size):
        named += [(name, i) for i in range(len(named), min(end, blocks))]
        if len(named) >= blocks:
            break
    return keys, named + [None] * (blocks - len(named))


@pytest.mark.parametrize("block_size", [1, 2, 3, 4, 5, 16])
def test_names_say_what_keys_say(block_size: int) -> None:
    """Two blocks have one key if and only if they have one name and one index."""
    rng = random.Random(block_size)
    known = [contents(rng, rng.randint(1, 60)) for _ in range(60)] + [
        HashedPrompt((1, 2, 3), 7, 20), HashedPrompt((1, 2, 9), 7, 21), HashedPrompt((), 7, 20), GroupPrefix(1, 0),
        HashedPieces((31, 32, 33), (1, 9, 20), 22), HashedPieces((31, 32, 34), (1, 9, 40), 30), HashedPieces((), (), 9),
        TokenPrompt([1, 2, 3, 4, 5, 6, 7, 8]), TokenPrompt([1, 2, 3, 4, 9, 6, 7, 8]), Talk(1, 9), Keyed(1, 8, 30),
    ]
    name_of: dict[Any, Any] = {}
    key_of: dict[Any, Any] = {}
    for content in known:
        if content is None:
            continue
        for key, name in zip(*keys_and_runs(content, block_size, 70), strict=True):
            assert (key is None) == (name is None), f"{content}: {key}, {name}"
            if key is not None:
                assert name_of.setdefault(key, name) == name
                assert key_of.setdefault(name, key) == key


@given(unit=st.integers(1, 20), ids=st.lists(st.integers(0, 5), max_size=8), size=st.integers(1, 24),
       tokens=st.integers(0, 180))
def test_pieces_of_equal_lengths_are_hashed_blocks(unit: int, ids: list[int], size: int, tokens: int) -> None:
    blocks = HashedPrompt(tuple(ids), unit, tokens)
    pieces = HashedPieces(tuple(ids), tuple(unit * (i + 1) for i in range(len(ids))), tokens)
    assert [pieces.block_key(i, size) for i in range(200)] == [blocks.block_key(i, size) for i in range(200)]
    assert list(pieces.name_runs(size)) == list(blocks.name_runs(size)) == list(pieces.name_runs(size))


def test_a_block_across_two_pieces_belongs_to_the_later_one() -> None:
    prompt = HashedPieces((7, 8), (10, 20), 26)
    assert [prompt.block_key(i, 8) for i in range(3)] == [("hash", 7, 0), ("hash", 8, 1), None]
    assert prompt.block_key(0, 10) == ("hash", 7, 0)


def test_a_sequence_that_shares_nothing_is_one_segment() -> None:
    pool = PrefixBlockPool(100, 16)
    seq = Generation(500, 200, arrival_order=1)
    pool.admit(seq, 100)
    for tokens in (200, 437, 500):
        pool.grow(seq, tokens)
    pool.take(12)   # its answer, in a decode group
    seq.num_blocks, seq.num_tokens = 44, 700
    pool.commit(seq, 699)
    assert [(s.name, s.lo, s.hi) for s in pool._chains[seq].segments()] == [(1, 0, 43)]
    pool.free(seq)
    assert (pool.free_blocks, pool._num_unhashed, len(list(pool._queue))) == (100, 57, 1)


def test_memory_of_the_pool_does_not_grow_with_its_blocks() -> None:
    pool = PrefixBlockPool(10**12, 16)
    assert pool.free_blocks == 10**12
    pool.admit(Generation(10**6, 1, arrival_order=1), 10**6)
    assert len(pool._index.by_name) == 1


def test_what_is_evicted_is_forgotten() -> None:
    """Segments that are gone do not keep each other in memory: a simulation runs without the cyclic collector."""
    import gc
    import weakref

    class Watched(GroupPrefix):
        def name_runs(self, block_size: int) -> Any:
            return ((self.group, self.num_tokens // block_size),)   # the name can be watched, a tuple cannot

    class Name:
        pass

    pool = PrefixBlockPool(10, 1)
    names = [Name() for _ in range(50)]
    watched = [weakref.ref(name) for name in names]
    gc.disable()
    try:
        while names:
            seq: Any = Generation(4, 1, arrival_order=len(names), content=Watched(names.pop(), 3))  # type: ignore[arg-type]
            pool.admit(seq, 4)
            pool.free(seq)
            del seq
        assert sum(name() is not None for name in watched) <= 5
    finally:
        gc.enable()


def test_more_blocks_than_are_free_cannot_be_taken() -> None:
    pool = PrefixBlockPool(10, 1)
    with pytest.raises(ValueError, match="11 blocks taken of 10 free ones"):
        pool.take(11)


def test_other_orders_of_eviction_stay_block_by_block() -> None:
    assert issubclass(RankedPrefixPool, ReferencePrefixPool)
    assert not issubclass(RankedPrefixPool, PrefixBlockPool)
