"""Random streams: each consumer has its own, so that a new consumer does not change the numbers of the others."""

from __future__ import annotations

import hashlib
import random

import numpy as np

from hermes.errors import InputError

__all__ = ["request_stream", "stream"]


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
