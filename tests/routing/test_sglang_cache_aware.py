"""SGLang's cache-aware gateway: tables of its own tests, derived again from its rules, and choices by hand.

Named after the tests of https://github.com/sgl-project/sglang (sgl-model-gateway/src/policies/cache_aware.rs, tree.rs).
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from each import each
from pods import Pool, text

from hermes.routing.prefixes import Prompts, SentPrefixes

KEPT = Path(__file__).resolve().parents[1] / "data" / "decisions" / "sglang-router-0.3.2.jsonl"


def pool(count: int = 2, **config: Any) -> Pool:
    return Pool(count, "sglang_cache_aware", **config)


# -- tables of the project ------------------------------------------------------------


def test_cache_aware_with_balanced_load() -> None:
    made = pool()
    first = made.send(text("hello world"))
    assert made.send(text("hello world")) == first
    assert made.send(text("hello")) == first


def test_cache_aware_with_imbalanced_load() -> None:
    made = pool(cache_threshold=0.5, balance_abs_threshold=5, balance_rel_threshold=2.0)
    made.load(20, 0)
    made.router.tree.sent(0, Prompts(1).hashed(made.stage(text("test"))))
    assert [made.send(text("test")) for _ in range(5)] == [1] * 5, "the shorter queue, in spite of the match"


def test_cache_aware_worker_removal() -> None:
    made = pool()
    for words in ("test1", "test2"):
        made.send(text(words))
    made.members(1)
    assert made.send(text("test1")) == 1


@each("words, expected", [   # test_simple_get and its like in tree.rs: longest matches of a tree with two tenants
    ("hello", {0: 5, 1: 3}), ("help", {0: 3, 1: 4}), ("hel", {0: 3, 1: 3}), ("goodbye", {}),
    ("hello world", {0: 5, 1: 3}),
])
def test_tree_matches(words: str, expected: dict[int, int]) -> None:
    made, cut, tree = pool(), Prompts(1), SentPrefixes([None, None], lambda: 0, tail_first=True)
    for place, sent in ((0, "hello"), (1, "help")):
        tree.sent(place, cut.hashed(made.stage(text(sent))))
    assert tree.matches(cut.hashed(made.stage(text(words)))) == expected


def test_tenant_eviction_by_size() -> None:   # evict_tenant_by_size: the oldest leaf goes first, its beginning stays
    made, cut, tree = pool(), Prompts(1), SentPrefixes([None], lambda: 0, tail_first=True)
    for words in ("aabbcc", "aaxy"):
        tree.sent(0, cut.hashed(made.stage(text(words))))
    assert tree.blocks(0) == 8
    tree.trim(4)
    assert tree.matches(cut.hashed(made.stage(text("aaxy")))) == {0: 4}
    assert tree.matches(cut.hashed(made.stage(text("aabbcc")))) == {0: 2}


# -- by hand ------------------------------------------------------------


@each("loads, chosen", [
    ([0, 65, 0], 0),     # 65 above the smallest and more than 1.5 times it
    ([64, 0, 0], 0),     # 64 above: the match decides
    ([130, 195, 195], 0),   # 65 above, but 195 is 1.5 times 130: the match
    ([131, 195, 131], 0),
    ([200, 129, 140], 1),   # 71 above, 1.55 times
    ([70, 5, 5], 1),     # the first of the shortest queues
])
def test_loads_decide_where_they_differ_much(loads: list[int], chosen: int) -> None:
    made = pool(3)
    made.router.tree.sent(0, Prompts(1).hashed(made.stage(text("a" * 10))))
    made.load(*loads)
    assert made.send(text("a" * 10)) == chosen


@each("shared, chosen, believed", [(30, 1, 0), (31, 0, 31), (100, 0, 100), (0, 1, 0)])
def test_more_than_the_threshold_has_to_match(shared: int, chosen: int, believed: int) -> None:
    """0.3 of 100 tokens is not enough; then the least loaded takes it."""
    made = pool(2)
    made.router.tree.sent(0, Prompts(1).hashed(made.stage(text("a" * 100))))
    made.load(1, 0)
    assert made.send(text("a" * shared + "b" * (100 - shared))) == chosen
    assert made.believed == [believed]


def test_ties_go_to_the_first_and_the_longest_match_wins() -> None:
    made = pool(3)
    for place, words in ((2, "abcdef"), (1, "abcdef"), (0, "abc")):
        made.router.tree.sent(place, Prompts(1).hashed(made.stage(text(words))))
    made.load(0, 5, 0)
    assert made.send(text("abcdef")) == 1
    made.members(0, 2)
    assert made.send(text("abcdef")) == 0, "the first available one, as the first match is at one that is not"
    left = {0: 3, 2: 6}   # cache_aware.rs, remove_tenant: it has lost its part, and this prompt is not noted for 0
    assert made.router.tree.matches(Prompts(1).hashed(made.stage(text("abcdef")))) == left
    assert made.send(text("abcdef")) == 2, "from then on the other match counts"


def test_a_worker_that_is_back_has_lost_its_part_only_if_a_prompt_has_matched_it() -> None:
    made = pool(3)
    for words in ("aaaa", "bbbb"):
        made.router.tree.sent(1, Prompts(1).hashed(made.stage(text(words))))
    made.members(0, 2)
    made.send(text("cccc"))
    assert made.router.tree.blocks(1) == 8, "nobody has asked for what it holds"
    made.send(text("aaaa"))
    assert made.router.tree.blocks(1) == 0, "all of its part, also bbbb"
    made.members(0, 1, 2)
    made.load(0, 0, 5)
    assert made.send(text("bbbb")) == 0, "the least loaded"


@each("members, loads, chosen", [
    ((1, 2), (100, 3, 0), 1),     # worker 0 is down: 3 and 0 are balanced, and the match decides
    ((1, 2), (0, 66, 66), 1),     # an empty slot of load 0 is no worker: 66 and 66
    ((0, 1, 2), (0, 66, 66), 0),   # an idle worker: 66 is more than 64 above
])
def test_available_workers_alone_count_for_the_balance(members: tuple[int, ...], loads: tuple[int, ...],
                                                       chosen: int) -> None:
    made = pool(3)
    made.router.tree.sent(1, Prompts(1).hashed(made.stage(text("aaaa"))))
    made.members(*members)
    made.load(*loads)
    assert made.send(text("aaaa")) == chosen


def test_the_tree_is_cut_at_intervals() -> None:
    made = pool(1, max_tree_size=6, eviction_interval=120)
    second = 10**9
    for words in ("aaaa", "bbbb", "cccc"):
        made.send(text(words))
    assert made.router.tree.blocks(0) == 12
    made.now_ns = 119 * second
    made.send(text("cccc"))
    assert made.router.tree.blocks(0) == 12
    made.now_ns = 120 * second
    made.send(text("cccc"))
    assert made.router.tree.blocks(0) == 6
    assert made.router.tree.matches(Prompts(1).hashed(made.stage(text("bbbb")))) == {0: 2}


def test_requests_count_until_they_have_ended() -> None:
    made = pool(2)
    stage = made.stage(text("aaaa"))
    client = made.router.choose(stage)
    assert made.router.books.in_flight.tolist() == [1, 0]
    made.router.observe("prefilled", client, stage)
    assert made.router.books.in_flight.tolist() == [1, 0]
    made.router.observe("done", client, stage)
    made.router.observe("done", client, stage)
    assert made.router.books.in_flight.tolist() == [0, 0]


def test_choices_of_the_gateway_itself() -> None:
    """275 choices of sglang-router 0.3.2 over three workers that go down and come back, recorded by
    scripts/record_sglang_routes.py 5 400: the same, but for 8 of several holders of the longest match, of which the
    gateway takes any."""
    order, *lines = map(json.loads, KEPT.read_text(encoding="utf-8").splitlines())
    place_of = {number: place for place, number in enumerate(order["order"])}
    thresholds = {name: value for name, value in order.items() if name != "order"}
    made = pool(3, eviction_interval=10**6, **thresholds)
    router, up, at, load = made.router, [True] * 3, {}, [0] * 3
    same, ties = 0, 0
    for line in lines:
        if "end" in line:
            load[at.pop(line["end"])] -= 1
        elif "worker" in line:
            up[place_of[line["worker"]]] = line["up"]
            made.members(*(place for place in range(3) if up[place]))
        else:
            made.load(*load)
            prompt = router._prompts.hashed(made.stage(text(line["text"])))
            matches = router.tree.matches(prompt)
            chosen, real = router._place(prompt.tokens, dict(matches)), place_of[line["to"]]
            assert chosen == real or matches.get(real) == max(matches.values()) == matches.get(chosen), line
            same, ties = same + (chosen == real), ties + (chosen != real)
            load[real] += 1
            at[line["ask"]] = real
            if not router._fell_back:
                router.tree.sent(real, prompt)
    assert (same, ties) == (267, 8)
