"""Machines shared by batches, tiers of KV."""

from __future__ import annotations

import math
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from hermes.clients.machine import Machine, fair_rates
from hermes.clients.service import ProcessingClientConfig
from hermes.core.client import ClientEvents
from hermes.core.clock import Clock
from hermes.core.record import run_log
from hermes.memory.eviction import EVICTION
from hermes.memory.tiers import Level, Store, expected_s
from hermes.scenario import load_scenario
from hermes.scenario.build import build
from hermes.services import Work

shares = st.floats(0, 1)


@pytest.mark.feature("Pipelines and services", "Clients `rag`, `processing`; sharing of machines")
@given(works=st.lists(st.builds(Work, st.just(1.0), shares, shares), min_size=1, max_size=6))
def test_rates_are_max_min_fair(works):
    rates = fair_rates(works)
    assert all(0 < rate <= 1 + 1e-9 for rate in rates)
    used = [sum(rate * work[1 + r] for rate, work in zip(rates, works, strict=True)) for r in (0, 1)]
    assert max(used) <= 1 + 1e-9
    for rate, work in zip(rates, works, strict=True):
        # whoever is slowed uses something that is used up, and nobody who uses it is faster
        if rate < 1 - 1e-6:
            full = [r for r in (0, 1) if used[r] > 1 - 1e-6 and work[1 + r] > 0]
            assert any(
                rate >= max(q for q, other in zip(rates, works, strict=True) if other[1 + r] > 0) - 1e-6 for r in full
            )


def test_batches_that_need_more_than_there_is_slow_each_other():
    def ends(works: list[Work]) -> list[int]:
        env, out = Clock(), []
        machine = Machine(env, 0)
        for work in works:
            machine.start(work, lambda: out.append(env._now))
        env.drain()
        return out

    assert ends([Work(1.0, cores=0.5)] * 2) == [10**9] * 2
    assert ends([Work(1.0, bandwidth=1.0)] * 2) == [2 * 10**9] * 2
    assert ends([Work(1.0, cores=1.0), Work(3.0, cores=1.0)]) == [2 * 10**9, 4 * 10**9]


@settings(max_examples=100, deadline=None)
@given(
    policy=st.sampled_from(["lru", "lfu", "fifo"]), capacity=st.integers(1, 50),
    calls=st.lists(st.tuples(st.booleans(), st.integers(0, 8), st.integers(1, 30)), max_size=80),
)
def test_a_store_never_holds_more_than_it_may(policy, capacity, calls):
    store = Store(capacity, EVICTION.get(policy)())
    for is_put, key, size in calls:
        if is_put:
            before = dict(store.entries)
            assert (store.put(key, size) is not None) == (size <= capacity)
            if size > capacity:
                assert store.entries == before
        else:
            assert store.get(key) == store.entries.get(key)
        assert store.used_bytes == sum(store.entries.values()) <= capacity


def test_who_goes_first():
    for policy, victim in (("lru", "b"), ("fifo", "a"), ("lfu", "b")):
        store = Store(2, EVICTION.get(policy)())
        store.put("a", 1)
        store.put("b", 1)
        store.get("a")
        store.put("c", 1)
        assert set(store.entries) == {"a", "b", "c"} - {victim}


def test_the_formula_by_hand():
    levels = [Level(0.001, 100.0, 0.5), Level(0.01, 10.0, 0.25)]
    assert expected_s(50, levels, 2.0) == pytest.approx(0.5 * (0.001 + 0.5) + 0.5 * (0.25 * (0.01 + 5) + 0.75 * 2.0))


def fetching(tiers: list[dict[str, Any]], keys: int = 1, promote: bool = True, **client: Any) -> dict[str, Any]:
    return {
        "name": "kv", "workload": {
            "requests": 200, "arrivals": {"kind": "closed_loop", "users": 1, "think": 1.0}, "pipeline": "p",
            "lengths": {"kind": "fixed", "prompt": 10, "output": 2},
            "contexts": {"population": "shared", "keys": keys, "tokens": {"kind": "fixed", "tokens": 1000}},
        },
        "pipelines": {"p": {"stages": {
            "fetch": {"kind": "fetch_kv", "tokens": "past"},
            "answer": {"kind": "generate", "after": "fetch", "prompt": "prompt + past", "kv": "fetch"},
            "keep": {"kind": "store_kv", "after": "answer", "tokens": 1000, "background": True},
        }}},
        "clients": [
            {"name": "llm", "model": "llama-3.1-8b",
             "hardware": {"kind": "roofline", "model": "llama-3.1-8b", "device": "h100-sxm"}},
            {"kind": "kv_retrieval", "name": "kv", "model": "llama-3.1-8b",
             "tiers": {"levels": tiers, "promote": promote}, **client},
        ],
    }


def fetches(data: dict[str, Any]) -> list[tuple[int, int]]:
    """(duration, tokens found) of the fetches, and that generations computed the rest."""
    record = build(load_scenario(data)).run()
    stages, kind = record.stages, record.stage_kinds.index("fetch_kv")
    found = {int(r): int(c) for r, k, c in zip(stages["request"], stages["kind"], stages["cached_tokens"], strict=True)
             if k == kind}
    assert sum(record.transfers["bytes"]) == sum(tokens * 131072 for tokens in found.values())
    prefilled = int((record.runs["prefill_tokens"]).sum())
    assert prefilled == sum(1010 - tokens for tokens in found.values())
    rows = [i for i in range(len(stages["kind"])) if stages["kind"][i] == kind]
    return [(int(stages["end_ns"][i] - stages["start_ns"][i]), int(stages["cached_tokens"][i])) for i in rows]


TIER = {"name": "dram", "capacity": "1 TB", "bandwidth": "10 GB/s", "lookup": "1 ms"}


def test_the_first_fetch_of_a_key_misses_and_the_next_reads_it():
    durations = fetches(fetching(tiers=[TIER]))
    assert durations[0] == (0, 0)
    read_ns = math.ceil(1000 * 131072 / 10e9 * 1e9)
    assert all(abs(ns - 10**6 - read_ns) <= 2 and tokens == 1000 for ns, tokens in durations[1:])


def test_expected_times_are_the_formula():
    data = fetching(mode="expected", tiers=[{**TIER, "hit_rate": 1.0}])
    assert set(fetches(data)) == {(round((0.001 + 1000 * 131072 / 10e9) * 1e9), 1000)}


def test_stateful_hits_put_into_the_formula_give_the_stateful_mean():
    """Without contention, and with draws that do not depend on each other."""
    tiers = [{**TIER, "capacity": "1.4 GB", "bandwidth": "100 GB/s"}, {**TIER, "name": "ssd", "bandwidth": "1 GB/s"}]
    data = fetching(keys=40, promote=False, tiers=tiers)
    data["workload"]["requests"] = 1500
    durations = fetches(data)
    size = 1000 * 131072
    reads = [(0.001 + size / 100e9), (0.001 + size / 1e9)]
    hits = [sum(abs(ns / 1e9 - read) < 1e-4 for ns, _ in durations) for read in reads]
    first = hits[0] / len(durations)
    second = hits[1] / (len(durations) - hits[0])
    levels = [Level(0.001, 100e9, first), Level(0.001, 1e9, second)]
    mean_s = sum(ns for ns, _ in durations) / len(durations) / 1e9
    assert mean_s == pytest.approx(expected_s(size, levels, 0.0), rel=0.02)
    assert 0.1 < first < 0.9


def test_a_platform_may_depend_on_the_number_of_the_client():
    config = ProcessingClientConfig(name="cpu", count=3, platform="rack{i//2}/box{i}",
                                    serves={"filter": {"kind": "per_item", "per_item": 1.0}})
    clients = config.build(Clock(), 0, run_log(), ClientEvents(), every_step=False, base_dir=None)
    assert [client.platform for client in clients] == ["rack0/box0", "rack0/box1", "rack1/box2"]
