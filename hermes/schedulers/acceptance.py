"""Acceptance of drafts (speculative decoding): draws that depend on the sequence alone, not on when it runs."""

from __future__ import annotations

from hermes.config.streams import stream

__all__ = ["Acceptance"]

_MASK = 2**64 - 1


class Acceptance:
    """Draws how many drafts are accepted.

    Args:
        rates: Probability that the draft at each position is accepted if all before it are.
        given: Numbers of accepted drafts, used in turn by each sequence, in place of draws.

    A draw depends on the seed, on the sequence and on how often its drafts were verified, on nothing else.
    """

    def __init__(self, rates: list[float], given: list[int]) -> None:
        self._rates, self._given, self._seed = rates, given, 0

    def seed(self, seed: int) -> None:
        """Draw from a stream of this scenario's seed."""
        self._seed = int(stream(seed, "acceptance").integers(2**63))

    def draw(self, sequence: int, verified: int) -> int:
        """Return how many drafts of a sequence are accepted when they are verified the (verified + 1)-th time."""
        if self._given:
            return self._given[verified % len(self._given)]
        state = _mixed(_mixed(_mixed(self._seed) ^ sequence) ^ verified)
        for position, rate in enumerate(self._rates):
            state = _mixed(state)
            if state >= rate * 2.0**64:
                return position
        return len(self._rates)

    def first(self, sequence: int, count: int) -> list[int]:
        """Return the first `count` draws of a sequence."""
        return [self.draw(sequence, verified) for verified in range(count)]


def _mixed(value: int) -> int:
    """Return 64 bits that depend on all bits of `value` (the finalizer of SplitMix64, Steele et al. 2014)."""
    value = (value + 0x9E3779B97F4A7C15) & _MASK
    value = (value ^ (value >> 30)) * 0xBF58476D1CE4E5B9 & _MASK
    value = (value ^ (value >> 27)) * 0x94D049BB133111EB & _MASK
    return value ^ (value >> 31)
