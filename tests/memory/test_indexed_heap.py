"""The indexed heap against a sorted list, in both orders."""

import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule

from hermes.memory.indexed_heap import IndexedHeap

KEYS = st.integers(0, 6)    # few, so that ties are common


class Model(RuleBasedStateMachine):
    """A heap and a list of (key, order given, item) that is sorted when asked."""

    max_first = False

    def __init__(self):
        super().__init__()
        self.heap = IndexedHeap(max_first=self.max_first)
        self.given, self.next_item = {}, 0
        self.count = 0

    def order(self):
        sign = -1 if self.max_first else 1
        return sorted(self.given, key=lambda item: (sign * self.given[item][0], self.given[item][1]))

    def set(self, item, key):
        self.count += 1
        self.given[item] = key, self.count

    @rule(key=KEYS)
    def push(self, key):
        self.heap.push(self.next_item, key)
        self.set(self.next_item, key)
        self.next_item += 1

    @precondition(lambda self: self.given)
    @rule(data=st.data(), key=KEYS)
    def update(self, data, key):
        item = data.draw(st.sampled_from(sorted(self.given)))
        old = self.given[item][0]
        if key < old:
            with pytest.raises(ValueError):
                self.heap.increase_key(item, key)
            self.heap.decrease_key(item, key)
        elif key > old:
            with pytest.raises(ValueError):
                self.heap.decrease_key(item, key)
            self.heap.increase_key(item, key)
        else:
            self.heap.update(item, key)
        self.set(item, key)

    @precondition(lambda self: self.given)
    @rule(data=st.data())
    def remove(self, data):
        item = data.draw(st.sampled_from(sorted(self.given)))
        self.heap.remove(item)
        del self.given[item]

    @precondition(lambda self: self.given)
    @rule()
    def pop(self):
        expected = self.order()[0]
        assert self.heap.peek() == expected
        assert self.heap.pop() == expected
        del self.given[expected]

    @invariant()
    def same(self):
        assert list(self.heap) == self.order()
        assert len(self.heap) == len(self.given)
        assert all(self.heap.key(item) == key for item, (key, _) in self.given.items())
        assert self.next_item not in self.heap


class MaxModel(Model):
    max_first = True


TestMin = Model.TestCase
TestMax = MaxModel.TestCase
TestMin.settings = TestMax.settings = settings(max_examples=60, stateful_step_count=40, deadline=None)


def test_an_item_is_in_it_once():
    heap = IndexedHeap()
    heap.push("a", 1)
    with pytest.raises(ValueError, match="'a'"):
        heap.push("a", 2)
    for operation in (heap.remove, heap.key, lambda item: heap.update(item, 3)):
        with pytest.raises(KeyError):
            operation("b")
    heap.pop()
    for operation in (heap.pop, heap.peek):
        with pytest.raises(IndexError):
            operation()


class Counted(float):
    """A key that counts how often it is compared."""

    compared = 0

    def __lt__(self, other):
        Counted.compared += 1
        return float.__lt__(self, other)

    def __gt__(self, other):
        Counted.compared += 1
        return float.__gt__(self, other)

    __eq__ = float.__eq__
    __hash__ = float.__hash__


def test_a_change_of_key_takes_logarithmically_many_comparisons():
    heap = IndexedHeap()
    for item in range(1 << 14):
        heap.push(item, Counted(item))
    for item, key in ((1 << 13, -1.0), (0, 1e9), (77, 77.5)):
        Counted.compared = 0
        heap.update(item, Counted(key))
        assert Counted.compared <= 2 * 14 + 2
