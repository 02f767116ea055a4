"""The highest load of several seeds: each load is judged by the requests of all seeds together.

The p99 of one short simulation misses a limit that the next one keeps, so a search with one seed ends at its unluckiest
load. Here a load is met if the share of all seeds' requests beyond each limit is at most the allowed one. The 95%
interval of that share (batch means, as `hermes size` has it) says whether the verdict is beyond noise. The interval of
the answer lies between the highest load that is met for certain and the lowest that is missed for certain. As in
`hermes size`, arrivals are longer, up to three times as long and 20,000 requests; while the interval is too wide, again
up to three times and 60,000; then come the other seeds.

The share grows with the load by a steady factor near the answer, so all loads that were simulated say together where
its interval touches the allowed share (`_Shares`). Where they cannot (a queue that grows decides, or the share does not
rise), loads are simulated outwards from the answer until a verdict is certain.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import NamedTuple

from hermes.explore.bracket import Bracket
from hermes.explore.objective import Row, grows, missed, settled
from hermes.explore.size_check import ENOUGH, ENOUGH_LONG, pooled_beyond, times_as_long
from hermes.sums import float_sum

__all__ = ["Judged", "Pooled", "judged", "pooled"]

Simulate = Callable[[Sequence[int], float, str, int], list[Row]]   # seeds, times as long, suffix of labels, level
FEW = 3      # seeds before the others come
STRIDE = 2   # from the answer of one seed, and to the ends of the interval
TIMES = 4.0  # from the allowed share, within which shares say where the interval ends


class Judged(NamedTuple):
    """A verdict on one load. sure: Whether it is beyond noise."""

    met: bool
    sure: bool


@dataclass(frozen=True)
class Pooled:
    """The answer of several seeds, by level; None for an end that the search did not come to.

    Args:
        level, beyond: The highest level that is met, and the next one, which is missed.
        low, high: The highest that is met for certain, and the lowest that is missed for certain, between levels.
        complete: False if the search ended by the number of levels.
    """

    level: int | None
    beyond: int | None
    low: float | None
    high: float | None
    seeds: Sequence[int]
    complete: bool = True


def judged(rows: Sequence[Row]) -> Judged:
    """Return the verdict of several seeds on one load."""
    misses = [missed(row) is not None for row in rows]
    # what no share of requests expresses; a queue that grows, requests that nobody finished
    other = sum(miss and (row.get("slo.pass") is not False or grows(row) or not settled(row)
                          or bool(row.get("requests.unfinished"))) for row, miss in zip(rows, misses, strict=True))
    limits = list(pooled_beyond(rows))
    met = not all(misses) and 2 * other <= len(rows) and all(one.share <= one.allowed for one in limits)
    sure = other == len(rows) or (other == 0 and not any(one.near for one in limits))
    return Judged(met, sure)


def pooled(simulate: Simulate, start: int, requests: int, seeds: Sequence[int], most: int, lowest: int, within: int
           ) -> Pooled:
    """Search for the highest level that all seeds together meet, and for the ends of its interval.

    Args:
        start: The answer of one seed. requests: Of its simulation.
        most: Most levels of one round, without those for the ends of the interval.
        within: Levels from the answer to an end of its interval that are near enough.
    """
    times = times_as_long(requests, ENOUGH)
    longest = times * times_as_long(requests * times, ENOUGH_LONG)
    rounds = list(dict.fromkeys(((*seeds[:FEW],), length, suffix if length > 1.0 else "") for length, suffix in (
        (times, ", longer"), (longest, ", longest"))))
    rounds += [((*seeds,), longest, rounds[-1][2])] if len(seeds) > FEW else []
    found, shares = Pooled(start, None, None, None, seeds), _Shares()
    for some, length, suffix in rounds:
        away = most * STRIDE if (some, length) == rounds[-1][:2] else within
        found = _round(partial(simulate, some, length, suffix), start if found.level is None else found.level, some,
                       most, lowest, away, shares)
        if None not in (found.low, found.high) and found.high - found.low <= 2 * within:   # type: ignore[operator]
            break
    return found


@dataclass
class _Shares:
    """Shares of requests beyond each limit, by level, of all simulations so far: name -> (level, log of the share,
    weight: requests beyond it)."""

    points: dict[str, list[tuple[int, float, float]]] = field(default_factory=dict)

    def add(self, level: int, rows: Sequence[Row]) -> None:
        for one in pooled_beyond(rows):
            mine = self.points.setdefault(one.name, [])
            if one.allowed / TIMES <= one.share <= one.allowed * TIMES:   # further away it grows otherwise
                requests = sum(row["requests.total"] for row in rows)
                mine.append((level, math.log(one.share), one.share * requests))

    def line(self, name: str) -> tuple[float, float] | None:
        """Return the log of the share at level 0 and its growth by level, by regression; None where it does not grow.
        """
        mine = self.points[name]
        if not mine:
            return None
        total = float_sum(weight for _, _, weight in mine)
        level, log = (float_sum(point[2] * point[i] for point in mine) / total for i in (0, 1))
        spread = float_sum(weight * (at - level) ** 2 for at, _, weight in mine)
        if not spread:
            return None
        slope = float_sum(weight * (at - level) * (value - log) for at, value, weight in mine) / spread
        return (log - slope * level, slope) if slope > 0 else None

    def ends(self, found: int, at: Sequence[Row], beyond: Sequence[Row]) -> tuple[float, float] | None:
        """Return the levels at which the 95% interval of the share of a limit begins and ends to hold the allowed one;
        None where that is not known. at, beyond: Simulations of the answer, and of the next level, which is missed."""
        lows, highs, missed_by = [], [], False
        for one, other in zip(pooled_beyond(at), pooled_beyond(beyond), strict=True):
            missed_by |= other.share > other.allowed
            if other.share + other.half <= other.allowed:
                continue   # this limit is far
            line = self.line(one.name)
            halves = [each.half / each.share for each in (one, other) if each.share]
            half = max(halves, default=0.0)
            if line is None or not 0.0 < half < 1.0:
                return None
            lows.append((math.log(one.allowed / (1.0 + half)) - line[0]) / line[1])
            highs.append((math.log(one.allowed / (1.0 - half)) - line[0]) / line[1])
        return (min([*lows, float(found)]), max(min(highs), found + 1.0)) if missed_by and highs else None


def _round(simulate: Callable[[int], list[Row]], start: int, seeds: Sequence[int], most: int, lowest: int, away: int,
           shares: _Shares) -> Pooled:
    """Search once. away: How many levels from the answer the ends of the interval are looked for."""
    rows: dict[int, list[Row]] = {}

    def verdict(level: int) -> Judged:
        if level not in rows:
            rows[level] = simulate(level)
            shares.add(level, rows[level])
        return judged(rows[level])

    bracket = Bracket(start, STRIDE, lowest=lowest)
    while len(rows) < most and (level := bracket.choose()) is not None:
        bracket.known[level] = verdict(level).met
    found, beyond = bracket.meets_up_to, bracket.misses_from
    if found is None or beyond is None:
        return Pooled(found, beyond, None, None, seeds, bracket.closed)
    if beyond == found + 1 and (ends := shares.ends(found, rows[found], rows[beyond])) is not None:
        return Pooled(found, beyond, *ends, seeds, bracket.closed)
    closed, steps = bracket.closed, range(STRIDE, away + 1, STRIDE)
    low = next((found - step for step in (0, *steps) if verdict(found - step) == (True, True)), None)
    high = next((found + step for step in (1, *steps) if verdict(found + step) == (False, True)), None)
    return Pooled(found, beyond, low, high, seeds, closed)
