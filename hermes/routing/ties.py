"""Random numbers of a router, drawn ahead from its own stream."""

from __future__ import annotations

import numpy as np

__all__ = ["Draws"]

_BLOCK = 256   # numbers drawn at a time


class Draws:
    """Uniform numbers from 0 to 1."""

    def __init__(self, rng: np.random.Generator) -> None:
        self._rng = rng
        self._ahead: list[float] = []

    def number(self) -> float:
        """Return the next number."""
        if not self._ahead:
            self._ahead = self._rng.random(_BLOCK).tolist()
        return self._ahead.pop()

    def below(self, count: int) -> int:
        """Return a number from 0 to `count` - 1, each as likely as the others. One of one is not drawn."""
        return 0 if count == 1 else int(self.number() * count)

    def drop(self) -> None:
        """Drop the numbers drawn ahead: the members have changed."""
        self._ahead.clear()
