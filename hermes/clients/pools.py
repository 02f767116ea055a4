"""KV memory of one client: the pool that its configuration asks for."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import TYPE_CHECKING

from hermes.memory import BlockPool, PrefixBlockPool

if TYPE_CHECKING:
    from hermes.clients.memory import MemoryConfig
    from hermes.memory.windows import WindowGroups

__all__ = ["pool_of"]

MakePool = Callable[..., BlockPool]


def pool_of(memory: MemoryConfig, groups: WindowGroups | None, budget: int, *, every_step: bool,
            unhashed_to_front: bool) -> MakePool:
    """Return the constructor of a client's pools, of a number of blocks and their tokens.

    Args:
        groups: The model's groups of layers; None if every layer keeps every token.
        budget: Most tokens of a step; 0 without a limit.
        every_step: Whether to use the literal pool where there is a faster one.
        unhashed_to_front: See `PrefixBlockPool`.
    """
    if not memory.prefix_caching:
        return BlockPool if groups is None else _windows(groups, budget, cached=False)
    if memory.kv_offload is not None:
        made = memory.kv_offload.pool()
    elif groups is not None:
        made = _windows(groups, budget, cached=True)
    else:
        made = _EVICTIONS[memory.prefix_eviction](memory, every_step)
    return partial(made, unhashed_to_front=unhashed_to_front)


def _windows(groups: WindowGroups, budget: int, *, cached: bool) -> MakePool:
    from hermes.memory.windows import WindowPool, WindowPrefixPool

    return partial(WindowPrefixPool if cached else WindowPool, groups=groups._replace(ahead=budget))


def _lru(memory: MemoryConfig, every_step: bool) -> MakePool:
    if not every_step:
        return PrefixBlockPool
    from hermes.memory.reference import ReferencePrefixPool

    return ReferencePrefixPool


def _tamm(memory: MemoryConfig, every_step: bool) -> MakePool:
    from hermes.memory.prefix_eviction import TammPrefixPool

    return partial(TammPrefixPool, recency=memory.prefix_recency)


def _ranked(memory: MemoryConfig, every_step: bool) -> MakePool:
    from hermes.memory.prefix_eviction import RankedPrefixPool

    assert memory.prefix_eviction in ("gdsf", "lfu", "fifo")
    return partial(RankedPrefixPool, policy=memory.prefix_eviction)


_EVICTIONS: dict[str, Callable[[MemoryConfig, bool], MakePool]] = {
    "lru": _lru, "tamm": _tamm, "gdsf": _ranked, "lfu": _ranked, "fifo": _ranked}
"""Pools with a prefix cache, by its order of eviction."""
