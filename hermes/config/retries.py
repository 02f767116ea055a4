"""Rules of retries by the names of the systems that have them: Envoy, LiteLLM, SGLang's model gateway, OpenAI's client.

Each kind has the defaults of its system; every number can be replaced. They stand at a gateway (`gateway.retry`), at
the router behind it (`gateway.router_retry`) and at the clients of a workload (`retry`).
"""

from __future__ import annotations

from typing import Annotated, Literal

from pydantic import Field, field_validator

from hermes.config.component import ConfigModel, Duration
from hermes.errors import InputError, Verbatim

__all__ = ["BreakerConfig", "BudgetConfig", "ClientRetry", "CooldownConfig", "EnvoyRetry", "LitellmRetry",
           "OpenaiRetry", "Retry", "RetryConfig", "SglangRetry"]

Retryable = Literal[429, 502, 503, 504, 529]


class BudgetConfig(ConfigModel):
    """Limit of the retries at a time, Envoy's retry budget: a retry is made if fewer are under way than a share of the
    active requests, or than a minimum."""

    share: float = Field(default=0.2, ge=0, le=1)
    """Share of the active requests."""
    min: int = Field(default=3, ge=0, le=10**9)
    """Retries that are always allowed at a time."""


class Retry(ConfigModel):
    """Keys of all kinds."""

    retries: int = Field(default=1, ge=0, le=100)
    """Attempts after the first one."""
    retry_on: list[Retryable] = [502, 503, 504, 529]
    """Statuses after which another attempt is made: 429 (too many requests), 502 (the replica went down or cannot be
    reached), 503 (no replica is ready), 504 (time-out), 529 (the engine's queue is full)."""
    per_try: Duration | None = Field(default=None, gt=0)
    """Longest time until an attempt is answered in full. Left out, there is none."""
    begun: Literal["fail", "restart"] = "fail"
    """Whether a request whose first token has been sent is made again, from the start."""
    budget: BudgetConfig | None = None
    """Limit of the retries at a time. Left out, there is none."""

    @field_validator("retry_on")
    @classmethod
    def _once(cls, statuses: list[int]) -> list[int]:
        if len(set(statuses)) < len(statuses):
            raise InputError(Verbatim("a status is listed twice; list it once"))
        return statuses


class EnvoyRetry(Retry):
    """Envoy: one retry, after a wait drawn uniformly between 0 and (2^n - 1) x `backoff` before retry n."""

    kind: Literal["envoy"] = "envoy"
    backoff: Duration = Field(default=0.025, ge=0)
    """Base of the waits."""
    max_backoff: Duration = Field(default=0.25, ge=0)
    """Longest wait."""


class CooldownConfig(ConfigModel):
    """LiteLLM's cool-down of a deployment. What becomes of a request counts at the replica that had it."""

    allowed_fails: int | None = Field(default=None, ge=0, le=10**6)
    """Failures of a replica that change nothing; the next one begins the cool-down. The count is forgotten `time` after
    the latest failure. Left out: a 429 begins it at once, otherwise more than half failures among at least 5 answers
    within a minute. The only replica is never kept out."""
    time: Duration = Field(default=5.0, gt=0)
    """Time for which the replica gets no requests."""


class LitellmRetry(Retry):
    """LiteLLM: two retries, at once where there are several replicas and after a wait that doubles where there is one,
    and a cool-down of replicas that fail."""

    kind: Literal["litellm"] = "litellm"
    retries: int = Field(default=2, ge=0, le=100)
    retry_on: list[Retryable] = [429, 502, 503, 504, 529]
    backoff: Duration = Field(default=0.5, ge=0)
    """Wait before the first retry at the only replica; it doubles with each."""
    max_backoff: Duration = Field(default=8.0, ge=0)
    """Longest wait, before the jitter."""
    jitter: Duration = Field(default=0.75, ge=0)
    """A time drawn between 0 and this is added to the wait."""
    cooldown: CooldownConfig | None = CooldownConfig()
    """Cool-down of a replica that fails. null: none."""


class BreakerConfig(ConfigModel):
    """Circuit breaker of each replica: after `failures` in a row it gets no requests for `time`; then it gets them
    again, and one failure before `successes` in a row closes it out again."""

    failures: int = Field(default=10, ge=1, le=10**6)
    """Failures in a row that open the circuit."""
    successes: int = Field(default=3, ge=1, le=10**6)
    """Successes in a row after which failures are counted from 0 again."""
    time: Duration = Field(default=60.0, gt=0)
    """Time for which the replica gets no requests."""


class SglangRetry(Retry):
    """SGLang's model gateway: four retries (its `max_retries` of 5 counts the first attempt), after waits that grow,
    and a circuit breaker of each replica."""

    kind: Literal["sglang"] = "sglang"
    retries: int = Field(default=4, ge=0, le=100)
    retry_on: list[Retryable] = [429, 502, 503, 504]
    backoff: Duration = Field(default=0.05, ge=0)
    """Wait before the first retry."""
    factor: float = Field(default=1.5, ge=1, le=100)
    """Growth of the wait with each retry."""
    max_backoff: Duration = Field(default=30.0, ge=0)
    """Longest wait, before the jitter."""
    jitter: float = Field(default=0.2, ge=0, le=1)
    """The wait is multiplied by a number drawn between 1 - `jitter` and 1 + `jitter`."""
    breaker: BreakerConfig | None = BreakerConfig()
    """Circuit breaker of each replica. null: none."""


class OpenaiRetry(Retry):
    """OpenAI's client: two retries, after waits that double, and a time-out of 10 minutes for each attempt."""

    kind: Literal["openai"] = "openai"
    retries: int = Field(default=2, ge=0, le=100)
    retry_on: list[Retryable] = [429, 502, 503, 504, 529]
    per_try: Duration | None = Field(default=600.0, gt=0)
    backoff: Duration = Field(default=0.5, ge=0)
    """Wait before the first retry; it doubles with each."""
    max_backoff: Duration = Field(default=8.0, ge=0)
    """Longest wait."""
    jitter: float = Field(default=0.25, ge=0, le=1)
    """The wait is multiplied by a number drawn between 1 - `jitter` and 1."""


RetryConfig = Annotated[EnvoyRetry | LitellmRetry | SglangRetry | OpenaiRetry, Field(discriminator="kind")]
ClientRetry = Annotated[EnvoyRetry | OpenaiRetry, Field(discriminator="kind")]   # clients know no replicas
