"""Readings of an engine that some routers ask for: its LoRA adapters, and what its prefix cache holds.

An engine answers when it is asked, and keeps nothing for it.
"""

from __future__ import annotations

from typing import NamedTuple, Protocol, runtime_checkable

from hermes.core.stage import Stage

__all__ = ["AdapterReadable", "Adapters", "CacheReadable"]


class Adapters(NamedTuple):
    """LoRA adapters of an engine, as of now, as vLLM's metric `lora_requests_info` shows them.

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
