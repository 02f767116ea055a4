"""Where replicas are: the nodes and the zones that fail as a whole."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

__all__ = ["Places", "SlotPlace"]


class SlotPlace(NamedTuple):
    """Where a slot's replica is.

    Attributes:
        node: Name of its first node.
        shared: Whether other slots may be on it.
        zone: "" without one.
    """

    node: str
    shared: bool = False
    zone: str = ""


class Places(NamedTuple):
    """Where the replicas of a group are.

    Attributes:
        slots: By slot.
        shares: Share of a replica's devices on each of its nodes.
        recreates: Whether all pods of a replica are made anew when one of them restarts.
    """

    slots: Sequence[SlotPlace]
    shares: tuple[float, ...] = (1.0,)
    recreates: bool = False
