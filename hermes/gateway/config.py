"""The key `gateway` of a scenario: its hop, attempts, time-outs, and the queue for a replica that is ready."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from typing import TYPE_CHECKING, Literal

import numpy as np
from pydantic import Field

from hermes.config import ConfigModel, Duration, Name, Rate
from hermes.config.retries import RetryConfig
from hermes.config.streams import stream as random_stream
from hermes.gateway.flow_config import (
    AdmissionConfig,
    ClassConfig,
    FlowControlConfig,
    Requested,
    TenantConfig,
    build_flow,
)
from hermes.units import NS_PER_S, s_to_ns

if TYPE_CHECKING:
    from hermes.core.client import Client
    from hermes.core.clock import Clock
    from hermes.gateway.breakers import Guarded
    from hermes.gateway.gateway import Gateway
    from hermes.gateway.parts import GatewayPart
    from hermes.gateway.retries import BreakerPolicy, RetryPolicy

    MakesPart = Callable[[Gateway], GatewayPart]

__all__ = ["GatewayConfig", "MigrationConfig", "QueueConfig", "draws"]

STREAMS = 1000


class QueueConfig(ConfigModel):
    """Queue of requests for which no replica is ready, first come first served."""

    ttl: Duration = Field(default=60.0, gt=0)
    """Longest wait; then the request has expired."""
    max: int = Field(default=5000, ge=1, le=10**9)
    """Most requests that wait; further ones are refused."""


class MigrationConfig(ConfigModel):
    """Migration of generations, by the rule of Dynamo's frontend: when a stream breaks, or no connection is made, the
    request is sent to another replica at once, with the prompt and the tokens that the user has, for the rest.

    It comes before all retries, which count no migration. Requests for several answers migrate before their first
    token only."""

    limit: int = Field(default=3, ge=1, le=100)
    """Most migrations of a request (`--migration-limit`), those before its first token included."""
    max_seq_len: int | None = Field(default=None, ge=1, le=10**9)
    """Longest prompt with answer so far that migrates (`--migration-max-seq-len`). Left out, there is no limit."""
    idle: Duration | None = Field(default=None, gt=0)
    """Longest time without a token; then the gateway gives the attempt up (as Envoy's idle time-out of a try), and it
    migrates. Left out, there is none."""


class GatewayConfig(ConfigModel):
    """What stands before the engines: it makes attempts, and ends those that take too long.

    Without it an attempt that fails ends its request, and so does a lack of ready replicas. It applies to each
    generation and embedding of a request that an engine serves, and to stages of services that have a `fleet`."""

    retries: int = Field(default=0, ge=0, le=100)
    """Attempts after the first one has failed: its replica went down or could not be reached, no replica was ready, or
    it took longer than `per_try`."""
    backoff: Duration = Field(default=0.025, ge=0)
    """Before retry n the gateway waits uniformly between 0 and (2^n - 1) times this (Envoy's rule and default)."""
    max_backoff: Duration = Field(default=0.25, ge=0)
    """Longest wait before a retry."""
    timeout: Duration | None = Field(default=None, gt=0)
    """Longest time until a call is answered in full, all attempts and waits included: the `timeouts.request` of an
    HTTPRoute. The workload's `patience` is the time-out of the client. Left out, there is none."""
    per_try: Duration | None = Field(default=None, gt=0)
    """Longest time until an attempt is answered in full. Left out, there is none."""
    cancel_delay: Duration = Field(default=0.0, ge=0)
    """Time until an engine learns that nobody waits for an attempt any more; until then it goes on."""
    retry: RetryConfig | None = None
    """Rules of another system for its retries, in place of `retries`, `backoff`, `max_backoff`, `per_try` and `begun`.
    Left out, these hold, after statuses 502, 503 and 504."""
    router_retry: RetryConfig | None = None
    """Retries of the router behind the gateway: each try of the gateway has all of them. Left out, there are none."""
    migration: MigrationConfig | None = None
    """Attempts that go on at another replica. Left out, none do."""
    begun: Literal["fail", "restart"] = "fail"
    """What becomes of a call whose attempt fails after its first token: it fails, as a gateway that streams has sent
    the head of its answer, or it is tried again from the start."""
    queue: QueueConfig | None = None
    """Queue for requests while no replica is ready. Left out, there is none: such an attempt fails. `flow_control` has
    a queue of its own, and takes its place."""
    flow_control: FlowControlConfig | None = None
    """Late binding: requests wait unplaced until the pool has room. Left out, they are dispatched when they arrive."""
    admission: AdmissionConfig | None = None
    """Refusal of requests of a negative priority while the pool is full. Left out, none are refused; `flow_control`
    takes its place."""
    classes: dict[Name, ClassConfig] = {}
    """Classes of requests, by the names that workloads give, with their priorities at the gateway."""
    tenants: dict[Name, TenantConfig] = {}
    """Tenants with another weight than 1, by the names that workloads give."""
    delay: Duration = Field(default=0.0, ge=0)
    """Time that a request takes through the gateway to the engine, before the router chooses; part of TTFT. It is taken
    once, not again by retries of the gateway."""
    capacity: Rate | None = None
    """Requests per second that one gateway passes, each in 1 / capacity, first come first served. Left out, there is no
    limit."""
    backlog: int | None = Field(default=None, ge=0, le=10**9)
    """Most requests that wait for the capacity of one gateway; further ones are refused with 429. Left out, there is no
    limit."""
    replicas: int = Field(default=1, ge=1, le=1000)
    """Gateways. Each has a router of its own, which knows what it sent itself and scrapes for itself."""
    spread: Literal["round_robin", "random"] = "round_robin"
    """How requests are spread over several gateways: in turn, or each at random."""

    @property
    def orders(self) -> FlowControlConfig | AdmissionConfig | None:
        """What decides who goes first, and who is refused; None if all requests go at once."""
        return self.flow_control or self.admission

    def band_of(self, name: str) -> int:
        """Return the priority at the gateway of a class, or of requests without one (an empty name)."""
        return self.classes[name].priority if name in self.classes else 0

    def build(self, env: Clock, seed: int, groups: Sequence[list[list[Client]]], requested: Requested,
              guarded: Sequence[Guarded]) -> Gateway:
        """Return the gateway of one run. Raises `InputError` with the field within `gateway`.

        groups, requested: As those of `hermes.gateway.flow_config.build_flow`. guarded: Routers that breakers keep
        clients from.
        """
        from hermes.gateway.gateway import Gateway, GatewayPolicy
        from hermes.gateway.retries import RetryPolicy, policy_of

        if self.retry is None:
            retry = RetryPolicy(
                self.retries, backoff_ns=s_to_ns(self.backoff), most_ns=s_to_ns(self.max_backoff),
                per_try_ns=None if self.per_try is None else s_to_ns(self.per_try), restarts=self.begun == "restart")
        else:
            retry = policy_of(self.retry)
        policy = GatewayPolicy(
            retry=retry, router=None if self.router_retry is None else policy_of(self.router_retry),
            migration=None if self.migration is None else RetryPolicy(
                self.migration.limit, frozenset((502, 504)), 0, 0, restarts=True, goes_on=True),
            cancel_ns=s_to_ns(self.cancel_delay), replicas=self.replicas)
        flow = [] if (orders := self.orders) is None else [lambda gateway: build_flow(
            env, seed, gateway, groups, requested, orders, self.classes, self.tenants, self.replicas)]
        return Gateway(env, policy, draws(seed), [*self._ways(env, seed), *flow,
                                                  *self._limits(env, policy.places, guarded)])

    def _ways(self, env: Clock, seed: int) -> Iterator[MakesPart]:
        """Return the parts before flow control: the hop, and the time-out of a call."""
        from hermes.gateway.hop import Hop, HopPolicy
        from hermes.gateway.time_outs import CallTimeOut

        service_ns = 0 if self.capacity is None else max(1, round(NS_PER_S / self.capacity))
        policy = HopPolicy(s_to_ns(self.delay), service_ns, self.replicas, self.backlog)
        if policy.acts:
            rng = random_stream(seed, "gateway/spread")
            pick = None if self.spread == "round_robin" else lambda: int(rng.integers(self.replicas))
            yield lambda gateway: Hop(gateway, env, policy, pick)
        if self.timeout is not None:
            limit_ns = s_to_ns(self.timeout)
            yield lambda gateway: CallTimeOut(gateway, env, limit_ns)

    def _limits(self, env: Clock, places: Sequence[RetryPolicy], guarded: Sequence[Guarded]) -> Iterator[MakesPart]:
        """Return the parts after flow control: the queue, breakers, and the time-outs of tries."""
        from hermes.gateway.breakers import Breakers, Circuits
        from hermes.gateway.ready_queue import ReadyQueue
        from hermes.gateway.time_outs import TryTimeOuts

        queue: QueueConfig | FlowControlConfig | None = self.queue or self.flow_control
        if queue is not None:
            ttl_ns, most = s_to_ns(queue.ttl), queue.max
            yield lambda gateway: ReadyQueue(gateway, env, ttl_ns, most)
        if self.breaker is not None:
            breakers = Breakers(env, self.breaker, guarded)
            yield lambda gateway: Circuits(gateway, breakers)
        if (own := self.migration) is not None:
            from hermes.gateway.migration import IdleTries, Migration

            yield lambda gateway: Migration(gateway, own.max_seq_len)
            if own.idle is not None:
                idle_ns = s_to_ns(own.idle)
                yield lambda gateway: IdleTries(gateway, env, idle_ns)
        limits_ns = [place.per_try_ns for place in places]
        if any(limit_ns is not None for limit_ns in limits_ns):
            yield lambda gateway: TryTimeOuts(gateway, env, limits_ns)

    @property
    def breaker(self) -> BreakerPolicy | None:
        """When replicas get no requests for a while."""
        return next(iter(self._breakers()), None)

    def _breakers(self) -> list[BreakerPolicy]:
        from hermes.gateway.retries import breaker_of  # most scenarios have no gateway
        found = [breaker_of(config) for config in (self.retry, self.router_retry) if config is not None]
        return [breaker for breaker in found if breaker is not None]


def draws(seed: int, name: str = "backoff") -> Callable[[int], float]:
    """Return what draws the back-offs of each request from a stream of its own."""
    streams: dict[int, np.random.Generator] = {}   # of the last requests that drew
    drawn: dict[int, int] = {}

    def draw(request: int) -> float:
        count = drawn.get(request, 0)
        if request not in streams:
            streams[request] = random_stream(seed, f"{name}/{request}")
            streams[request].random(count)
            if len(streams) > STREAMS:
                del streams[next(iter(streams))]
        drawn[request] = count + 1
        return float(streams[request].random())

    return draw
