"""Past context that requests bring along: whose it is, and how many tokens it has.

A context is a conversation's history, a document, a profile of a user: tokens that stand in front of the prompt and
whose KV may lie in a store already. A population is all contexts that a workload can ask for. *Private* ones belong to
one user each and are asked for evenly; of *shared* ones some are asked for far more often than others (Zipf's law).
"""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Literal, Self

import numpy as np
import numpy.typing as npt
from pydantic import Field, model_validator

from hermes.config import ConfigModel
from hermes.core.request_table import Population
from hermes.errors import InputError, Verbatim
from hermes.workload.base import IntArray, inside
from hermes.workload.lengths import Counts

__all__ = ["Contexts", "zipf_weights"]


def zipf_weights(keys: int, exponent: float) -> npt.NDArray[np.float64]:
    """Probabilities of keys 0, 1, ..., shape (keys,), summing to 1: 1 / rank^exponent, normalised."""
    weights = np.arange(1, keys + 1, dtype=np.float64) ** -exponent
    return np.asarray(weights / weights.sum())


class Contexts(ConfigModel):
    """Past context that each request brings along; `past` in a pipeline's amounts is its number of tokens."""

    population: Literal["private", "shared"]
    """`private`: one context per user, asked for evenly. `shared`: asked for by Zipf's law."""
    keys: Annotated[int, Field(ge=1, le=10**7)] | None = None
    """How many contexts there are. Left out: each session of the workload has one (private only)."""
    zipf: Annotated[float, Field(ge=0, le=10)] = 1.0
    """Exponent of Zipf's law for `shared`: 0 asks evenly, more makes hot spots."""
    tokens: Counts
    """Tokens of a context. Drawn once for each, so that all requests for it bring the same."""
    name: Annotated[str, Field(max_length=200)] = ""
    """Name of the population; the workload's where left out. Workloads that give one name ask for the same contexts."""

    @model_validator(mode="after")
    def _check(self) -> Self:
        if self.keys is None and self.population == "shared":
            raise InputError("how many contexts are shared", Verbatim("nothing"), field="keys")
        return self

    def bound(self, base_dir: Path) -> Self:
        """The same with files taken from `base_dir`."""
        with inside("tokens"):
            return self.model_copy(update={"tokens": self.tokens.bound(base_dir)})

    def draw(
        self, n: int, sessions: IntArray | None, workload: str, of_keys: np.random.Generator,
        of_tokens: np.random.Generator,
    ) -> tuple[IntArray, Population]:
        """Keys of `n` requests, int64 of shape (n,), and the population. Requests without a session get key -1."""
        if self.keys is None:
            if sessions is None or not (sessions >= 0).any():
                raise InputError("how many contexts there are, or sessions to have one each", Verbatim("neither"),
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
