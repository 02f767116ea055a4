"""Clients that offer a request again after an error: the whole request, from the start, under its own number.

The second offer is another `Request` object with the number, the arrival and the patience of the first, so that nothing
that is still under way for the first one can continue it.
"""

from __future__ import annotations

from collections.abc import Mapping
from functools import partial
from typing import Any

import numpy as np

from hermes.config.retries import Retry
from hermes.core.client import Client
from hermes.core.clock import ARRIVAL, EXPIRY, Clock, Tick
from hermes.core.generation import Generation
from hermes.core.record import FATES
from hermes.core.request import Request, Stream
from hermes.core.stage import Stage
from hermes.core.statuses import CLIENT_LATE, status_of
from hermes.dispatch.parts import DispatchPart
from hermes.gateway.calls import content_again
from hermes.gateway.gateway import Draw
from hermes.gateway.retries import RetryBudget, RetryPolicy, policy_of

__all__ = ["ClientRetries"]


class _Rules:
    """Retries of the clients of one workload."""

    def __init__(self, policy: RetryPolicy, draw: Draw) -> None:
        self.policy, self.draw, self.budget = policy, draw, RetryBudget(policy.budget)


class ClientRetries(DispatchPart):
    """Offers requests of workloads with `retry` again.

    Args:
        asked: For each such workload its rules, and what returns numbers from 0 to 1 of a stream of each request, by
            the request's number.
    """

    def __init__(self, env: Clock, asked: Mapping[Stream, tuple[Retry, Draw]]) -> None:
        self._env = env
        self._offered_ns: dict[int, int] = {}   # request -> when its client offered it again, for the last time
        self._late_ticks: dict[int, Tick] = {}   # request -> when its last offer is late: maybe long after its end
        self._rules = {stream: _Rules(policy_of(config), draw) for stream, (config, draw) in asked.items()}

    def arrived(self, request: Request) -> None:
        rules = self._rules.get(request.stream)
        if rules is not None:
            rules.budget.active += 1
            self._offered(request, rules)

    def _offered(self, request: Request, rules: _Rules) -> None:
        """Note that a client offers a request, for the first time or again."""
        limit_ns = rules.policy.per_try_ns
        if limit_ns is not None:
            reason = f"{CLIENT_LATE}{limit_ns / 1e9:g} s"
            self._forget(request)
            self._late_ticks[request.id] = self._env.tick_at(
                self._env._now + limit_ns, EXPIRY, partial(self._late, request, reason))

    def _forget(self, request: Request) -> None:
        """Let go of an offer that is over."""
        tick = self._late_ticks.pop(request.id, None)
        if tick is not None:
            tick.callbacks = []

    def _late(self, request: Request, reason: str, tick: Tick) -> None:
        if not request.over:
            self.coordinator.fates[request.id] = FATES.index("timed out")
            self.coordinator.refuse(request, reason)

    def begins(self, stage: Stage, client: Client) -> None:
        if stage.request.stream in self._rules and isinstance(stage, Generation):
            stage.request.tried = stage.request.tried or stage

    def offers_again(self, request: Request, reason: str) -> bool:
        rules = self._rules.get(request.stream)
        if rules is None:
            return False
        policy, number, budget = rules.policy, request.offered, rules.budget
        if number > 1:
            budget.retrying -= 1
        may = number <= policy.retries and status_of(reason) in policy.retry_on and (
            policy.restarts or not any(part.reads(request) for part in self.coordinator.parts))
        if not (may and budget.allows()):
            if number > 1:
                budget.retrying += 1   # until it has ended
            return False
        budget.retrying += 1
        fresh = request.again()
        request.tried = None   # as in `finished`
        alike = request.stream.only_stage is not None   # each offer asks for the same prompt
        if alike and fresh.content is None and fresh.tried is not None:   # prefix caches find what was computed
            fresh.content = content_again(fresh.tried)
        wait_ns = policy.wait_ns(number, partial(rules.draw, request.id))
        self._forget(request)
        self.coordinator.fates.pop(request.id, None)
        self.coordinator.drop(request, fresh)
        self._env.tick_at(self._env._now + wait_ns, ARRIVAL, partial(self._again, fresh, rules))
        return True

    def _again(self, request: Request, rules: _Rules, tick: Tick) -> None:
        """Offer a request again."""
        if not request.over:
            request.note("client_tries", request.offered)
            self._offered_ns[request.id] = self._env._now
            self._offered(request, rules)
            self.coordinator.offer(request)

    def finished(self, request: Request) -> None:
        rules = self._rules.get(request.stream)
        if rules is not None:
            self._forget(request)
            request.tried = None   # a cycle of references, which nothing would free during the run
            rules.budget.active -= 1
            if request.offered > 1:
                rules.budget.retrying -= 1

    def idle(self) -> bool:
        return not any(rules.budget.active or rules.budget.retrying for rules in self._rules.values())

    def record(self, end_ns: int) -> dict[str, Any]:   # Any: fields of the record
        rows = np.array(sorted(self._offered_ns.items()), dtype=np.int64).reshape(-1, 2)
        return {"offers": {"request": rows[:, 0].copy(), "offered_ns": rows[:, 1].copy()}} if len(rows) else {}
