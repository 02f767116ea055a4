"""Round-robin router."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Literal

from hermes.config import ConfigModel
from hermes.core.client import Client
from hermes.core.router import RouterContext
from hermes.core.stage import Stage

__all__ = ["RoundRobinConfig"]


class RoundRobinConfig(ConfigModel):
    """Send stages to the clients in turn."""

    kind: Literal["round_robin"] = "round_robin"

    def build(self, context: RouterContext) -> RoundRobin:
        return RoundRobin(context)


class RoundRobin:
    def __init__(self, context: RouterContext) -> None:
        self._candidates = list(context.candidates)
        self._next = 0

    def changed(self, members: Sequence[Client]) -> None:
        """Go on with the next client in turn that is left."""
        due = self._candidates[self._next].index
        self._candidates = list(members)
        self._next = next((place for place, client in enumerate(members) if client.index >= due), 0)

    def choose(self, stage: Stage) -> Client:
        client = self._candidates[self._next]
        self._next = (self._next + 1) % len(self._candidates)
        return client
