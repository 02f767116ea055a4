"""Slot policies: division of a mixed batch's slots between embeddings and generations.

A *slot* is a place in the batch, taken from the step in which a request starts to the one in which it ends. Before
every step, a slot policy returns the number of slots of each kind, including those of running requests. It is a class
registered in `SLOTS`. `HeterogeneousScheduler` makes one object of it per client and starts the requests that have a
slot, first come first served.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Protocol

from hermes.config import Registry

__all__ = ["SLOTS", "BatchState", "Fcfs", "IntraBatch", "Resource", "SlotPolicy", "largest_split"]


@dataclass(frozen=True, slots=True)
class Resource:
    """A resource that the requests of a batch share.

    Attributes:
        capacity: Total amount.
        embedding, generation: Mean amount that one request of the kind takes, over those in the system (at least 1).
    """

    capacity: int
    embedding: float = 1.0
    generation: float = 1.0


@dataclass(frozen=True, slots=True)
class BatchState:
    """Input of a policy: waiting and running requests of each kind, and shared resources.

    Attributes:
        resources: Places in the batch first; KV blocks second, if whole answers are reserved up front.
    """

    waiting_embeddings: int
    waiting_generations: int
    running_embeddings: int
    running_generations: int
    resources: tuple[Resource, ...]


class SlotPolicy(Protocol):
    """Divides a batch. One object per client, made without arguments."""

    def slots(self, state: BatchState) -> tuple[int, int]:
        """Return the most embeddings and most generations of the next step, running ones included.

        The scheduler calls it before a step in which a request waits. The result must depend on `state` alone, and must
        give at least one slot to a kind that waits: runs of steps and freedom from starvation rest on both. A running
        request is never stopped, so a result below the running number only prevents starts. The sum may exceed the
        places; then places go in order of arrival.
        """
        ...


SLOTS: Registry[Any] = Registry("slots", "a slot policy")


@SLOTS.register("fcfs")
class Fcfs:
    """No division: requests of both kinds start in order of arrival."""

    def slots(self, state: BatchState) -> tuple[int, int]:
        places = state.resources[0].capacity
        return places, places


@SLOTS.register("ibs")
class IntraBatch:
    """Orthrus's intra-batch scheduling: embedding slots to generation slots as waiting embeddings to waiting
    generations, re-evaluated every step."""

    def slots(self, state: BatchState) -> tuple[int, int]:
        return largest_split(state.waiting_embeddings, state.waiting_generations, state)


def largest_split(x: float, y: float, state: BatchState) -> tuple[int, int]:
    """Return the most slots in the ratio x : y for which all resources have room; at least one for each kind that
    waits.

    Orthrus's memory constraint is x + F y <= L: an embedding takes one unit and a generation F. Generations get L y /
    (x + F y) slots, rounded down, and embeddings the rest. If one of each does not fit, either kind may take
    everything, and the order of arrival decides.
    """
    resources = state.resources
    if not (x and y) or any(r.capacity < r.embedding + r.generation for r in resources):
        alone = [min(int(r.capacity / each(r)) for r in resources) for each in (_embedding, _generation)]
        return max(1, alone[0]), max(1, alone[1])
    scale = min(r.capacity / (x * r.embedding + y * r.generation) for r in resources)
    generations = max(1, int(scale * y + 1e-9))
    embeddings = min((r.capacity - generations * r.generation) / r.embedding for r in resources)
    return max(1, int(embeddings + 1e-9)), generations


def _embedding(resource: Resource) -> float:
    return resource.embedding


def _generation(resource: Resource) -> float:
    return resource.generation
