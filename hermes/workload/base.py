"""Protocols of a workload's components: arrival processes, length models, token counts.

Components are immutable descriptions; a draw's state is in the generator that it gets. Every component must keep two
rules, which `hermes.testing.workload` checks: the same generator state gives the same arrays, and a draw of more
requests begins with the same ones (draws are prefixes of longer draws).
"""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any, ClassVar, Literal, Self

import numpy as np
from pydantic import Field

from hermes.arrays import FloatArray, IntArray
from hermes.config import ConfigModel
from hermes.core.request_table import NamedColumn
from hermes.errors import InputError, Verbatim, inside
from hermes.units import NS_PER_S, s_to_ns

__all__ = ["MAX_TOKENS", "ArrivalProcess", "ClosedLoopProcess", "Ends", "LengthModel", "Lengths", "ThinkDistribution",
           "TokenCounts", "WorkloadComponent", "inside", "seconds_to_ns", "think_times_ns"]


ThinkDistribution = Literal["fixed", "exponential"]

Ends = Literal["stop_token", "max_new_tokens"]
"""How an answer ends: by a stop token, or with the tokens that the request asks for."""

MAX_TOKENS = 2**40
"""Largest number of tokens of a prompt or answer (the bound of `hermes.config.Tokens`)."""


class WorkloadComponent(ConfigModel):
    """A part of a workload that may read files, and may be limited to their rows."""

    replays: ClassVar[bool] = False
    """Whether the component has its own number of requests, so that the workload need not give one."""

    def bound(self, base_dir: Path) -> Self:
        """Return this component with relative paths resolved against `base_dir` (the scenario's folder)."""
        return self

    def bound_beside(self, other: WorkloadComponent, base_dir: Path) -> Self:
        """Return `bound`. A component may take a file's content from `other`, which is bound already."""
        return self.bound(base_dir)

    def available(self) -> int | None:
        """Return how many requests the component can give; None for any number. May read its file (`InputError`)."""
        return None


class ArrivalProcess(WorkloadComponent):
    """Arrival times that do not depend on the answers (open loop)."""

    max_in_flight: Annotated[int, Field(ge=1, le=10**9)] | None = None
    """Limit of requests in service, as load drivers have it (`--max-concurrency`). Requests above it wait outside,
    first come, first served, and are sent when another one ends; their latencies count from then. Left out, no
    limit."""

    endless_time: ClassVar[bool] = True
    """Whether arrival times grow without bound, so that a duration determines the number of requests."""

    @property
    def changes(self) -> str | None:
        """Why the rate is not the same throughout, in words; "" if it is, None if only the times that are drawn tell.
        """
        return None

    def scaled(self, factor: float) -> dict[str, Any]:
        """Return the keys that change, with their values, if `factor` times as many requests arrive per second."""
        rate = getattr(self, "rate", None)
        if rate is None:
            raise InputError("arrivals with a rate, which can be scaled", getattr(self, "kind", None), field="kind")
        return {"rate": rate * factor}

    @abstractmethod
    def times_ns(self, n: int, rng: np.random.Generator) -> IntArray:
        """Return the first `n` arrival times, int64 nanoseconds of shape (n,), nondecreasing, from 0 on.

        Called once per draw, with a generator that no other component uses.
        """


class ClosedLoopProcess(WorkloadComponent):
    """A closed loop: each of `users` users waits for an answer, thinks, and submits the next request."""

    users: int
    changes: ClassVar[str | None] = ""

    def scaled(self, factor: float) -> dict[str, Any]:
        """Return the keys that change, with their values, for `factor` times as many users."""
        return {"users": max(1, round(self.users * factor))}

    @abstractmethod
    def think_ns(self, n: int, rng: np.random.Generator) -> IntArray:
        """Return the wait of a user before request i: int64 nanoseconds of shape (n,), at least 0."""


@dataclass
class Lengths:
    """Columns that a length model draws: int64 of shape (n,), named as in `RequestTable`.

    All models give the first two; the others come from models that replay rows with these columns.
    """

    prompt_tokens: IntArray
    output_tokens: IntArray
    priority: IntArray | None = None
    session: IntArray | None = None
    prefix_group: IntArray | None = None
    prefix_tokens: IntArray | None = None
    hash_ids: Sequence[tuple[int, ...]] | None = None
    hash_block_tokens: int = 512
    hash_tokens: Sequence[tuple[int, ...]] | None = None
    max_new_tokens: IntArray | None = None
    turn: IntArray | None = None
    think_ns: IntArray | None = None
    tenant: NamedColumn | None = None
    service_class: NamedColumn | None = None


class LengthModel(WorkloadComponent):
    """Joint distribution of prompt and answer lengths."""

    has_turns: ClassVar[bool] = False
    """Whether requests are turns of conversations (`hermes.workload.conversations`)."""

    @property
    def ends(self) -> Ends:
        """How answers of these lengths end, where neither the workload nor a trace's column says it."""
        return "stop_token"

    @abstractmethod
    def draw(self, n: int, rng: np.random.Generator) -> Lengths:
        """Draw prompt and output tokens of `n` requests, int64 of shape (n,), each at least 1."""


class TokenCounts(WorkloadComponent):
    """A distribution of one token count, for `lengths: {kind: independent}`."""

    ends: ClassVar[Ends] = "stop_token"
    """How answers of these lengths end, where the workload does not say it: a stop token ends real answers, and load
    drivers that want answers of given lengths let the engine ignore it."""

    @abstractmethod
    def draw(self, n: int, rng: np.random.Generator) -> IntArray:
        """Draw `n` token counts, int64 of shape (n,), each from 1 to `MAX_TOKENS`."""


def seconds_to_ns(seconds: FloatArray) -> IntArray:
    """Convert seconds to integer nanoseconds, elementwise, by the kernel's rule (half to even).

    Raises `InputError` for times beyond the int64 clock (about 292 years), which only a mistyped rate gives.
    """
    if seconds.size and not float(seconds.max()) < 9.2e9:
        raise InputError("arrivals within 292 years, the range of the clock", Verbatim(f"{float(seconds.max()):.3g} s"))
    return np.rint(seconds * NS_PER_S).astype(np.int64)


def think_times_ns(mean_s: float, distribution: ThinkDistribution, n: int, rng: np.random.Generator) -> IntArray:
    """Return `n` think times, int64 nanoseconds of shape (n,)."""
    if distribution == "fixed":
        return np.full(n, s_to_ns(mean_s), dtype=np.int64)
    return seconds_to_ns(rng.standard_exponential(n) * mean_s)
