"""Random router."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Literal

from hermes.config import ConfigModel
from hermes.core.client import Client
from hermes.core.router import RouterContext
from hermes.core.stage import Stage

__all__ = ["RandomConfig"]

_BLOCK = 1024   # numbers drawn at a time


class RandomConfig(ConfigModel):
    """Send a stage to a client drawn uniformly at random, regardless of load."""

    kind: Literal["random"] = "random"

    def build(self, context: RouterContext) -> RandomChoice:
        return RandomChoice(context)


class RandomChoice:
    def __init__(self, context: RouterContext) -> None:
        self._candidates, self._rng = list(context.candidates), context.rng
        self._draws: list[int] = []

    def changed(self, members: Sequence[Client]) -> None:
        """Draw among the members; numbers drawn ahead are dropped."""
        self._candidates, self._draws = list(members), []

    def choose(self, stage: Stage) -> Client:
        if not self._draws:
            self._draws = self._rng.integers(0, len(self._candidates), _BLOCK).tolist()
        return self._candidates[self._draws.pop()]
