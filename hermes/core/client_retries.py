"""Clients that offer a request again after an error: the whole request, from the start, under its own number.

The second offer is another `Request` object with the number, the arrival and the patience of the first, so that nothing
that is still under way for the first one can continue it.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Protocol

from hermes.core.clock import EXPIRY, Clock, Tick
from hermes.core.gateway import content_again
from hermes.core.request import Request
from hermes.core.retries import RetryBudget, RetryPolicy
from hermes.core.statuses import CLIENT_LATE, status_of

__all__ = ["ClientRetries"]


class _Ending(Protocol):
    """Method of the coordinator that ends an attempt of a client."""

    def give_up_try(self, request: Request, reason: str) -> None: ...


class ClientRetries:
    """Retries of the clients of one workload.

    Args:
        draw: Returns numbers from 0 to 1 of a stream of each request, by the request's number.
    """

    def __init__(self, env: Clock, policy: RetryPolicy, draw: Callable[[int], float]) -> None:
        self._env, self._policy, self._draw = env, policy, draw
        self._budget = RetryBudget(policy.budget)

    def began(self, request: Request) -> None:
        """Note that a request arrives."""
        self._budget.active += 1
        self.offered(request)

    def offered(self, request: Request) -> None:
        """Note that a client offers a request, for the first time or again."""
        limit_ns = self._policy.per_try_ns
        if limit_ns is not None:
            self._env.tick_at(self._env._now + limit_ns, EXPIRY, partial(self._late, request))

    def _late(self, request: Request, tick: Tick) -> None:
        assert self._policy.per_try_ns is not None
        book: _Ending = request.stream.coordinator  # type: ignore[assignment]  # the coordinator is more than that
        book.give_up_try(request, f"{CLIENT_LATE}{self._policy.per_try_ns / 1e9:g} s")

    def again(self, request: Request, reason: str, *, begun: bool) -> tuple[int, Request] | None:
        """Return the wait in ns until a request that ended for a reason is offered again, and as what; None if it is
        not."""
        policy, number = self._policy, request.offered
        if request.offered > 1:
            self._budget.retrying -= 1
        may = number <= policy.retries and status_of(reason) in policy.retry_on and (policy.restarts or not begun)
        if not (may and self._budget.allows()):
            if request.offered > 1:
                self._budget.retrying += 1   # until it has ended
            return None
        self._budget.retrying += 1
        fresh = request.again()
        alike = request.stream.only_stage is not None   # each offer asks for the same prompt
        if alike and fresh.content is None and fresh.tried is not None:   # prefix caches find what was computed
            fresh.content = content_again(fresh.tried)
        return policy.wait_ns(number, partial(self._draw, request.id)), fresh

    def ended(self, request: Request) -> None:
        """Note that a request has ended."""
        self._budget.active -= 1
        if request.offered > 1:
            self._budget.retrying -= 1

    def idle(self) -> bool:
        """Whether nothing is left."""
        return not (self._budget.active or self._budget.retrying)
