"""How far a time may be trusted: a class, and factors between which the true one is expected."""

from __future__ import annotations

from typing import Literal, NamedTuple

__all__ = ["BY_BACKEND", "BY_SITE", "FEW", "GUESS", "MEASURED", "NEAR", "Kind", "Trust", "wider", "worst"]

Kind = Literal["measured", "near", "guess"]
KINDS: tuple[Kind, ...] = ("measured", "near", "guess")


class Trust(NamedTuple):
    """Class and range of one term of a step, or of a result.

    kind: `measured`: on this very device. `near`: measured on a relative, or a formula that was tested there. `guess`:
        from data sheets and generic factors.
    low, high: Factors of the predicted time; the true one is between them in about nine cases of ten.
    """

    kind: Kind
    low: float
    high: float

    def text(self) -> str:
        """In words, as `near, -15 to +15%`."""
        return f"{self.kind}, {self.low * 100 - 100:+.0f} to {self.high * 100 - 100:+.0f}%"


MEASURED = Trust("measured", 0.94, 1.06)
NEAR = Trust("near", 0.85, 1.15)
GUESS = Trust("guess", 0.6, 1.6)
BY_SITE = Trust("guess", 0.8, 4.0)   # all-reduces of more than `FEW` devices
# vLLM's 8-bit experts under expert parallelism: one server (MiniMax-M2.5) took 1.9 times, its prompts 4.6 times
BY_BACKEND = Trust("guess", 0.75, 4.0)
FEW = 2                              # devices whose all-reduces were the tables', or one formula's, where compared


def worst(kinds: tuple[Kind, ...]) -> Kind:
    """Return the least certain of some classes."""
    return max(kinds, key=KINDS.index)


def wider(*parts: Trust | None) -> Trust | None:
    """Return the least certain class of some parts, and a range that holds all theirs; None where none is known."""
    known = [part for part in parts if part is not None]
    if not known:
        return None
    return Trust(worst(tuple(part.kind for part in known)), min(part.low for part in known),
                 max(part.high for part in known))
