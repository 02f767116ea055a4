"""The built-in clients without an engine keep the contract, and the contract notices what does not."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Literal

import pytest

from hermes.clients import CLIENTS, TaskClient, TaskClientConfig
from hermes.clients.kv_retrieval import KvRetrievalClientConfig
from hermes.clients.service import ProcessingClientConfig, RagClientConfig
from hermes.services import PerItem
from hermes.testing.clients import ClientContract

SERVES = {"a": PerItem(per_item=0.01), "b": PerItem(fixed=0.001, per_token=1e-5)}


class TestProcessing(ClientContract):
    def make(self) -> ProcessingClientConfig:
        return ProcessingClientConfig(name="p", cores=2, serves=SERVES)


class TestRag(ClientContract):
    def make(self) -> RagClientConfig:
        return RagClientConfig(name="r", cores=3, max_batch=4, serves=SERVES)


class TestKvRetrieval(ClientContract):
    def make(self) -> KvRetrievalClientConfig:
        return KvRetrievalClientConfig.model_validate({
            "name": "kv", "model": "llama-3.1-8b",
            "tiers": {"levels": [{"name": "memory", "capacity": "10 GB", "bandwidth": "10 GB/s", "lookup": "1 ms"}]},
        })


class Odd(TaskClientConfig):
    """Its clients do what `how` does with a stage."""

    kind: Literal["odd"] = "odd"
    name: str = "odd"

    def build(self, env: Any, first_index: int, runs: Any, events: Any, **_: Any) -> list[Any]:
        made = [type("OddClient", (TaskClient,), {"submit": type(self).how, "stages": frozenset({"odd"})})
                for _ in self.names]
        return [cls(env, first_index + i, name, events)
                for i, (cls, name) in enumerate(zip(made, self.names, strict=True))]

    def how(self, stage: Any) -> None:
        raise NotImplementedError


def at_once(self: Any, stage: Any) -> None:
    stage.start_ns = self.env.now
    self.events.done(self, stage)


def twice(self: Any, stage: Any) -> None:
    self.serve(stage, 0.1)
    self.serve(stage, 0.2)


def good(self: Any, stage: Any) -> None:
    self.serve(stage, 0.1)


def contract(how: Callable[[Any, Any], None]) -> ClientContract:
    kind = type("Odd", (Odd,), {"how": how, "__module__": __name__})

    class Contract(ClientContract):
        requests = 5

        def make(self) -> Any:
            return kind()

    CLIENTS.register("odd")(kind)
    return Contract()


@pytest.mark.parametrize(("how", "test", "notices"), [
    (good, "test_every_stage_is_served_once", False), (good, "test_submitting_completes_nothing_at_once", False),
    (at_once, "test_submitting_completes_nothing_at_once", True), (twice, "test_every_stage_is_served_once", True),
])
def test_the_contract_notices(how: Any, test: str, notices: bool) -> None:
    try:
        suite = contract(how)
        if notices:
            with pytest.raises((AssertionError, ValueError)):
                getattr(suite, test)()
        else:
            getattr(suite, test)()
    finally:
        CLIENTS.unregister("odd")
