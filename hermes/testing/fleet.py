"""Contract suite of autoscalers.

    class TestMyAutoscaler(AutoscalerContract):
        def make(self):
            return MyAutoscaler(target=4)
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from typing import Any

import numpy as np

from hermes.core.record import READY
from hermes.errors import InputError
from hermes.fleet.autoscalers import Autoscaler

__all__ = ["AutoscalerContract"]


class AutoscalerContract(ABC):
    """Properties of every autoscaler. Inherit it and give `make()`. One that may want no replica (`to_zero`) is run
    with a queue at the gateway."""

    most = 5
    """Clients of the group."""

    @abstractmethod
    def make(self) -> Autoscaler:
        """Return the autoscaler, equal at each call."""

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

    def test_it_survives_a_scenario_file(self) -> None:
        one = self.make()
        assert type(one).model_validate(one.model_dump()) == one, "it does not survive a scenario file"

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
