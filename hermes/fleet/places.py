"""Where replicas are: the nodes and the zones that fail as a whole."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Annotated, NamedTuple

from pydantic import Field

from hermes.config import ConfigModel

__all__ = ["Nodes", "Places", "SlotPlace"]


class Nodes(ConfigModel):
    """Nodes of a group's replicas. One with more devices than a node has takes several nodes of its own; of one that
    fits into a node, those with the same `platform` share it."""

    devices: int | None = Field(default=None, ge=1, le=4096)
    """Devices of a node. Left out, those of the device's machine."""
    zone: Annotated[str, Field(min_length=1, max_length=4096)] | None = None
    """Zone of a replica's nodes: `{i}` stands for its number, `{i//4}` for the number divided by 4, `{i%3}` for the
    rest. Left out, no zone fails."""

    def shares(self, devices: int, machine: int) -> tuple[float, ...]:
        """Return the share of a replica's devices on each of its nodes. machine: Devices of a node by default."""
        each = self.devices or machine
        return tuple(min(each, devices - first) / devices for first in range(0, devices, each))


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
