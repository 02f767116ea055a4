"""The option `fleet` of a group of clients: its replicas come and go."""

from __future__ import annotations

from typing import Annotated, Any

from pydantic import Field

from hermes.config import Component, ConfigModel, Duration, Name
from hermes.fleet.autoscalers import AUTOSCALERS

__all__ = ["Crash", "FleetConfig", "Probe", "SharedAutoscaler", "StartUp"]


class StartUp(ConfigModel):
    """Time from the decision for a replica until it takes requests."""

    total: Duration = Field(ge=0)
    """The whole time, devices held. The replica starts with empty caches."""


class Crash(ConfigModel):
    """A crash of an engine: its process ends, its device stays."""

    at: Duration = Field(ge=0)
    """Simulated time. The replica may be starting, ready or draining then; a crash of a free slot does nothing."""
    replica: int = Field(default=0, ge=0, le=100_000)
    """Number of its slot in the group, from 0."""


class Probe(ConfigModel):
    """Readiness probe, by which the routers learn that a replica went down. The defaults are those of Kubernetes."""

    period: Duration = Field(default=10.0, gt=0)
    """Time between two probes of a replica."""
    failures: int = Field(default=3, ge=1, le=1000)
    """Probes that have to fail in a row."""
    delay: Duration = Field(default=1.0, ge=0)
    """Time until the routers know."""
    offset: Duration | None = Field(default=None, ge=0)
    """When the first probe of a replica would be. Left out, it is drawn for each replica, within a period."""


class FleetConfig(ConfigModel):
    """Replicas that come and go. `count` of the clients is the most that exist at a time, draining ones included."""

    start: int = Field(ge=0, le=100_000)
    """Replicas that are ready when the simulation starts. 0 needs a queue at the gateway."""
    start_up: StartUp
    """What it takes until a new replica is ready."""
    crashes: list[Crash] = []
    """Crashes at given times. All that the replica has fails; it starts again at once in its slot, with a whole
    start-up. Until a probe has noticed it, routers go on choosing it, and what they send it fails at once."""
    probe: Probe = Probe()
    """How routers notice a crash."""
    # Any: of a plug-in, too
    autoscaler: Annotated[Any, Component(AUTOSCALERS), Field(default={"kind": "static"}, validate_default=True)]
    """What decides how many replicas there are. Left out, as many as at the start, or what `autoscalers` of the
    scenario says for this group."""


class SharedAutoscaler(ConfigModel):
    """An autoscaler that scales several groups of clients together."""

    groups: list[Name] = Field(min_length=1, max_length=1000)
    """Names of groups of clients that have a `fleet` without an autoscaler."""
    # Any: of a plug-in, too
    autoscaler: Annotated[Any, Component(AUTOSCALERS)]
    """What decides how many replicas each of the groups has: `wva` or `dynamo_planner`."""
