"""Readings of an engine that some routers ask for: its LoRA adapters, what its prefix cache holds, how long steps take.

An engine answers when it is asked, and keeps nothing for it.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Hashable
from typing import NamedTuple, Protocol, runtime_checkable

from hermes.core.generation import Generation
from hermes.core.stage import Stage

__all__ = ["AdapterReadable", "Adapters", "CacheEvents", "CacheReadable", "StepReadable"]


class Adapters(NamedTuple):
    """LoRA adapters of an engine, as of now, as vLLM's metric of LoRA requests shows them.

    Attributes:
        running, waiting: Numbers of the adapters of the sequences in the batch, and of those in the queue.
        most: Most adapters in a step (`max_loras`); None without a limit.
    """

    running: set[int]
    waiting: set[int]
    most: int | None


@runtime_checkable
class AdapterReadable(Protocol):
    """A client whose adapters a router can see."""

    name: str

    def adapters(self) -> Adapters:
        """Return its adapters as of now."""
        ...


@runtime_checkable
class CacheReadable(Protocol):
    """A client whose prefix cache a router can see."""

    name: str

    def cached_tokens(self, stage: Stage) -> int:
        """Return how many tokens of a stage's prompt its device memory holds now: whole blocks, from the beginning on,
        never all of the prompt. The cache does not count as used."""
        ...

    def caches_in_host(self) -> bool:
        """Return whether it keeps KV in host memory too."""
        ...

    def host_tokens(self, stage: Stage, past: int) -> int:
        """Return how many tokens of a stage's prompt after the first `past` its host memory can give back now: the end
        of its last whole chunk there, at most the prompt's, less `past`."""
        ...

    def cache_events(self) -> CacheEvents:
        """Return what its prefix cache gains and loses from now on, after what it holds."""
        ...


@runtime_checkable
class StepReadable(Protocol):
    """A client whose step times a router can estimate."""

    name: str

    def step_estimate_ns(self, prompt_tokens: int, past_tokens: int, decode_seqs: int, decode_tokens: int) -> int:
        """Return how long a step takes that computes tokens of one prompt, of which the first `past_tokens` are in KV
        memory, and one token of each of so many sequences with so many tokens there together. A step has one of the two
        at least."""
        ...


class CacheEvents(Protocol):
    """Gains and losses of a prefix cache, for one reader.

    Attributes:
        events: Tuples of the time in ns, whether blocks were stored, their name, the first, and the one after the last.
            The reader takes them out from the front.
        incarnation: How often the cache has been lost as a whole.
    """

    events: deque[tuple[int, bool, Hashable, int, int]]
    incarnation: int

    def catch_up(self) -> None:
        """Note what has happened up to now."""
        ...

    def names(self, stage: Generation) -> list[tuple[Hashable, int, int]]:
        """Return name, first block and block after the last of a prompt's blocks that others may share, in order."""
        ...

    @property
    def block_tokens(self) -> int:
        """Tokens of a block."""
        ...

    @property
    def naming(self) -> Hashable:
        """What is equal for two caches that name the blocks of a prompt alike."""
        ...
