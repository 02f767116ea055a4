"""Contract suite of autoscalers.

    class TestMyAutoscaler(AutoscalerContract):
        def make(self):
            return MyAutoscaler(target=4)
"""

from __future__ import annotations

from abc import ABC, abstractmethod

import numpy as np

from hermes.core.record import READY
from hermes.errors import InputError
from hermes.fleet.autoscalers import Autoscaler

__all__ = ["AutoscalerContract"]


class AutoscalerContract(ABC):
    """Properties of every autoscaler. Inherit it and give `make()`."""

    most = 5
    """Clients of the group."""

    @abstractmethod
    def make(self) -> Autoscaler:
        """Return the autoscaler, equal at each call."""

    def _run(self, rate: float = 40.0, stepping: str = "runs") -> tuple[np.ndarray, np.ndarray]:
        """Return the changes of membership, and the requests' ends."""
        from hermes.api import simulate

        record = simulate({
            "stepping": stepping,
            "workload": {"requests": 200, "arrivals": {"kind": "poisson", "rate": rate},
                         "lengths": {"kind": "fixed", "prompt": 64, "output": 32}},
            "clients": [{"name": "llm", "count": self.most, "memory": {"num_blocks": 200},
                         "hardware": {"kind": "roofline", "model": "llama-3.1-8b", "device": "h100-sxm"},
                         "fleet": {"start": 2, "start_up": {"total": 0.2}, "autoscaler": self.make().model_dump()}}],
        }).record
        assert (record.status == 1).all(), "a request was not served"
        return record.membership, record.finish_ns

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
        assert sum(now == READY for now in state.values()) >= 1, "no replica is left"

    def test_it_is_deterministic(self) -> None:
        first, second = self._run(), self._run()
        assert all(np.array_equal(a, b) for a, b in zip(first, second, strict=True))

    def test_it_decides_the_same_in_single_steps(self) -> None:
        first, second = self._run(), self._run(stepping="every_step")
        assert all(np.array_equal(a, b) for a, b in zip(first, second, strict=True))

    def test_numbers_beyond_the_group_are_refused_by_check(self) -> None:
        try:
            self.make().check(1)
        except InputError as error:
            assert error.field, "a refusal names the field"
