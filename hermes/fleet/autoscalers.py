"""What decides how many replicas a group of clients has: protocol, registry, and the two that look at nothing.

An autoscaler is a SimPy process: its configuration's `run(view)` is a generator that waits (`yield
view.until(seconds)`) and sets the number of replicas (`view.scale(replicas, reason)`). It may have the replicas scraped
(`view.watch(period)`) and look at their latest samples (`view.pods()`).
"""

from __future__ import annotations

from collections.abc import Generator
from itertools import pairwise
from typing import Any, Literal, NamedTuple, Protocol, Self

from pydantic import Field, model_validator

from hermes.config import ConfigModel, Duration, Registry
from hermes.core.scraped import Sample
from hermes.errors import InputError

__all__ = ["AUTOSCALERS", "Autoscaler", "AutoscalerView", "Pod", "Sample"]

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


class AutoscalerView(Protocol):
    """What an autoscaler sees of its group, and does to it."""

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

    def watch(self, period_s: float) -> None:
        """Have the replicas scraped from now on, each once a period at a time of its own. Called once, before the first
        `pods`, by an autoscaler that looks at samples."""
        ...

    def pods(self) -> list[Pod]:
        """Return the replicas that exist: starting, ready and draining ones in the order of their slots, then those
        that wait for a slot."""
        ...

    def until(self, seconds: float) -> Any:   # Any: a SimPy event
        """Return the event of this time, to be yielded: it comes after step ends and changes of membership, and before
        arrivals, of its instant. It never comes once all requests have ended."""
        ...

    def scale(self, replicas: int, reason: str) -> None:
        """Want so many replicas, from 1 to the group's `count`: start some, or let the newest drain."""
        ...


class Autoscaler(ConfigModel):
    """Base of autoscalers. Derive from it, give `kind` and fields, write `run`, and register the class."""

    def check(self, most: int) -> None:
        """Raise `InputError` for numbers beyond `most`, the group's `count`."""

    def run(self, view: AutoscalerView) -> Acts:
        """Act over time, as a SimPy process. Started once, before the first request."""
        raise NotImplementedError


AUTOSCALERS: Registry[Autoscaler] = Registry("autoscalers", "an autoscaler", {"hpa": "hermes.fleet.hpa:Hpa"},
                                             base=Autoscaler)


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
    replicas: int = Field(ge=1, le=100_000)
    """Replicas from then on, those that start included."""


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

    def run(self, view: AutoscalerView) -> Acts:
        for change in self.changes:
            yield view.until(change.at)
            view.scale(change.replicas, "schedule")
