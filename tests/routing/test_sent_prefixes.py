"""Believed caches in ranges of names: as a literal LRU of block hashes, and as a tree of tokens."""

from __future__ import annotations

from collections import OrderedDict
from typing import Any

from each import each
from hypothesis import given
from hypothesis import strategies as st
from long_runs import quick_and_full
from pods import text

from hermes.core.block_hashes import AdapterText, ConversationText, GroupPrefix, HashedPrompt, TokenPrompt, name_runs
from hermes.core.generation import Generation
from hermes.routing.prefixes import Hashed, Prompts, SentPrefixes

CLIENTS = 3


def prompt_of(content: Any, tokens: int, cut: Prompts, number: int = 0) -> tuple[Generation, Hashed]:
    stage = Generation(tokens, 1, content=content, arrival_order=number)
    return stage, cut.hashed(stage)


def keys_of(stage: Generation, cut: Prompts) -> list[object]:
    """The hash of each block, one by one."""
    size, keys = cut.block_tokens, []
    for block in range(stage.prompt_tokens // size):
        keys.append(stage.block_key(block, size))
    if cut.partial and stage.prompt_tokens % size:
        last = stage.prompt_tokens - 1   # equal up to the last token, and as long
        keys.append(("partial", stage.prompt_tokens, stage.block_key(last, 1)))
    return keys


class Literal:
    """An LRU of hashes for each client, as the routers have it."""

    def __init__(self, capacity: int | None) -> None:
        self.capacity = capacity
        self.lru: list[OrderedDict[object, None]] = [OrderedDict() for _ in range(CLIENTS)]

    def sent(self, place: int, keys: list[object]) -> None:
        lru = self.lru[place]
        for key in keys:
            lru[key] = None
            lru.move_to_end(key)
            if self.capacity is not None and len(lru) > self.capacity:
                lru.popitem(last=False)

    def matches(self, keys: list[object]) -> dict[int, int]:
        found = {}
        for place, lru in enumerate(self.lru):
            count = next((i for i, key in enumerate(keys) if key not in lru), len(keys))
            if count:
                found[place] = count
        return found

    def matches_with_gaps(self, keys: list[object]) -> dict[int, int]:
        found: dict[int, int] = {}
        for key in keys:
            holding = [place for place, lru in enumerate(self.lru) if key in lru]
            if not holding:
                break
            for place in holding:
                found[place] = found.get(place, 0) + 1
        return found


def contents() -> st.SearchStrategy[tuple[Any, int]]:
    """Prompts of every kind, with their tokens."""
    tokens = st.integers(0, 90)
    group = st.builds(GroupPrefix, st.integers(0, 1), st.integers(0, 60))
    talk = st.integers(0, 2).flatmap(lambda session: st.integers(0, 90).map(
        lambda n: ConversationText(session, session % 2, 20, n)))
    ids = st.integers(1, 3).map(lambda n: HashedPrompt(tuple(range(n)), 16, 16 * n))
    letters = st.lists(st.sampled_from([1, 2]), max_size=40).map(TokenPrompt)
    one = st.one_of(st.none(), group, talk, ids, letters)
    adapted = st.builds(AdapterText, st.integers(1, 2), one)
    return st.tuples(st.one_of(one, adapted), tokens)


@quick_and_full(60, 2000, derandomize=True)
@given(st.sampled_from([1, 4, 16]), st.booleans(), st.sampled_from([None, 3, 7, 20]),
       st.lists(st.tuples(contents(), st.integers(0, CLIENTS - 1)), max_size=25))
def test_ranges_are_a_literal_lru_of_hashes(size: int, partial: bool, capacity: int | None,
                                            sends: list[tuple[tuple[Any, int], int]]) -> None:
    cut, literal = Prompts(size, partial=partial), Literal(capacity)
    ranges = SentPrefixes([capacity] * CLIENTS, lambda: 0)
    for number, ((content, tokens), place) in enumerate(sends):
        if isinstance(content, TokenPrompt):
            tokens = len(content.tokens)
        stage, prompt = prompt_of(content, tokens, cut, number)
        keys = keys_of(stage, cut)
        assert prompt.blocks == len(keys)
        assert ranges.matches(prompt) == literal.matches(keys)
        assert ranges.matches_with_gaps(prompt) == literal.matches_with_gaps(keys)
        ranges.sent(place, prompt)
        literal.sent(place, keys)
        assert [ranges.blocks(one) for one in range(CLIENTS)] == [len(lru) for lru in literal.lru]
    for place in range(CLIENTS):
        ranges.forget(place)
    assert not ranges._index
    assert [ranges.blocks(one) for one in range(CLIENTS)] == [0] * CLIENTS


@each("partial, blocks, own", [(False, 2, 0), (True, 3, 0)])
def test_a_partial_block_is_hashed_and_counts(partial: bool, blocks: int, own: int) -> None:
    cut = Prompts(4, partial=partial)
    _, prompt = prompt_of(text("aaaabbbbcc"), 10, cut)
    assert (prompt.blocks, prompt.own) == (blocks, own)
    ranges = SentPrefixes([None], lambda: 0)
    ranges.sent(0, prompt)
    for words, held in (("aaaabbbbcc", blocks), ("aaaabbbbcd", 2), ("aaaabbbb", 2), ("aaaabbbbc", 2), ("baaabbbb", 0)):
        _, other = prompt_of(text(words), len(words), cut)
        assert ranges.matches(other).get(0, 0) == held, words


def test_at_most_so_many_tokens_are_hashed() -> None:
    _, prompt = prompt_of(text("a" * 50), 50, Prompts(4, partial=True, most_tokens=21))
    assert (prompt.blocks, prompt.own) == (5, 0)
    _, short = prompt_of(text("a" * 18), 18, Prompts(4, partial=True, most_tokens=21))
    assert short.blocks == 5


def test_prompts_are_forgotten_after_their_time() -> None:
    now = 0
    ranges, cut = SentPrefixes([None], lambda: now, ttl_ns=100), Prompts(4)
    _, long = prompt_of(text("a" * 12), 12, cut)
    _, short = prompt_of(text("a" * 8), 8, cut)
    ranges.sent(0, long)
    now = 60
    ranges.sent(0, short)
    now = 99
    assert ranges.matches(long) == {0: 3}
    now = 100
    assert ranges.matches(long) == {0: 2}, "the third block was sent once"
    now = 160
    assert ranges.matches(long) == {}
    ranges.sent(0, short)
    assert ranges.blocks(0) == 2


@each("tail_first, left", [(False, {}), (True, {0: 4})])
def test_an_lru_loses_the_first_block_and_a_tree_its_leaf(tail_first: bool, left: dict[int, int]) -> None:
    ranges, cut = SentPrefixes([5], lambda: 0, tail_first=tail_first), Prompts(1)
    _, first = prompt_of(text("abcde"), 5, cut)
    _, other = prompt_of(text("z"), 1, cut)
    ranges.sent(0, first)
    ranges.sent(0, other)
    assert ranges.matches(first) == left
    assert ranges.blocks(0) == 5


def test_names_of_a_text_begin_at_one_block() -> None:
    """What the index relies on: a shorter prompt renews the beginning of what is known of a name."""
    for content in (ConversationText(1, 0, 20, 90), GroupPrefix(0, 60), AdapterText(2, ConversationText(1, 0, 20, 90))):
        for size in (1, 3, 16):
            starts: dict[object, int] = {}
            first = 0
            for name, end in name_runs(content, size):
                assert starts.setdefault(name, first) == first
                first = max(first, end)
