"""Blocks of the prompts in flight at each of some clients, of which those that several prompts share count once."""

from __future__ import annotations

from collections.abc import Hashable

import numpy as np

from hermes.arrays import IntArray
from hermes.routing.prefixes import Hashed

__all__ = ["ActiveBlocks"]


class ActiveBlocks:
    """Counts by place.

    Attributes:
        blocks: Distinct blocks of the prompts in flight.
    """

    def __init__(self, count: int) -> None:
        self.blocks: IntArray = np.zeros(count, dtype=np.int64)
        self._ends: dict[Hashable, dict[int, list[int]]] = {}   # of each prompt with a name: the block after its last
        self._prompts: dict[int, tuple[int, Hashed]] = {}

    def shared(self, prompt: Hashed) -> dict[int, int]:
        """Return how many blocks of a prompt are active, by place; places without are left out."""
        found: dict[int, int] = {}
        for name, first, end in prompt.runs:
            places = self._ends.get(name)
            if places is None:
                break
            for place, ends in places.items():
                found[place] = found.get(place, 0) + min(end, max(ends)) - first
        return found

    def add(self, number: int, place: int, prompt: Hashed) -> None:
        """Count a prompt at a place from now on."""
        blocks = prompt.own
        for name, first, end in prompt.runs:
            ends = self._ends.setdefault(name, {}).setdefault(place, [])
            blocks += max(0, end - max(ends, default=first))
            ends.append(end)
        self.blocks[place] += blocks
        self._prompts[number] = place, prompt

    def remove(self, number: int) -> None:
        """Stop counting a prompt."""
        if number not in self._prompts:
            return
        place, prompt = self._prompts.pop(number)
        blocks = prompt.own
        for name, first, end in prompt.runs:
            ends = self._ends[name][place]
            ends.remove(end)
            blocks += max(0, end - max(ends, default=first))
            if not ends:
                del self._ends[name][place]
                if not self._ends[name]:
                    del self._ends[name]
        self.blocks[place] -= blocks
