"""vLLM's production stack: tables of its own tests, derived again from its rules, and choices by hand.

Named after the tests of https://github.com/vllm-project/production-stack (src/tests/test_session_router.py,
test_prefixaware_router.py, test_roundrobin_router.py).
"""

from __future__ import annotations

from typing import Any

from each import each
from pods import Pod, Pool, text

from hermes.routing.production_stack import POINTS, HashRing

SECOND = 10**9
SESSIONS = range(20)


def sessions(pods: int | list[Pod], **config: Any) -> Pool:
    return Pool(pods, "production_stack", **config)


def trie(count: int = 2, **config: Any) -> Pool:
    return Pool(count, "production_stack", by="prefix", **{"chunk": 4, **config})


# -- tables of the project ------------------------------------------------------------


def test_route_request_with_session_id() -> None:
    made = sessions(2)
    assert len({made.send(session=7) for _ in range(5)}) == 1


def test_route_request_without_session_id() -> None:
    made = sessions(2)
    assert [made.send() for _ in range(3)] == [0, 1, 0], "those without a request, then the fewest"
    assert made.send() == 1, "2 and 1 in the last minute"


def test_consistent_hashing_remove_node_multiple_sessions() -> None:
    made = sessions(3)
    before = [made.send(session=number) for number in SESSIONS]
    made.members(0, 2)
    after = [made.send(session=number) for number in SESSIONS]
    assert set(after) == {0, 2}
    assert all(old == new for old, new in zip(before, after, strict=True) if old != 1), "the others stay"


def test_consistent_hashing_add_then_remove_node() -> None:
    made = sessions(3)
    made.members(0, 1)
    before = [made.send(session=number) for number in SESSIONS]
    made.members(0, 1, 2)
    added = [made.send(session=number) for number in SESSIONS]
    assert all(new in (old, 2) for old, new in zip(before, added, strict=True))
    assert 0 < sum(old != new for old, new in zip(before, added, strict=True)) < len(before)
    made.members(0, 1)
    assert [made.send(session=number) for number in SESSIONS] == before


def test_alternating_models_route_like_single_model() -> None:
    """Each model has a router of its own: the ring depends on names alone, not on other requests."""
    alone, beside = sessions(8), sessions(8)
    for _ in range(5):
        beside.send()
    assert [alone.send(session=n) for n in SESSIONS] == [beside.send(session=n) for n in SESSIONS]


def test_below_threshold_seeding_enables_later_pinning() -> None:
    """Without its later threshold: what a first request sent draws those that go on."""
    made = trie()
    first = made.send(text("x" * 4 + "y" * 3))
    assert {made.send(text("x" * 4 + "y" * 3 + "z" * 9)) for _ in range(9)} == {first}


def test_default_threshold_zero_preserves_original_behavior() -> None:
    """No match: any client, drawn at random."""
    assert {trie(seed=seed).send(text("some prompt text")) for seed in range(20)} == {0, 1}


# -- by hand ------------------------------------------------------------


def test_the_ring_is_that_of_uhashring() -> None:
    """160 points a node; a key belongs to the node of the next point, and the last one's to the first. The nodes of 24
    keys are those that `HashRing(["llm-0", "llm-1", "llm-2"]).get_node` of uhashring 2.5 gives."""
    ring = HashRing(["a", "b"])
    assert len(ring._points) == 2 * POINTS == 320
    assert ring._points == sorted(ring._points)
    three = HashRing(["llm-0", "llm-1", "llm-2"])
    assert "".join(str(three.place(str(key))) for key in range(24)) == "110012110000202202000010"
    shares = [sum(three.place(str(key)) == node for key in range(900)) for node in range(3)]
    assert sum(shares) == 900
    assert min(shares) > 150


def test_requests_of_the_last_minute_count() -> None:
    made = sessions(2)
    assert [made.send() for _ in range(4)] == [0, 1, 0, 1]
    made.now_ns = 30 * SECOND
    assert made.send() == 0
    made.now_ns = 60 * SECOND
    assert made.send() == 1, "1 and 0: those of the start are a minute old"


@each("words, chosen, believed", [
    ("aaaabbbbcc", {0}, 10), ("aaaabbbbcd", {0, 1}, 8), ("aaaabbbb", {0, 1}, 8), ("aaaa", {0, 1, 2}, 4),
    ("baaa", {0, 1, 2}, 0), ("aaaabbbbddd", {1}, 11),
])
def test_one_of_the_longest_matches_at_random(words: str, chosen: set[int], believed: int) -> None:
    found = set()
    for seed in range(60):
        made = trie(3, seed=seed)
        for place, sent in ((0, "aaaabbbbcc"), (1, "aaaabbbbddd"), (2, "aaaa")):
            made.router.trie.sent(place, made.router._prompts.hashed(made.stage(text(sent))))
        found.add(made.send(text(words)))
        assert made.believed == [believed]
    assert found == chosen


def test_the_trie_goes_on_with_members_alone() -> None:
    made = trie(3)
    for place, sent in ((0, "aaaabbbb"), (1, "aaaa")):
        made.router.trie.sent(place, made.router._prompts.hashed(made.stage(text(sent))))
    made.members(1, 2)
    assert {made.send(text("aaaabbbb")) for _ in range(5)} == {1}
    made.members(0, 1, 2)
    assert made.router.trie.blocks(0) == 2, "what has left is remembered"
