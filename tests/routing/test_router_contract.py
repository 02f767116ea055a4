"""The built-in routers keep the contract."""

from __future__ import annotations

from typing import Any, Literal

import pytest

from hermes.config import ConfigModel
from hermes.core.client import LOADS
from hermes.routing import ROUTERS, RouterContext
from hermes.routing.views import SCRAPED_LOADS
from hermes.testing.routers import RouterContract

CONFIGS: list[dict[str, Any]] = [
    {"kind": "round_robin"},
    *({"kind": "least_loaded", "load": load} for load in LOADS),
    *({"kind": "heavy_light", "load": load, "threshold": 100} for load in LOADS if load != "requests"),
    *({"kind": "least_loaded", "load": load, "view": {"kind": "scraped", "period": 0.05}} for load in SCRAPED_LOADS),
    {"kind": "power_of_two"}, {"kind": "power_of_two", "load": "requests"}, {"kind": "random"},
    {"kind": "session", "load": "kv_tokens"}, {"kind": "locality"},
]


@pytest.mark.drawn
@pytest.mark.parametrize("config", CONFIGS, ids=lambda config: "-".join(str(v) for v in config.values()))
class TestBuiltIn(RouterContract):
    counts = (1, 3, 12)

    @pytest.fixture(autouse=True)
    def _chosen(self, config: dict[str, Any]) -> None:
        self.config = config

    def make(self) -> Any:
        return ROUTERS.get(self.config["kind"]).model_validate(self.config)


class TestMixedPool(RouterContract):
    counts = (1, 3)

    def make(self) -> Any:
        return ROUTERS.get("mixed_pool")()

    def scenario(self, count: int) -> dict[str, Any]:
        data = super().scenario(count)
        (group,) = data["clients"]
        group = {**group, "memory": {**group["memory"], "kv_bytes_per_token": 1e5}}
        data["clients"] = [{**group, "name": "p", "role": "prefill"}, {**group, "name": "d", "role": "decode"}]
        data["network"] = {"kind": "link", "bandwidth": "50 GB/s"}
        return data


# -- the contract notices ---------------------------------------------------------------------------------------------


class Remembering(ConfigModel):
    """Its routers share a counter, and one reads the state of the clients as of the last event."""

    kind: Literal["test_remembering"] = "test_remembering"
    how: Literal["shared", "stale", "foreign", "meddling", "deaf"] = "shared"

    def build(self, context: RouterContext) -> Any:
        return RememberingRouter(self.how, context)


class RememberingRouter:
    calls = 0

    def __init__(self, how: str, context: RouterContext) -> None:
        self.how, self.candidates = how, context.candidates

    def changed(self, members: Any) -> None:
        """Go on as before."""

    def choose(self, stage: Any) -> Any:
        if self.how == "stale":
            return min(self.candidates, key=lambda client: client.emitted)   # type: ignore[attr-defined]
        if self.how == "meddling":
            stage.output_tokens += 1
        if self.how == "foreign":
            return object()
        type(self).calls += 1
        return self.candidates[self.calls * self.calls % 7 % len(self.candidates)]


@pytest.mark.parametrize(
    ("how", "test"),
    [
        ("shared", "test_same_seed_same_choices"), ("stale", "test_loads_are_read_as_of_now_in_both_modes"),
        ("foreign", "test_every_stage_is_given_to_a_candidate"),
        ("meddling", "test_every_stage_is_given_to_a_candidate"),
        ("deaf", "test_a_router_with_changed_follows_clients_that_come_and_go"),
    ],
)
def test_the_contract_notices(how: Any, test: str) -> None:
    class Contract(RouterContract):
        counts = (5,)

        def make(self) -> Any:
            return Remembering(how=how)

    with pytest.raises(AssertionError):
        getattr(Contract(), test)()
