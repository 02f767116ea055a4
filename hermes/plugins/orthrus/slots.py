"""How the slots of a mixed batch are divided between embeddings and generations.

A *slot* is a place in the batch, taken from the step in which a request starts to the one in which it ends. A slot
policy answers, before every step, how many slots either kind may have in all, those that run included. It is a class
registered in `SLOTS`; `HeterogeneousScheduler` makes one object of it per client and starts the requests that have a
slot, first come first served.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Protocol

from hermes.config import Registry

__all__ = ["SLOTS", "BatchState", "Fcfs", "IntraBatch", "Resource", "SlotPolicy", "largest_split"]


@dataclass(frozen=True, slots=True)
class Resource:
    """Something that the requests of a batch share. capacity: how much there is; embedding, generation: what one of a
    kind takes of it, on average over those in the system (at least 1)."""

    capacity: int
    embedding: float = 1.0
    generation: float = 1.0


@dataclass(frozen=True, slots=True)
class BatchState:
    """What a policy may look at: how many of each kind wait and run, and what they share.

    resources: places in the batch first; KV blocks second, where whole answers are reserved up front.
    """

    waiting_embeddings: int
    waiting_generations: int
    running_embeddings: int
    running_generations: int
    resources: tuple[Resource, ...]


class SlotPolicy(Protocol):
    """Divides a batch. Made without arguments, one per client."""

    def slots(self, state: BatchState) -> tuple[int, int]:
        """Most embeddings and most generations in the next step, those that run included.

        Called before a step in which somebody waits. Must depend on `state` alone, and must give a kind that waits at
        least one slot: both are what runs of steps and freedom from starvation rest on. A request that runs is never
        stopped, so answers below what runs only keep others from starting; answers may add up to more than there is,
        and then places go in order of arrival.
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
    """The most slots in the ratio x : y that all resources have room for; at least one for each kind that waits.

    Orthrus's memory constraint x + F y <= L: an embedding takes one unit and a generation F, so that the slots of
    generations are L y / (x + F y), rounded down, and embeddings have what that leaves. Where one of each does not fit,
    either kind may have all there is, and the order of arrival decides.
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
