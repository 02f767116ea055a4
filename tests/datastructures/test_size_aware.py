"""TAMM and GDSF: against a literal reading of their definitions, within the budget, blind to the clock."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from hermes.memory.eviction import EVICTION
from hermes.memory.size_aware import Gdsf, Tamm
from hermes.memory.tiers import Store

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


def literal_tamm(capacity, sizes, accesses, start=0):
    held, last, gone = {}, {}, []
    for now, key in enumerate(accesses, start):
        if key in held:
            last[key] = now
            continue
        evicted = []
        if sizes[key] <= capacity:
            while sum(held.values()) + sizes[key] > capacity:
                victim = min(held, key=lambda k: ((last[k] + 1) / held[k], last[k]))
                del held[victim]
                evicted.append(victim)
            held[key], last[key] = sizes[key], now
        gone.append(evicted)
    return gone


@given(ACCESSES, SIZES, st.integers(1, 100))
def test_tamm_is_what_it_says(accesses, sizes, capacity):
    """One victim after the other. (Keys that never fit are left out: they leave no trace, see below.)"""
    accesses = [key for key in accesses if sizes[key] <= capacity]
    gone, _ = drive(Tamm(), capacity, sizes, accesses)
    assert gone == literal_tamm(capacity, sizes, accesses)


@given(ACCESSES, st.integers(1, 100))
def test_of_equal_sizes_tamm_is_lru(accesses, capacity):
    sizes = [7] * 13
    assert drive(Tamm(), capacity, sizes, accesses)[0] == drive(EVICTION.get("lru")(), capacity, sizes, accesses)[0]


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


def test_after_many_accesses_size_alone_decides_under_tamm():
    """The same three entries: what was just read is kept early on, and goes later, since 1,003 is hardly more than
    1,001 but 90 tokens are more than 80."""

    def victim(accesses_before):
        store = Store(170, Tamm())
        store.put("old", 80)
        for _ in range(accesses_before):
            store.get("old")
        store.put("new", 90)
        store.get("new")
        return [key for key, _ in store.put("next", 10)]

    assert victim(0) == ["old"]         # 1 / 80 against 3 / 90
    assert victim(1000) == ["new"]      # 1001 / 80 against 1003 / 90


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
