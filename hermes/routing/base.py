"""The registry of routers."""

from __future__ import annotations

from typing import Any

from hermes.config.registry import Registry

__all__ = ["ROUTERS", "places_both_phases"]

# Any: configurations of plug-ins have nothing in common but pydantic
ROUTERS: Registry[Any] = Registry("routers", "a router", {
    "aibrix_prefix": "hermes.routing.aibrix_prefix:AibrixPrefixConfig",
    "context": "hermes.routing.affinity:ContextConfig",
    "dynamo_kv": "hermes.routing.dynamo_kv:DynamoKvConfig",
    "heavy_light": "hermes.routing.load:HeavyLightConfig",
    "least_loaded": "hermes.routing.load:LeastLoadedConfig",
    "llm_d": "hermes.routing.llm_d:LlmDConfig",
    "locality": "hermes.routing.affinity:LocalityConfig",
    "mixed_pool": "hermes.routing.mixed_pool:MixedPoolConfig",
    "platform": "hermes.routing.affinity:PlatformConfig",
    "power_of_two": "hermes.routing.load:PowerOfTwoConfig",
    "predicted": "hermes.routing.predicted:PredictedConfig",
    "production_stack": "hermes.routing.production_stack:ProductionStackConfig",
    "random": "hermes.routing.random_choice:RandomConfig",
    "round_robin": "hermes.routing.round_robin:RoundRobinConfig",
    "session": "hermes.routing.affinity:SessionConfig",
    "sglang_cache_aware": "hermes.routing.sglang_cache_aware:SglangCacheAwareConfig",
})


def places_both_phases(config: Any) -> bool:   # Any: a router's configuration, of a plug-in, too
    """Whether a router chooses the decode client of a request with its prefill client."""
    return bool(getattr(config, "places_both_phases", False))
