"""What the hooks of the dispatch are enough for: two parts that the package does not have, by hand."""

from __future__ import annotations

from functools import partial
from typing import Any, ClassVar

import numpy as np
import pytest

from hermes.core.client import Client
from hermes.core.clock import ARRIVAL, Clock, Tick
from hermes.core.generation import Generation
from hermes.core.request import Request
from hermes.core.stage import Stage
from hermes.dispatch.parts import DispatchPart
from hermes.dispatch.simulation import Simulation
from hermes.scenario import build as building
from hermes.scenario import load_scenario

MS = 1_000_000


class HoldsEveryTenth(DispatchPart):
    """Holds every tenth stage for 50 ms before the router sees it."""

    def __init__(self, env: Clock) -> None:
        self._env, self._asked, self._passed = env, 0, set[Stage]()

    def holds(self, request: Request, stage: Stage, members: list[Client]) -> bool:
        if stage in self._passed:
            self._passed.remove(stage)
            return False
        self._asked += 1
        if self._asked % 10:
            return False
        self._passed.add(stage)
        self._env.tick_at(self._env._now + 50 * MS, ARRIVAL, lambda tick: self.coordinator.dispatch(request, stage))
        return True

    def idle(self) -> bool:
        return not self._passed


class Hedges(DispatchPart):
    """Sends a generation a second time after `after_ns`; the first answer counts, and the other one is cancelled."""

    attempts: ClassVar[bool] = True

    def __init__(self, env: Clock, after_ns: int) -> None:
        self._env, self._after_ns, self.hedged = env, after_ns, 0
        self._running: dict[Stage, dict[Stage, Client]] = {}   # stage of a pipeline -> its attempts and their clients

    def copy(self, stage: Stage) -> Stage:
        assert isinstance(stage, Generation)
        seq = Generation(stage.prompt_tokens, stage.output_tokens, stage.priority, content=stage.content)
        seq.original = stage
        return seq

    def begins(self, stage: Stage, client: Client) -> None:
        assert stage.original is not None
        mine = self._running.setdefault(stage.original, {})
        mine[stage] = client
        if len(mine) == 1:
            self._env.tick_at(self._env._now + self._after_ns, ARRIVAL, partial(self._again, stage.original))

    def _again(self, asked: Stage, tick: Tick) -> None:
        if asked in self._running:
            self.hedged += 1
            self.coordinator.dispatch(asked.request, asked)

    def ended(self, stage: Stage) -> bool:
        others = self._running.pop(stage.original, None)
        if others is None:
            return False
        del others[stage]
        for other, client in others.items():
            self._env.tick_at(self._env._now, ARRIVAL, partial(self._cancel, client, other))
        return True

    def _cancel(self, client: Client, stage: Stage, tick: Tick) -> None:
        self.coordinator.abort(client, stage)

    def idle(self) -> bool:
        return not self._running


def simulation_with(make: Any, monkeypatch: pytest.MonkeyPatch, **keys: Any) -> tuple[Simulation, DispatchPart]:
    made: list[DispatchPart] = []

    def parts_of(scenario: Any, env: Clock, *others: Any) -> list[DispatchPart]:
        made.append(make(env))
        return made

    monkeypatch.setattr(building, "parts_of", parts_of)
    document = {
        "workload": {"requests": 100, "arrivals": {"kind": "uniform", "rate": 1},
                     "lengths": {"kind": "fixed", "prompt": 64, "output": 8}},
        "clients": [{"name": "llm", "count": 2, "hardware": {"kind": "roofline", "model": "llama-3.1-8b",
                                                             "device": "h100-sxm"}}],
        "router": {"kind": "round_robin"}} | keys
    return building.build(load_scenario(document)), made[0]


def test_a_part_that_holds_every_tenth_request(monkeypatch: pytest.MonkeyPatch) -> None:
    simulation, part = simulation_with(HoldsEveryTenth, monkeypatch)
    record = simulation.run()
    late = (record.finish_ns - record.arrival_ns) - (record.finish_ns - record.arrival_ns).min()
    assert late.tolist() == [50 * MS * (number % 10 == 9) for number in range(100)]
    assert part.idle()


def test_a_hook_that_there_is_not_is_no_hook() -> None:
    part = HoldsEveryTenth(Clock())
    assert part.has("holds")
    assert not part.has("copy")
    with pytest.raises(AssertionError, match="hold"):
        part.has("hold")


def test_a_part_that_hedges(monkeypatch: pytest.MonkeyPatch) -> None:
    """An answer takes some 50 ms: with 10 ms each is hedged, and the second attempt is cut off when the first ends."""
    plain = simulation_with(HoldsEveryTenth, monkeypatch)[0].run()
    simulation, part = simulation_with(lambda env: Hedges(env, 10 * MS), monkeypatch)
    record = simulation.run()
    assert isinstance(part, Hedges)
    assert part.hedged == 100
    assert part.idle()
    assert (record.status == 1).all()
    assert np.array_equal((record.finish_ns - record.arrival_ns)[:9], (plain.finish_ns - plain.arrival_ns)[:9])
    assert len(record.stages["request"]) == 200
    assert 100 * 8 < record.stages["output_tokens"].sum() < 200 * 8   # the second one had some tokens
