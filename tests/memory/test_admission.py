"""Admission by frequency, warming, and micro-batches in front of a service."""

import collections

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import hermes
from hermes.memory.admission import Frequency, HotKeys
from hermes.memory.eviction import EVICTION
from hermes.memory.tiers import Store

KV_BYTES = 131_072


def test_what_was_asked_for_once_does_not_push_out_what_is_hot():
    """A scan over a store full of keys that are read again and again."""

    def hits(frequency):
        store, found = Store(10, EVICTION.get("lru")(), frequency), 0
        for round_ in range(200):
            for key in [*range(8), *(("scan", round_, i) for i in range(12))]:
                if store.get(key) is not None:
                    found += 1
                elif store.admits(key, 1):
                    store.put(key, 1)
        return found, store

    without, _ = hits(None)
    with_admission, store = hits(Frequency(sample=2000))
    assert without == 0
    assert with_admission > 0.85 * 200 * 8
    assert store.not_admitted > 1000
    assert store.used_bytes <= 10


def test_counts_age():
    frequency = Frequency(sample=100)
    for _ in range(60):
        frequency.seen("old")
    for number in range(300):
        frequency.seen(number)
    assert frequency.count("old") < 60 / 4
    assert not frequency.prefers("old", "old")


@settings(deadline=None, max_examples=30)
@given(st.lists(st.integers(0, 30), min_size=1, max_size=300), st.integers(1, 8))
def test_hot_keys_are_those_asked_for_most(accesses, num_keys):
    """As far as counts of whole sketches tell: every key strictly hotter than the coldest kept is kept."""
    hot, counts = HotKeys(num_keys), collections.Counter(accesses)
    for key in accesses:
        hot.seen(key)
    kept = hot.keys()
    assert len(kept) == min(num_keys, len(counts))
    coldest = min(counts[key] for key in kept)
    assert {key for key, count in counts.items() if count > coldest} <= set(kept)
    assert [counts[key] for key in kept] == sorted((counts[key] for key in kept), reverse=True)


def chunks(**client):
    """Chunks of 1,000 tokens by Zipf; a small near tier over a slow one that has all of them after a while."""
    size = 1000 * KV_BYTES
    near, far = client.pop("near", {}), client.pop("far", {})
    moves = {key: client.pop(key) for key in ("write", "promote") if key in client}
    return {
        "seed": 1,
        "workload": {"requests": 1500, "arrivals": {"kind": "poisson", "rate": 20}, "pipeline": "p",
                     "lengths": {"kind": "fixed", "prompt": 20, "output": 2},
                     "contexts": {"population": "shared", "keys": 400, "zipf": 0.9,
                                  "tokens": {"kind": "fixed", "tokens": 1000}}},
        "pipelines": {"p": {"stages": {
            "fetch": {"kind": "fetch_kv", "tokens": "past"},
            "answer": {"kind": "generate", "after": "fetch", "prompt": "prompt + past", "kv": "fetch"},
            "keep": {"kind": "store_kv", "after": "answer", "tokens": "past", "background": True}}}},
        "clients": [
            {"name": "llm", "count": 2, "model": "llama-3.1-8b", "memory": {"num_blocks": 100_000},
             "hardware": {"kind": "roofline", "model": "llama-3.1-8b", "device": "h100-sxm"}},
            {"kind": "kv_retrieval", "name": "kv", "model": "llama-3.1-8b", **client, "tiers": {**moves, "levels": [
                {"name": "near", "capacity": 40 * size, "bandwidth": "100 GB/s", **near},
                {"name": "far", "capacity": 400 * size, "bandwidth": "10 GB/s", **far}]}}],
    }


def near_hits(data):
    return hermes.simulate(data).record.tiers[0]


def test_admission_finds_more_of_a_skewed_population_near():
    everything, frequent = near_hits(chunks()), near_hits(chunks(near={"admission": "frequency"}))
    assert frequent.hits > 1.15 * everything.hits
    assert frequent.written_bytes < everything.written_bytes / 2
    assert frequent.peak_bytes <= frequent.capacity_bytes


@pytest.mark.feature("Pipelines and services", "Admission by frequency, warming, batching windows")
def test_warming_brings_near_what_nobody_promotes():
    cold = near_hits(chunks(promote=False, write="all", near={"eviction": "fifo"}))
    warm = near_hits(chunks(promote=False, write="all", near={"eviction": "fifo"},
                            warming={"every": 50, "entries": 30}))
    assert warm.hits > 1.05 * cold.hits


def retrieval(window, *, rate=200, max_batch=8, **client):
    return {
        "seed": 2,
        "workload": {"requests": 400, "arrivals": {"kind": "poisson", "rate": rate}, "pipeline": "p",
                     "lengths": {"kind": "fixed", "prompt": 20, "output": 1}},
        "pipelines": {"p": {"stages": {"search": {"kind": "retrieve"},
                                       "answer": {"kind": "generate", "after": "search"}}}},
        "clients": [
            {"name": "llm", "count": 2, "model": "llama-3.1-8b", "memory": {"num_blocks": 100_000},
             "hardware": {"kind": "roofline", "model": "llama-3.1-8b", "device": "h100-sxm"}},
            {"kind": "rag", "name": "search", "cores": 8, "max_batch": max_batch, "batch_window": window,
             "serves": {"retrieve": {"kind": "per_item", "fixed": "2 ms", "per_item": "0.1 ms"}}, **client}],
    }


def searches(data):
    results = hermes.simulate(data)
    stages = results.record.stages
    rows = np.flatnonzero(stages["kind"] == results.record.stage_kinds.index("retrieve"))
    return {name: stages[name][rows] / 1e9 for name in ("assigned_ns", "start_ns", "end_ns")}


@pytest.mark.parametrize("window_ms", [0, 5, 50])
def test_nobody_waits_longer_than_the_window_or_starts_before_batch_or_window(window_ms):
    found = searches(retrieval(f"{window_ms} ms"))
    starts, sizes = np.unique(found["start_ns"], return_counts=True)
    assert sizes.max() <= 8
    for start, size in zip(starts, sizes, strict=True):
        oldest = found["assigned_ns"][found["start_ns"] == start].min()
        assert size == 8 or start - oldest >= window_ms / 1e3 - 1e-9
    busy_until = 0.0
    for start in starts:   # a batch starts when it is full or due, or as soon as the one before ends
        mine = found["start_ns"] == start
        due = min(found["assigned_ns"][mine].min() + window_ms / 1e3,
                  np.sort(found["assigned_ns"][mine])[-1] if mine.sum() == 8 else np.inf)
        assert start == pytest.approx(max(due, busy_until), abs=2e-9)
        busy_until = found["end_ns"][mine].max()


def test_a_window_makes_batches_larger_and_a_submit_costs_what_it_is_given():
    batches = [len(np.unique(searches(retrieval(window))["start_ns"])) for window in ("0 s", "10 ms")]
    assert batches[1] < 0.8 * batches[0]
    for cost_ms in (0.0, 0.5):
        found = searches(retrieval("10 ms", submit_cost=f"{cost_ms} ms"))
        starts, first, size = np.unique(found["start_ns"], return_index=True, return_counts=True)
        took = found["end_ns"][first] - starts
        np.testing.assert_allclose(took, (2 + 0.1 + cost_ms * size) / 1e3, rtol=1e-6)
