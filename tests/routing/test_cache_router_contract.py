"""Routers that know prefixes keep the contract, with conversations, prefixes, adapters, and clients for both phases."""

from __future__ import annotations

from typing import Any

import pytest
from each import each

from hermes.routing import ROUTERS
from hermes.testing.routers import RouterContract

PRECISE = {"prefix": 0, "precise_prefix": 2, "queue": 1, "kv": 1}
CONFIGS: list[dict[str, Any]] = [
    {"kind": "llm_d"},
    {"kind": "llm_d", "view": "exact", "scorers": {"load_aware": 1, "session": 1, "lora_affinity": 1}},
    {"kind": "llm_d", "scorers": PRECISE, "caches": {"kind": "events", "delay": 0.05, "loss": 0.2}},
    {"kind": "dynamo_kv"},
    {"kind": "dynamo_kv", "temperature": 0.5, "caches": "exact"},
    {"kind": "dynamo_kv", "caches": {"kind": "events", "delay": 0.2, "loss": 0.3}},
    {"kind": "sglang_cache_aware", "balance_abs_threshold": 3, "max_tree_size": 3000, "eviction_interval": 1.0},
    {"kind": "aibrix_prefix", "spread": 4, "deviations": 1, "ttl": 5},
    {"kind": "production_stack"}, {"kind": "production_stack", "by": "prefix"},
    {"kind": "session", "ttl": 2.0}, {"kind": "session", "affinity": "soft", "slack": 1},
    {"kind": "least_loaded", "load": "input_tokens", "view": "own"},
]
TALKS = {"kind": "conversations", "turns": {"kind": "fixed", "tokens": 4}, "system_tokens": 200, "think_time": 0.2,
         "message": {"kind": "lognormal", "mean": 100, "sigma": 0.8, "max": 300},
         "output": {"kind": "lognormal", "mean": 60, "sigma": 1.0, "max": 200}}
WORKLOADS: dict[str, dict[str, Any]] = {
    "prefixes": {"prefixes": {"groups": 5, "tokens": 150}}, "conversations": {"lengths": TALKS},
    "adapters": {"adapters": {"count": 4}, "prefixes": {"groups": 2, "tokens": 150}},
    "roles": {"prefixes": {"groups": 5, "tokens": 150}},
}


@pytest.mark.drawn(one_of=8)
@pytest.mark.parametrize("flavour", WORKLOADS)
@pytest.mark.parametrize("config", CONFIGS, ids=lambda config: "-".join(str(v) for v in config.values()))
class TestPrefixRouters(RouterContract):
    counts = (1, 4)

    @pytest.fixture(autouse=True)
    def _chosen(self, config: dict[str, Any], flavour: str) -> None:
        self.config, self.flavour = config, flavour

    def make(self) -> Any:
        return ROUTERS.get(self.config["kind"]).model_validate(self.config)

    def scenario(self, count: int) -> dict[str, Any]:
        data = super().scenario(count)
        (load,), (group,) = data["workload"], data["clients"]
        load |= WORKLOADS[self.flavour]
        load["arrivals"] = {"kind": "poisson", "rate": 4.0 * count}
        if self.flavour == "conversations":
            del load["sessions"]
        group["memory"] = {"num_blocks": 300, "prefix_caching": True, "kv_bytes_per_token": 1e5}
        if self.flavour == "adapters":
            group["scheduler"]["max_loras"] = 2
        if self.flavour == "roles":
            data["clients"] = [{**group, "name": "p", "role": "prefill"}, {**group, "name": "d", "role": "decode"}]
            data["network"] = {"kind": "link", "bandwidth": "50 GB/s"}
        return data


class TestBothPhases(RouterContract):
    counts = (1, 3)

    def make(self) -> Any:
        return ROUTERS.get("llm_d").model_validate({"kind": "llm_d", "disaggregation": {"uncached": 100}})

    def scenario(self, count: int) -> dict[str, Any]:
        data = super().scenario(count)
        (group,) = data["clients"]
        group["memory"] = {"num_blocks": 400, "prefix_caching": True, "kv_bytes_per_token": 1e5}
        data["workload"][0]["prefixes"] = {"groups": 5, "tokens": 150}
        data["clients"] = [{**group, "name": "p", "role": "prefill"}, {**group, "name": "d"}]
        data["network"] = {"kind": "link", "bandwidth": "50 GB/s"}
        return data


@each("scheduler", ["continuous", "mixed", "static", "sglang"])
def test_views_of_caches_with_every_scheduler(scheduler: str) -> None:
    class Contract(RouterContract):
        counts = (3,)

        def make(self) -> Any:
            return ROUTERS.get("dynamo_kv").model_validate({"caches": {"kind": "events", "delay": 0.05}})

        def scenario(self, count: int) -> dict[str, Any]:
            data = super().scenario(count)
            data["workload"][0]["prefixes"] = {"groups": 3, "tokens": 150}
            data["clients"][0] |= {"scheduler": {"kind": scheduler},
                                   "memory": {"num_blocks": 600 if scheduler != "sglang" else 20_000,
                                              "prefix_caching": scheduler != "static"}}
            return data

    Contract().test_loads_are_read_as_of_now_in_both_modes()
