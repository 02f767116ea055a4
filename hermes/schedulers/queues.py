"""Waiting queues of schedulers, by packing policy.

First come, first served is a deque: preempted sequences return to the front. When the first sequence leaves out of
turn, the scheduler replaces it by an index. The other policies are heaps with a total order (key, arrival): a preempted
sequence returns to the place of its key.
"""

from __future__ import annotations

import math
from collections import OrderedDict, deque
from collections.abc import Callable, Iterator
from typing import Any, Protocol, runtime_checkable

from hermes.config.registry import Registry
from hermes.core.generation import Generation
from hermes.memory.indexed_heap import IndexedHeap

__all__ = ["PACKING", "FcfsQueue", "HurryingQueue", "IndexedFcfsQueue", "LeastWorkQueue", "PriorityQueue",
           "ShortestJobQueue", "WaitingQueue"]


class WaitingQueue(Protocol):
    """Sequences that wait for admission. The head is the next that may be admitted.

    A queue that does not keep the order of arrival may have `hurry(seq)`: it puts `seq` before all others except
    sequences hurried earlier that arrived before it.
    """

    def push(self, seq: Generation) -> None: ...
    def push_preempted(self, seq: Generation) -> None: ...
    def peek(self) -> Generation: ...
    def pop(self) -> Generation: ...
    def remove(self, seq: Generation) -> None: ...
    def __len__(self) -> int: ...
    def __iter__(self) -> Iterator[Generation]: ...


@runtime_checkable
class HurryingQueue(Protocol):
    """A queue that can put a sequence before all others."""

    def hurry(self, seq: Generation) -> None: ...


# Any: configurations of plug-ins have nothing in common but pydantic
PACKING: Registry[Any] = Registry("packing", "a packing policy")


@PACKING.register("fcfs")
class FcfsQueue(deque[Generation]):
    """First come, first served."""

    push = deque.append
    push_preempted = deque.appendleft
    pop = deque.popleft

    def peek(self) -> Generation:
        return self[0]


class IndexedFcfsQueue(OrderedDict[Generation, None]):
    """The same, from which any sequence leaves in O(1). The rest costs three times as much."""

    def push(self, seq: Generation) -> None:
        self[seq] = None

    def push_preempted(self, seq: Generation) -> None:
        self[seq] = None
        self.move_to_end(seq, last=False)

    def peek(self) -> Generation:
        return next(iter(self))

    def pop(self) -> Generation:   # type: ignore[override]  # a queue's, not a mapping's
        return self.popitem(last=False)[0]

    def remove(self, seq: Generation) -> None:
        del self[seq]


class KeyedQueue:
    """A heap ordered by (key, arrival order). `update` moves a sequence whose key has changed."""

    key: Callable[[Generation], float]

    def __init__(self) -> None:
        self._heap: IndexedHeap[Generation] = IndexedHeap()

    def push(self, seq: Generation) -> None:
        self._heap.push(seq, (self.key(seq), seq.arrival_order))

    push_preempted = push

    def update(self, seq: Generation) -> None:
        """Move a sequence whose key has changed while it waits. Raises `KeyError` if it is not in the queue."""
        self._heap.update(seq, (self.key(seq), seq.arrival_order))

    def hurry(self, seq: Generation) -> None:
        """Put `seq` before all others; hurried sequences are in order of arrival."""
        self._heap.update(seq, (-math.inf, seq.arrival_order))

    def peek(self) -> Generation:
        return self._heap.peek()

    def pop(self) -> Generation:
        return self._heap.pop()

    def remove(self, seq: Generation) -> None:
        self._heap.remove(seq)

    def __contains__(self, seq: Generation) -> bool:
        return seq in self._heap

    def __len__(self) -> int:
        return len(self._heap)

    def __iter__(self) -> Iterator[Generation]:
        return iter(self._heap)


@PACKING.register("priority")
class PriorityQueue(KeyedQueue):
    """Most urgent (lowest priority number) first."""

    def key(self, seq: Generation) -> float:
        return seq.priority


@PACKING.register("shortest_job_first")
class ShortestJobQueue(KeyedQueue):
    """Fewest tokens in total (prompt + output) first."""

    def key(self, seq: Generation) -> float:
        return seq.prompt_tokens + seq.all_outputs


@PACKING.register("least_work_left")
class LeastWorkQueue(KeyedQueue):
    """Fewest tokens still to compute first: the rest of the prompt and the outputs not yet emitted."""

    def key(self, seq: Generation) -> float:
        return seq.prompt_tokens + seq.all_outputs - seq.num_computed
