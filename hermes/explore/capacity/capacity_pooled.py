"""The highest load of several seeds: each load is judged by the requests of all seeds together.

The p99 of one short simulation misses a limit that the next one keeps, so a search with one seed ends at its unluckiest
load. Here a load is met if the share of all seeds' requests beyond each limit is at most the allowed one.

Near the answer that share grows with the load by a steady factor. So the shares of all loads that were simulated say
how it grows, and one load with long simulations says where it is the allowed one: that is the answer (`Shares`). Its
95% interval is that of the share (batch means, as `hermes size` has it). First come simulations as short as the first
seed's: they say where the answer is, and how many requests its interval needs. Then arrivals are so much longer, at
least three times or 20,000 requests, at most again three times and 60,000. While the interval is still too wide, more
seeds come, or longer arrivals, whatever costs less. The answer and the next load are simulated in any case.

Where shares cannot say it (a queue that grows decides, or the share does not rise), loads are simulated outwards from
the answer: its interval lies between the highest load that is met for certain and the lowest that is missed so.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from itertools import count
from typing import NamedTuple

from hermes.explore.bracket import Bracket
from hermes.explore.objective import Row, grows, missed, settled
from hermes.explore.size_check import ENOUGH, ENOUGH_LONG, pooled_beyond, times_as_long
from hermes.sums import float_sum

__all__ = ["Judged", "Pooled", "Shares", "judged", "most_of_pooled", "pooled"]

Simulate = Callable[[Sequence[int], float, str, int], list[Row]]   # seeds, times as long, suffix of labels, level
FEW = 3           # seeds before the others come
STRIDE = 2        # from the answer of one seed, and to the ends of the interval
SHORT_STRIDE = 8  # of short simulations, whose shares say how they grow
MOST_SHORT = 6    # levels of short simulations
NEAR = 0.3        # log of a share over the allowed one, within which one load says where the answer is
TIMES = 4.0       # from the allowed share, within which shares say where the answer is
KNOWN, KNOWN_ENOUGH = 0.3, 0.5   # standard error of the growth of shares, relative: asked for, and at most
MARGIN = 1.1      # of requests, over those that the interval needs
SHORT_MARGIN = 2.0   # the same by short simulations: a larger share, of higher loads, is relatively better known


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
    other, limits = _not_by_shares(rows), list(pooled_beyond(rows))
    met = (any(missed(row) is None for row in rows) and 2 * other <= len(rows)
           and all(one.share <= one.allowed for one in limits))
    sure = other == len(rows) or (other == 0 and not any(one.near for one in limits))
    return Judged(met, sure)


def _not_by_shares(rows: Sequence[Row]) -> int:
    """Return how many seeds miss what no share of requests says: a queue that grows, requests that nobody finished."""
    return sum(missed(row) is not None and (row.get("slo.pass") is not False or grows(row) or not settled(row)
                                            or bool(row.get("requests.unfinished"))) for row in rows)


def pooled(simulate: Simulate, start: int, requests: int, seeds: Sequence[int], most: int, lowest: int, within: float,
           shares: Shares | None = None) -> Pooled:
    """Search for the highest level that all seeds together meet, and for the ends of its interval.

    Args:
        start: The answer of one seed. requests: Of its simulation.
        most: Most levels of one round, without those for the ends of the interval.
        within: Levels from the answer to an end of its interval that are near enough.
        shares: Those of the first seed's search.
    """
    least = _rounded(times_as_long(requests, ENOUGH))
    longest = _rounded(least * times_as_long(requests * least, ENOUGH_LONG))
    one = _Round(simulate, seeds[:FEW], 1.0, Shares() if shares is None else shares, most, lowest)
    if least > 1.0 and (shares is None or shares.last()):
        start = one.scout(start)
        one.length = min(_rounded(one.shares.more(within, short=True) or 0.0), longest)
    one.length, lengthened = max(one.length, least), 0
    while True:
        last = one.length == longest and len(one.seeds) == len(seeds)
        found = one.search(start, within, last=last)
        if last or (found.low is not None and found.high is not None and found.high - found.low <= 2 * within):
            return _confirmed(one, found, least)
        start, more = one.nearest(start if found.level is None else found.level), one.shares.more(within)
        wanted = len(seeds) + 1 if more is None else max(math.ceil(len(one.seeds) * more), len(one.seeds) + 1)
        if wanted <= len(seeds) or one.length == longest:
            one.seeds = seeds[:wanted]
        else:
            again = more is not None and lengthened < 1
            one.length = min(_rounded(one.length * max(more or 0.0, MARGIN)), longest) if again else longest
            lengthened += 1


def most_of_pooled(seeds: int, most: int, within: float) -> int:
    """Return how many simulations `pooled` takes at most, without repetitions of those that do not settle."""
    few = min(seeds, FEW)
    rounds = 3 + seeds - few   # a length from short simulations, another one, the longest; more seeds
    return few * MOST_SHORT + seeds * (rounds * (most + 2 + 2 * (round(within) // STRIDE)) + 3 * most) + 2


def _rounded(times: float) -> float:
    """Return a factor on a length as labels have it."""
    return float(f"{times:.3g}")


def _confirmed(one: _Round, found: Pooled, least: float) -> Pooled:
    """Return an answer; simulate it and the next load, where only shares said them."""
    for level in (found.level, found.beyond):
        if level is not None and level not in one.rows:
            rows = one.simulate(one.seeds[:1], least, _suffix(least), level)
            if level == found.level and _not_by_shares(rows):
                return one.search(level, 0.0, last=True, by_shares=False)
    return found


def _suffix(length: float) -> str:
    return "" if length == 1.0 else f", {length:g} times as long"


class _Point(NamedTuple):
    """The share of requests beyond a limit.

    log: Of the share over the allowed one. half: Of its 95% interval over the share. weight: Requests beyond the limit.
    """

    level: float
    log: float
    half: float
    weight: float


class _Crossing(NamedTuple):
    """Where a limit is reached.

    level: At which its share is the allowed one. growth: Of the log of the share, by level. half: Of the 95% interval
    of the share, relative. whole: The same with what the error of the growth adds.
    """

    level: float
    growth: float
    half: float
    whole: float


def _mean(points: Sequence[_Point]) -> _Point:
    total = float_sum(one.weight for one in points)
    level, log, half = (float_sum(one.weight * one[i] for one in points) / total for i in range(3))
    return _Point(level, log, half, total)


@dataclass
class Shares:
    """Shares of requests beyond each limit, of all simulations so far.

    rounds: Of simulations with the same seeds and length: name of a limit -> points.
    """

    rounds: list[dict[str, list[_Point]]] = field(default_factory=lambda: [{}])

    def add(self, level: float, rows: Sequence[Row]) -> None:
        for one in pooled_beyond(rows):
            if one.allowed / TIMES <= one.share <= one.allowed * TIMES:   # further away it grows otherwise
                requests = sum(row["requests.total"] for row in rows)
                self.rounds[-1].setdefault(one.name, []).append(_Point(
                    level, math.log(one.share / one.allowed), one.half / one.share, one.share * requests))

    def growth(self, name: str) -> tuple[float, float]:
        """Return how the log of a limit's share grows by level, and the standard error of that; 0.0 where it is not
        known, or does not grow. It is that within rounds, since they differ in luck."""
        apart = [(at.level - mean.level, at.log - mean.log, at) for points in self.rounds if name in points
                 for mean in (_mean(points[name]),) for at in points[name]]
        spread = float_sum(at.weight * level ** 2 for level, _, at in apart)
        growth = float_sum(at.weight * level * log for level, log, at in apart) / spread if spread else 0.0
        error = math.sqrt(float_sum((at.weight * level * at.half / 1.96) ** 2 for level, _, at in apart))
        return (growth, error / spread) if growth > 0.0 else (0.0, 0.0)

    def last(self) -> dict[str, list[_Point]]:
        """Return the points of the last round that has any."""
        return next((points for points in reversed(self.rounds) if points), {})

    def known(self, error: float) -> bool:
        """Whether the growth of the shares in the last round is known within a standard error, relative."""
        last = self.last()
        return bool(last) and all(growth and one <= error * growth for growth, one in map(self.growth, last))

    def crossings(self) -> list[_Crossing] | None:
        """Return where each limit of the last round is reached, the lowest level first; None where that is not known.
        """
        lines = [(_mean(points), *self.growth(name)) for name, points in self.last().items()]
        if not lines or not all(growth for _, growth, _ in lines):
            return None
        # the error of the growth adds to the width of the interval, and on the way from the level that was simulated
        return sorted(_Crossing(mean.level - mean.log / growth, growth, mean.half,
                                math.hypot(mean.half * (1.0 + (error / growth) ** 2), 1.96 * mean.log * error / growth))
                      for mean, growth, error in lines)

    def ends(self) -> tuple[float, float] | None:
        """Return the levels at which the 95% interval of the share of a limit begins and ends to hold the allowed one;
        None where that is not known."""
        crossings = self.crossings()
        if not crossings or crossings[0].whole >= 1.0:
            return None
        halves = [(one.level, math.atanh(one.whole) / one.growth) for one in crossings if one.whole < 1.0]
        return min(level - half for level, half in halves), min(level + half for level, half in halves)

    def more(self, within: float, *, short: bool = False) -> float | None:
        """Return how many times as many requests make the interval narrow enough; None where that is not known.

        short: Of short simulations, far from the answer.
        """
        crossings = self.crossings()
        if not crossings:
            return None
        half = crossings[0].half if short else crossings[0].whole   # falls with the root of the requests
        return (SHORT_MARGIN if short else MARGIN) * (half / math.tanh(within * crossings[0].growth)) ** 2


@dataclass
class _Round:
    """A search with the same seeds and length.

    rows: Simulations of this round by level.
    """

    simulate: Simulate
    seeds: Sequence[int]
    length: float
    shares: Shares
    most: int
    lowest: int
    rows: dict[int, list[Row]] = field(default_factory=dict)

    def verdict(self, level: int) -> Judged:
        if level not in self.rows:
            self.rows[level] = self.simulate(self.seeds, self.length, _suffix(self.length), level)
            self.shares.add(level, self.rows[level])
        return judged(self.rows[level])

    def nearest(self, level: int) -> int:
        """Return the simulated level that is nearest to one."""
        return min(self.rows, key=lambda at: abs(at - level), default=level)

    def scout(self, start: int) -> int:
        """Simulate so many levels that the growth of shares is known well enough; return where the answer is expected.
        """
        self._begin()
        bracket = Bracket(start, SHORT_STRIDE, lowest=self.lowest)
        while len(self.rows) < min(self.most, MOST_SHORT):
            crossings = self.shares.crossings()
            if crossings:
                expected, growth = crossings[0][:2]
                near = abs(expected - self.nearest(round(expected))) <= SHORT_STRIDE
                if self.rows and near and self.shares.known(KNOWN):
                    break
                away = max(round(math.log(2.0) / growth), 1)   # to half, or twice, the allowed share
                below = sum(level < expected for level in self.rows)
                sign = 1 if 2 * below > len(self.rows) or not self.rows else -1
                level = next(level for step in count(away) if (level := round(expected) + sign * step) not in self.rows)
            elif (chosen := bracket.choose()) is not None:
                level = chosen
            else:
                break
            bracket.known[level] = self.verdict(level).met
        crossings = self.shares.crossings()
        found = round(crossings[0].level) if crossings else bracket.meets_up_to
        return start if found is None else found

    def search(self, start: int, within: float, *, last: bool, by_shares: bool = True) -> Pooled:
        """Search for the answer. last: Whether the ends of its interval are looked for further away than `within` where
        shares do not say them."""
        self._begin()
        bracket = Bracket(start, STRIDE, lowest=self.lowest)
        while len(self.rows) < self.most and (level := bracket.choose()) is not None:
            bracket.known[level] = self.verdict(level).met
            crossings = self.shares.crossings()
            if crossings and by_shares and self.shares.known(KNOWN_ENOUGH):
                expected, growth = crossings[0][:2]
                answer = math.floor(expected)
                if abs(expected - level) * growth <= NEAR and self._say(level):
                    if (ends := self.shares.ends()) is not None:
                        return Pooled(answer, answer + 1, min(ends[0], answer), max(ends[1], answer + 1.0), self.seeds)
                    if not last:   # longer simulations say them
                        return Pooled(answer, answer + 1, None, None, self.seeds)
                bracket.hint = answer + (answer in bracket.known)
        found, beyond, closed = bracket.meets_up_to, bracket.misses_from, bracket.closed
        if found is None or beyond is None:
            return Pooled(found, beyond, None, None, self.seeds, closed)
        steps = range(STRIDE, (self.most * STRIDE if last else round(within)) + 1, STRIDE)
        low = next((found - step for step in (0, *steps) if self.verdict(found - step) == (True, True)), None)
        high = next((found + step for step in (1, *steps) if self.verdict(found + step) == (False, True)), None)
        return Pooled(found, beyond, low, high, self.seeds, closed)

    def _begin(self) -> None:
        self.rows = {}
        self.shares.rounds.append({})

    def _say(self, level: int) -> bool:
        """Whether shares decide at a level, and are not too far from the allowed ones."""
        rows = self.rows[level]
        limits = list(pooled_beyond(rows))
        return not _not_by_shares(rows) and all(one.share <= one.allowed * TIMES for one in limits) and any(
            one.share >= one.allowed / TIMES for one in limits)
