"""Length models: distributions of prompt and answer tokens.

A model of `LENGTHS` draws prompt and output together (`empirical` with their rank correlation, `trace` row by row).
`independent` combines any two distributions of `TOKEN_COUNTS`.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from pathlib import Path
from typing import Annotated, Any, Literal, Self

import numpy as np
from pydantic import Field, PrivateAttr, model_validator

from hermes.arrays import FloatArray, IntArray, exp
from hermes.config import Component, Shorthand, Tokens
from hermes.config.registry import Registry
from hermes.errors import InputError, Verbatim
from hermes.workload.base import MAX_TOKENS, Ends, LengthModel, Lengths, TokenCounts, WorkloadComponent, inside
from hermes.workload.profiles import WorkloadProfile, is_profile_path, load_workload_profile
from hermes.workload.replay import Replay

__all__ = [
    "LENGTHS", "TOKEN_COUNTS", "Counts", "EmpiricalCounts", "EmpiricalLengths", "FixedCount", "FixedLengths",
    "GeometricCounts", "IndependentLengths", "LognormalCounts", "NormalCounts", "TraceLengths", "UniformCounts",
]

LENGTHS: Registry[LengthModel] = Registry("lengths", "a length model", {
    "conversations": "hermes.workload.conversations:ConversationLengths",
})
TOKEN_COUNTS: Registry[TokenCounts] = Registry("token_counts", "a distribution of token counts")

Counts = Annotated[Any, Component(TOKEN_COUNTS), Shorthand(int, "fixed", "tokens")]
"""Field type: a distribution of token counts, or a plain number for a constant one."""


@TOKEN_COUNTS.register("fixed")
class FixedCount(TokenCounts):
    """A constant number."""

    ends = "max_new_tokens"
    kind: Literal["fixed"] = "fixed"
    tokens: Tokens
    """The number of tokens."""

    def draw(self, n: int, rng: np.random.Generator) -> IntArray:
        return np.full(n, self.tokens, dtype=np.int64)


class _Bounded(TokenCounts):
    """Counts conditioned to lie from `min` to `max` (both included): truncated, not clipped."""

    min: Tokens = 1
    """Smallest count."""
    max: Tokens = MAX_TOKENS
    """Largest count."""

    @model_validator(mode="after")
    def _check_bounds(self) -> Self:
        if self.max < self.min:
            raise InputError(f"a maximum of at least min ({self.min})", self.max, field="max")
        return self

    def _truncated_normal(self, n: int, rng: np.random.Generator, low: float, high: float) -> FloatArray:
        """Draw standard normal numbers from `low` to `high`, one uniform each; `InputError` if they have no mass."""
        from scipy.special import ndtr, ndtri

        below, above = float(ndtr(low)), float(ndtr(-high))
        if 1.0 - below - above < 1e-6:
            expected = "bounds with some of the distribution between them"
            raise InputError(expected, Verbatim(f"{self.min} to {self.max}"), field="min")
        z: FloatArray = ndtri(below + rng.random(n) * (1.0 - below - above))
        return np.clip(z, low, high)

    def _counts(self, tokens: FloatArray) -> IntArray:
        return np.clip(np.rint(tokens), self.min, self.max).astype(np.int64)


@TOKEN_COUNTS.register("uniform")
class UniformCounts(TokenCounts):
    """Whole numbers from `min` to `max`, all equally likely."""

    ends = "max_new_tokens"
    kind: Literal["uniform"] = "uniform"
    min: Tokens
    """Smallest count."""
    max: Tokens
    """Largest count."""

    @model_validator(mode="after")
    def _check(self) -> Self:
        if self.max < self.min:
            raise InputError(f"a maximum of at least min ({self.min})", self.max, field="max")
        return self

    def draw(self, n: int, rng: np.random.Generator) -> IntArray:
        return rng.integers(self.min, self.max, n, dtype=np.int64, endpoint=True)


@TOKEN_COUNTS.register("normal")
class NormalCounts(_Bounded):
    """Normal distribution, rounded, truncated to `min` and `max`."""

    kind: Literal["normal"] = "normal"
    mean: Annotated[float, Field(ge=1, le=MAX_TOKENS)]
    """Mean before truncation."""
    std: Annotated[float, Field(ge=0, le=MAX_TOKENS)]
    """Standard deviation before truncation."""

    def draw(self, n: int, rng: np.random.Generator) -> IntArray:
        std = max(self.std, 1e-9)
        # Half a token on either side rounds to the bounds themselves.
        low, high = (self.min - 0.5 - self.mean) / std, (self.max + 0.5 - self.mean) / std
        return self._counts(self.mean + self.std * self._truncated_normal(n, rng, low, high))


@TOKEN_COUNTS.register("lognormal")
class LognormalCounts(_Bounded):
    """Log-normal distribution, rounded, truncated to `min` and `max`."""

    kind: Literal["lognormal"] = "lognormal"
    mean: Annotated[float, Field(ge=1, le=MAX_TOKENS)] | None = None
    """Mean before truncation. Give this or `median`."""
    median: Annotated[float, Field(ge=1, le=MAX_TOKENS)] | None = None
    """Median before truncation."""
    sigma: Annotated[float, Field(ge=0, le=10)]
    """Standard deviation of the natural logarithm."""

    @model_validator(mode="after")
    def _check(self) -> Self:
        if (self.mean is None) == (self.median is None):
            found = Verbatim("both" if self.mean else "neither")
            raise InputError("exactly one of mean and median", found, field="mean")
        return self

    def draw(self, n: int, rng: np.random.Generator) -> IntArray:
        centre = math.log(self.median) if self.median else math.log(self.mean or 1.0) - self.sigma**2 / 2.0
        sigma = max(self.sigma, 1e-9)
        low, high = (math.log(self.min - 0.5) - centre) / sigma, (math.log(self.max + 0.5) - centre) / sigma
        return self._counts(exp(centre + self.sigma * self._truncated_normal(n, rng, low, high)))


@TOKEN_COUNTS.register("geometric")
class GeometricCounts(TokenCounts):
    """Geometric distribution: at least 1, and each further one with the same probability."""

    kind: Literal["geometric"] = "geometric"
    mean: Annotated[float, Field(ge=1, le=MAX_TOKENS)]
    """Mean count."""
    max: Tokens = MAX_TOKENS
    """Larger counts are cut to this."""

    def draw(self, n: int, rng: np.random.Generator) -> IntArray:
        return np.minimum(rng.geometric(1.0 / self.mean, n), self.max).astype(np.int64)


class _FromProfile(WorkloadComponent):
    """Base of components that draw from a workload profile."""

    profile: Annotated[str, Field(min_length=1)]
    """A built-in profile (`azure-conv-2023`, `azure-code-2023`, `sharegpt`) or the path of a profile file, relative to
    the scenario."""

    _loaded: WorkloadProfile | None = PrivateAttr(default=None)

    def bound(self, base_dir: Path) -> Self:
        path = str(base_dir / self.profile) if is_profile_path(self.profile) else self.profile
        copy = self.model_copy(update={"profile": path})
        with inside("profile"):
            copy._loaded = load_workload_profile(path)
        return copy

    def table(self) -> WorkloadProfile:
        return self._loaded if self._loaded is not None else load_workload_profile(self.profile)


@TOKEN_COUNTS.register("empirical")
class EmpiricalCounts(_FromProfile, TokenCounts):
    """The prompt or output lengths of a workload profile, by inverse CDF."""

    kind: Literal["empirical"] = "empirical"
    column: Literal["prompt", "output"]
    """Distribution of the profile to draw from."""

    def draw(self, n: int, rng: np.random.Generator) -> IntArray:
        profile = self.table()
        return (profile.prompt_tokens if self.column == "prompt" else profile.output_tokens).at(rng.random(n))


@LENGTHS.register("fixed")
class FixedLengths(LengthModel):
    """Equal prompt and output lengths for all requests."""

    kind: Literal["fixed"] = "fixed"
    prompt: Tokens
    """Prompt tokens."""
    output: Tokens
    """Output tokens."""

    @property
    def ends(self) -> Ends:
        return "max_new_tokens"

    def draw(self, n: int, rng: np.random.Generator) -> Lengths:
        return Lengths(np.full(n, self.prompt, dtype=np.int64), np.full(n, self.output, dtype=np.int64))


@LENGTHS.register("independent")
class IndependentLengths(LengthModel):
    """Prompt and output lengths from two independent distributions."""

    kind: Literal["independent"] = "independent"
    prompt: Counts
    """Prompt lengths."""
    output: Counts
    """Output lengths."""

    @property
    def ends(self) -> Ends:
        ends: Ends = self.output.ends
        return ends

    def bound(self, base_dir: Path) -> Self:
        with inside("prompt"):
            prompt = self.prompt.bound(base_dir)
        with inside("output"):
            output = self.output.bound(base_dir)
        return self.model_copy(update={"prompt": prompt, "output": output})

    def draw(self, n: int, rng: np.random.Generator) -> Lengths:
        of_prompts, of_outputs = rng.spawn(2)
        return Lengths(self.prompt.draw(n, of_prompts), self.output.draw(n, of_outputs))


@LENGTHS.register("empirical")
class EmpiricalLengths(_FromProfile, LengthModel):
    """Prompt and output lengths of a workload profile: both quantile functions, joined by a Gaussian copula.

    The copula's parameter 2 sin(pi rho / 6) gives its Spearman correlation the profile's value rho (Kruskal 1958,
    "Ordinal measures of association"). The dependence has no further resemblance to the source's.
    """

    kind: Literal["empirical"] = "empirical"

    def draw(self, n: int, rng: np.random.Generator) -> Lengths:
        profile = self.table()
        r = 2.0 * math.sin(math.pi * profile.spearman / 6.0)
        of_prompts, of_outputs = rng.spawn(2)
        z = of_prompts.standard_normal(n)
        prompt = profile.prompt_tokens.at(_below(z))
        output = profile.output_tokens.at(_below(r * z + math.sqrt(1.0 - r * r) * of_outputs.standard_normal(n)))
        return Lengths(prompt, output)


def _below(z: FloatArray) -> FloatArray:
    """Return the normal distribution function at each z. scipy's takes 0.2 s to import."""
    return 0.5 * np.fromiter(map(math.erfc, (z * -math.sqrt(0.5)).tolist()), dtype=np.float64, count=len(z))


@LENGTHS.register("trace")
class TraceLengths(Replay, LengthModel):
    """Lengths of a trace's rows, in order, with their priorities, sessions, prefixes, block hashes, tenants and
    classes, if any."""

    kind: Literal["trace"] = "trace"

    def draw(self, n: int, rng: np.random.Generator) -> Lengths:
        table = self.table(n)
        rows = np.arange(n) % max(len(table), 1)
        return Lengths(
            table.prompt_tokens[rows], table.output_tokens[rows], table.priority[rows], table.session[rows],
            table.prefix_group[rows], table.prefix_tokens[rows],
            _rows(table.hash_ids, rows), table.hash_block_tokens, _rows(table.hash_tokens, rows),
            None if table.max_new_tokens is None else table.max_new_tokens[rows],
            tenant=None if table.tenant is None else table.tenant.take(rows),
            service_class=None if table.service_class is None else table.service_class.take(rows),
        )


def _rows(column: Sequence[tuple[int, ...]] | None, rows: IntArray) -> Sequence[tuple[int, ...]] | None:
    """Return these rows of a column of lists, if the trace has it."""
    if column is None:
        return None
    from hermes.core.int_lists import IntLists  # most traces have no hashes

    return IntLists.of(column).take(rows)
