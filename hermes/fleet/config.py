"""The option `fleet` of a group of clients: its replicas come and go."""

from __future__ import annotations

from typing import Annotated, Any, Literal, Self

from pydantic import Field, GetCoreSchemaHandler, GetJsonSchemaHandler, model_validator
from pydantic_core import core_schema

from hermes.config import Component, ConfigModel, Duration, Name
from hermes.errors import InputError
from hermes.fleet.autoscalers import AUTOSCALERS
from hermes.fleet.failures import FailureConfig
from hermes.fleet.rolling import Update
from hermes.fleet.spares import Spares
from hermes.fleet.start_ups import START_UPS

__all__ = ["Crash", "Drain", "FleetConfig", "Liveness", "Nodes", "Probe", "Restarts", "SharedAutoscaler"]


class Crash(ConfigModel):
    """A crash of an engine: its process ends, its device stays."""

    at: Duration = Field(ge=0)
    """Simulated time. The replica may be starting, ready or draining then; a crash of a free slot does nothing.
    A slot that never has a replica is refused."""
    replica: int = Field(default=0, ge=0, le=100_000)
    """Number of its slot in the group, from 0."""


class Probe(ConfigModel):
    """Readiness probe, by which the routers learn that a replica went down. The defaults are those of Kubernetes."""

    period: Duration = Field(default=10.0, gt=0)
    """Time between two probes of a replica."""
    failures: int = Field(default=3, ge=1, le=1000)
    """Probes that have to fail in a row."""
    timeout: Duration = Field(default=1.0, ge=0)
    """Time until a probe without an answer has failed, of a replica that hangs. One that is down refuses the
    connection at once."""
    delay: Duration = Field(default=1.0, ge=0)
    """Time until the routers know."""
    offset: Duration | None = Field(default=None, ge=0)
    """When the first probe of a replica would be. Left out, it is drawn for each replica, within a period."""


class Liveness(ConfigModel):
    """Liveness probe: a replica that does not answer it is killed and starts again. The defaults are Kubernetes'."""

    period: Duration = Field(default=10.0, gt=0)
    """Time between two probes of a replica."""
    failures: int = Field(default=3, ge=1, le=1000)
    """Probes that have to fail in a row."""
    timeout: Duration = Field(default=1.0, ge=0)
    """Time until a probe without an answer has failed."""
    grace: Duration = Field(default=30.0, ge=0)
    """Time between the order to stop, which a process that hangs does not hear, and its end
    (`terminationGracePeriodSeconds`)."""
    offset: Duration | None = Field(default=None, ge=0)
    """When the first probe of a replica would be. Left out, it is drawn for each replica, within a period."""


class Restarts(ConfigModel):
    """When a process that has ended starts again on its node. The defaults are those of the kubelet.

    The first restart is at once. The wait before the next one doubles with each, until the process has run for twice
    `max_backoff` after a restart."""

    backoff: Duration = Field(default=10.0, ge=0)
    """Wait before the second restart, from the end of the process on."""
    max_backoff: Duration = Field(default=300.0, ge=0)
    """Longest wait."""
    group_policy: Literal["recreate_group", "none"] | None = None
    """What a restart of one pod does to the others of its replica. `recreate_group`: all are deleted and made anew, at
    once and without a back-off, with a whole start-up (LeaderWorkerSet's RecreateGroupOnPodRestart); routers know after
    `probe.delay`. `none`: their processes end, too, and start again where they are. Left out, the first for replicas of
    several nodes."""


class Nodes(ConfigModel):
    """Nodes of a group's replicas. One with more devices than a node has takes several nodes of its own; of one that
    fits into a node, those with the same `platform` share it."""

    devices: int | None = Field(default=None, ge=1, le=4096)
    """Devices of a node. Left out, those of the device's machine."""
    zone: Annotated[str, Field(min_length=1, max_length=4096)] | None = None
    """Zone of a replica's nodes: `{i}` stands for its number, `{i//4}` for the number divided by 4, `{i%3}` for the
    rest. Left out, no zone fails."""

    def shares(self, devices: int, machine: int) -> tuple[float, ...]:
        """Return the share of a replica's devices on each of its nodes. machine: Devices of a node by default."""
        each = self.devices or machine
        return tuple(min(each, devices - first) / devices for first in range(0, devices, each))


class Drain(ConfigModel):
    """The end of a replica that is not wanted any more, of a scale-down or an update. The defaults are those of a pod.

    It gets no new requests, and is gone when its last one is answered, or is cut: what it still has fails then, and the
    gateway may try it again."""

    pre_stop: Duration = Field(default=0.0, ge=0)
    """How long its preStop hook sleeps. The replica stays at least as long, also without a request."""
    grace: Duration | None = Field(default=30.0, gt=0)
    """Longest time from the decision, `pre_stop` included (`terminationGracePeriodSeconds`). `null`: the replica stays
    until its last answer."""
    end: Literal["migrate", "cancel"] | None = None
    """What becomes of answers that are cut: they `migrate` (`gateway.migration`), or the engine ends them itself
    (`cancel`, as vLLM does at SIGTERM), so that they fail or are retried. Left out, they migrate if they can."""

    @model_validator(mode="after")
    def _sleeps_within_grace(self) -> Self:
        if self.grace is not None and self.pre_stop > self.grace:   # the API server refuses such a pod
            raise InputError(f"at most the grace period of {self.grace:g} s", self.pre_stop, field="pre_stop")
        return self


class _ByTotal:
    """Field annotation after a `Component`: a mapping without `kind` is `fixed` if it has a `total`, else `phases`."""

    def __get_pydantic_core_schema__(self, source: Any, handler: GetCoreSchemaHandler) -> core_schema.CoreSchema:
        return core_schema.no_info_before_validator_function(self._named, handler(source))

    def __get_pydantic_json_schema__(self, schema: core_schema.CoreSchema, handler: GetJsonSchemaHandler) -> Any:
        return handler(schema)

    def _named(self, value: Any) -> Any:
        if isinstance(value, dict) and "kind" not in value:
            return {"kind": "fixed" if "total" in value else "phases", **value}
        return value


class FleetConfig(ConfigModel):
    """Replicas that come and go. `count` of the clients is the most that exist at a time, draining ones included."""

    start: int = Field(ge=0, le=100_000)
    """Replicas that are ready when the simulation starts. 0 needs a queue at the gateway."""
    # Any: of a plug-in, too, as the autoscaler
    start_up: Annotated[Any, Component(START_UPS), _ByTotal()]
    """What it takes until a new replica is ready, from the decision for it. A mapping without `kind` is `fixed` if it
    has a `total`, else `phases`."""
    crashes: list[Crash] = []
    """Crashes at given times. All that the replica has fails; it starts again in its slot (`restarts`), with a
    whole start-up. Until a probe has noticed it, routers go on choosing it, and what they send it fails at once."""
    failures: list[FailureConfig] = []
    """Failures of several kinds, at given times or at random."""
    restarts: Restarts = Restarts()
    """When a process that has ended starts again."""
    nodes: Nodes = Nodes()
    """Where the replicas are."""
    liveness: Liveness | None = None
    """What ends replicas that hang. Left out, nothing does, as with Kubernetes."""
    spares: Spares | None = None
    """Started replicas kept back, in slots of the group. Left out, there are none."""
    probe: Probe = Probe()
    """How routers notice a crash or a hang."""
    drain: Drain = Drain()
    """How replicas end that are not wanted any more."""
    updates: list[Update] = []
    """Rolling updates: all replicas are replaced by new ones, a few at a time."""
    autoscaler: Annotated[Any, Component(AUTOSCALERS), Field(default={"kind": "static"}, validate_default=True)]
    """What decides how many replicas there are. Left out, as many as at the start, or what `autoscalers` of the
    scenario says for this group."""

    def loses(self, *, shared: bool) -> bool:
        """Whether requests may fail since a replica goes down. shared: Whether an autoscaler scales several groups."""
        drains = bool(self.updates) or shared or self.autoscaler.value_of("kind") != "static"
        return bool(self.crashes or self.failures) or (drains and self.drain.grace is not None)

    @model_validator(mode="after")
    def _fits_the_pool(self) -> Self:
        pool = self.start_up.value_of("pool")
        least = self.start + (0 if self.spares is None else self.spares.count) + (0 if pool is None else pool.nodes)
        if pool is not None and pool.most is not None and pool.most < least:
            raise InputError(f"at least {least}, the nodes at the start (`start`, `spares` and `pool.nodes`)",
                             pool.most, field="start_up.pool.most")
        return self


class SharedAutoscaler(ConfigModel):
    """An autoscaler that scales several groups of clients together."""

    groups: list[Name] = Field(min_length=1, max_length=1000)
    """Names of groups of clients that have a `fleet` without an autoscaler."""
    # Any: of a plug-in, too
    autoscaler: Annotated[Any, Component(AUTOSCALERS)]
    """What decides how many replicas each of the groups has: `wva` or `dynamo_planner`."""
