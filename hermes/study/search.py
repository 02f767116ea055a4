"""Bisection for the highest rate that a system sustains. The searches of a study share rounds and points."""

from __future__ import annotations

from collections.abc import Callable, Hashable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

__all__ = ["Search", "run_searches"]

Row = Mapping[str, Any]
Key = tuple[Hashable, float]   # (system, rate)


@dataclass
class Search:
    """A bisection over candidate rates.

    Args:
        system: The system; its searches share their points.
        rates: Candidate rates, ascending.
        sustains: Whether a point's figures show that the system sustains its rate.
        low: Index of the highest rate known to be sustained, -1 at first.
        high: Index of the lowest rate known not to be sustained.
    """

    system: Hashable
    rates: Sequence[float]
    sustains: Callable[[Row], bool]
    low: int = -1
    high: int = field(default=-1)
    rows: dict[int, Row] = field(default_factory=dict)

    def __post_init__(self) -> None:
        if self.high < 0:
            self.high = len(self.rates)

    @property
    def open(self) -> bool:
        return self.high - self.low > 1

    @property
    def next(self) -> int:
        """Return the index of the next rate, halfway between `low` and `high`, rounded up."""
        return -(-(self.low + self.high) // 2)

    def learn(self, rows: Mapping[Key, Row]) -> None:
        """Narrow the interval by every point of this system in `rows`."""
        places = {rate: place for place, rate in enumerate(self.rates)}
        self.rows |= {places[rate]: row for (system, rate), row in rows.items()
                      if system == self.system and rate in places}
        while self.open and self.next in self.rows:
            if self.sustains(self.rows[self.next]):
                self.low = self.next
            else:
                self.high = self.next

    @property
    def highest(self) -> float | None:
        """Return the highest sustained rate; None if no rate is sustained."""
        return self.rates[self.low] if self.low >= 0 else None

    @property
    def contradictions(self) -> int:
        """Return simulated points that contradict the answer. Bisection assumes that there are none."""
        return sum(self.sustains(row) != (place <= self.low) for place, row in self.rows.items())


def run_searches(
    searches: Sequence[Search], simulate: Callable[[int, list[Key]], Sequence[Row]],
) -> dict[Key, Row]:
    """Run all searches to their ends. Each round simulates the next rate of every open search.

    Args:
        simulate: Function (round, systems and rates) -> their figures, in that order. It must return the same figures
            when
          called again, so that an interrupted study continues.

    Returns all points.
    """
    found: dict[Key, Row] = {}
    number = 0
    while any(search.open for search in searches):
        wanted = list(dict.fromkeys((s.system, s.rates[s.next]) for s in searches if s.open))
        rows = dict(zip(wanted, simulate(number, wanted), strict=True))
        found |= rows
        for search in searches:
            search.learn(rows)
        number += 1
    return found
