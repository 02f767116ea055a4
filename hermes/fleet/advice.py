"""Advice: what an autoscaler would have done, while the number of replicas is the recorded one (open loop).

The autoscaler runs as a process, as in a simulation, on a view that shows the recorded replicas and their values.
`scale` changes nothing and is noted. Within one look it sees the number that it has asked for; at its next look the
recorded one again. A look at which it reads the number of replicas and asks for nothing agrees with the record.

`Shadow` is such a view beside the autoscaler of a simulation; `hermes.fleet.replay` has one of a dump of metrics.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple

from hermes.core.clock import SCRAPE, Acting, Clock
from hermes.core.scraped import EngineLimits, EngineState, Scraper
from hermes.errors import InputError, Verbatim, inside
from hermes.fleet.autoscalers import Autoscaler, GroupsAutoscaler, Pod, Traffic
from hermes.fleet.replicas import Replicas
from hermes.units import NS_PER_S, s_to_ns

__all__ = ["NO_LIMIT", "Advice", "Ask", "Noted", "Shadow", "Stretch", "act", "advice"]

DAY_NS = 86_400 * NS_PER_S
NO_LIMIT = 100_000   # replicas: what an autoscaler wants has no limit but its own


class Ask(NamedTuple):
    """What an autoscaler asked for at a look.

    Attributes:
        recorded: Replicas that it saw, ready or starting.
        wanted: Replicas that it asked for; equal to `recorded` where it asked for nothing.
        reason: "" where it asked for nothing.
    """

    time_ns: int
    recorded: int
    wanted: int
    reason: str


class Stretch(NamedTuple):
    """A time over which an autoscaler asked for the same again and again; it is one decision."""

    start_ns: int
    end_ns: int
    recorded: int
    wanted: int
    reason: str


class Advice(NamedTuple):
    """What an autoscaler would have done with a group.

    Attributes:
        end_ns: End of the record, which begins at 0.
        decisions: In order of time.
        recorded: Times, and the replicas from then on.
        differs_ns: Time in which it wanted another number than the recorded one.
        more_ns, fewer_ns: Replicas times ns that it wanted beyond, and below, the recorded ones.
        slots: The group's `count`; None without one.
        asked: What its metrics asked for at each look, whatever its limits of rate allowed.
    """

    group: str
    end_ns: int
    decisions: list[Stretch]
    recorded: list[tuple[int, int]]
    differs_ns: int
    more_ns: int
    fewer_ns: int
    slots: int | None = None
    asked: Sequence[int] = ()

    @property
    def most(self) -> int:
        """The most replicas that it wanted at a look; 0 without a decision."""
        return max((row.wanted for row in self.decisions), default=0)

    @property
    def per_day(self) -> float | None:
        """Decisions a day; None for a record without duration."""
        return len(self.decisions) * DAY_NS / self.end_ns if self.end_ns else None


class Noted:
    """Base of views that note what is asked for.

    Attributes:
        name: Of the group.
        asked: What was asked for, looks that agree with the record included.
        by_metrics: Times, and what the metrics asked for, at each look.
        beside: The views of the same process, this one included.
        least, most: Fewest and most replicas that can be asked for.
    """

    most: int

    def __init__(self, name: str, least: int) -> None:
        self.name, self.least = name, least
        self.asked: list[Ask] = []
        self.by_metrics: list[tuple[int, int]] = []
        self.beside: Sequence[Noted] = [self]
        self._now_wanted: int | None = None   # asked for at this look
        self._looked = False

    @property
    def now_ns(self) -> int:
        """The time."""
        raise NotImplementedError

    @property
    def recorded(self) -> int:
        """Replicas that take requests or start, as recorded."""
        raise NotImplementedError

    def moment(self, seconds: float) -> Any:   # Any: a SimPy event
        """Return the event of a time; it comes before the autoscalers that act."""
        raise NotImplementedError

    @property
    def now_s(self) -> float:
        return self.now_ns / NS_PER_S

    @property
    def wanted(self) -> int:
        self._looked = True
        return self.recorded if self._now_wanted is None else self._now_wanted

    def until(self, seconds: float) -> Any:   # Any: a SimPy event
        for view in self.beside:
            view.end_look()
        return self.moment(seconds)

    def asks(self, replicas: int | None) -> None:
        if replicas is not None:
            self.by_metrics.append((self.now_ns, replicas))

    def scale(self, replicas: int, reason: str) -> None:
        before = self.wanted
        self._now_wanted = min(max(replicas, self.least), self.most)
        if self._now_wanted != before:
            self.asked.append(Ask(self.now_ns, before, self._now_wanted, reason))

    def done(self, time_ns: int, replicas: int) -> bool:
        """Whether the recorded number became this one at a time, or by now."""
        raise NotImplementedError

    def end_look(self) -> None:
        """Note that it has looked, where it asked for no other number."""
        if self._looked and self._now_wanted in (None, self.recorded):
            self.asked.append(Ask(self.now_ns, self.recorded, self.recorded, ""))
        self._now_wanted, self._looked = None, False


class Shadow(Noted):
    """View of a group in a simulation, with scrapers of its own, beside the group's autoscaler.

    Attributes:
        most: Most replicas that can be asked for; the group may have fewer.
    """

    most = NO_LIMIT

    def __init__(self, replicas: Replicas) -> None:
        super().__init__(replicas.name, replicas.least)
        self._of = replicas
        self._scrapers: list[Scraper] | None = None

    @property
    def role(self) -> str:
        return self._of.role

    @property
    def devices(self) -> int:
        return self._of.devices

    @property
    def dollars_per_hour(self) -> float:
        return self._of.dollars_per_hour

    @property
    def limits(self) -> EngineLimits:
        return self._of.limits

    @property
    def now_ns(self) -> int:
        return s_to_ns(self._of.now_s)

    @property
    def ready(self) -> int:
        return self._of.ready

    @property
    def recorded(self) -> int:
        return self._of.wanted

    @property
    def slots(self) -> int:
        """The group's `count`."""
        return self._of.most

    @property
    def queued(self) -> int:
        return self._of.queued

    def traffic(self) -> Traffic:
        return self._of.traffic()

    def watch(self, period_s: float, offset_s: float | None = None) -> None:
        self._scrapers = self._of.scrapers(period_s, offset_s)

    def watch_engines(self) -> None:
        self._of.watch_engines()

    def engines(self) -> list[EngineState]:
        return self._of.engines()

    def pods(self) -> list[Pod]:
        return self._of.pods_by(self._scrapers)

    def moment(self, seconds: float) -> Any:   # Any: a SimPy event
        return self._of.moment(seconds, SCRAPE)

    def scale(self, replicas: int, reason: str) -> None:
        if self._of.goes_on:
            super().scale(replicas, reason)

    def asks(self, replicas: int | None) -> None:
        if self._of.goes_on:
            super().asks(replicas)

    def done(self, time_ns: int, replicas: int) -> bool:
        for time, _before, after, _reason in reversed(self._of.decided or ()):
            if time <= time_ns:
                return time == time_ns and after == replicas
        return False


def act(env: Clock, autoscaler: Autoscaler, views: Sequence[Any]) -> None:   # Any: `Noted` that is an `AutoscalerView`
    """Start an autoscaler on these views: one for all, if it scales several groups, else one on each."""
    if not isinstance(autoscaler, GroupsAutoscaler):
        for view in views:
            Acting(env, autoscaler.run(view))
        return
    with inside("autoscaler"):
        autoscaler.check_groups(views)
    for view in views:
        view.beside = views
    Acting(env, autoscaler.run_groups(views))


def refused(what: str) -> InputError:
    """Return the refusal of an autoscaler that asks for what a record does not have."""
    return InputError(Verbatim(f"it asks for {what}, which this dump does not have; ask a run, or take another"),
                      field="autoscaler")


def advice(view: Noted, recorded: Sequence[tuple[int, int]], end_ns: int, slots: int | None = None) -> Advice:
    """Return the advice of a view.

    recorded: Times, and the replicas from then on; the first time is 0.
    slots: The group's `count`; None without one.
    """
    asked = [ask for ask in view.asked if ask.time_ns <= end_ns]
    ends = [*(ask.time_ns for ask in asked[1:]), end_ns][:len(asked)]
    decisions: list[Stretch] = []
    differs = more = fewer = place = 0
    before: Ask | None = None
    for ask, end in zip(asked, ends, strict=True):
        if ask.wanted != ask.recorded:
            if before is not None and before[1:] == ask[1:]:
                decisions[-1] = decisions[-1]._replace(end_ns=end)
            else:
                decisions.append(Stretch(ask.time_ns, end, *ask[1:]))
            while place + 1 < len(recorded) and recorded[place + 1][0] <= ask.time_ns:
                place += 1
            at = ask.time_ns
            for number in range(place, len(recorded)):
                until = min(end, recorded[number + 1][0]) if number + 1 < len(recorded) else end
                beyond = (ask.wanted - recorded[number][1]) * max(until - at, 0)
                differs += max(until - at, 0) if beyond else 0
                more, fewer = more + max(beyond, 0), fewer + max(-beyond, 0)
                at = max(at, until)
                if at >= end:
                    break
        before = ask
    return Advice(view.name, end_ns, decisions, list(recorded), differs, more, fewer, slots,
                  [number for time, number in view.by_metrics if time <= end_ns])
