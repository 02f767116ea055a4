"""Arrival processes: the times at which requests arrive.

Renewal processes (poisson, uniform, normal, gamma) draw gaps and add them up; the first request arrives after the first
gap. `mmpp` and `profile` modulate a Poisson process. `at_once` and `trace` draw nothing. `closed_loop` has no arrival
times: its users submit the next request after an answer.
"""

from __future__ import annotations

import math
from typing import Annotated, Any, Literal, Self

import numpy as np
from pydantic import BeforeValidator, Field, model_validator

from hermes.arrays import FloatArray, IntArray
from hermes.config import Duration, Rate, quantity
from hermes.config.registry import Registry
from hermes.core.record import BURSTS
from hermes.errors import InputError, Verbatim
from hermes.sums import float_sum
from hermes.units import NS_PER_S, parse_rate, s_to_ns
from hermes.workload.base import ArrivalProcess, ClosedLoopProcess, ThinkDistribution, seconds_to_ns, think_times_ns
from hermes.workload.replay import Replay

__all__ = [
    "ARRIVALS", "AtOnce", "ClosedLoop", "Gamma", "MarkovModulated", "Normal", "Poisson", "Profile", "TraceArrivals",
    "Uniform",
]

ARRIVALS: Registry[ArrivalProcess | ClosedLoopProcess] = Registry("arrivals", "an arrival process")

Cv = Annotated[float, Field(gt=0, le=100)]
QuietRate = Annotated[  # a rate that may be 0
    float, BeforeValidator(parse_rate), Field(ge=0, le=1e9),
    quantity(parse_rate, "rate, e.g. '40 /s', or 0"),
]


class _Renewal(ArrivalProcess):
    """Independent gaps of one distribution."""

    @property
    def changes(self) -> str:
        return ""


@ARRIVALS.register("poisson")
class Poisson(_Renewal):
    """Independent arrivals: exponential gaps."""

    kind: Literal["poisson"] = "poisson"
    rate: Rate
    """Mean number of requests per second."""

    def times_ns(self, n: int, rng: np.random.Generator) -> IntArray:
        return seconds_to_ns(np.cumsum(rng.standard_exponential(n)) / self.rate)


@ARRIVALS.register("uniform")
class Uniform(_Renewal):
    """Gaps uniform between (1 - spread) / rate and (1 + spread) / rate."""

    kind: Literal["uniform"] = "uniform"
    rate: Rate
    """Mean number of requests per second."""
    spread: Annotated[float, Field(ge=0, le=1)] = 1.0
    """Half the width of the gaps' range over their mean: 1 for gaps from 0 to 2 / rate, 0 for even spacing."""

    def times_ns(self, n: int, rng: np.random.Generator) -> IntArray:
        gaps = 1.0 + self.spread * (2.0 * rng.random(n) - 1.0)
        return seconds_to_ns(np.cumsum(gaps) / self.rate)


@ARRIVALS.register("normal")
class Normal(_Renewal):
    """Normal gaps, truncated at zero and rescaled to the given rate.

    Below a cv of about 0.3 truncation has no effect; for large ones the gaps approach a uniform distribution (cv 0.58).
    """

    kind: Literal["normal"] = "normal"
    rate: Rate
    """Mean number of requests per second."""
    cv: Cv = 0.25
    """Standard deviation of the gaps over their mean, before truncation."""

    def times_ns(self, n: int, rng: np.random.Generator) -> IntArray:
        from scipy.special import ndtr, ndtri

        z0 = -1.0 / self.cv  # a gap of zero, in standard deviations from the mean
        tail = float(ndtr(-z0))
        # Inverse CDF from the upper side, which has the mass: precise for small cv too.
        z = -ndtri((1.0 - rng.random(n)) * tail)
        gaps = np.maximum(1.0 + self.cv * z, 0.0)
        mean = 1.0 + self.cv * math.exp(-z0 * z0 / 2.0) / math.sqrt(2.0 * math.pi) / tail
        return seconds_to_ns(np.cumsum(gaps) / (mean * self.rate))


@ARRIVALS.register("gamma")
class Gamma(_Renewal):
    """Gamma-distributed gaps: bursty for a cv above 1, Poisson at 1, regular below."""

    kind: Literal["gamma"] = "gamma"
    rate: Rate
    """Mean number of requests per second."""
    cv: Cv
    """Standard deviation of the gaps over their mean."""

    def times_ns(self, n: int, rng: np.random.Generator) -> IntArray:
        shape = 1.0 / self.cv**2
        return seconds_to_ns(np.cumsum(rng.standard_gamma(shape, n)) / (shape * self.rate))


@ARRIVALS.register("mmpp")
class MarkovModulated(ArrivalProcess):
    """Two-state Markov-modulated Poisson process: quiet and busy spells of exponential length.

    The mean rate is (rates[0] dwells[0] + rates[1] dwells[1]) / (dwells[0] + dwells[1]). The first state is drawn from
    the stationary distribution.
    """

    kind: Literal["mmpp"] = "mmpp"
    rates: Annotated[list[QuietRate], Field(min_length=2, max_length=2)]
    """Requests per second in each state; one of them may be 0."""
    dwells: Annotated[list[Duration], Field(min_length=2, max_length=2)]
    """Mean time in each state before a change to the other."""

    @model_validator(mode="after")
    def _check(self) -> Self:
        if min(self.dwells) <= 0:
            raise InputError("dwell times above 0", min(self.dwells), field="dwells")
        # Below this the process is Poisson for all purposes, and most of the work would be changes of state.
        if self._per_cycle() < 0.01:
            raise InputError(
                "rates and dwells that give at least 0.01 requests per pair of spells", self._per_cycle(), field="rates"
            )
        return self

    @property
    def changes(self) -> str:
        return BURSTS if self.rates[0] != self.rates[1] else ""

    def scaled(self, factor: float) -> dict[str, Any]:
        return {"rates": [rate * factor for rate in self.rates]}

    def _per_cycle(self) -> float:
        return float_sum(rate * dwell for rate, dwell in zip(self.rates, self.dwells, strict=True))

    def times_ns(self, n: int, rng: np.random.Generator) -> IntArray:
        # Time rescaling: in units of the accumulated rate the process is Poisson with rate 1. Draw it there, and map it
        # back through the (piecewise linear) accumulated rate of the spells.
        of_states, of_gaps = rng.spawn(2)
        targets = np.cumsum(of_gaps.standard_exponential(n))
        first = int(of_states.random() >= self.dwells[0] / float_sum(self.dwells))
        rates = np.array([self.rates[first], self.rates[1 - first]])
        means = np.array([self.dwells[first], self.dwells[1 - first]])
        spells: list[FloatArray] = []
        accumulated = 0.0
        while n and accumulated <= targets[-1]:
            pairs = int((float(targets[-1]) - accumulated) / self._per_cycle() * 1.1) + 16
            spells.append((of_states.standard_exponential((pairs, 2)) * means).ravel())
            accumulated += float((spells[-1].reshape(-1, 2) * rates).sum())
        if not n:
            return np.zeros(0, dtype=np.int64)
        lasting = np.concatenate(spells)
        rate_of = np.tile(rates, len(lasting) // 2)
        ends, ends_accumulated = np.cumsum(lasting), np.cumsum(lasting * rate_of)
        # The first spell whose end is not before the target; never one with rate 0, since those add nothing.
        spell = np.minimum(np.searchsorted(ends_accumulated, targets, side="left"), len(lasting) - 1)
        times = ends[spell] - (ends_accumulated[spell] - targets) / np.maximum(rate_of[spell], 1e-300)
        return seconds_to_ns(np.maximum.accumulate(np.maximum(times, 0.0)))


@ARRIVALS.register("profile")
class Profile(ArrivalProcess):
    """Poisson arrivals whose rate follows a profile, such as that of a day: 24 rates of an hour each.

    After the last rate comes the first one again.
    """

    kind: Literal["profile"] = "profile"
    rates: Annotated[list[QuietRate], Field(min_length=1, max_length=100_000)]
    """Requests per second of each period, in order; some of them may be 0."""
    every: Annotated[Duration, Field(gt=0)] = 3600.0
    """Length of a period."""

    @model_validator(mode="after")
    def _check(self) -> Self:
        # The first request comes within 100 turns or so, whatever the seed: times stay within the clock.
        if self._per_turn() < 0.01:
            raise InputError("rates and periods that give at least 0.01 requests in a turn of the profile",
                             self._per_turn(), field="rates")
        return self

    @property
    def changes(self) -> str:
        return "a rate profile" if len(set(self.rates)) > 1 else ""

    def scaled(self, factor: float) -> dict[str, Any]:
        return {"rates": [rate * factor for rate in self.rates]}

    def _per_turn(self) -> float:
        return math.fsum(self.rates) * self.every

    def times_ns(self, n: int, rng: np.random.Generator) -> IntArray:
        # As for `mmpp`: in units of the accumulated rate the process is Poisson with rate 1.
        rates = np.array(self.rates)
        ends = np.cumsum(rates * self.every)   # of periods, accumulated
        turns, within = np.divmod(np.cumsum(rng.standard_exponential(n)), ends[-1])
        # The first period whose end is not before the target; never one with rate 0, since those add nothing.
        period = np.minimum(np.searchsorted(ends, within, side="left"), len(rates) - 1)
        left = (ends[period] - within) / np.maximum(rates[period], 1e-300)
        times = (turns * len(rates) + period + 1) * self.every - np.minimum(left, self.every)
        return seconds_to_ns(np.maximum.accumulate(np.maximum(times, 0.0)))


@ARRIVALS.register("at_once")
class AtOnce(ArrivalProcess):
    """All requests at one time."""

    kind: Literal["at_once"] = "at_once"
    at: Duration = 0.0
    """Time of the arrivals, from the start of the workload."""

    endless_time = False

    @property
    def changes(self) -> str:
        return ""   # alone it has no rate, or that of the answers, with `max_in_flight`

    def times_ns(self, n: int, rng: np.random.Generator) -> IntArray:
        return np.full(n, s_to_ns(self.at), dtype=np.int64)


@ARRIVALS.register("trace")
class TraceArrivals(Replay, ArrivalProcess):
    """The arrival times of a trace, counted from its first request, optionally faster or slower.

    With `repeat` the trace starts again one mean gap after its last request.
    """

    kind: Literal["trace"] = "trace"
    scale: Annotated[float, Field(gt=0, le=1e6)] | None = None
    """Rate relative to the trace's: 2 halves all gaps. Left out, `rate` applies, or else 1."""
    rate: Rate | None = None
    """Mean rate of the whole trace after scaling, instead of `scale`."""

    @model_validator(mode="after")
    def _check(self) -> Self:
        if self.rate is not None and self.scale is not None:
            raise InputError(Verbatim("scale and rate exclude each other; give one"), field="scale")
        return self

    def scaled(self, factor: float) -> dict[str, Any]:
        return {"scale": (self.scale or 1.0) * factor} if self.rate is None else {"rate": self.rate * factor}

    def times_ns(self, n: int, rng: np.random.Generator) -> IntArray:
        arrivals = self.table(n).arrival_ns
        if arrivals is None or not len(arrivals):
            return np.zeros(0, dtype=np.int64)
        times = (arrivals - arrivals[0]) / NS_PER_S
        span = float(times[-1])
        if not span and (self.rate is not None or n > len(times)):
            problem = "all requests of the trace arrive at one time, so that it cannot be scaled or repeated"
            raise InputError(Verbatim(problem), file=self.path)
        mean_gap = span / max(len(times) - 1, 1)
        if n > len(times):
            turns = np.arange(-(-n // len(times)), dtype=np.float64)[:, None]
            times = (times[None, :] + turns * (span + mean_gap)).ravel()
        scale = self.scale or 1.0 if self.rate is None else self.rate * mean_gap
        return seconds_to_ns(times[:n] / scale)


@ARRIVALS.register("closed_loop")
class ClosedLoop(ClosedLoopProcess):
    """A fixed number of users who each wait for the answer, think, and submit the next request."""

    kind: Literal["closed_loop"] = "closed_loop"
    users: Annotated[int, Field(ge=1, le=10**7)]
    """Number of concurrent users. With conversations, each user has one after the other."""
    think: Duration = 0.0
    """Mean time between an answer and the same user's next request, and before the first request. With conversations,
    the time before each new conversation."""
    think_distribution: ThinkDistribution = "fixed"
    """Think times: all equal to the mean, or exponentially distributed around it."""

    def think_ns(self, n: int, rng: np.random.Generator) -> IntArray:
        return think_times_ns(self.think, self.think_distribution, n, rng)
