"""Whether a retry is made, and after which wait: rules of one place (client, gateway or router) as numbers."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from hermes.config.retries import EnvoyRetry, LitellmRetry, Retry, SglangRetry
from hermes.units import NS_PER_S, s_to_ns

__all__ = ["BreakerPolicy", "RetryBudget", "RetryPolicy", "breaker_of", "policy_of"]


@dataclass(frozen=True)
class RetryPolicy:
    """Rules of one place. Times in nanoseconds.

    Attributes:
        retries: Attempts after the first one.
        retry_on: Statuses after which another attempt is made.
        backoff_ns, most_ns: Wait before the first retry, and the longest one.
        factor: Growth of the wait with each retry; 0: the wait of retry n is (2^n - 1) x `backoff_ns`.
        low, high: The wait is multiplied by a number drawn between these.
        jitter_ns: A time drawn between 0 and this is added to it.
        alone: Whether there is a wait only where one client alone serves.
        per_try_ns: Longest time of an attempt; None for no limit.
        restarts: Whether an attempt whose first token its user has is made again, too.
        budget: Share of the active requests, and number, of retries at a time; None for no limit.
        goes_on: Whether another attempt goes on with the tokens that the user has (`hermes.gateway.migration`).
    """

    retries: int = 0
    retry_on: frozenset[int] = frozenset((502, 503, 504))
    backoff_ns: int = 25_000_000
    most_ns: int = 250_000_000
    factor: float = 0.0
    low: float = 0.0
    high: float = 1.0
    jitter_ns: int = 0
    alone: bool = False
    per_try_ns: int | None = None
    restarts: bool = False
    budget: tuple[float, int] | None = None
    goes_on: bool = False

    def wait_ns(self, number: int, draw: Callable[[], float]) -> int:
        """Return the wait before retry `number`, from 1. draw: Returns a number from 0 to 1; not called without need.
        """
        if self.factor:
            longest = min(self.backoff_ns * self.factor ** min(number - 1, 500), self.most_ns)
        else:
            longest = min((2 ** min(number, 60) - 1) * self.backoff_ns, self.most_ns)
        if not longest and not self.jitter_ns:
            return 0
        part = self.low if self.low == self.high else self.low + (self.high - self.low) * draw()
        return int(longest * part) + (int(self.jitter_ns * draw()) if self.jitter_ns else 0)


@dataclass(frozen=True)
class BreakerPolicy:
    """When a client gets no requests for a while.

    Attributes:
        failures: Failures that open its circuit.
        open_ns: Time for which it stays open.
        successes: Successes in a row after which failures count from 0 again, once it has been open: until then one
            failure opens it again. 0: they count from 0 at once.
        memory_ns: Time after which failures are forgotten; None: a success forgets them.
        share: If above 0, `failures` answers within `memory_ns` of the first are enough to open it, of which more than
            this share failed.
        at_once: Statuses that then open it alone.
        lone: Whether also the only client gets none.
    """

    failures: int
    open_ns: int
    successes: int = 0
    memory_ns: int | None = None
    share: float = 0.0
    at_once: frozenset[int] = frozenset()
    lone: bool = True


class RetryBudget:
    """Retries at a time of one place.

    Attributes:
        active: Requests under way.
        retrying: Those of them that are on a retry, or wait for one.
    """

    def __init__(self, budget: tuple[float, int] | None) -> None:
        self._budget = budget
        self.active = self.retrying = 0

    def allows(self) -> bool:
        """Whether one more retry may be made."""
        if self._budget is None:
            return True
        share, least = self._budget
        return self.retrying < max(least, share * self.active)


def policy_of(config: Retry) -> RetryPolicy:
    """Return the rules of a configuration."""
    factor, low, high, jitter, alone = 2.0, 1.0, 1.0, 0.0, isinstance(config, LitellmRetry)
    backoff, most = config.value_of("backoff"), config.value_of("max_backoff")
    if isinstance(config, EnvoyRetry):
        factor, low = 0.0, 0.0
    elif isinstance(config, LitellmRetry):
        jitter = config.jitter
    else:
        low = 1 - config.value_of("jitter")
    if isinstance(config, SglangRetry):
        factor, high = config.factor, 1 + config.jitter
    budget = config.budget
    return RetryPolicy(
        config.retries, frozenset(config.retry_on), s_to_ns(backoff), s_to_ns(most), factor, low, high,
        s_to_ns(jitter), alone, None if config.per_try is None else s_to_ns(config.per_try), config.begun == "restart",
        None if budget is None else (budget.share, budget.min),
    )


def breaker_of(config: Retry) -> BreakerPolicy | None:
    """Return when replicas get no requests for a while; None for never."""
    if isinstance(config, SglangRetry) and config.breaker is not None:
        breaker = config.breaker
        return BreakerPolicy(breaker.failures, s_to_ns(breaker.time), breaker.successes)
    if isinstance(config, LitellmRetry) and config.cooldown is not None:
        time_ns, allowed = s_to_ns(config.cooldown.time), config.cooldown.allowed_fails
        if allowed is None:
            return BreakerPolicy(5, time_ns, memory_ns=60 * NS_PER_S, share=0.5, at_once=frozenset((429,)), lone=False)
        return BreakerPolicy(allowed + 1, time_ns, memory_ns=time_ns, lone=False)
    return None
