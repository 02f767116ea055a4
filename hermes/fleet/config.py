"""The option `fleet` of a group of clients: its replicas come and go."""

from __future__ import annotations

from typing import Annotated, Any

from pydantic import Field

from hermes.config import Component, ConfigModel, Duration
from hermes.fleet.autoscalers import AUTOSCALERS

__all__ = ["FleetConfig", "StartUp"]


class StartUp(ConfigModel):
    """Time from the decision for a replica until it takes requests."""

    total: Duration = Field(ge=0)
    """The whole time, devices held. The replica starts with empty caches."""


class FleetConfig(ConfigModel):
    """Replicas that come and go. `count` of the clients is the most that exist at a time, draining ones included."""

    start: int = Field(ge=1, le=100_000)
    """Replicas that are ready when the simulation starts."""
    start_up: StartUp
    """What it takes until a new replica is ready."""
    # Any: of a plug-in, too
    autoscaler: Annotated[Any, Component(AUTOSCALERS), Field(default={"kind": "static"}, validate_default=True)]
    """What decides how many replicas there are. Left out, as many as at the start."""
