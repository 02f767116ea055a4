"""Contract suite for routers.

Inherit it in a test module, give `make()`, and pytest checks what the coordinator relies on:

    class TestMyRouter(RouterContract):
        def make(self):
            return MyRouter(load="tokens_left")

The router works in simulations: it chooses for requests that arrive, among clients that are busy.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, ClassVar

from hermes.core.record import STATUS_COMPLETED
from hermes.core.router import RouterContext
from hermes.dispatch.simulation import Simulation
from hermes.routing.base import ROUTERS
from hermes.routing.decisions import Decisions, WrappedRouter
from hermes.scenario import load_scenario
from hermes.scenario.build import build
from hermes.scenario.schema import Scenario
from hermes.testing.components import ComponentContract

__all__ = ["Choice", "RouterContract"]

Choice = tuple[int, int, int, int]   # (request, its stage's place, chosen client, decode client chosen with it or -1)

_STAGE = ("prompt_tokens", "output_tokens", "target_tokens", "priority", "arrival_order", "num_tokens", "num_computed")


class _Watched:
    """A router's configuration whose routers record their choices."""

    def __init__(self, component: Any, choices: list[Choice]) -> None:
        self._component, self._choices = component, choices

    def __getattr__(self, name: str) -> Any:
        return getattr(self._component, name)

    def build(self, context: RouterContext) -> Any:
        return _WatchedRouter(self._component.build(context), context, self._choices)


class _WatchedRouter(WrappedRouter):
    def __init__(self, router: Any, context: RouterContext, choices: list[Choice]) -> None:
        super().__init__(router, context)
        self._choices = choices

    def choose(self, stage: Any) -> Any:
        before = [getattr(stage, name) for name in _STAGE]
        client = self.router.choose(stage)
        assert [getattr(stage, name) for name in _STAGE] == before, "the router changed the stage"
        assert any(client is candidate for candidate in self.context.candidates), f"{client} is no candidate"
        for one in (client, *([] if stage.decode_on is None else [stage.decode_on])):
            assert any(one is member for member in self.members), f"{one} is no member"
        decode_on = -1 if stage.decode_on is None else stage.decode_on.index
        self._choices.append((stage.request.id, stage.arrival_order, client.index, decode_on))
        return client


class RouterContract(ComponentContract):
    """Properties of every router. Inherit it and give `make()`."""

    registry = ROUTERS
    counts: ClassVar[tuple[int, ...]] = (1, 2, 5, 20)
    """Number of clients to choose from."""

    def scenario(self, count: int) -> dict[str, Any]:
        """Return a scenario for `count` clients, without its router. Override it for a router that needs others."""
        return {
            "clients": [{
                "name": "c", "count": count,
                "hardware": {"kind": "polynomial", "profile": "splitwise-2023-llama-2-70b-h100-tp8"},
                "scheduler": {"kind": "chunked", "max_num_batched_tokens": 512}, "memory": {"num_blocks": 400},
            }],
            "workload": [{
                "requests": 60, "arrivals": {"kind": "poisson", "rate": 3.0 * count}, "sessions": {"count": 9},
                "lengths": {
                    "kind": "independent", "prompt": {"kind": "lognormal", "mean": 300, "sigma": 1.0, "max": 2000},
                    "output": {"kind": "lognormal", "mean": 80, "sigma": 1.0, "max": 400},
                },
            }],
        }

    def built(self, count: int, decisions: Decisions | None = None,
              **changes: Any) -> tuple[Simulation, list[Choice]]:
        """Return a simulation with the router in it, and the list that records its choices."""
        scenario: Scenario = load_scenario({**self.scenario(count), **changes})
        choices: list[Choice] = []
        watched = scenario.model_copy(update={"router": _Watched(self.make(), choices)})
        return build(watched, decisions), choices

    def chosen(self, count: int, **changes: Any) -> list[Choice]:
        """Return the choices of a whole simulation."""
        simulation, choices = self.built(count, **changes)
        record = simulation.run()
        assert (record.status == STATUS_COMPLETED).all(), "requests were not served"
        return choices

    def cases(self) -> Iterator[int]:
        yield from self.counts

    def test_every_stage_is_given_to_a_candidate(self) -> None:
        for count in self.cases():
            choices = self.chosen(count)
            assert {request for request, *_ in choices} == set(range(60))

    def test_same_seed_same_choices(self) -> None:
        for count in self.cases():
            assert self.chosen(count) == self.chosen(count)

    def test_loads_are_read_as_of_now_in_both_modes(self) -> None:
        for count in self.cases():
            assert self.chosen(count, stepping="runs") == self.chosen(count, stepping="every_step")

    def test_decisions_are_told_and_can_be_turned(self) -> None:
        """What keeps the decisions about a request changes nothing, and a turned one sends it elsewhere."""
        request = 30
        for count in self.cases():
            usual, seen = self.chosen(count), Decisions(request)
            simulation, choices = self.built(count, seen)
            simulation.run()
            assert choices == usual, "telling its decisions changed them"
            assert seen.made, "the router was not asked"
            for number, decision in enumerate(seen.made):
                assert decision.chosen in decision.among
                others = decision.best_others()
                assert sorted([*others, decision.chosen]) == sorted(decision.among)
                if not others:
                    continue
                turned = Decisions(request, {number: others[0]})
                simulation, _ = self.built(count, turned)
                record = simulation.run()
                assert turned.made[:number + 1] == seen.made[:number + 1], "the simulation differs before the decision"
                clients = record.stages["client"][record.stages["request"] == request].tolist()
                assert others[0] in {record.clients[client].name for client in clients}, "the stage went elsewhere"
                assert (record.status == STATUS_COMPLETED).all(), "requests were not served"

    def test_routers_of_different_simulations_share_nothing(self) -> None:
        alone = {count: self.chosen(count) for count in self.cases()}
        built = {count: self.built(count) for count in self.cases()}   # build all before the first runs
        for count, (simulation, choices) in built.items():
            simulation.run()
            assert choices == alone[count]

    def test_a_router_with_changed_follows_clients_that_come_and_go(self) -> None:
        """Every client that is chosen is a member at that time, if the router has `changed`."""
        component = self.make()
        for count in [count for count in self.cases() if count > 1]:
            data = self.scenario(count)
            for group in data["clients"]:
                changes = [{"at": at, "replicas": replicas} for at, replicas in ((0.5, count), (2.5, 1), (4.0, 2))]
                group["fleet"] = {"start": 1, "start_up": {"total": 0.05},
                                  "autoscaler": {"kind": "schedule", "changes": changes}}
            routers = self.built(count)[0].coordinator.routers.values()
            if not all(hasattr(router, "changed") for router in routers):
                return
            choices: list[Choice] = []
            watched = load_scenario(data).model_copy(update={"router": _Watched(component, choices)})
            record = build(watched).run()
            assert (record.status == STATUS_COMPLETED).all(), "requests were not served"
            assert {request for request, *_ in choices} == set(range(60))
