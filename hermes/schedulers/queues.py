"""The waiting queue, in packing order.

First come first served is a deque, in which preempted sequences return to the front. The other policies are heaps
with a total order (key, arrival), in which a preempted sequence goes back to where its key puts it.
"""

from __future__ import annotations

import heapq
from collections import deque
from collections.abc import Callable, Iterator
from typing import Any, Protocol

from hermes.registry import Registry
from hermes.schedulers.sequence import Sequence

__all__ = ["PACKING", "FcfsQueue", "LeastWorkQueue", "PriorityQueue", "ShortestJobQueue", "WaitingQueue"]


class WaitingQueue(Protocol):
    """Sequences that wait for admission. The head is the next that may be admitted."""

    def push(self, seq: Sequence) -> None: ...
    def push_preempted(self, seq: Sequence) -> None: ...
    def peek(self) -> Sequence: ...
    def pop(self) -> Sequence: ...
    def __len__(self) -> int: ...
    def __iter__(self) -> Iterator[Sequence]: ...


PACKING: Registry[Any] = Registry("packing", "a packing policy")


@PACKING.register("fcfs")
class FcfsQueue(deque[Sequence]):
    """First come, first served."""

    push = deque.append
    push_preempted = deque.appendleft
    pop = deque.popleft

    def peek(self) -> Sequence:
        return self[0]


class KeyedQueue:
    """A heap ordered by (key, arrival order)."""

    key: Callable[[Sequence], float]

    def __init__(self) -> None:
        self._heap: list[tuple[float, int, Sequence]] = []

    def push(self, seq: Sequence) -> None:
        heapq.heappush(self._heap, (self.key(seq), seq.arrival_order, seq))

    push_preempted = push

    def peek(self) -> Sequence:
        return self._heap[0][2]

    def pop(self) -> Sequence:
        return heapq.heappop(self._heap)[2]

    def __len__(self) -> int:
        return len(self._heap)

    def __iter__(self) -> Iterator[Sequence]:
        return (entry[2] for entry in sorted(self._heap, key=lambda e: e[:2]))


@PACKING.register("priority")
class PriorityQueue(KeyedQueue):
    """Most urgent (lowest priority number) first."""

    def key(self, seq: Sequence) -> float:
        return seq.priority


@PACKING.register("shortest_job_first")
class ShortestJobQueue(KeyedQueue):
    """Fewest tokens in all (prompt + output) first."""

    def key(self, seq: Sequence) -> float:
        return seq.prompt_tokens + seq.all_outputs


@PACKING.register("least_work_left")
class LeastWorkQueue(KeyedQueue):
    """Fewest tokens still to compute first: what is missing of the prompt and the outputs not yet emitted."""

    def key(self, seq: Sequence) -> float:
        return seq.prompt_tokens + seq.all_outputs - seq.num_computed
