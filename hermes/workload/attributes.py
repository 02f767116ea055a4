"""Attributes of requests besides their lengths: priorities, tenants, classes, adapters, patience, shared prefixes,
sessions."""

from __future__ import annotations

from typing import Annotated, Self

import numpy as np
from pydantic import Field, model_validator

from hermes.arrays import IntArray
from hermes.config import ConfigModel, Duration, Name, Tokens
from hermes.core.request_table import NamedColumn
from hermes.errors import InputError, Verbatim
from hermes.sums import float_sum
from hermes.units import s_to_ns
from hermes.workload.base import MAX_TOKENS

__all__ = ["Adapters", "Names", "Patience", "Prefixes", "Priorities", "Sessions"]


class Priorities(ConfigModel):
    """A priority for each request, drawn from a list."""

    values: Annotated[list[Annotated[int, Field(ge=-(2**31), le=2**31)]], Field(min_length=1)]
    """Priorities; lower is more urgent."""
    weights: Annotated[list[Annotated[float, Field(ge=0, le=1e12)]], Field(min_length=1)] | None = None
    """Relative frequencies of the priorities. Left out, equal ones."""

    @model_validator(mode="after")
    def _check(self) -> Self:
        if self.weights is not None and len(self.weights) != len(self.values):
            raise InputError(f"as many weights as values ({len(self.values)})", len(self.weights), field="weights")
        if self.weights is not None and float_sum(self.weights) <= 0:
            raise InputError("weights with a sum above 0", float_sum(self.weights), field="weights")
        return self

    def draw(self, n: int, rng: np.random.Generator) -> IntArray:
        """Draw the priorities of `n` requests, int64 of shape (n,)."""
        weights = np.ones(len(self.values)) if self.weights is None else np.asarray(self.weights, dtype=np.float64)
        upto = np.cumsum(weights)
        index = np.searchsorted(upto, rng.random(n) * upto[-1], side="right")
        priorities: IntArray = np.asarray(self.values, dtype=np.int64)[np.minimum(index, len(upto) - 1)]
        return priorities


class Names(ConfigModel):
    """A name for each request, drawn from a list. The requests of a session have the same."""

    values: Annotated[list[Name], Field(min_length=1, max_length=100_000)]
    """Names."""
    weights: Annotated[list[Annotated[float, Field(ge=0, le=1e12)]], Field(min_length=1)] | None = None
    """Relative frequencies of the names. Left out, equal ones."""

    @model_validator(mode="after")
    def _check(self) -> Self:
        for place, name in enumerate(self.values):
            if name in self.values[:place]:
                raise InputError(Verbatim(f"{name!r} stands in it twice; leave one out"), field=f"values.{place}")
        if self.weights is not None:
            Priorities(values=list(range(len(self.values))), weights=self.weights)
        return self

    def draw(self, n: int, sessions: IntArray | None, rng: np.random.Generator) -> NamedColumn:
        """Draw the names of `n` requests. sessions: Number of each one's session, -1 for none; None for none at all."""
        of_sessions, of_requests = rng.spawn(2)
        chosen = Priorities(values=list(range(len(self.values))), weights=self.weights)
        codes = chosen.draw(n, of_requests)
        if sessions is not None and (mine := sessions >= 0).any():
            drawn = chosen.draw(int(sessions.max()) + 1, of_sessions)
            codes = np.where(mine, drawn[np.maximum(sessions, 0)], codes)
        return NamedColumn(codes, list(self.values))


class Adapters(ConfigModel):
    """LoRA adapters of the requests."""

    count: Annotated[int, Field(ge=1, le=2**20)]
    """Number of adapters."""
    weights: Annotated[list[Annotated[float, Field(ge=0, le=1e12)]], Field(min_length=1)] | None = None
    """Relative frequencies of the adapters. Left out, equal ones."""
    fraction: Annotated[float, Field(ge=0, le=1)] = 1.0
    """Share of the requests with an adapter; the others use the model alone."""

    @model_validator(mode="after")
    def _check(self) -> Self:
        if self.weights is not None:
            Priorities(values=list(range(self.count)), weights=self.weights)
        return self

    def draw(self, n: int, rng: np.random.Generator) -> IntArray:
        """Draw the adapters of `n` requests, int64 of shape (n,): from 1 to `count`, 0 for none."""
        of_adapters, of_choices = rng.spawn(2)
        drawn = Priorities(values=list(range(1, self.count + 1)), weights=self.weights).draw(n, of_adapters)
        adapters: IntArray = np.where(of_choices.random(n) < self.fraction, drawn, 0)
        return adapters


class Patience(ConfigModel):
    """How long the clients of requests wait before they give up. The engine then cancels the request by its own rule.

    vLLM (`chunked`), `continuous` and `mixed` take it out when the step in flight has ended. SGLang takes out what
    waits, and ends what runs with its next token. A `static` batch goes on with it to its end. KV that moves to
    another client arrives, and is freed then at both ends; KV that waits for memory there is freed at once. All
    branches of a request are given up together. What was computed until then counts as work, in a row of `stages`.
    """

    first_token: Duration | None = Field(default=None, gt=0)
    """Longest time from arrival to the first token that the user reads: of the answer, after the front end. Left out,
    none."""
    total: Duration | None = Field(default=None, gt=0)
    """Longest time from arrival to the last token. Left out, none."""

    @property
    def ns(self) -> tuple[int | None, int | None]:
        """Both in nanoseconds."""
        first, total = (None if limit is None else s_to_ns(limit) for limit in (self.first_token, self.total))
        return first, total


class Prefixes(ConfigModel):
    """Shared beginnings of prompts: system prompts, documents."""

    groups: Annotated[int, Field(ge=1, le=2**40)]
    """Number of different texts; requests choose among them uniformly."""
    tokens: Tokens
    """Length of each text."""
    fraction: Annotated[float, Field(ge=0, le=1)] = 1.0
    """Share of the requests that begin with one."""
    extend: bool = False
    """Put the text in front of the drawn prompt (longer prompts); otherwise it is the prompt's beginning, truncated if
    the prompt is shorter."""

    def draw(self, prompt_tokens: IntArray, rng: np.random.Generator) -> tuple[IntArray, IntArray, IntArray]:
        """Return prompt_tokens, prefix_group and prefix_tokens, int64 of shape (n,) each, for prompts of these lengths.
        """
        of_groups, of_choices = rng.spawn(2)
        n = len(prompt_tokens)
        has = of_choices.random(n) < self.fraction
        group = np.where(has, of_groups.integers(0, self.groups, n, dtype=np.int64), -1)
        tokens = np.where(has, self.tokens, 0)
        if self.extend:
            return np.minimum(prompt_tokens + tokens, MAX_TOKENS), group, tokens
        return prompt_tokens, group, np.minimum(tokens, prompt_tokens)


class Sessions(ConfigModel):
    """Conversations that requests belong to."""

    count: Annotated[int, Field(ge=1, le=2**40)]
    """Number of conversations; requests are distributed over them uniformly."""

    def draw(self, n: int, rng: np.random.Generator) -> IntArray:
        """Draw session numbers from 0 to `count` - 1, int64 of shape (n,)."""
        return rng.integers(0, self.count, n, dtype=np.int64)
