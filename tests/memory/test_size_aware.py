"""TAMM and GDSF: against a literal reading of their definitions, within the budget, blind to the clock."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from hermes.memory import recency as recency_module
from hermes.memory.eviction import EVICTION
from hermes.memory.size_aware import Gdsf, Tamm
from hermes.memory.tiers import Store

RECENCIES = ("rank", "age", "counter")
ACCESSES = st.lists(st.integers(0, 12), max_size=120)
SIZES = st.lists(st.integers(1, 40), min_size=13, max_size=13)


def drive(policy, capacity, sizes, accesses):
    """Cache-aside: what is not found is put. The keys evicted, in order."""
    store, gone = Store(capacity, policy), []
    for key in accesses:
        if store.get(key) is None:
            before = set(store.entries)
            evicted = store.put(key, sizes[key])
            assert (evicted is not None) == (sizes[key] <= capacity)
            gone.append([key for key, _ in evicted or ()])
            assert set(gone[-1]) == before - set(store.entries)
        assert store.used_bytes == sum(store.entries.values()) <= capacity
    return gone, store


def literal_tamm(recency, capacity, sizes, accesses):
    """One access of the policy for each key that is read or put, numbered from 1."""
    held, last, gone = {}, {}, []

    def score(key, now):
        if recency == "rank":
            return (1 + sum(last[other] < last[key] for other in held)) / held[key]
        if recency == "age":
            return -(now + 1 - last[key]) * held[key]
        return last[key] / held[key]

    for now, key in enumerate(accesses, 1):
        if key in held:
            last[key] = now
            continue
        evicted = []
        while sum(held.values()) + sizes[key] > capacity:
            victim = min(held, key=lambda k: (score(k, now - 1), last[k]))
            del held[victim]
            evicted.append(victim)
        held[key], last[key] = sizes[key], now
        gone.append(evicted)
    return gone


@pytest.mark.parametrize("recency", RECENCIES)
@given(accesses=ACCESSES, sizes=SIZES, capacity=st.integers(1, 100))
def test_tamm_is_what_it_says(recency, accesses, sizes, capacity):
    """One victim after the other. (Keys that never fit are left out: they leave no trace, see below.)"""
    accesses = [key for key in accesses if sizes[key] <= capacity]
    gone, _ = drive(Tamm(recency), capacity, sizes, accesses)
    assert gone == literal_tamm(recency, capacity, sizes, accesses)


@pytest.mark.long
@pytest.mark.parametrize("recency", RECENCIES)
def test_tamm_is_what_it_says_with_many_entries(recency):
    """Entries in several blocks of slots, and gaps that are closed."""
    rng = np.random.default_rng(4)
    sizes = np.clip(rng.lognormal(4, 1.2, 900), 1, 5000).astype(int).tolist()
    accesses = (900 * rng.random(3000) ** 2).astype(int).tolist()
    capacity = sum(sizes) * 2 // 3
    gone, store = drive(Tamm(recency), capacity, sizes, accesses)
    assert len(store.entries) > 2 * recency_module._BLOCK
    assert gone == literal_tamm(recency, capacity, sizes, accesses)


def test_tamm_ranks_by_default():
    assert Tamm()._order.recency == "rank"


@pytest.mark.parametrize("recency", RECENCIES)
def test_an_order_of_no_entries_has_no_first(recency):
    order = recency_module.RecencyOrder(recency)
    with pytest.raises(IndexError):
        order.first()
    order.add("a", 0)    # counts as 1
    assert order.first() == "a"
    order.remove("a")
    with pytest.raises(IndexError):
        order.first()


@pytest.mark.parametrize("recency", RECENCIES)
@given(accesses=ACCESSES, capacity=st.integers(1, 100))
def test_of_equal_sizes_tamm_is_lru(recency, accesses, capacity):
    sizes = [7] * 13
    lru, tamm = (drive(policy, capacity, sizes, accesses)[0] for policy in (EVICTION.get("lru")(), Tamm(recency)))
    assert tamm == lru


@pytest.mark.parametrize("policy", EVICTION.names())
@given(accesses=ACCESSES, sizes=SIZES, capacity=st.integers(1, 100))
def test_never_above_the_budget_and_too_large_is_refused(policy, accesses, sizes, capacity):
    _, store = drive(EVICTION.get(policy)(), capacity, sizes, accesses)
    assert store.refused == sum(sizes[key] > capacity for key in accesses)
    assert store.peak_bytes <= capacity


def test_a_large_old_entry_goes_before_a_small_older_one():
    store = Store(110, Tamm())
    for key, size in (("small", 10), ("large", 100)):
        store.put(key, size)
    store.put("next", 20)
    assert sorted(store.entries) == ["next", "small"]     # 1 / 10 against 2 / 100


@pytest.mark.parametrize(("recency", "later"), [("rank", "old"), ("age", "old"), ("counter", "new")])
def test_after_many_accesses_size_alone_decides_only_with_a_counter(recency, later):
    """The same three entries: with a counter the one just read is kept early on, and goes later, since 1,003 is hardly
    more than 1,001 but 90 tokens are more than 80."""

    def victim(accesses_before):
        store = Store(170, Tamm(recency))
        store.put("old", 80)
        for _ in range(accesses_before):
            store.get("old")
        store.put("new", 90)
        store.get("new")
        return [key for key, _ in store.put("next", 10)]

    assert victim(0) == ["old"]         # 1 / 80 against 3 / 90
    assert victim(1000) == [later]      # counter: 1001 / 80 against 1003 / 90


def test_gdsf_by_hand():
    """Ranks: reads / size over the rank of the last one that went."""
    store = Store(100, Gdsf())
    store.put("a", 50)                # 1/50
    store.put("b", 40)                # 1/40
    store.get("a")                    # 2/50 = 0.04
    store.put("c", 30)                # evicts b at 0.025; c enters at 0.025 + 1/30 = 0.0583
    assert sorted(store.entries) == ["a", "c"]
    store.put("d", 30)                # evicts a at 0.04
    assert sorted(store.entries) == ["c", "d"]


def test_what_nobody_reads_any_more_ages_away_under_gdsf():
    store = Store(30, Gdsf())
    store.put("once popular", 10)
    for _ in range(5):
        store.get("once popular")
    for number in range(40):
        store.put(number, 10)
    assert "once popular" not in store.entries
