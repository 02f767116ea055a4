"""Contract suite for clients other than LLM engines.

Inherit it in a test module, give `make()`, and pytest checks what the coordinator, routers and results rely on:

    class TestMyClient(ClientContract):
        def make(self):
            return MyClient(name="mine")
"""

from __future__ import annotations

from typing import Any, ClassVar

import numpy as np

from hermes.clients.base import CLIENTS
from hermes.core.client import LOADS, Client, ClientEvents
from hermes.core.clock import Clock
from hermes.core.record import STATUS_COMPLETED, RunRecord, run_log
from hermes.core.stage import ServiceStage
from hermes.results import Results
from hermes.scenario import load_scenario
from hermes.scenario.build import build
from hermes.testing.components import ComponentContract

__all__ = ["ClientContract"]


class ClientContract(ComponentContract):
    """Properties of every such client. Inherit it and give `make()`."""

    registry = CLIENTS
    requests: ClassVar[int] = 40
    """Number of requests per simulation."""
    rates: ClassVar[tuple[float, ...]] = (0.1, 5.0, 1000.0)
    """Requests per second: one at a time, some at once, all at once."""

    def options(self, kind: str) -> dict[str, Any]:
        """Return options of its stages (`nprobe`, ...), if it needs any."""
        return {}

    def built(self, events: ClientEvents | None = None, **changes: Any) -> list[Client]:
        """Return its clients, on a clock of their own."""
        config = self.make().model_copy(update=changes)
        clients: list[Client] = config.build(Clock(), 3, run_log(), events or ClientEvents(), every_step=False,
                                             base_dir=None, moves_kv="")
        return clients

    def run(self, rate: float = 5.0, *, count: int = 1, stepping: str = "runs") -> RunRecord:
        """Run a simulation whose requests have one stage of each kind it serves, one after the other."""
        kinds = sorted(self.built()[0].stages)
        before = [[], *([kind] for kind in kinds)]
        stages = {
            kind: {"kind": kind, "after": after, "options": self.options(kind), "tokens": "prompt"}
            for kind, after in zip(kinds, before, strict=False)
        }
        config = self.make().model_copy(update={"count": count}).model_dump()
        scenario = load_scenario({
            "workload": [{
                "requests": self.requests, "arrivals": {"kind": "poisson", "rate": rate}, "pipeline": "all",
                "sessions": {"count": 5}, "lengths": {
                    "kind": "independent", "prompt": {"kind": "lognormal", "mean": 200, "sigma": 1.0, "max": 2000},
                    "output": {"kind": "fixed", "tokens": 1},
                },
            }],
            "pipelines": {"all": {"stages": stages}}, "clients": [config], "stepping": stepping,
        })
        return build(scenario).run()

    def test_a_group_has_names_and_numbers_of_its_own(self) -> None:
        clients = self.built(count=3)
        assert len({client.name for client in clients}) == 3
        assert [client.index for client in clients] == [3, 4, 5]
        assert all(client.stages for client in clients)

    def test_it_says_what_load_it_has(self) -> None:
        for client in self.built():
            assert all(client.load(kind) == 0 for kind in LOADS), "load before anything was assigned"
            assert all(len(client.load_line(kind)) == 5 for kind in LOADS)

    def test_submitting_completes_nothing_at_once(self) -> None:
        done: list[Any] = []
        events = ClientEvents()
        events.done = lambda client, stage: done.append(stage)
        (client,) = self.built(events=events)
        for kind in sorted(client.stages):
            stage = ServiceStage(kind, tokens=10, options=self.options(kind))
            stage.request = _Request()  # type: ignore[assignment]  # what clients read of one
            assert client.refusal(stage) is None
            client.submit(stage)
            assert not done, f"{kind} was done before `submit` returned"

    def test_every_stage_is_served_once(self) -> None:
        for rate in self.rates:
            record = self.run(rate)
            assert (record.status == STATUS_COMPLETED).all(), record.reject_reasons
            kinds = len(self.built()[0].stages)
            assert np.bincount(record.stages["request"]).tolist() == [kinds] * self.requests
            assert (record.stages["start_ns"] >= record.stages["assigned_ns"]).all()
            assert (record.stages["end_ns"] >= record.stages["start_ns"]).all()

    def test_same_scenario_same_times(self) -> None:
        first, second, steps = self.run(50.0), self.run(50.0), self.run(50.0, stepping="every_step")
        for other in (second, steps):
            assert all(np.array_equal(first.stages[name], other.stages[name]) for name in first.stages)

    def test_a_group_serves_and_results_know_it(self) -> None:
        results = Results(self.run(50.0, count=2))
        assert len(results.clients) == 2
        assert results.summary["requests"]["completed"] == self.requests


class _Request:
    """A request with only the attributes that clients may read."""

    id, session, priority, prompt_tokens, output_tokens, past_tokens, context = 0, 0, 0, 10, 1, 0, None
    model, content, client = "", None, None
    stream = type("Stream", (), {"name": "main"})()
