"""Times of phases: a number, or a distribution from which each start draws.

A distribution is asked for the quantile of a uniform number, so that each phase of a start takes one number of the
start's stream, whatever the other phases are.
"""

from __future__ import annotations

import math
from statistics import NormalDist
from typing import Annotated, Literal, Self

from pydantic import Discriminator, Field, Tag, model_validator

from hermes.config import ConfigModel, Duration
from hermes.errors import InputError

__all__ = ["ColdWarm", "ExponentialTime", "LognormalTime", "Phase", "SampleTime", "Spread", "Time", "UniformTime",
           "form", "seconds", "text"]

LONGEST = 1e9   # seconds, as the longest `Duration`
_SMALLEST = 2.0**-53


class _Spread(ConfigModel):
    """Base of distributions of times."""

    def at(self, share: float) -> float:
        """Return the seconds below which this share of the starts lies."""
        raise NotImplementedError

    @property
    def said(self) -> str:
        """The distribution in words."""
        raise NotImplementedError


class UniformTime(_Spread):
    """All times from `min` to `max`, equally likely."""

    kind: Literal["uniform"] = "uniform"
    min: Duration
    """Shortest time."""
    max: Duration
    """Longest time."""

    @model_validator(mode="after")
    def _check(self) -> Self:
        if self.max < self.min:
            raise InputError(f"at least min ({self.min:g} s)", self.max, field="max")
        return self

    def at(self, share: float) -> float:
        return self.min + share * (self.max - self.min)

    @property
    def said(self) -> str:
        return f"uniform, {self.min:g} to {self.max:g} s"


class LognormalTime(_Spread):
    """Log-normal times: few are much longer than the median."""

    kind: Literal["lognormal"] = "lognormal"
    median: Duration = Field(gt=0)
    """Half of the starts are shorter."""
    sigma: Annotated[float, Field(ge=0, le=10)]
    """Standard deviation of the natural logarithm: with 0.5 one start in twenty takes 2.3 times the median or more."""

    def at(self, share: float) -> float:
        far = self.sigma * NormalDist().inv_cdf(min(max(share, _SMALLEST), 1.0 - _SMALLEST))
        return min(self.median * math.exp(far), LONGEST)

    @property
    def said(self) -> str:
        return f"log-normal, sigma {self.sigma:g}"


class ExponentialTime(_Spread):
    """Exponential times."""

    kind: Literal["exponential"] = "exponential"
    mean: Duration = Field(gt=0)
    """Their mean."""

    def at(self, share: float) -> float:
        return min(-self.mean * math.log1p(-min(share, 1.0 - _SMALLEST)), LONGEST)

    @property
    def said(self) -> str:
        return f"exponential, mean {self.mean:g} s"


class SampleTime(_Spread):
    """Measured times, each equally likely."""

    kind: Literal["sample"] = "sample"
    times: list[Duration] = Field(min_length=1, max_length=100_000)
    """The times, in any order."""

    def at(self, share: float) -> float:
        ordered = sorted(self.times)
        return ordered[min(int(share * len(ordered)), len(ordered) - 1)]

    @property
    def said(self) -> str:
        return f"one of {len(self.times)}, {min(self.times):g} to {max(self.times):g} s"


Spread = Annotated[UniformTime | LognormalTime | ExponentialTime | SampleTime, Field(discriminator="kind")]


def form(value: object) -> str:
    """Return which form of a time a value has: a wrong one is told by its own keys, not by those of all forms."""
    keys = value if isinstance(value, dict) else type(value).model_fields if isinstance(value, ConfigModel) else None
    return "time" if keys is None else "spread" if "kind" in keys else "mapping"


def _form_of_time(value: object) -> str:
    return "time" if form(value) == "time" else "spread"


Time = Annotated[Annotated[Duration, Tag("time")] | Annotated[Spread, Tag("spread")], Discriminator(_form_of_time)]


class ColdWarm(ConfigModel):
    """Times of a phase without and with what an earlier start on the node has left."""

    cold: Time
    """The first time on a node."""
    warm: Time = 0.0
    """After that."""


Phase = Annotated[Annotated[Duration, Tag("time")] | Annotated[Spread, Tag("spread")]
                  | Annotated[ColdWarm, Tag("mapping")], Discriminator(form)]


def seconds(time: float | _Spread, share: float) -> float:
    """Return the seconds of a time at a quantile."""
    return time.at(share) if isinstance(time, _Spread) else time


def text(time: float | _Spread) -> str:
    """Return what a time says besides its median; "given" of a number."""
    return time.said if isinstance(time, _Spread) else "given"
