"""Dynamo's KV router: tables of its own tests, derived again from its rules, and choices by hand.

Named after the tests of https://github.com/ai-dynamo/dynamo (lib/kv-router/src/scheduling/selector.rs), with blocks of
16 tokens.
"""

from __future__ import annotations

from collections import Counter
from typing import Any

import numpy as np
from each import each
from hypothesis import given
from hypothesis import strategies as st
from long_runs import quick_and_full
from pods import Pod, Pool, text

from hermes.core.block_hashes import ConversationText, GroupPrefix
from hermes.core.generation import Generation
from hermes.routing.active_blocks import ActiveBlocks
from hermes.routing.prefixes import Prompts

SECOND = 10**9


def pool(pods: int | list[Pod] = 2, *, active: tuple[int, ...] = (), computing: tuple[int, ...] = (),
         **config: Any) -> Pool:
    """Return a router with so many active decode blocks and prefill tokens at its pods."""
    made = Pool(pods, "dynamo_kv", **config)
    made.router.active.blocks[:len(active)] = active
    made.router.books.computing[:len(computing)] = computing
    return made


def costs(made: Pool, tokens: int, cached: dict[int, int] | None = None) -> list[float]:
    stage = made.stage(tokens=tokens)
    prompt = made.router._prompts.hashed(stage)
    found: list[float] = made.router.costs(stage, prompt, cached or {}).tolist()
    return found


def warm(made: Pool, place: int, tokens: int) -> Any:
    """Return a text of which a pod is believed to hold the first tokens."""
    words = list(range(1000))
    made.router._caches.sent(place, made.router._prompts.hashed(made.stage(text(words[:tokens]))))
    return lambda count: text(words[:count])


# -- tables of the project ------------------------------------------------------------


@each("costs_, temperature, chosen", [   # test_softmax_sample_single_key, _zero_temperature, _with_sample_...
    ([0.5], 0.1, {0}), ([0.5], 0.0, {0}), ([5.0, 3.0, 7.0, 3.5], 0.0, {1}), ([5.0, 3.0, 3.0, 7.0], 0.0, {1, 2}),
    ([-1.0, -5.0, 0.0], 0.0, {1}), ([2.0, 2.0, 2.0], 1.0, {0, 1, 2}), ([0.0, 3.0, 9.0], 1.0, {0, 1, 2}),
])
def test_softmax_sample(costs_: list[float], temperature: float, chosen: set[int]) -> None:
    made = pool(len(costs_), temperature=temperature)
    counts = Counter(made.router._pick(np.array(costs_)) for _ in range(900))
    assert set(counts) == chosen
    if costs_ == [0.0, 3.0, 9.0]:   # exp(0), exp(-1/3), exp(-1)
        weights = [1.0, np.exp(-1 / 3), np.exp(-1)]
        for place, weight in enumerate(weights):
            assert abs(counts[place] / 900 - weight / sum(weights)) < 0.05


def test_default_selector_randomizes_zero_temperature_ties() -> None:
    made = pool(3)
    found = set()
    for _ in range(120):
        stage = made.stage(tokens=16)
        client = made.router.choose(stage)
        made.router.observe("done", client, stage)
        found.add(client.index)
    assert found == {0, 1, 2}


def test_prefill_load_scale_applies_after_overlap_credits() -> None:
    """2 x (4 - 2) + 3 = 7 against 2 x 4 = 8, each with the 4 blocks that the prompt would add."""
    made = pool(active=(3, 0), prefill_load_scale=2.0)
    assert costs(made, 64, {0: 2}) == [7 + 4, 8 + 4]


@each("credit, chosen", [(1.0, 1), (1.5, 0)])
def test_overlap_credit_above_one_can_prefer_colocated_worker(credit: float, chosen: int) -> None:
    """8 - 4 + 5 = 9 against 8; with 1.5, 8 - 6 + 5 = 7."""
    made = pool(active=(5, 0), overlap_credit=credit)
    words = warm(made, 0, 64)
    assert made.send(words(128)) == chosen


def test_worker_logit_clamps_non_decode_overlap_credit() -> None:
    """16 tokens active and 64 of the prompt are 5 blocks, and 6 are cached: 0 and not less. 2 + 4 decode blocks."""
    made = pool(active=(2,), computing=(16,), prefill_load_scale=2.0)
    assert costs(made, 64, {0: 6})[0] == 2 + 4
    assert costs(made, 64, {0: 5})[0] == 2 + 4
    assert costs(made, 64, {0: 4})[0] == 2 + 4 + 2


def test_effective_overlap_falls_back_when_tier_blocks_are_absent() -> None:
    """4 cached blocks of 4 and one active block against 4 uncached ones."""
    made = pool(active=(1, 0))
    assert costs(made, 64, {0: 4}) == [5, 8]


# -- by hand ------------------------------------------------------------


def test_books_of_two_requests() -> None:
    """A prompt of 40 tokens is 2.5 blocks to compute, and 2 whole ones to hold."""
    made = pool(2)
    first = made.stage(tokens=40)
    client = made.router.choose(first)
    here, there = client.index, 1 - client.index
    assert costs(made, 40)[here] == (40 + 40) / 16 + 2 + 2
    assert costs(made, 40)[there] == 40 / 16 + 2
    made.router.observe("prefilled", client, first)
    assert costs(made, 40)[here] == 40 / 16 + 4
    made.router.observe("done", client, first)
    assert costs(made, 40) == [40 / 16 + 2] * 2


def test_cached_tokens_are_not_computed_and_shared_blocks_count_once() -> None:
    made = pool(2)
    words = warm(made, 0, 32)
    stage = made.stage(words(48))
    client = made.router.choose(stage)
    assert client.index == 0
    assert made.believed == [32]
    assert made.router.books.computing.tolist() == [16, 0]
    assert made.router.active.blocks.tolist() == [3, 0]
    other = made.stage(words(64))
    prompt = made.router._prompts.hashed(other)
    assert made.router.costs(other, prompt, {0: 3}).tolist() == [(16 + 64) / 16 - 3 + 4, 4 + 4]
    assert made.router.choose(other) is client
    assert made.router.active.blocks.tolist() == [4, 0], "three of its four blocks are active"
    made.router.observe("done", client, stage)
    assert made.router.active.blocks.tolist() == [4, 0]
    made.router.observe("done", client, other)
    assert made.router.active.blocks.tolist() == [0, 0]


def test_blocks_in_host_memory_have_three_quarters_of_the_credit() -> None:
    """10 blocks: 10 - 2 - 0.75 x 4 = 5, 10 - 0.75 x 6 = 5.5, 10 - 5 = 5, each with 10 blocks to decode."""
    pods = [Pod(0, cached=32, in_host=64), Pod(1, in_host=96), Pod(2, cached=80)]
    made, words = pool(pods, caches="exact"), text(list(range(160)))
    stage = made.stage(words)
    prompt = made.router._prompts.hashed(stage)
    cached = made.router._caches.matches(stage, prompt)
    in_host = made.router._caches.in_host(stage, cached)
    assert (cached, in_host) == ({0: 2, 2: 5}, {0: 4, 1: 6})
    assert made.router.costs(stage, prompt, cached, in_host).tolist() == [15, 15.5, 15]
    assert made.router.choose(stage) in (pods[0], pods[2])
    assert made.believed in ([96], [80])
    assert made.router.books.computing.max() == 80, "160 - 32 - 0.75 x 64, or 160 - 80"
    without = pool(pods, caches="exact", host_credit=0)
    assert without.send(words) == 2
    assert without.believed == [80]


def test_kv_that_comes_goes_by_decode_blocks_alone() -> None:
    pods = [Pod(0, role="decode"), Pod(1, role="decode")]
    made = pool(pods, active=(3, 5), computing=(9999, 0))
    stage = made.stage(tokens=160)
    stage.source = Pod(9)   # type: ignore[assignment]
    assert made.router.choose(stage) is pods[0]
    assert made.router.books.computing.tolist() == [9999, 0]
    assert made.believed == []


def test_prefill_clients_hold_no_decode_blocks() -> None:
    made = pool([Pod(0, role="prefill"), Pod(1, role="prefill")], active=(100, 0))
    assert costs(made, 160) == [10, 10]


def test_own_decisions_are_forgotten_after_120_s_and_with_their_client() -> None:
    made = pool(2)
    words = warm(made, 1, 64)
    made.now_ns = 120 * SECOND - 1
    assert made.router._caches.matches(None, made.router._prompts.hashed(made.stage(words(64)))) == {1: 4}
    made.now_ns += 1
    assert made.router._caches.matches(None, made.router._prompts.hashed(made.stage(words(64)))) == {}
    warm(made, 1, 64)
    made.members(0)
    made.members(0, 1)
    assert made.router._caches.matches(None, made.router._prompts.hashed(made.stage(words(64)))) == {}


@quick_and_full(40, 1000, derandomize=True)
@given(st.lists(st.tuples(st.integers(0, 2), st.integers(0, 90), st.integers(0, 3), st.booleans()), max_size=30))
def test_active_blocks_are_distinct_blocks(events: list[tuple[int, int, int, bool]]) -> None:
    """Against sets of block keys."""
    active, cut = ActiveBlocks(2), Prompts(16)
    keys: dict[int, tuple[int, set[object]]] = {}
    for number, (which, tokens, group, ends) in enumerate(events):
        content = None if which == 0 else GroupPrefix(group, 50) if which == 1 else ConversationText(group, 0, 20, 90)
        stage = Generation(tokens, 1, arrival_order=number, content=content)
        mine = {stage.block_key(block, 16) for block in range(tokens // 16)}
        prompt, place = cut.hashed(stage), number % 2
        there = [set().union(*(found for at, found in keys.values() if at == one)) for one in range(2)]
        assert [active.shared(prompt).get(one, 0) for one in range(2)] == [len(mine & there[one]) for one in range(2)]
        active.add(number, place, prompt)
        keys[number] = place, mine
        if ends and keys:
            gone = min(keys)
            active.remove(gone)
            del keys[gone]
        there = [set().union(*(found for at, found in keys.values() if at == one)) for one in range(2)]
        assert active.blocks.tolist() == [len(found) for found in there]
