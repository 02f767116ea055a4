"""Stores and hierarchies: eviction policies keep their contract, the formula, chains of blocks, hit rates of traces."""

import json
from collections import OrderedDict
from itertools import takewhile

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from outside import outside

from hermes.clients.kv_tier import block_keys
from hermes.core.block_hashes import ConversationText
from hermes.memory.eviction import Fifo, Lfu, Lru
from hermes.memory.replay import replay
from hermes.memory.size_aware import Gdsf, Tamm
from hermes.memory.tiers import Level, Store, expected_s, find_chain
from hermes.testing.eviction import EvictionContract
from hermes.workload.conversations import ConversationLengths


class TestLru(EvictionContract):
    def make(self):
        return Lru()


class TestFifo(EvictionContract):
    def make(self):
        return Fifo()


class TestLfu(EvictionContract):
    def make(self):
        return Lfu()


class TestTammByRank(EvictionContract):
    def make(self):
        return Tamm("rank")


class TestTammByAge(EvictionContract):
    def make(self):
        return Tamm("age")


class TestTammByCounter(EvictionContract):
    def make(self):
        return Tamm("counter")


class TestGdsf(EvictionContract):
    def make(self):
        return Gdsf()


class MostRecent(Lru):
    def victim(self):
        return next(reversed(self._order))


class TestPolicyOfOnesOwn(EvictionContract):
    def make(self):
        return MostRecent()


class Forgetful(Lru):
    """Names a victim that has gone."""

    def removed(self, key):
        pass


def test_the_suite_fails_a_policy_that_is_wrong():
    class Suite(EvictionContract):
        def make(self):
            return Forgetful()

    with pytest.raises((AssertionError, KeyError)):
        Suite().test_victims_are_entries_and_capacity_holds()


levels = st.lists(
    st.builds(Level, st.floats(0, 0.1), st.floats(1e6, 1e12), st.floats(0, 1)), min_size=1, max_size=5)


@given(levels=levels, size=st.integers(0, 10**10), recompute_s=st.floats(0, 10))
def test_the_formula_is_the_mean_over_all_outcomes(levels, size, recompute_s):
    """Each level hits or not: sum over all 2^N outcomes of probability times what the first hit costs."""
    mean = 0.0
    for outcome in range(2 ** len(levels)):
        hits = [bool(outcome >> n & 1) for n in range(len(levels))]
        probability = float(np.prod([
            level.hit_rate if hit else 1 - level.hit_rate for level, hit in zip(levels, hits, strict=True)]))
        first = next((level for level, hit in zip(levels, hits, strict=True) if hit), None)
        mean += probability * (recompute_s if first is None else first.lookup_s + size / first.bandwidth)
    assert expected_s(size, levels, recompute_s) == pytest.approx(mean, rel=1e-9, abs=1e-12)


@settings(deadline=None)
@given(held=st.lists(st.sets(st.integers(0, 9)), min_size=1, max_size=3), length=st.integers(0, 10))
def test_a_chain_is_found_up_to_the_first_block_that_nobody_has(held, length):
    stores = []
    for keys in held:
        stores.append(Store(100, Lru()))
        for key in keys:
            stores[-1].put(key, 1)
    expected = []
    for key in range(length):
        where = [depth for depth, keys in enumerate(held) if key in keys]
        if not where:
            break
        expected.append(where[0])
    assert find_chain(stores, range(length)) == expected
    for depth, store in enumerate(stores):   # a level is asked for what those above it lack, and for what nobody has
        assert store.hits == expected.count(depth)
        assert store.hits + store.misses == length - sum(above < depth for above in expected)


prompts = st.lists(st.lists(st.integers(0, 5), max_size=6), max_size=40).map(
    lambda rows: [tuple((tuple(row[: i + 1])) for i in range(len(row))) for row in rows])


@settings(deadline=None)
@given(prompts=prompts, capacity=st.integers(1, 30))
def test_replay_against_a_naive_lru(prompts, capacity):
    """Chained keys: a block's key is everything before it and itself."""
    cache: OrderedDict = OrderedDict()
    hits = 0
    for keys in prompts:
        found = 0
        while found < len(keys) and keys[found] in cache:
            found += 1
        hits += found
        for key in reversed(keys[:found]):
            cache.move_to_end(key)
        for key in reversed(keys):
            if key not in cache:
                if len(cache) == capacity:
                    cache.popitem(last=False)
                cache[key] = None
    assert replay(prompts, capacity).hits == hits


@settings(deadline=None)
@given(prompts=prompts)
def test_a_cache_without_limit_finds_everything_seen_before(prompts):
    blocks = sum(map(len, prompts))
    found = replay(prompts)
    assert found.hits == blocks - found.distinct
    assert all(replay(prompts, found.distinct or 1, policy).hits == found.hits for policy in ("lru", "lfu", "fifo"))


def test_conversations_find_what_was_said_before():
    """Every turn but the first of a conversation finds the full blocks of the prompt before it, answer included; the
    first finds the system prompt, once it has been seen."""
    talks = ConversationLengths.model_validate({
        "turns": {"kind": "geometric", "mean": 4}, "system_tokens": 1100, "think_time": 0,
        "message": {"kind": "uniform", "min": 50, "max": 400}, "output": {"kind": "uniform", "min": 10, "max": 300},
    }).draw(400, np.random.default_rng(3))
    rows = list(zip(talks.session.tolist(), talks.prompt_tokens.tolist(), talks.output_tokens.tolist(), strict=True))
    for unit in (16, 100):
        seen: set = set()
        before: dict[int, int] = {}
        for i, (session, prompt, output) in enumerate(rows):
            keys = block_keys(ConversationText(session, 0, 1100, prompt + output), prompt + output, unit, "")
            assert len(keys) == (prompt + output) // unit
            found = len(list(takewhile(seen.__contains__, keys[: prompt // unit])))
            assert found == before.get(session, 1100 // unit if i else 0)
            before[session] = len(keys)
            seen.update(keys)


@pytest.mark.long
def test_the_conversation_trace():
    text = outside("data/mooncake/conversation_trace.jsonl").read_text()
    trace = [tuple(json.loads(line)["hash_ids"]) for line in text.splitlines()]
    whole = replay(trace)
    assert (whole.blocks, whole.hits) == (288_500, 105_710)
    assert whole.hit_rate == pytest.approx(0.366, abs=0.0005)
    sized = [replay(trace, capacity).hits for capacity in (1000, 10_000, 100_000)]
    assert sorted(sized) == sized
    assert sized[-1] < whole.hits
