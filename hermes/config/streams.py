"""Random streams: one per consumer, so that adding a consumer changes nobody else's numbers."""

from __future__ import annotations

import hashlib
import random

import numpy as np

from hermes.errors import InputError

__all__ = ["request_stream", "stream"]


def stream(seed: int, name: str) -> np.random.Generator:
    """The random numbers of the consumer called `name` in a simulation seeded with `seed`.

    A child of `SeedSequence(seed)` whose spawn key is the SHA-256 of the name: it depends on these two alone, not on
    who else draws, in which order, or in which process. Each call returns a fresh generator at its beginning.

    Raises `InputError` for a negative seed, which numpy does not take.
    """
    if isinstance(seed, bool) or not isinstance(seed, int) or seed < 0:
        raise InputError("a seed: an integer of at least 0", seed, field="seed")
    digest = np.frombuffer(hashlib.sha256(name.encode()).digest(), dtype=">u4")
    return np.random.default_rng(np.random.SeedSequence(seed, spawn_key=tuple(int(word) for word in digest)))


def request_stream(seed: int, name: str) -> random.Random:
    """The random numbers of the consumer called `name` as one of Python's generators, which is quicker to make than one
    of numpy: for the few numbers that a single request draws.

    Its seed is the text `SEED/NAME`; it depends on nothing else, as `stream`.
    """
    return random.Random(f"{seed}/{name}")
