"""A client with a SimPy process that repeats: it counts the requests that are left, and the run ends with them."""

from __future__ import annotations

from typing import Any, Literal

import pytest

from hermes.clients import CLIENTS, TaskClient, TaskClientConfig
from hermes.core.client import ClientEvents
from hermes.core.clock import Clock
from hermes.scenario import load_scenario
from hermes.scenario.build import build


class Beating(TaskClientConfig):
    kind: Literal["beating"] = "beating"

    def build(self, env: Clock, first_index: int, runs: Any, events: ClientEvents, **_: Any) -> list[TaskClient]:
        return [BeatingClient(env, first_index, self.name, events)]


class BeatingClient(TaskClient):
    stages = frozenset({"beat"})

    def __init__(self, *args: Any) -> None:
        super().__init__(*args)
        self.beats: list[tuple[float, int]] = []
        self.ends: list[float] = []
        self.env.process(self.beat())

    def submit(self, stage: Any) -> None:
        self.env.process(self.serving(stage))

    def serving(self, stage: Any) -> Any:
        yield self.serve(stage, 0.25)
        self.ends.append(self.env.now / 1e9)

    def beat(self) -> Any:
        while self.requests_left:
            self.beats.append((self.env.now / 1e9, self.requests_left))
            yield self.wait(1.0)


@pytest.fixture(autouse=True)
def registered():
    CLIENTS.register("beating")(Beating)
    yield
    CLIENTS.unregister("beating")


def run(**extra: Any) -> tuple[BeatingClient, Any]:
    """Requests at 0.6, 1.45 and 2.3 s."""
    simulation = build(load_scenario({
        "workload": {"requests": 3, "arrivals": {"kind": "closed_loop", "users": 1, "think": 0.6},
                     "lengths": {"kind": "fixed", "prompt": 1, "output": 1}, "pipeline": "one"},
        "pipelines": {"one": {"stages": {"beat": {"kind": "beat"}}}},
        "clients": [{"kind": "beating", "name": "heart"}], **extra}))
    record = simulation.run()
    return simulation.clients[0], record   # type: ignore[return-value]  # the scenario has one client


@pytest.mark.feature("Plug-ins of research", "Processes of clients that act over time (`requests_left`, `wait`)")
def test_it_ends_with_the_last_request_and_leaves_no_trace_in_the_run():
    client, record = run()
    assert client.beats == [(0.0, 3), (1.0, 2), (2.0, 1)]
    assert (record.finish_ns / 1e9).tolist() == [0.85, 1.7, 2.55]
    assert record.end_ns == record.finish_ns[-1], "the beat at 3 s is after the end"


def test_a_process_waits_for_the_end_of_a_stage():
    client, record = run()
    assert client.ends == (record.finish_ns / 1e9).tolist()


def test_a_horizon_cuts_it_off():
    client, record = run(horizon=1.5)
    assert [at for at, _ in client.beats] == [0.0, 1.0]
    assert record.end_ns == 1.5e9
    assert client.requests_left == 2


def test_a_client_of_no_simulation_has_no_requests_left():
    assert BeatingClient(Clock(), 0, "heart", ClientEvents()).requests_left == 0
