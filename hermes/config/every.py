"""Random times between failures."""

from __future__ import annotations

import math

import numpy as np
from pydantic import Field

from hermes.config.component import ConfigModel, Duration
from hermes.units import NS_PER_S

__all__ = ["Every"]


class Every(ConfigModel):
    """Random times between failures: hours of a link or a zone, device-hours of a replica. One of eight devices fails
    eight times as often, and only time in which the devices are held counts, start-ups included.

    Llama 3's training lost a GPU to any cause each 50,700 GPU-hours, and to faults of the GPU itself each 79,200 (419
    interruptions in 54 days of 16,384 H100)."""

    mean: Duration = Field(gt=0)
    """Mean time between two failures, such as `50700 h`."""
    shape: float = Field(default=1.0, gt=0, le=100)
    """Shape of the Weibull distribution: 1 is exponential, less than 1 fails early, more than 1 wears out."""

    def draw_ns(self, rng: np.random.Generator) -> float:
        """Return the time until the next failure in ns, at least 1."""
        scale = self.mean * NS_PER_S / math.gamma(1.0 + 1.0 / self.shape)
        return max(1.0, scale * float(rng.weibull(self.shape)))
