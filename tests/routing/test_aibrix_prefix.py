"""AIBrix's `prefix-cache`: tables of its own tests, derived again from its rules, and choices by hand.

Named after the tests of https://github.com/vllm-project/aibrix (pkg/plugins/gateway/algorithms/prefix_cache_test.go,
pkg/utils/prefixcacheindexer/hash_test.go), which have blocks of 4 letters, one deviation and a spread of 8.
"""

from __future__ import annotations

from typing import Any

from each import each
from pods import Pool, text

from hermes.routing.prefixes import Prompts, SentPrefixes

SECOND = 10**9


def pool(count: int = 4, **config: Any) -> Pool:
    return Pool(count, "aibrix_prefix", **{"block": 4, "deviations": 1, "spread": 8, **config})


# -- tables of the project ------------------------------------------------------------


def test_prefix_cache_e2e() -> None:   # Test_PrefixCacheE2E, its steps 1 to 7
    made = pool()
    books = made.router.books
    p4 = made.send(text("abcdegfh"))   # no match: any of the least loaded
    p3 = made.send(text("wxyz"))       # no match: one of the other three
    assert p3 != p4
    assert made.send(text("abcdegfh")) == p4, "1 <= 0.5 + 0.577: the match"
    p2 = made.send(text("abcd"))
    assert p2 not in (p3, p4), "2 > 0.75 + 0.957: not the match, but one of the least loaded"
    assert made.send(text("abcdefghijkl")) == p2, "p4 has as long a match, and 2 > 1 + 0.816; p2 has 1"
    assert made.send(text("abcdefgh")) in (p2, p4)
    for place in (p2, p4):
        books.in_flight[place] = 9 if place == p2 else 2
    (p1,) = set(range(4)) - {p2, p3, p4}
    assert made.send(text("abcdefgh")) == p1, "9 - 0 > 8: the least loaded"


@each("letters, blocks, matches", [   # Test_PrefixHashTableE2E: p1 has 1..8
    ([1, 2, 3, 4, 5, 6, 7], 1, {0: 1}), ([1, 2, 3, 4, 5, 6, 7, 8], 2, {0: 2}), ([1, 2, 3, 4, 5, 6, 7, 8, 9], 2, {0: 2}),
    ([1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13], 3, {0: 2}), ([5, 6, 7, 8, 9, 10, 11, 12, 13], 2, {}),
])
def test_prefix_hash_table_e2e(letters: list[int], blocks: int, matches: dict[int, int]) -> None:
    made, cut, table = pool(), Prompts(4), SentPrefixes([None] * 3, lambda: 0)
    table.sent(0, cut.hashed(made.stage(text([1, 2, 3, 4, 5, 6, 7, 8, 9]))))
    prompt = cut.hashed(made.stage(text(letters)))
    assert prompt.blocks == blocks
    assert table.matches(prompt) == matches


def test_prefix_hash_table_of_two_pods() -> None:   # its last part: 100 and 66 percent
    made, cut, table = pool(), Prompts(4), SentPrefixes([None] * 3, lambda: 0)
    whole = cut.hashed(made.stage(text(list(range(1, 14)))))
    table.sent(0, whole)
    table.sent(1, cut.hashed(made.stage(text(list(range(1, 9))))))
    assert {place: 100 * blocks // whole.blocks for place, blocks in table.matches(whole).items()} == {0: 100, 1: 66}


# -- by hand ------------------------------------------------------------


def held(made: Pool, **words: str) -> None:
    for name, sent in words.items():
        made.router.sent.sent(int(name[1:]), Prompts(4).hashed(made.stage(text(sent))))


@each("loads, config, chosen", [
    ([0, 0, 0, 0], {}, {0}),                       # the longest match
    ([3, 1, 0, 0], {}, {1}),                       # 3 > 1 + 1.41: the next, 2 blocks
    ([3, 1, 0, 0], {"deviations": 2}, {0}),        # 3 <= 1 + 2.83
    ([9, 8, 2, 1], {}, {0}),                       # 9 <= 5 + 4.08, and 9 - 1 is not above 8
    ([17, 9, 9, 9], {"spread": 16}, {1}),          # 17 > 11 + 4: the next
    ([17, 0, 1, 1], {"spread": 16}, {1}),          # 17 above: the least loaded
    ([17, 20, 0, 0], {"spread": 16}, {2}),         # 20 above: of the two least loaded the one with a match
    ([17, 20, 9, 0], {"spread": 16}, {3}),         # the least loaded has none
    ([16, 16, 16, 0], {"spread": 16}, {0}),        # 16 above: 16 <= 12 + 8
])
def test_the_best_match_that_is_not_much_busier(loads: list[int], config: dict[str, Any], chosen: set[int]) -> None:
    made = pool(**config)
    held(made, p0="aaaabbbbcccc", p1="aaaabbbb", p2="aaaa")
    made.load(*loads)
    assert {made.send(text("aaaabbbbcccc"))} == chosen


def test_equal_matches_go_to_the_least_loaded_and_then_at_random() -> None:
    found = set()
    for seed in range(40):
        made = pool(seed=seed)
        held(made, p0="aaaa", p2="aaaa", p3="aaaa")
        made.load(1, 0, 0, 0)
        found.add(made.send(text("aaaa")))
    assert found == {2, 3}


def test_whole_percents_are_compared() -> None:
    """1 of 200 blocks is 0 percent, and still a match: it beats the less loaded client without."""
    made = pool(2)
    held(made, p0="a" * 4)
    made.load(0, 0)
    assert made.send(text("a" * 4 + "b" * 796)) == 0
    assert made.believed == [4]


def test_members_alone_count_and_the_table_forgets_after_20_minutes() -> None:
    made = pool(3)
    held(made, p0="aaaa", p1="aaaa")
    made.members(1, 2)
    made.load(100, 0, 0)
    assert made.send(text("aaaa")) == 1, "the load of a client that has left does not count"
    made.now_ns = 1200 * SECOND
    made.load(0, 1, 0)
    assert made.send(text("aaaa")) == 2
