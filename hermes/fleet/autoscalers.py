"""What decides how many replicas a group of clients has: protocol, registry, and the two that look at nothing.

An autoscaler is a SimPy process: its configuration's `run(view)` is a generator that waits (`yield
view.until(seconds)`) and sets the number of replicas (`view.scale(replicas, reason)`).
"""

from __future__ import annotations

from collections.abc import Generator
from itertools import pairwise
from typing import Any, Literal, Protocol, Self

from pydantic import Field, model_validator

from hermes.config import ConfigModel, Duration, Registry
from hermes.errors import InputError

__all__ = ["AUTOSCALERS", "Autoscaler", "AutoscalerView"]

Acts = Generator[Any, Any, None]   # Any: it yields SimPy events


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


AUTOSCALERS: Registry[Autoscaler] = Registry("autoscalers", "an autoscaler", base=Autoscaler)


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
