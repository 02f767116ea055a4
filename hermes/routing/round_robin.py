"""Round-robin router."""

from __future__ import annotations

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

    def choose(self, stage: Stage) -> Client:
        client = self._candidates[self._next]
        self._next = (self._next + 1) % len(self._candidates)
        return client
