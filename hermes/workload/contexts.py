"""Past contexts of requests: populations of contexts, their sizes, and the choice of a context per request.

A context is a conversation's history, a document, or a user's profile: tokens in front of the prompt whose KV may be in
a store already. A population is the set of contexts that a workload can ask for. *Private* contexts belong to one user
each and are requested evenly. *Shared* contexts follow Zipf's law: some are requested far more often than others.
"""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Literal, Self

import numpy as np
from pydantic import Field, model_validator

from hermes.arrays import FloatArray, IntArray
from hermes.config import ConfigModel
from hermes.core.request_table import Population
from hermes.errors import InputError, Verbatim
from hermes.workload.base import inside
from hermes.workload.lengths import Counts

__all__ = ["Contexts", "zipf_weights"]


def zipf_weights(keys: int, exponent: float) -> FloatArray:
    """Return the probabilities of keys 0, 1, ..., shape (keys,), summing to 1: 1 / rank^exponent, normalised."""
    weights = np.arange(1, keys + 1, dtype=np.float64) ** -exponent
    return np.asarray(weights / weights.sum())


class Contexts(ConfigModel):
    """Past context of each request; `past` in a pipeline's amounts is its number of tokens."""

    population: Literal["private", "shared"]
    """`private`: one context per user, requested evenly. `shared`: requested by Zipf's law."""
    keys: Annotated[int, Field(ge=1, le=10**7)] | None = None
    """Number of contexts. Left out, one per session of the workload (private only)."""
    zipf: Annotated[float, Field(ge=0, le=10)] = 1.0
    """Exponent of Zipf's law for `shared`: 0 is even, larger values make hot spots."""
    tokens: Counts
    """Tokens of a context, drawn once per context and equal in all requests for it."""
    name: Annotated[str, Field(max_length=200)] = ""
    """Name of the population. Left out, the workload's. Workloads with the same name share their contexts."""

    @model_validator(mode="after")
    def _check(self) -> Self:
        if self.keys is None and self.population == "shared":
            raise InputError(Verbatim("missing: give the number of shared contexts"), field="keys")
        return self

    def bound(self, base_dir: Path) -> Self:
        """Return this with files resolved against `base_dir`."""
        with inside("tokens"):
            return self.model_copy(update={"tokens": self.tokens.bound(base_dir)})

    def draw(
        self, n: int, sessions: IntArray | None, workload: str, of_keys: np.random.Generator,
        of_tokens: np.random.Generator,
    ) -> tuple[IntArray, Population]:
        """Draw the keys of `n` requests, int64 of shape (n,), and the population. Without a session the key is -1."""
        if self.keys is None:
            if sessions is None or not (sessions >= 0).any():
                raise InputError(Verbatim("missing: give the number of contexts, or sessions with one context each"),
                                 field="keys")
            keys, count = sessions.copy(), int(sessions.max()) + 1
        else:
            count, u = self.keys, of_keys.random(n)
            if self.population == "private":
                keys = np.minimum((u * count).astype(np.int64), count - 1)
            else:
                upto = np.cumsum(zipf_weights(count, self.zipf))
                keys = np.minimum(np.searchsorted(upto, u, side="right"), count - 1).astype(np.int64)
        tokens = self.tokens.draw(count, of_tokens)
        return keys, Population(self.name or workload, self.population == "shared", tokens)
