from typing import Literal

import numpy as np
from pydantic import Field

from hermes.arrays import IntArray
from hermes.config import Rate
from hermes.workload import ARRIVALS, ArrivalProcess, seconds_to_ns


@ARRIVALS.register("ramp")
class Ramp(ArrivalProcess):
    """A Poisson process whose rate grows steadily."""

    kind: Literal["ramp"] = "ramp"
    rate: Rate
    """Requests per second at the start."""
    growth: float = Field(gt=0, le=1e6)
    """By how much the rate grows in a second."""

    def times_ns(self, n: int, rng: np.random.Generator) -> IntArray:
        # Where the accumulated rate, rate * t + growth * t^2 / 2, reaches the arrivals of a process of rate 1.
        expected = np.cumsum(rng.standard_exponential(n))
        return seconds_to_ns((np.sqrt(self.rate**2 + 2 * self.growth * expected) - self.rate) / self.growth)
