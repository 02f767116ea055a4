"""Random streams: each consumer has its own, so that a new consumer does not change the numbers of the others. And
random times between failures, which are drawn from them.
"""

from __future__ import annotations

import hashlib
import math
import random

import numpy as np
from pydantic import Field

from hermes.config.component import ConfigModel, Duration
from hermes.errors import InputError
from hermes.units import NS_PER_S

__all__ = ["Every", "request_stream", "stream"]


def stream(seed: int, name: str) -> np.random.Generator:
    """Return the random numbers of the consumer `name` in a simulation seeded with `seed`.

    The generator is a child of `SeedSequence(seed)` whose spawn key is the SHA-256 of the name. It depends on these two
    alone, not on other consumers, on the order of draws or on the process. Each call returns a fresh generator at its
    beginning.

    Raises `InputError` for a negative seed, which numpy refuses.
    """
    if isinstance(seed, bool) or not isinstance(seed, int) or seed < 0:
        raise InputError("a seed: an integer of at least 0", seed, field="seed")
    digest = np.frombuffer(hashlib.sha256(name.encode()).digest(), dtype=">u4")
    return np.random.default_rng(np.random.SeedSequence(seed, spawn_key=tuple(int(word) for word in digest)))


def request_stream(seed: int, name: str) -> random.Random:
    """Return the random numbers of the consumer `name` as a Python generator, which is quicker to make than numpy's:
    for the few numbers of a single request.

    Its seed is the text `SEED/NAME`; as with `stream`, it depends on nothing else.
    """
    return random.Random(f"{seed}/{name}")


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
