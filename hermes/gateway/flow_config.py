"""The keys `gateway.flow_control`, `admission`, `classes` and `tenants`: which requests wait, and which go first."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import TYPE_CHECKING, Annotated, Any, Literal, Self

from pydantic import Field, model_validator

from hermes.config import Bytes, ConfigModel, Duration
from hermes.core.client import Client
from hermes.errors import InputError, Verbatim, suggest
from hermes.units import s_to_ns

if TYPE_CHECKING:
    from hermes.core.clock import Clock
    from hermes.gateway.fairness import Fairness, Held, Service
    from hermes.gateway.flow_control import FlowControl
    from hermes.gateway.flow_policy import Classes
    from hermes.gateway.gateway import Gateway
    from hermes.gateway.saturation import Saturation, Wake

__all__ = ["AdmissionConfig", "BandConfig", "ClassConfig", "FlowControlConfig", "Requested", "TenantConfig",
           "build_flow"]

NO_CLASS = ""   # name of the class, and of the tenant, of requests without one
FAR_NS = 1 << 62


class ClassConfig(ConfigModel):
    """A class of requests at the gateway, by the name that a workload's `classes` give."""

    priority: int = Field(default=0, ge=-(2**31), le=2**31)
    """Band of the class. *Higher* is served first, as in llm-d; the `priorities` of a workload, which engines see, are
    another matter. Requests without a class have 0."""
    ttft: Duration | None = Field(default=None, gt=0)
    """Deadline of the first token, from the arrival on, for `ordering: slo_deadline`. Left out, none: such requests
    come last."""
    ttl: Duration | None = Field(default=None, gt=0)
    """Longest wait in the queue. Left out, that of `flow_control`."""
    ceiling: float = Field(default=1.0, gt=0, le=100)
    """Saturation from which on requests of this band, and of all lower ones, wait. Of several classes of a band the
    lowest applies."""


class TokenBudgetConfig(ConfigModel):
    """Tokens that a tenant may use in each window of time. They are counted when a request is complete, prompt and
    output; while they are used up, further requests of the tenant are refused."""

    tokens: int = Field(ge=1, le=10**15)
    """Tokens of a window."""
    per: Duration = Field(default=60.0, gt=0)
    """Length of the windows, the first of which begins at time 0."""


class TenantConfig(ConfigModel):
    """A tenant, by the name that a workload's `tenants` give."""

    weight: float = Field(default=1.0, gt=0, le=1e6)
    """Share of the tenant in `fairness: deficit_round_robin`, and in Jain's index of the tokens served."""
    budget: TokenBudgetConfig | None = None
    """Tokens that the tenant may use in a time. Left out, any number."""


class UtilizationDetector(ConfigModel):
    """Saturation as the mean over the replicas of max(waiting / `queue`, KV use / `kv`), of prefill and decode replicas
    the larger one."""

    kind: Literal["utilization"] = "utilization"
    queue: float = Field(default=5.0, gt=0, le=1e6)
    """Waiting requests of a full replica."""
    kv: float = Field(default=0.8, gt=0, le=1)
    """KV use of a full replica."""
    scrape: Duration = Field(default=0.05, gt=0)
    """Time between two scrapes of a replica. When in it each is scraped is drawn once, as for routers."""
    stale: Duration = Field(default=0.2, gt=0)
    """Age of the last scrape from which on a replica counts as full. Scrapes fail while it is down."""

    def needs(self, clients: Sequence[Client]) -> None:
        """Raise `InputError` for clients that cannot be scraped."""
        from hermes.core.scraped import Scrapable

        if self.stale < self.scrape:
            raise InputError(f"at least the time between two scrapes ({self.scrape:g} s)", self.stale, field="stale")
        for client in clients:
            if not isinstance(client, Scrapable):
                raise InputError(Verbatim(f"{client.name} cannot be scraped; write concurrency"), field="kind")

    def build(self, env: Clock, seed: int, down: set[int], lists: Sequence[Sequence[Client]],
              clients: Sequence[Client], in_flight: Mapping[int, int], wake: Wake, name: str) -> Saturation:
        """Return the detector of a pool."""
        from hermes.gateway.saturation import Utilization

        return Utilization(env, lists, clients, down, wake, seed=seed, name=name, period_s=self.scrape,
                           queue=self.queue, kv=self.kv, stale_ns=s_to_ns(self.stale))


class ConcurrencyDetector(ConfigModel):
    """Saturation as the requests in flight over `limit` times the replicas, of prefill and decode replicas the larger
    one. The gateway counts itself, so that it is never late."""

    kind: Literal["concurrency"] = "concurrency"
    limit: int = Field(default=100, ge=1, le=10**9)
    """Requests in flight at a full replica."""

    def needs(self, clients: Sequence[Client]) -> None:
        """Raise no error: the gateway can count at any client."""

    def build(self, env: Clock, seed: int, down: set[int], lists: Sequence[Sequence[Client]],
              clients: Sequence[Client], in_flight: Mapping[int, int], wake: Wake, name: str) -> Saturation:
        """Return the detector of a pool."""
        from hermes.gateway.saturation import InFlight

        return InFlight(lists, in_flight, self.limit)


Detector = Annotated[UtilizationDetector | ConcurrencyDetector, Field(discriminator="kind")]


class GlobalStrictFairness(ConfigModel):
    """The best request of all tenants, as if they had one queue."""

    kind: Literal["global_strict"] = "global_strict"

    def service(self) -> Service | None:
        """Return what tenants have been served; None, since it does not matter."""
        return None

    def policy(self, cycle_ns: int, weights: Sequence[float], service: Service | None) -> Fairness:
        """Return the policy of a band."""
        from hermes.gateway.fairness import GlobalStrict

        return GlobalStrict()


class RoundRobinFairness(ConfigModel):
    """The tenants in turn, by name."""

    kind: Literal["round_robin"] = "round_robin"

    def service(self) -> Service | None:
        """Return what tenants have been served; None, since it does not matter."""
        return None

    def policy(self, cycle_ns: int, weights: Sequence[float], service: Service | None) -> Fairness:
        """Return the policy of a band."""
        from hermes.gateway.fairness import RoundRobin

        return RoundRobin(cycle_ns)


class LeastServiceFairness(ConfigModel):
    """The tenant with the highest score: little service attained, and a first request that has waited for long."""

    kind: Literal["least_attained_service"] = "least_attained_service"
    service_weight: float = Field(default=0.8, ge=0, le=1e6)
    """Weight of the score of the service, which is 1 for the tenant with the least and 0 for that with the most."""
    wait_weight: float = Field(default=0.2, ge=0, le=1e6)
    """Weight of the score of the wait, which is 1 for the longest and 0 for the shortest."""
    half_life: Duration = Field(default=60.0, gt=0)
    """Time in which the service of a tenant halves, also while it has requests."""
    output_weight: float = Field(default=2.0, ge=0, le=1e6)
    """Prompt tokens that an output token counts for."""

    def service(self) -> Service | None:
        """Return what tenants have been served."""
        from hermes.gateway.fairness import Service

        return Service(s_to_ns(self.half_life), self.output_weight)

    def policy(self, cycle_ns: int, weights: Sequence[float], service: Service | None) -> Fairness:
        """Return the policy of a band."""
        from hermes.gateway.fairness import LeastService

        assert service is not None
        return LeastService(service, self.service_weight, self.wait_weight)


class DeficitRoundRobinFairness(ConfigModel):
    """The tenants in turn, each for tokens in proportion to its weight (`gateway.tenants`). A prompt counts when it is
    dispatched, its output when it is complete."""

    kind: Literal["deficit_round_robin"] = "deficit_round_robin"
    quantum: int = Field(default=1000, ge=1, le=10**9)
    """Tokens of a turn at weight 1."""
    output_weight: float = Field(default=2.0, ge=0, le=1e6)
    """Prompt tokens that an output token counts for."""

    def service(self) -> Service | None:
        """Return what tenants have been served; None, since each band counts for itself."""
        return None

    def policy(self, cycle_ns: int, weights: Sequence[float], service: Service | None) -> Fairness:
        """Return the policy of a band."""
        from hermes.gateway.fairness import DeficitRoundRobin

        return DeficitRoundRobin(self.quantum, self.output_weight, weights)


class RevokeConfig(ConfigModel):
    """Revoking of running requests of a lower band while one of a higher band waits for room."""

    most: int = Field(default=2, ge=1, le=10**6)
    """Most requests revoked in a decision. It takes as many as bring the saturation below the ceiling, at their mean
    share; of the lowest band first, and the newest first."""
    below: int = Field(default=0, ge=-(2**31), le=2**31)
    """Only requests of a lower priority than this are revoked."""
    grace: Duration = Field(default=0.5, gt=0)
    """Time until another decision: the engines need it to give memory back, and the scrapes to show it."""


FairnessConfig = Annotated[
    GlobalStrictFairness | RoundRobinFairness | LeastServiceFairness | DeficitRoundRobinFairness,
    Field(discriminator="kind"),
]
Ordering = Literal["fcfs", "edf", "slo_deadline"]


class BandConfig(ConfigModel):
    """Rules of one band, the requests of one priority. What is left out is as in `flow_control`."""

    priority: int = Field(ge=-(2**31), le=2**31)
    """Priority of the band, which `gateway.classes` give to requests."""
    max: int | None = Field(default=None, ge=1, le=10**9)
    """Most requests that wait in the band."""
    max_bytes: Bytes | None = Field(default=None, gt=0)
    """Most bytes of requests that wait in the band."""
    ordering: Ordering | None = None
    """Order within a tenant's queue."""
    fairness: FairnessConfig | None = None
    """Which tenant of the band is next."""


class FlowControlConfig(ConfigModel):
    """Queue of requests that wait unplaced until the pool has room, and are routed with the view of then (llm-d).

    One request leaves when one is queued, and at each multiple of `cycle` while some wait, unless the pool is
    saturated. It holds the generations and embeddings of engines, and takes the place of `gateway.queue`: an empty pool
    is saturated. Stages at services are not held; of those with a `fleet`, requests wait for a ready replica for `ttl`.
    Each attempt at a call waits anew."""

    detector: Detector = UtilizationDetector()
    """What tells that the pool is full."""
    ordering: Ordering = "fcfs"
    """Order within a tenant's queue, and of `fairness: global_strict`: as queued (`fcfs`), by the end of the time to
    live (`edf`), or by the deadline of the first token (`slo_deadline`). Equal ones as queued."""
    fairness: FairnessConfig = GlobalStrictFairness()
    """Which tenant of a band is next."""
    cycle: Duration = Field(default=0.001, gt=0)
    """Time between two requests that leave while others wait."""
    max: int = Field(default=5000, ge=1, le=10**9)
    """Most requests that wait in a band; further ones are refused."""
    max_bytes: Bytes = Field(default=10**9, gt=0)
    """Most bytes of requests that wait in a band."""
    total: int | None = Field(default=None, ge=1, le=10**9)
    """Most requests that wait in all bands together. Left out, each band's own limit is the only one."""
    total_bytes: Bytes | None = Field(default=None, gt=0)
    """Most bytes of requests that wait in all bands together. Left out, there is no such limit."""
    bands: list[BandConfig] = Field(default=[], max_length=1000)
    """Bands with limits or rules of their own, each priority once. The others have those of `flow_control`."""
    token_bytes: int = Field(default=4, ge=1, le=10**6)
    """Bytes of a prompt token in a request."""
    ttl: Duration = Field(default=60.0, gt=0)
    """Longest wait; then the request has expired. It begins anew when the last replica leaves, and when one is there
    again."""
    scan: Duration = Field(default=1.0, gt=0)
    """Time between two looks for requests that have expired."""
    revoke: RevokeConfig | None = None
    """Revoking of running requests of lower bands. Left out, none are revoked."""

    @model_validator(mode="after")
    def _each_band_once(self) -> Self:
        seen = set[int]()
        for place, band in enumerate(self.bands):
            if band.priority in seen:
                raise InputError(Verbatim("a second band of this priority; keep one"), field=f"bands.{place}.priority")
            seen.add(band.priority)
        rules = [self.fairness, *(band.fairness for band in self.bands)]
        services = [rule for rule in rules if isinstance(rule, LeastServiceFairness)]
        if any(other != services[0] for other in services):
            raise InputError(Verbatim("least_attained_service counts a tenant's service once for all bands; give its "
                                      "parameters alike"), field="bands")
        return self

    def rules_of(self, priority: int) -> BandConfig:
        """Return the limits and rules of a band, none left out."""
        own = next((band for band in self.bands if band.priority == priority), BandConfig(priority=priority))
        return BandConfig(priority=priority, max=own.max or self.max, max_bytes=own.max_bytes or self.max_bytes,
                          ordering=own.ordering or self.ordering, fairness=own.fairness or self.fairness)


class AdmissionConfig(ConfigModel):
    """Without flow control: requests of a negative priority are refused while the pool is saturated, all others pass at
    once (llm-d with flow control off)."""

    detector: Detector = UtilizationDetector()
    """What tells that the pool is full."""


def _order_of(ordering: str) -> Callable[[Held, Classes], int]:
    def edf(held: Held, classes: Classes) -> int:
        return held.asked_ns + held.ttl_ns

    def slo_deadline(held: Held, classes: Classes) -> int:
        ttft_ns = classes.ttft_ns[classes.kind[held.call.request.id]]
        return FAR_NS if ttft_ns is None else held.call.asked_ns + ttft_ns

    def fcfs(held: Held, classes: Classes) -> int:
        return 0

    return {"edf": edf, "slo_deadline": slo_deadline, "fcfs": fcfs}[ordering]


class Requested:
    """Tenants and classes of all requests, by their number, with the names of the codes. The name of those without is
    empty."""

    def __init__(self, tenant: Sequence[int], tenants: list[str], kind: Sequence[int], kinds: list[str]) -> None:
        self.tenant, self.tenants, self.kind, self.kinds = tenant, tenants, kind, kinds


def _check_names(own: Mapping[str, object], used: Sequence[str], field: str, what: str, *, all_of_them: bool) -> None:
    """Raise `InputError` for a name that no request has, and for a name of requests that has no entry."""
    there = [name for name in used if name != NO_CLASS]
    for name in own:
        if name not in there:
            raise InputError(f"a {what} of a workload: {', '.join(there) or 'none has one'}", name,
                             field=f"{field}.{name}", suggestion=suggest(name, there))
    if all_of_them:
        for name in there:
            if name not in own:
                raise InputError(Verbatim(f"no entry for {what} {name!r} of the workload; give it a priority"),
                                 field=field)


def build_flow(env: Clock, seed: int, gateway: Gateway, groups: Sequence[list[list[Client]]],
               requested: Requested, own: FlowControlConfig | AdmissionConfig, classes: Mapping[str, ClassConfig],
               tenants: Mapping[str, TenantConfig], gateways: int) -> FlowControl:
    """Return flow control, or admission, of one run. Raises `InputError` with the field within `gateway`.

    Args:
        groups: See `FlowControl`. Each list has engines alone.
    """
    from hermes.gateway.flow_control import FlowControl
    from hermes.gateway.flow_policy import Budget, Classes, FlowPolicy, Revoking

    _check_names(classes, requested.kinds, "classes", "class", all_of_them=True)
    _check_names(tenants, requested.tenants, "tenants", "tenant", all_of_them=False)
    holds = isinstance(own, FlowControlConfig)
    rule = own if isinstance(own, FlowControlConfig) else FlowControlConfig()
    try:
        own.detector.needs([client for lists in groups for one in lists for client in one])
    except InputError as error:
        error.field = f"{'flow_control' if holds else 'admission'}.detector.{error.field}"
        raise
    found = [classes.get(name, ClassConfig()) for name in requested.kinds]
    ttls = [rule.ttl if each.ttl is None else each.ttl for each in found]
    known = Classes(requested.tenant, requested.kind, [each.priority for each in found],
                    [each.ceiling for each in found],
                    [None if each.ttft is None else s_to_ns(each.ttft) for each in found], [*map(s_to_ns, ttls)])
    weights = [tenants.get(name, TenantConfig()).weight for name in requested.tenants]
    cycle_ns = max(1, s_to_ns(rule.cycle))
    revoke: Any = rule.revoke
    limits = {place: tenants[name].budget for place, name in enumerate(requested.tenants) if name in tenants}
    bands = {priority: rule.rules_of(priority) for priority in known.priorities}
    orders = {priority: _order_of(band.ordering or rule.ordering) for priority, band in bands.items()}

    def fairness(priority: int, service: Service | None) -> Fairness:
        return (bands[priority].fairness or rule.fairness).policy(cycle_ns, weights, service)

    def new_service() -> Service | None:
        made = ((band.fairness or rule.fairness).service() for band in bands.values())
        return next((service for service in made if service is not None), None)

    policy = FlowPolicy(
        order=lambda held, classes: orders[held.priority](held, classes), fairness=fairness,
        service=new_service, saturation=partial(own.detector.build, env, seed, gateway.down), holds=holds,
        cycle_ns=cycle_ns, scan_ns=max(1, s_to_ns(rule.scan)),
        limits={priority: (band.max or rule.max, band.max_bytes or rule.max_bytes)
                for priority, band in bands.items()},
        total=rule.total, total_bytes=rule.total_bytes, token_bytes=rule.token_bytes,
        revoking=None if revoke is None else Revoking(revoke.most, revoke.below, s_to_ns(revoke.grace)),
        budgets={place: Budget(limit.tokens, max(1, s_to_ns(limit.per))) for place, limit in limits.items()
                 if limit is not None},
    )
    return FlowControl(env, gateway, policy, known, groups, gateways,
                       {name: tenants[name].weight for name in requested.tenants if name in tenants})
