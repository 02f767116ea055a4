"""Counted blocks: nothing appears, nothing disappears."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st
from long_runs import quick_and_full
from naive_pool import NaiveSequence

from hermes.memory import BlockPool, PrefixBlockPool

actions = st.lists(st.tuples(st.integers(0, 3), st.one_of(st.none(), st.integers(0, 40))), max_size=40)


@quick_and_full(50, 200, derandomize=True)
@given(num_blocks=st.integers(1, 20), block_size=st.integers(1, 5), actions=actions)
def test_blocks_are_conserved(num_blocks: int, block_size: int, actions: list[tuple[int, int | None]]) -> None:
    pool = BlockPool(num_blocks, block_size)
    sequences = [NaiveSequence(i, 40, 0, 0) for i in range(4)]
    for which, tokens in actions:
        seq = sequences[which]
        before = (pool.free_blocks, seq.num_blocks)
        if tokens is None:
            pool.free(seq)
            assert seq.num_blocks == 0
        else:
            missing = pool.missing_blocks(seq, tokens)
            assert pool.grow(seq, tokens) == (missing <= before[0])
            if missing > before[0]:
                assert (pool.free_blocks, seq.num_blocks) == before
            else:
                assert seq.num_blocks == max(before[1], -(-tokens // block_size))
        assert pool.free_blocks + sum(s.num_blocks for s in sequences) == num_blocks
        assert 0 <= pool.free_blocks <= num_blocks
    for seq in sequences:
        pool.free(seq)
    assert pool.free_blocks == num_blocks


def test_blocks_are_tokens_rounded_up() -> None:
    pool = BlockPool(10, 16)
    assert [pool.blocks_for(n) for n in (0, 1, 16, 17, 160)] == [0, 1, 1, 2, 10]


def test_nothing_is_ever_cached() -> None:
    pool = BlockPool(10, 4)
    seq = NaiveSequence(1, 12, 0, 12)
    pool.admit(seq, 12)
    assert pool.hit_tokens(NaiveSequence(2, 12, 0, 12)) == 0
    assert pool.missing_blocks(NaiveSequence(2, 12, 0, 12), 12) == 3


@pytest.mark.parametrize("pool", [BlockPool, PrefixBlockPool])
@pytest.mark.parametrize(("num_blocks", "block_size"), [(0, 16), (10, 0), (-1, 16)])
def test_a_pool_without_room_is_refused(pool: type[BlockPool], num_blocks: int, block_size: int) -> None:
    with pytest.raises(ValueError, match=f"{num_blocks} x {block_size}"):
        pool(num_blocks, block_size)
