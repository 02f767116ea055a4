"""The registry of routers."""

from __future__ import annotations

from typing import Any

from hermes.config.registry import Registry

__all__ = ["ROUTERS", "places_both_phases"]

# Any: configurations of plug-ins have nothing in common but pydantic
ROUTERS: Registry[Any] = Registry("routers", "a router", {
    "context": "hermes.routing.affinity:ContextConfig",
    "heavy_light": "hermes.routing.load:HeavyLightConfig",
    "least_loaded": "hermes.routing.load:LeastLoadedConfig",
    "locality": "hermes.routing.affinity:LocalityConfig",
    "mixed_pool": "hermes.routing.mixed_pool:MixedPoolConfig",
    "platform": "hermes.routing.affinity:PlatformConfig",
    "power_of_two": "hermes.routing.load:PowerOfTwoConfig",
    "random": "hermes.routing.random_choice:RandomConfig",
    "round_robin": "hermes.routing.round_robin:RoundRobinConfig",
    "session": "hermes.routing.affinity:SessionConfig",
})


def places_both_phases(config: Any) -> bool:   # Any: a router's configuration, of a plug-in, too
    """Whether a router chooses the decode client of a request with its prefill client."""
    return bool(getattr(config, "places_both_phases", False))
