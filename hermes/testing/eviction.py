"""Contract suite for eviction policies.

Inherit it in a test module, give `make()`, and pytest checks what a store relies on:

    class TestMyPolicy(EvictionContract):
        def make(self):
            return MyPolicy()
"""

from __future__ import annotations

import random
from abc import ABC, abstractmethod
from collections.abc import Hashable
from typing import Any, ClassVar

from hermes.memory.tiers import Store

__all__ = ["EvictionContract"]


class EvictionContract(ABC):
    """Properties of every eviction policy. `make()` returns a new policy; the suite uses it in stores of several
    sizes."""

    calls: ClassVar[int] = 400
    """Number of calls in a random history."""

    @abstractmethod
    def make(self) -> Any: ...

    def _history(self, capacity: int, seed: int) -> list[Hashable]:
        """Run a store through random calls, with checks on the way; return the victims in order."""
        rng, store, victims = random.Random(seed), Store(capacity, self.make()), []
        for _ in range(self.calls):
            key, size = ("k", rng.randrange(12)), rng.randint(1, 8)
            if rng.random() < 0.5:
                assert store.get(key) == store.entries.get(key)
            else:
                before = dict(store.entries)
                evicted = store.put(key, size)
                assert (evicted is None) == (size > capacity)
                if evicted is None:
                    assert store.entries == before, "a refused entry changed the store"
                    continue
                assert key in store
                for victim, was in evicted:
                    assert before[victim] == was, "it named an entry that was not there"
                    assert victim not in store or victim == key
                victims += [victim for victim, _ in evicted]
            assert store.used_bytes == sum(store.entries.values()) <= capacity
        return victims

    def test_victims_are_entries_and_capacity_holds(self) -> None:
        for capacity in (1, 7, 20, 60):
            self._history(capacity, seed=capacity)

    def test_the_same_calls_give_the_same_victims(self) -> None:
        first = self._history(20, seed=1)
        assert first, "nothing was evicted: the suite does not see the policy"
        assert self._history(20, seed=1) == first

    def test_asking_for_a_victim_changes_nothing(self) -> None:
        store = Store(10, self.make())
        for key in range(5):
            store.put(key, 2)
        store.get(3)
        victim = store.policy.victim()
        assert all(store.policy.victim() == victim for _ in range(3))
        assert victim in store
        evicted = store.put("new", 2)
        assert evicted is not None
        assert [key for key, _ in evicted] == [victim]

    def test_stores_share_nothing(self) -> None:
        one, two = Store(4, self.make()), Store(4, self.make())
        one.put("a", 4)
        two.put("b", 4)
        evicted = one.put("c", 4)
        assert evicted == [("a", 4)]
        assert "b" in two

    def test_entries_may_be_replaced(self) -> None:
        store = Store(10, self.make())
        for size in (1, 9, 3, 10, 2):
            store.put("a", size)
        assert store.entries == {"a": 2}
        store.put("b", 8)
        assert store.put("c", 10) is not None
        assert store.entries == {"c": 10}
