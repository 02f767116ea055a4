"""Other orders of eviction in the prefix cache: conservation, heads after tails, literal ranks, blind to the clock."""

import json

import pytest
from hypothesis import given
from hypothesis import strategies as st
from long_runs import quick_and_full

import hermes
from hermes.core.block_hashes import TokenPrompt
from hermes.errors import InputError
from hermes.memory import PrefixBlockPool
from hermes.memory.eviction import EVICTION
from hermes.memory.prefix_eviction import RankedPrefixPool, TammPrefixPool
from hermes.memory.tiers import Store
from hermes.scenario.editor_schema import json_schema

RECENCIES = ("rank", "age", "counter")
POLICIES = ("tamm", "gdsf", "lfu", "fifo")
PROMPTS = st.lists(st.lists(st.integers(0, 2), min_size=1, max_size=12), min_size=1, max_size=40)


class Holder:
    def __init__(self, tokens):
        self.num_blocks = self.num_computed = 0
        self.num_tokens = self.prompt_tokens = len(tokens)
        self.common, self.grouped, self.content = None, False, TokenPrompt(tokens)
        self.block_key = self.content.block_key


ORDERS = [*((TammPrefixPool, {"recency": recency}) for recency in RECENCIES),
          *((RankedPrefixPool, {"policy": policy}) for policy in POLICIES[1:])]


def serve(pool, tokens):
    """One prompt after the other; tokens found."""
    holder = Holder(tokens)
    found = pool.hit_tokens(holder)
    pool.admit(holder, len(tokens))
    pool.free(holder)
    return found


@pytest.mark.parametrize(("order", "options"), ORDERS)
@quick_and_full(13, 40)
@given(prompts=PROMPTS, extra=st.integers(0, 8))
def test_never_above_the_budget_and_heads_outlive_tails(order, options, prompts, extra):
    pool, before = order(12 + extra, 1, **options), {}
    for tokens in prompts:
        content = TokenPrompt(tokens)
        chain = [content.block_key(i, 1) for i in range(len(tokens))]
        before.update(zip(chain[1:], chain, strict=False))
        serve(pool, tokens)
        assert pool.free_blocks == pool.num_blocks
        held = set(pool._cached)
        assert len(held) <= pool.num_blocks
        # a block is found only behind all those before it; with FIFO a head that came first goes first
        assert options.get("policy") == "fifo" or {before[key] for key in held if key in before} <= held


@pytest.mark.parametrize("policy", ["lru", "fifo"])
@given(keys=st.lists(st.integers(0, 8), max_size=80), room=st.integers(1, 7))
def test_of_prompts_of_one_block_go_those_that_go_from_a_tier(policy, keys, room):
    """Each has a full block and a token more, whose block is free again at once."""
    pool = PrefixBlockPool(room + 1, 2) if policy == "lru" else RankedPrefixPool(room + 1, 2, policy=policy)
    store = Store(room, EVICTION.get(policy)())
    for key in keys:
        there = store.get(key) is not None
        assert (serve(pool, [key] * 3) == 2) == there
        if not there:
            store.put(key, 1)


@pytest.mark.parametrize("recency", RECENCIES)
@quick_and_full(13, 40)
@given(prompts=PROMPTS, extra=st.integers(0, 8))
def test_prompts_of_one_length_go_as_with_lru(recency, prompts, extra):
    prompts = [(tokens * 6)[:6] for tokens in prompts]
    lru, tamm = PrefixBlockPool(6 + extra, 1), TammPrefixPool(6 + extra, 1, recency=recency)
    assert [serve(lru, tokens) for tokens in prompts] == [serve(tamm, tokens) for tokens in prompts]


@pytest.mark.parametrize("recency", RECENCIES)
def test_a_long_prompt_goes_before_a_short_older_one(recency):
    pool = TammPrefixPool(12, 1, recency=recency)
    serve(pool, [1, 1])
    serve(pool, [2] * 10)
    serve(pool, [3] * 4)       # 2 / 10 (age: 1 / 20) goes before 1 / 2 (1 / 6)
    assert serve(pool, [1, 1, 1]) == 2
    lru = PrefixBlockPool(12, 1)
    for tokens in ([1, 1], [2] * 10, [3] * 4):
        serve(lru, tokens)
    assert serve(lru, [1, 1, 1]) == 0


def scenario(policy):
    return {
        "seed": 3,
        "workload": {
            "requests": 60, "arrivals": {"kind": "poisson", "rate": 4},
            "lengths": {"kind": "empirical", "profile": "azure-conv-2023"},
            "prefixes": {"groups": 30, "tokens": 400},
        },
        "clients": [{"model": "llama-3.1-8b", "memory": {"num_blocks": 700, "prefix_caching": True,
                                                          "prefix_eviction": policy},
                     "hardware": {"kind": "roofline", "model": "llama-3.1-8b", "device": "h100-sxm"}}],
    }


@pytest.mark.drawn
@pytest.mark.parametrize("policy", POLICIES)
@pytest.mark.parametrize("stepping", ["runs", "every_step"])
def test_a_scenario_switches_it_on(policy, stepping):
    found = hermes.simulate(scenario(policy) | {"stepping": stepping})
    assert found.summary["requests"]["completed"] == 60
    assert found.summary["tokens"]["cached"] > 0


@pytest.mark.feature("LLM clients", "Eviction `lru`, `fifo`, `lfu`, `gdsf`, `tamm` by `rank`, `age`, `counter`")
def test_the_schema_of_a_scenario_offers_every_policy():
    schema = json.dumps(json_schema())
    assert json.dumps(["lru", *POLICIES]) in schema                    # memory.prefix_eviction
    assert json.dumps(sorted(EVICTION.names())) in schema              # eviction of a tier
    assert {"tamm", "gdsf", "lfu", "fifo", "lru"} <= set(EVICTION.names())


def test_without_a_prefix_cache_there_is_nothing_to_evict():
    wrong = scenario("tamm")
    wrong["clients"][0]["memory"]["prefix_caching"] = False
    with pytest.raises(InputError, match="prefix_eviction"):
        hermes.simulate(wrong)


@pytest.mark.parametrize("recency", ["age", "counter"])
def test_recency_is_for_tamm_alone_and_the_message_names_the_field(recency):
    wrong = scenario("lfu")
    wrong["clients"][0]["memory"]["prefix_recency"] = recency
    with pytest.raises(InputError, match=r"prefix_recency.*applies to `prefix_eviction: tamm` only; leave it out"):
        hermes.simulate(wrong)
    wrong = scenario("tamm")
    wrong["clients"][0]["tiers"] = {"levels": [
        {"name": "dram", "capacity": "1 GB", "bandwidth": "50 GB/s", "recency": recency}]}
    with pytest.raises(InputError, match=r"recency.*applies to `eviction: tamm` only; leave it out"):
        hermes.simulate(wrong)


@pytest.mark.long
def test_a_scenario_chooses_the_recency_of_device_and_tier():
    """Three readings, three runs; `rank` is the default of both."""

    def run(**recency):
        data = scenario("tamm")
        data["workload"] |= {"requests": 200, "prefixes": {"groups": 60, "tokens": 400}}
        tier = {"name": "dram", "capacity": 131072 * 64 * 25, "bandwidth": "50 GB/s", "eviction": "tamm"}
        data["clients"][0]["memory"] |= {f"prefix_{name}": value for name, value in recency.items()}
        data["clients"][0]["tiers"] = {"block_tokens": 64, "levels": [tier | recency]}
        return hermes.simulate(data).record.stages["cached_tokens"].tolist()

    found = {recency: run(recency=recency) for recency in RECENCIES}
    assert run() == found["rank"]
    assert found["rank"] != found["counter"] != found["age"]


@quick_and_full(2, 5)
@given(st.integers(1, 10**7), st.sampled_from(["tamm", "gdsf", "lru", "lfu", "fifo"]))
def test_shifting_the_clock_changes_no_eviction(shift_ms, policy):
    """Recency counts accesses: the same requests, any time later, find and lose the same, on the device and beyond."""

    def run(start_s):
        data = scenario(policy)
        data["workload"]["start"] = start_s
        data["clients"][0]["memory"]["num_blocks"] = 600
        data["clients"][0]["tiers"] = {"block_tokens": 64, "levels": [
            {"name": "dram", "capacity": 131072 * 64 * 25, "bandwidth": "50 GB/s", "eviction": policy}]}
        results = hermes.simulate(data)
        tier = results.record.tiers[0]
        return results.record.stages["cached_tokens"].tolist(), tier.evictions, tier.hits, tier.misses

    now = run(0.0)
    assert now == run(shift_ms / 1e3)
    assert now[1] > 0
