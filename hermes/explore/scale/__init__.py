"""The fewest device-hours with which a fleet that comes and goes stays within a limit of minutes out of its SLO.

Varied are the autoscaler's targets (all by one factor, in steps of 5%), its `min` and `max`, and the replicas at the
start. A higher target means fewer replicas: fewer device-hours, and as a rule more minutes out of limit.

- The *static* fleet comes first: the fewest replicas, held throughout, that keep the limit, by bisection. If the most
  that the group may have do not keep it, nothing does.
- For a pair of `min` and `start` the highest target that keeps the limit is searched for (`hermes.explore.bracket`).
  First come three values of `min` below the static fleet's replicas, then those half way from the best to its
  neighbours. All start with as many replicas as the static fleet, so that the first minutes do not decide. Then come
  lower values of `max`, the static fleet's replicas first: an autoscaler may ask for more than that, and pay for it. At
  last come fewer at the start. A pair whose `min` alone costs more than the best fleet found is left out.
- A fleet keeps the limit if it does so with each seed. Further seeds are simulated only for a fleet that keeps it with
  the first one and costs hardly more than the best.
- The answer is simulated with seeds that the search has not seen. One that misses counts from then on, and the search
  goes on below.

A simulation is never lengthened: the question is about the scenario's own day.
"""

from __future__ import annotations

import math
import statistics
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, NamedTuple

from hermes.config.writing import scratch_folder
from hermes.core.noise import t_quantile
from hermes.errors import HermesError, InputError
from hermes.explore.bracket import Bracket
from hermes.explore.objective import Row, need_slo
from hermes.explore.scale.figures import LOST, PREFIX
from hermes.explore.scale.space import Fleet, Limit, Space, space_of
from hermes.explore.sweep.executor import Executor, opened
from hermes.explore.sweep.store import Folder
from hermes.explore.trials import Trials
from hermes.results.progress import OnProgress
from hermes.scenario import Overrides, Scenario, load_scenario
from hermes.scenario.loading import overridden

__all__ = ["Limit", "Point", "Scaled", "Seen", "scale"]

EXTRACT = "hermes.explore.scale.figures:scale_figures"
CHECKS = 3         # seeds that the search has not seen
MOST_CHECKS = 5    # rounds of them
STRIDE = 16        # first steps from the scenario's own target: a factor of 2.2
NEAR = 3           # the same from the best target known
SLACK = 1.01       # over the best answer's device-hours with the first seed: the mean over the seeds may be below it
CONFIRM = 1        # targets below the answer that are tried as well
USUAL = 35         # fleets of an autoscaler that are tried as a rule
NEIGHBOURS = 4     # rounds of values of `min` next to the best one

Estimate = Callable[[int, float], None]


class Seen(NamedTuple):
    """Figures of one simulation of a fleet.

    Attributes:
        out, minutes: Minutes out of limit, and all in which requests arrived.
        hours: Device-hours of the group, held from the decision for a replica until it is gone.
        dollars: Of the group; None without a price.
        ready_mean, ready_most: Replicas that take requests.
        cold: Requests that miss their limits and arrived while a replica was starting.
        events: Decisions of the autoscaler per day that change the replicas.
        lost: Requests without an answer, by cause.
        starts, start_s: Starts that came to an end, and their mean time (None without one).
        length_h: Hours from 0 to the end, in which devices are held.
    """

    out: int
    minutes: int
    hours: float
    dollars: float | None
    ready_mean: float
    ready_most: int
    cold: int
    events: float
    lost: dict[str, int]
    starts: int
    start_s: float | None
    length_h: float


@dataclass
class Point:
    """A fleet and its simulations by seed."""

    fleet: Fleet
    seen: dict[int, Seen] = field(default_factory=dict)

    def mean(self, name: str) -> float | None:
        """Return the mean of a figure over the seeds; None if one has none."""
        values = [getattr(one, name) for one in self.seen.values()]
        return None if None in values or not values else statistics.fmean(values)

    @property
    def hours(self) -> float:
        """Mean device-hours over the seeds."""
        return statistics.fmean(one.hours for one in self.seen.values())

    @property
    def half_width(self) -> float | None:
        """Half of the 95% interval of the mean device-hours over the seeds; None with one."""
        values = [one.hours for one in self.seen.values()]
        if len(values) < 2:
            return None
        return t_quantile(len(values)) * statistics.stdev(values) / math.sqrt(len(values))

    @property
    def out(self) -> tuple[int, int]:
        """Fewest and most minutes out of limit of any seed."""
        values = [one.out for one in self.seen.values()]
        return min(values), max(values)

    @property
    def lost(self) -> dict[str, int]:
        """Requests without an answer by cause, of all seeds."""
        causes = sorted({cause for one in self.seen.values() for cause in one.lost})
        return {cause: sum(one.lost.get(cause, 0) for one in self.seen.values()) for cause in causes}


@dataclass(frozen=True)
class Scaled:
    """The answer.

    Args:
        best: The fleet of the autoscaler with the fewest device-hours of those that keep the limit; None if none does
            with fewer than the static fleet.
        static: The static fleet with the fewest replicas that keeps the limit; None if none does.
        beyond: The fleet with the next higher target, which misses the limit; None if none was tried.
        points: All fleets that were simulated.
        seeds: Seeds that each answer keeps the limit with; the first ones are those of the search.
        checked: How many of them, the last ones, the search had not seen; 0 if the check did not come to an end.
        path: Folder of the simulations, a sweep; None if they were not kept.
    """

    name: str
    scenario: Scenario
    space: Space
    limit: Limit
    best: Point | None
    static: Point | None
    beyond: Point | None
    points: list[Point]
    seeds: list[int]
    checked: int
    path: Path | None = None

    @property
    def cheapest(self) -> Point | None:
        """The fleet with the fewest device-hours, static or not."""
        found = [one for one in (self.best, self.static) if one is not None]
        return min(found, key=lambda one: one.hours, default=None)

    @property
    def saved(self) -> float | None:
        """By how much fewer device-hours the best fleet needs than the static one, relative."""
        if self.best is None or self.static is None:
            return None
        return 1.0 - self.best.hours / self.static.hours

    def keeps(self, point: Point) -> bool:
        """Whether a fleet keeps the limit with all seeds that it was simulated with."""
        return all(self.limit.allows(one.out, one.minutes) for one in point.seen.values())

    def document(self, point: Point) -> dict[str, Any]:
        """Return the scenario's document with a fleet."""
        source = self.scenario.source
        assert source.node is not None
        return overridden(  # type: ignore[no-any-return]
            source.node, self.space.settings(point.fleet), source.base_dir).plain()


def scale(
    scenario: str | Path | Mapping[str, Any], limit: Limit, *, group: str | None = None, overrides: Overrides = (),
    seeds: int = 3, least: Sequence[int] | None = None, starts: Sequence[int] | None = None, workers: int = 1,
    out: str | Path | None = None, executor: Executor | None = None, progress: OnProgress | None = None,
    estimated: Estimate | None = None,
) -> Scaled:
    """Find the fleet of an autoscaler, and the static one, that need the fewest device-hours within a limit.

    Args:
        scenario: A file, the name of a built-in scenario, or a dict. A group has a fleet whose autoscaler has targets.
        limit: Minutes of a run that may be out of the SLO.
        group: Name of the group; None for the only one that can be varied.
        overrides: Settings such as `"slo.ttft=1s"`.
        seeds: Seeds of the search, from the scenario's own on. The answer is checked with others.
        least, starts: Values of `min` and `start` to try, each with each. Left out, those described above.
        workers: Processes; 0 runs all in this one.
        out: Folder that keeps the simulations as a sweep; a repeated call continues. Left out, none are kept.
        executor: Executor to use instead of `workers` new processes.
        progress: Called with each round (`hermes.results.progress.OnProgress`).
        estimated: Called once, after the first simulations, with the number of simulations that a search takes as a
            rule and the seconds of processor time of one (0 if it was simulated by an earlier call).

    Raises `InputError` for a scenario without an SLO, and for one without an autoscaler that has a target.
    """
    checked = load_scenario(scenario, overrides)
    need_slo(checked)
    space = space_of(checked, group)
    for option, values, most in (("--min", least, space.most), ("--start", starts, space.most_static)):
        if values and max(values) > most:
            raise InputError(f"at most {most}, the replicas that the fleet may have", max(values), field=option)
    with (scratch_folder(out) as folder,
          opened(executor, workers) as doing):
        trials = Trials(f"size {checked.title}", checked, folder, doing, progress, extract=EXTRACT)
        trials.arrivals = replace(trials.arrivals, fixed=True)   # the day is as long as it is
        search = _Search(trials, space, limit, list(range(checked.seed, checked.seed + seeds)), estimated)
        search.static()
        if search.fewest is not None:
            search.fleets(least, starts)
        search.check()
        if out is not None:
            trials.finish()
    best, static = search.best(), search.fewest
    return Scaled(checked.title, checked, space, limit, best, static, search.beyond(best), list(search.points.values()),
                  search.seeds, search.checked, None if out is None else Path(out))


@dataclass(eq=False)
class _Pair:
    """The search for the highest target with one `min`, `start` and `max`."""

    least: int | None
    start: int
    most: int | None
    bracket: Bracket


class _Search:
    """Fleets that were simulated, and the searches over them."""

    def __init__(self, trials: Trials, space: Space, limit: Limit, seeds: list[int],
                 estimated: Estimate | None = None) -> None:
        self.points: dict[Fleet, Point] = {}
        self.seeds, self.checked = seeds, 0
        self.fewest: Point | None = None   # of the static fleets that keep the limit
        self._trials, self._space, self._limit, self._estimated = trials, space, limit, estimated
        self._pairs: dict[tuple[int | None, int, int | None], _Pair] = {}
        self._range: tuple[int, int, Sequence[int] | None] | None = None   # values of `min`, and replicas at the start
        self._usual = 0   # simulations that a search takes as a rule

    # -- simulations ---------------------------------------------------------------------------------------------------

    def _simulate(self, wanted: Iterable[tuple[Fleet, int]]) -> None:
        new = {f"{fleet.label}, seed {seed}": (fleet, seed) for fleet, seed in wanted
               if fleet not in self.points or seed not in self.points[fleet].seen}
        if not new:
            return
        first = not self.points
        rows = self._trials.run({label: (self._space.settings(fleet), seed) for label, (fleet, seed) in new.items()})
        for label, (fleet, seed) in new.items():
            self.points.setdefault(fleet, Point(fleet)).seen[seed] = _seen(rows[label], self._space.group)
        if first and self._estimated is not None:
            self._estimated(self._usual, self._seconds())

    def _seconds(self) -> float:
        """Return the processor time of one of the simulations so far; 0 if the folder does not say it."""
        took = [float(row["cpu_s"]) for row in Folder(self._trials.folder).journal()]
        return statistics.fmean(took) if took else 0.0

    def _ok(self, fleet: Fleet, seeds: Iterable[int]) -> bool:
        """Whether a fleet keeps the limit with those of these seeds that it was simulated with."""
        seen = self.points[fleet].seen
        return all(self._limit.allows(seen[seed].out, seen[seed].minutes) for seed in seeds if seed in seen)

    def _met(self, fleets: Sequence[Fleet], *, fully: bool = False) -> dict[Fleet, bool]:
        """Return whether fleets keep the limit with each seed. fully: Simulate all seeds of those that keep it with the
        first one; otherwise only of those that cost hardly more than the best answer so far, since others are none."""
        first, *further = self.seeds
        self._simulate((fleet, first) for fleet in fleets)
        bar = math.inf if fully else SLACK * self._bar()
        left = [fleet for fleet in fleets if self._ok(fleet, self.seeds) and self._hours(self.points[fleet]) <= bar]
        self._simulate((fleet, seed) for fleet in left for seed in further)
        return {fleet: self._ok(fleet, self.seeds) for fleet in fleets}

    # -- static --------------------------------------------------------------------------------------------------------

    def static(self) -> None:
        """Find the fewest replicas, held throughout, that keep the limit."""
        most = self._space.most_static
        steps, each = 2 + most.bit_length(), (1 + len(self.seeds)) / 2   # each: simulations of a fleet, on average
        self._trials.left = self._usual = round((steps + USUAL) * each) + 2 * CHECKS
        bracket = Bracket(-most, lowest=-most, highest=-1)
        ends = {self._space.static(replicas): -replicas for replicas in (most, 1)}
        for fleet, met in self._met(list(ends), fully=True).items():
            bracket.known[ends[fleet]] = met
        while bracket.known[-most] and (level := bracket.choose()) is not None:
            fleet = self._space.static(-level)
            bracket.known[level] = self._met([fleet], fully=True)[fleet]
        level = bracket.meets_up_to
        self.fewest = None if level is None else self.points[self._space.static(-level)]

    # -- autoscaler ----------------------------------------------------------------------------------------------------

    def fleets(self, least: Sequence[int] | None, starts: Sequence[int] | None) -> None:
        """Find the targets, `min` and `start`. Called after `static`, if a static fleet keeps the limit."""
        assert self.fewest is not None
        space, static = self._space, self.fewest.fleet.start
        top = min(max(static - 1, 1), space.most)
        low = 0 if space.least == 0 else 1
        if space.least is None:
            tried: list[int | None] = [None]
        else:
            spread = {low, *(value for value in (round(static / 3), round(2 * static / 3)) if low < value <= top)}
            tried = [*(sorted(spread) if least is None else least)]
        pairs = [pair for value in tried for start in self._starts(value, starts)
                 if (pair := self._pair(value, start)) is not None]
        if not pairs:
            raise InputError(f"starts of at least {min(value or 0 for value in tried)}, the smallest `min`",
                             ",".join(map(str, starts or ())), field="--start")
        self._search(pairs)
        if least is None and space.least is not None:
            self._range = low, top, starts
            self._search_neighbours()
        self._search_caps(starts)
        if starts is None:
            best, cap = self.best(), self._caps(tried[0])[0]
            capped = self._pairs.get((tried[0], max(tried[0] or 0, static), cap))
            fleets = [Fleet(static, tried[0], None if capped is None else capped.bracket.meets_up_to, most=cap)]
            self._search([pair for fleet in ([] if best is None else [best.fleet]) + fleets
                          for start in self._fewer_starts(fleet)
                          if (pair := self._pair(fleet.least, start, fleet.level, fleet.most)) is not None])

    def _fewer_starts(self, fleet: Fleet) -> list[int]:
        """Return numbers of replicas at the start, down to one or `min`."""
        assert self.fewest is not None
        own, static = self._space.start, self.fewest.fleet.start
        fewest = max(fleet.least or 0, min(own, 1))
        return sorted({fewest, (fewest + static) // 2, min(max(own, fewest), static)})

    def _caps(self, least: int | None) -> list[int | None]:
        """Return values of `max` below the scenario's own, lowest first; [None] without any."""
        assert self.fewest is not None
        static, most = self.fewest.fleet.start, self._space.most
        caps = sorted({static, (static + most) // 2}) if self._space.capped else []
        return [cap for cap in caps if (least or 1) <= cap < most] or [None]

    def _search_caps(self, starts: Sequence[int] | None) -> None:
        """Search with a lower `max`, with the smallest and the best `min`; without a best one, with each."""
        best, every = self.best(), {pair.least for pair in self._pairs.values()}
        leasts = every if best is None else {min(every, key=lambda value: value or 0), best.fleet.least}
        level = 0 if best is None else best.fleet.level
        self._search([pair for least in sorted(leasts, key=lambda value: value or 0) for cap in self._caps(least)
                      for start in self._starts(least, starts) if start <= (cap or start)
                      and (pair := self._pair(least, start, level, cap)) is not None])

    def _search_neighbours(self) -> None:
        """Search with values of `min` next to the best one, where they were not given."""
        if self._range is None or self.fewest is None:   # `min` was given; or no static fleet keeps the limit any more
            return
        low, top, starts = self._range
        for _ in range(NEIGHBOURS):
            if not self._search_near(self._half_way(low, top), lambda value: self._starts(value, starts)):
                return

    def _starts(self, least: int | None, starts: Sequence[int] | None) -> list[int]:
        assert self.fewest is not None
        return [max(least or 0, self.fewest.fleet.start)] if starts is None else [
            start for start in starts if start >= (least or 0)]

    def _half_way(self, low: int, top: int) -> list[int]:
        """Return the values of `min` half way from the best one to its neighbours that were tried; without a best one,
        those above all that were tried: the largest, and half way to it."""
        best, tried = self.best(), sorted({pair.least for pair in self._pairs.values() if pair.least is not None})
        if best is None:
            most = max(tried, default=low)
            return sorted({value for value in ((most + top + 1) // 2, top) if value > most})
        if best.fleet.least is None:
            return []
        mine = best.fleet.least
        below = max((value for value in tried if value < mine), default=low - 1)
        above = min((value for value in tried if value > mine), default=top + 1)
        return [value for value in ((below + mine) // 2, (mine + above) // 2)
                if value not in tried and low <= value <= top]

    def _search_near(self, values: Sequence[int], starts: Callable[[int], list[int]]) -> bool:
        """Search with these values of `min`, from the best target on; whether there were any."""
        best = self.best()
        level = 0 if best is None or best.fleet.level is None else best.fleet.level
        found = [pair for value in values for start in starts(value)
                 if (pair := self._pair(value, start, level)) is not None]
        self._search(found)
        return bool(found)

    def _pair(self, least: int | None, start: int, near: int | None = None, most: int | None = None
              ) -> _Pair | None:
        """Return a new search, from the scenario's own targets on or near a level; None if there is one already."""
        if (least, start, most) in self._pairs:
            return None
        lowest, highest = self._space.levels
        bracket = Bracket(near or 0, STRIDE if near is None else NEAR, lowest, highest, CONFIRM)
        return self._pairs.setdefault((least, start, most), _Pair(least, start, most, bracket))

    def _search(self, pairs: Iterable[_Pair]) -> None:
        """Search for the highest target of each pair, side by side."""
        left = list(pairs)
        while left:
            wanted: dict[Fleet, tuple[_Pair, int]] = {}
            for pair in left:
                level = None if self._too_dear(pair) else pair.bracket.choose()
                if level is not None:
                    wanted[self._space.scaled(level, pair.least, pair.start, pair.most)] = pair, level
            left = [pair for pair, _ in wanted.values()]
            for fleet, met in self._met(list(wanted)).items():
                pair, level = wanted[fleet]
                pair.bracket.known[level] = met

    def _too_dear(self, pair: _Pair) -> bool:
        """Whether `min` replicas alone cost more than the best fleet, if they are held as long as the static one."""
        if self.fewest is None:
            return False
        return (pair.least or 0) * self._hours(self.fewest) / self.fewest.fleet.start >= self._bar()

    def _hours(self, point: Point) -> float:
        return point.seen[self.seeds[0]].hours

    def _bar(self) -> float:
        """Return the device-hours, with the first seed, that an answer has to stay below: those of the best so far."""
        return min((self._hours(point) for point in (self.best(), self.fewest) if point is not None), default=math.inf)

    def best(self) -> Point | None:
        """Return the cheapest fleet of an autoscaler that keeps the limit with all seeds and costs less than the static
        one; of equals, the one with the lowest target: it is farthest from the limit."""
        found = [point for fleet, point in self.points.items() if not fleet.is_static
                 and point.seen.keys() >= set(self.seeds) and self._ok(fleet, point.seen)
                 and (self.fewest is None or point.hours < self.fewest.hours)]
        return min(found, key=lambda point: (point.hours, point.out[1], point.fleet.level), default=None)

    def beyond(self, best: Point | None) -> Point | None:
        """Return the fleet with the next higher target than the best, of those that miss the limit."""
        if best is None or best.fleet.level is None:
            return None
        higher = [point for fleet, point in self.points.items() if fleet.level is not None
                  and (fleet.least, fleet.start, fleet.most) == (best.fleet.least, best.fleet.start, best.fleet.most)
                  and fleet.level > best.fleet.level and not self._ok(fleet, point.seen)]
        return min(higher, key=lambda point: point.fleet.level or 0, default=None)

    # -- check ---------------------------------------------------------------------------------------------------------

    def check(self) -> None:
        """Simulate the answers with seeds that the search has not seen; where one misses, search on with it."""
        for _ in range(MOST_CHECKS):
            best, static = self._completed(), self.fewest
            if static is None:
                return
            fresh = [self.seeds[-1] + more for more in range(1, CHECKS + 1)]
            fleets = [static.fleet, *([] if best is None else [best.fleet])]
            self._trials.left = max(self._trials.left, len(fleets) * CHECKS)
            self._simulate((fleet, seed) for fleet in fleets for seed in fresh)
            missed = [fleet for fleet in fleets if not self._ok(fleet, fresh)]
            self.seeds = [*self.seeds, *fresh]
            if not missed:
                self.checked = CHECKS
                return
            if static.fleet in missed:
                self._one_more()
                self._search(list(self._pairs.values()))   # some that were too dear next to fewer replicas
                self._search_neighbours()
            if best is not None and best.fleet in missed:
                self._search_below(best.fleet)
                self._search_neighbours()   # another one may be the best by now
        self._completed()

    def _one_more(self) -> None:
        """Go on to the next larger static fleet that keeps the limit with all seeds."""
        while self.fewest is not None and not self._ok(self.fewest.fleet, self.fewest.seen):
            replicas = self.fewest.fleet.start + 1
            if replicas > self._space.most_static:
                self.fewest = None
                return
            fleet = self._space.static(replicas)
            self._met([fleet], fully=True)
            self.fewest = self.points[fleet]

    def _search_below(self, fleet: Fleet) -> None:
        pair = self._pairs[fleet.least, fleet.start, fleet.most]
        assert fleet.level is not None
        pair.bracket.known[fleet.level] = False
        self._search([pair])

    def _completed(self) -> Point | None:
        """Return the best fleet, after simulating all seeds of fleets that may be cheaper."""
        while True:
            bar = self._bar()
            cheaper = [point for fleet, point in self.points.items() if not fleet.is_static
                       and not point.seen.keys() >= set(self.seeds) and self._ok(fleet, point.seen)
                       and self._hours(point) < bar]
            if not cheaper:
                return self.best()
            fleet = min(cheaper, key=lambda point: (self._hours(point), point.fleet.label)).fleet
            if not self._met([fleet], fully=True)[fleet]:
                self._search_below(fleet)


def _seen(row: Row, group: str) -> Seen:
    """Return the figures of a simulation of a group."""
    fleet, own = f"fleet.{group}.", PREFIX
    if f"{fleet}held_device_hours" not in row:
        raise HermesError(f"the summary has no fleet of {group}")
    lost = {key.removeprefix(LOST): int(value) for key, value in row.items() if key.startswith(LOST) and value}
    return Seen(
        out=int(row["fleet_slo.slo_minutes_out"]), minutes=int(row["fleet_slo.minutes"]),
        hours=float(row[f"{fleet}held_device_hours"]), dollars=row[f"{own}dollars.{group}"],
        ready_mean=float(row[f"{fleet}ready_mean"]), ready_most=int(row[f"{fleet}ready_most"]),
        cold=int(row[f"{own}cold.{group}"]), events=float(row[f"{own}events.{group}"]), lost=lost,
        starts=int(row[f"{own}starts.{group}"]), start_s=row[f"{own}start_s.{group}"],
        length_h=float(row["end_s"]) / 3600.0)
