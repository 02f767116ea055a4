"""Parts of a built simulation."""

from __future__ import annotations

from typing import Any

from hermes.dispatch.handoff import Handoff
from hermes.dispatch.simulation import Simulation

__all__ = ["handoff_of", "part_of"]


def part_of(parts: Any, kind: type) -> Any:   # Any: of dispatch or gateway
    """Return the part of a kind, None without."""
    return next((part for part in parts if isinstance(part, kind)), None)


def handoff_of(simulation: Simulation) -> Any:
    """Return what moves KV between clients, None where none moves."""
    return part_of(simulation.coordinator.parts, Handoff)
