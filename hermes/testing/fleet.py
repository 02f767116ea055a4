"""Contract suites of autoscalers and start-ups.

    class TestMyAutoscaler(AutoscalerContract):
        def make(self):
            return MyAutoscaler(target=4)
"""

from __future__ import annotations

from typing import Any

import numpy as np

from hermes.core.record import GONE, READY, STARTING
from hermes.errors import InputError
from hermes.fleet.autoscalers import AUTOSCALERS
from hermes.fleet.start_ups import START_UPS
from hermes.testing.components import ComponentContract

__all__ = ["AutoscalerContract", "StartUpContract"]


class AutoscalerContract(ComponentContract):
    """Properties of every autoscaler. Inherit it and give `make()`. One that may want no replica (`to_zero`) is run
    with a queue at the gateway."""

    registry = AUTOSCALERS
    most = 5
    """Clients of the group."""

    def _run(self, rate: float = 40.0, stepping: str = "runs", others: int = 0) -> tuple[np.ndarray, np.ndarray]:
        """Return the changes of membership of the group, and the requests' ends. others: Clients of another group."""
        from hermes.api import simulate

        def group(name: str, count: int, model: str) -> dict[str, Any]:
            return {"name": name, "count": count, "memory": {"num_blocks": 200}, "model": model,
                    "hardware": {"kind": "roofline", "model": model, "device": "h100-sxm"},
                    "fleet": {"start": 2, "start_up": {"total": 0.2}, "autoscaler": self.make().model_dump()}}

        record = simulate({
            "stepping": stepping,
            "workload": {"requests": 200, "arrivals": {"kind": "poisson", "rate": rate}, "model": "llama-3.1-8b",
                         "lengths": {"kind": "fixed", "prompt": 64, "output": 32}},
            "clients": [group("llm", self.most, "llama-3.1-8b"),
                        *([group("other", others, "mistral-7b")] if others else [])],
            **({"gateway": {"queue": {}}} if self.make().to_zero() else {}),
        }).record
        assert (record.status == 1).all(), "a request was not served"
        return record.membership[record.membership[:, 0] < self.most], record.finish_ns

    def test_a_simulation_with_it_ends_and_serves_all_requests(self) -> None:
        for rate in (4.0, 40.0, 400.0):
            self._run(rate)

    def test_the_group_keeps_within_its_clients(self) -> None:
        rows, _ = self._run()
        state: dict[int, int] = {}
        for client, _, _, now in rows.tolist():
            state[client] = now
            assert client < self.most
        if not self.make().to_zero():
            assert sum(now == READY for now in state.values()) >= 1, "no replica is left"

    def test_it_is_deterministic(self) -> None:
        first, second = self._run(), self._run()
        assert all(np.array_equal(a, b) for a, b in zip(first, second, strict=True))

    def test_it_decides_the_same_in_single_steps(self) -> None:
        first, second = self._run(), self._run(stepping="every_step")
        assert all(np.array_equal(a, b) for a, b in zip(first, second, strict=True))

    def test_another_group_changes_no_decision(self) -> None:
        first, second = self._run(), self._run(others=self.most)
        assert all(np.array_equal(a, b) for a, b in zip(first, second, strict=True))

    def test_numbers_beyond_the_group_are_refused_by_check(self) -> None:
        try:
            self.make().check(1)
        except InputError as error:
            assert error.field, "a refusal names the field"


class StartUpContract(ComponentContract):
    """Properties of every start-up. Inherit it and give `make()`."""

    registry = START_UPS
    longest_s = 60.0
    """Time within which four replicas that start at once are ready."""

    def _run(self, *changes: tuple[float, int], count: int = 5, stepping: str = "runs", others: int = 0) -> list[Any]:
        """Return the changes of membership of a group that has one replica at first. others: Slots of another group."""
        from hermes.api import simulate

        def group(name: str, slots: int, model: str) -> dict[str, Any]:
            planned = [{"at": at, "replicas": number} for at, number in changes]
            return {"name": name, "count": slots, "memory": {"num_blocks": 200}, "model": model,
                    "hardware": {"kind": "roofline", "model": model, "device": "h100-sxm"},
                    "fleet": {"start": 1, "start_up": self.make().model_dump(),
                              "autoscaler": {"kind": "schedule", "changes": planned}}}

        record = simulate({
            "stepping": stepping,
            "workload": {"requests": 100, "model": "llama-3.1-8b",
                         "arrivals": {"kind": "uniform", "rate": 50 / self.longest_s, "spread": 0.0},
                         "lengths": {"kind": "fixed", "prompt": 64, "output": 32}},
            "clients": [group("llm", count, "llama-3.1-8b"),
                        *([group("other", others, "mistral-7b")] if others else [])],
        }).record
        assert (record.status == 1).all(), "a request was not served"
        return [row for row in record.membership.tolist() if row[0] < count]

    def test_every_start_holds_devices_and_ends_ready_once(self) -> None:
        rows = self._run((1.0, 5))
        for client in range(1, 5):
            states = [state for index, _, _, state in rows if index == client][1:]
            assert states[:1] == [STARTING], "a replica is ready before its devices are held"
            assert states[-1] == READY, f"a replica is not ready {self.longest_s:g} s later"
            assert states.count(READY) == 1, "a replica became ready twice"

    def test_a_start_that_is_given_up_ends_at_once(self) -> None:
        rows = self._run((1.0, 5), (1.000001, 1), (2.0 + self.longest_s, 2))
        for client in range(1, 5):
            states = [state for index, number, _, state in rows if index == client and number == 0]
            assert GONE in states or READY in states or not states
            if GONE in states:
                assert READY not in states[states.index(GONE):], "a start went on after it was given up"

    def test_it_is_deterministic(self) -> None:
        assert self._run((1.0, 4)) == self._run((1.0, 4))

    def test_it_is_the_same_in_single_steps(self) -> None:
        assert self._run((1.0, 4), (20.0, 1)) == self._run((1.0, 4), (20.0, 1), stepping="every_step")

    def test_more_slots_and_groups_change_no_start(self) -> None:
        few = self._run((1.0, 3))
        many = [row for row in self._run((1.0, 3), count=8, others=3) if row[0] < 5]
        assert few == many, "a start depends on slots that nothing starts in"
