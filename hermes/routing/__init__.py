"""Routers: the choice of a client for each stage."""

from hermes.core.router import LoadCell, Router, RouterContext
from hermes.routing.affinity import LocalityConfig, SessionConfig
from hermes.routing.base import ROUTERS
from hermes.routing.load import HeavyLightConfig, LeastLoadedConfig, PowerOfTwoConfig
from hermes.routing.mixed_pool import MixedPoolConfig
from hermes.routing.random_choice import RandomConfig
from hermes.routing.round_robin import RoundRobinConfig

__all__ = [
    "ROUTERS", "HeavyLightConfig", "LeastLoadedConfig", "LoadCell", "LocalityConfig", "MixedPoolConfig",
    "PowerOfTwoConfig", "RandomConfig", "RoundRobinConfig", "Router", "RouterContext", "SessionConfig",
]
