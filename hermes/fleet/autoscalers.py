"""What decides how many replicas a group of clients has: protocol, registry, and the two that look at nothing.

An autoscaler is a SimPy process: its configuration's `run(view)` is a generator that waits (`yield
view.until(seconds)`) and sets the number of replicas (`view.scale(replicas, reason)`). It may have the replicas scraped
(`view.watch(period)`) and look at their latest samples (`view.pods()`). One that scales several groups together
derives from `GroupsAutoscaler`; a scenario names its groups under `autoscalers`.
"""

from __future__ import annotations

from collections.abc import Generator, Sequence
from itertools import pairwise
from typing import Any, ClassVar, Literal, NamedTuple, Protocol, Self

from pydantic import Field, model_validator

from hermes.config import ConfigModel, Duration, Registry
from hermes.core.scraped import EngineLimits, EngineState, ForwardPass, Sample
from hermes.errors import InputError
from hermes.units import NS_PER_S, s_to_ns

__all__ = [
    "AUTOSCALERS", "Autoscaler", "AutoscalerView", "Beats", "EngineLimits", "EngineState", "ForwardPass",
    "GroupsAutoscaler", "Pod", "Sample", "Traffic",
]

Acts = Generator[Any, Any, None]   # Any: it yields SimPy events


class Pod(NamedTuple):
    """A replica that exists, as Kubernetes lists it.

    Attributes:
        name: Of its client; "" while it has no slot.
        ready: Whether it takes requests.
        pending: Whether it waits for a slot that another replica still holds.
        leaving: Whether it drains.
        sample: Its values at the last scrape of it; None before the first one, and while it starts.
    """

    name: str
    ready: bool
    pending: bool = False
    leaving: bool = False
    sample: Sample | None = None


class Traffic(NamedTuple):
    """Generations that a group's replicas have completed or given up since the start, and their tokens."""

    requests: int
    prompt_tokens: int
    output_tokens: int


class AutoscalerView(Protocol):
    """What an autoscaler sees of its group, and does to it."""

    @property
    def name(self) -> str:
        """The group's name."""
        ...

    @property
    def role(self) -> str:
        """`both`, `prefill` or `decode`."""
        ...

    @property
    def devices(self) -> int:
        """Devices of one replica."""
        ...

    @property
    def dollars_per_hour(self) -> float:
        """Price of one replica; 0 without a price."""
        ...

    @property
    def limits(self) -> EngineLimits:
        """Limits of one replica's engine."""
        ...

    @property
    def now_s(self) -> float:
        """The simulated time."""
        ...

    @property
    def ready(self) -> int:
        """Replicas that take requests."""
        ...

    @property
    def wanted(self) -> int:
        """Replicas that take requests or start."""
        ...

    @property
    def most(self) -> int:
        """The group's `count`."""
        ...

    @property
    def queued(self) -> int:
        """Requests that wait at the gateway for a ready replica of this group, at this instant."""
        ...

    def traffic(self) -> Traffic:
        """Return what the group has served so far."""
        ...

    def watch(self, period_s: float, offset_s: float | None = None) -> None:
        """Have the replicas scraped from now on, each once a period, `offset_s` after its beginning; left out, at a
        time of its own. Called once, before the first `pods`, by an autoscaler that looks at samples."""
        ...

    def watch_engines(self) -> None:
        """Have the engines publish each step. Called once, before the first request, by an autoscaler that calls
        `engines`."""
        ...

    def engines(self) -> list[EngineState]:
        """Return what the engines have published last, of each ready or draining replica."""
        ...

    def pods(self) -> list[Pod]:
        """Return the replicas that exist: starting, ready and draining ones in the order of their slots, then those
        that wait for a slot."""
        ...

    def until(self, seconds: float) -> Any:   # Any: a SimPy event
        """Return the event of this time, to be yielded: it comes after step ends and changes of membership, and before
        arrivals, of its instant. It never comes once all requests, and each `duration`, have ended."""
        ...

    def asks(self, replicas: int | None) -> None:
        """Note what the metrics ask for at this look, before the autoscaler's limits of rate; None without a value."""
        ...

    def scale(self, replicas: int, reason: str) -> None:
        """Want so many replicas, up to the group's `count`: start some, or let the newest drain. It is at least 1,
        unless requests can wait at the gateway (`gateway.queue`)."""
        ...

    def done(self, time_ns: int, replicas: int) -> bool:
        """Whether so many were wanted after it had asked for them at a time: always, but in `hermes advise`, where
        nobody carries out what it asks for."""
        ...


class Beats:
    """The periods of a process that does several things, each at multiples of its own.

        beats = Beats(view)
        while True:
            if beats.due(15.0): ...
            yield beats.next(15.0, 60.0)
    """

    def __init__(self, view: AutoscalerView) -> None:
        self._view = view

    @property
    def now_ns(self) -> int:
        return s_to_ns(self._view.now_s)

    def due(self, period_s: float) -> bool:
        """Whether this is a multiple of a period."""
        return self.now_ns % s_to_ns(period_s) == 0

    def next(self, *periods_s: float) -> Any:   # Any: a SimPy event
        """Return the event of the next multiple of any of these periods."""
        now = self.now_ns
        return self._view.until(min((now // ns + 1) * ns for ns in map(s_to_ns, periods_s)) / NS_PER_S)


class Autoscaler(ConfigModel):
    """Base of autoscalers. Derive from it, give `kind` and fields, write `run`, and register the class."""

    def check(self, most: int) -> None:
        """Raise `InputError` for numbers beyond `most`, the group's `count`."""

    def to_zero(self) -> str:
        """Return the field by which it may want no replica at all; "" if it always wants one. It is refused without a
        queue at the gateway, for no request could wait for a replica to start."""
        return ""

    def run(self, view: AutoscalerView) -> Acts:
        """Act over time, as a SimPy process. Started once, before the first request."""
        raise NotImplementedError


class GroupsAutoscaler(Autoscaler):
    """Base of autoscalers that may scale several groups together. Write `run_groups` instead of `run`."""

    reads_steps: ClassVar[bool] = False
    """Whether it reads the engines' steps, of engines with one rank."""

    def check_groups(self, views: Sequence[AutoscalerView]) -> None:
        """Raise `InputError` for groups that it cannot scale together. Called before the run, also for one group."""

    def run(self, view: AutoscalerView) -> Acts:
        return self.run_groups([view])

    def run_groups(self, views: Sequence[AutoscalerView]) -> Acts:
        """Act over time, as a SimPy process. Started once, before the first request."""
        raise NotImplementedError


AUTOSCALERS: Registry[Autoscaler] = Registry("autoscalers", "an autoscaler", {
    "apa": "hermes.fleet.apa:Apa",
    "dynamo_planner": "hermes.fleet.dynamo_planner:DynamoPlanner",
    "hpa": "hermes.fleet.hpa:Hpa",
    "keda": "hermes.fleet.keda:Keda",
    "kpa": "hermes.fleet.kpa:Kpa",
    "wva": "hermes.fleet.wva:Wva",
}, base=Autoscaler)


@AUTOSCALERS.register("static")
class Static(Autoscaler):
    """As many replicas as at the start."""

    kind: Literal["static"] = "static"

    def run(self, view: AutoscalerView) -> Acts:
        return
        yield


class Change(ConfigModel):
    """A change of the number of replicas."""

    at: Duration = Field(ge=0)
    """Simulated time."""
    replicas: int = Field(ge=0, le=100_000)
    """Replicas from then on, those that start included. 0 needs a queue at the gateway."""


@AUTOSCALERS.register("schedule")
class Schedule(Autoscaler):
    """Given numbers of replicas from given times on."""

    kind: Literal["schedule"] = "schedule"
    changes: list[Change] = Field(min_length=1)
    """Changes in order of time."""

    @model_validator(mode="after")
    def _in_order(self) -> Self:
        for place, (before, after) in enumerate(pairwise(self.changes), 1):
            if after.at <= before.at:
                raise InputError(f"a time after {before.at:g} s", after.at, field=f"changes.{place}.at")
        return self

    def check(self, most: int) -> None:
        for place, change in enumerate(self.changes):
            if change.replicas > most:
                raise InputError(f"at most {most} replicas, the group's count", change.replicas,
                                 field=f"changes.{place}.replicas")

    def to_zero(self) -> str:
        return next((f"changes.{place}.replicas" for place, change in enumerate(self.changes) if not change.replicas),
                    "")

    def run(self, view: AutoscalerView) -> Acts:
        for change in self.changes:
            yield view.until(change.at)
            view.scale(change.replicas, "schedule")
