"""Search for the hardest level that a system meets, with few trials.

A *level* is an integer; a higher one is harder: a rate on a grid of equal ratios, or a number of clients, negated. A
system meets all levels up to some level and misses all above. The search starts at one level, moves away from it in
strides that double until one level is met and a harder one is missed, and halves the interval between the two.

A simulation of finite length is noisy: near the limit it may miss one level and meet the next. So the search goes on
with the levels just below its answer; if one is missed, the answer is below that one.
"""

from __future__ import annotations

from dataclasses import dataclass, field

__all__ = ["Bracket"]


@dataclass
class Bracket:
    """The state of one search.

    Args:
        start: First level to try.
        stride: First step away from it.
        lowest, highest: Levels beyond which nothing is tried.
        confirm: Levels below the answer that are tried as well.
        known: Whether a level is met, for all levels tried.
        near: How far the met level and the missed one may be apart for an answer.
        hint: A level where the answer is expected; tried next if nothing known rules it out, once.
    """

    start: int
    stride: int = 1
    lowest: int | None = None
    highest: int | None = None
    confirm: int = 0
    known: dict[int, bool] = field(default_factory=dict)
    hint: int | None = None
    near: int = 1

    @property
    def misses_from(self) -> int | None:
        """The lowest level that was tried and missed, or None."""
        return min((level for level, met in self.known.items() if not met), default=None)

    @property
    def meets_up_to(self) -> int | None:
        """The highest level that was met, below all that were missed, or None."""
        limit = self.misses_from
        return max((level for level, met in self.known.items() if met and (limit is None or level < limit)),
                   default=None)

    @property
    def contradictions(self) -> int:
        """Levels that were met although a lower one was missed: the search assumes that there are none."""
        limit = self.misses_from
        return sum(met and limit is not None and level > limit for level, met in self.known.items())

    @property
    def closed(self) -> bool:
        """Whether the answer is known: a met level, and the next one missed or not allowed."""
        low, high = self.meets_up_to, self.misses_from
        if low is None:
            return high is not None and high == self.lowest
        return low == self.highest if high is None else high - low <= self.near

    def choose(self) -> int | None:
        """Return the level to try next, and forget the hint; None if the answer is known, and confirmed."""
        low, high = self.meets_up_to, self.misses_from
        if self.closed:
            below = () if low is None else range(low - 1, low - 1 - self.confirm, -1)
            return next((level for level in below if level not in self.known), None)
        if low is None and high is None:
            return self.start
        hint, self.hint = self.hint, None
        if hint is not None and self._inside(hint, low, high):
            return hint
        if high is None:
            assert low is not None
            level = low + max(self.stride, 2 * (low - self.start))
            return level if self.highest is None else min(level, self.highest)
        if low is None:
            level = high - max(self.stride, 2 * (self.start - high))
            return level if self.lowest is None else max(level, self.lowest)
        return (low + high) // 2

    def _inside(self, level: int, low: int | None, high: int | None) -> bool:
        below = self.lowest if low is None else low + 1
        above = self.highest if high is None else high - 1
        return (below is None or level >= below) and (above is None or level <= above)
