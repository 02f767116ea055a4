"""How much is simulated before a first scenario is written, and what it says of its rate."""

from __future__ import annotations

from typing import Any

import pytest

from hermes.cli import main
from hermes.dispatch.simulation import Simulation
from hermes.explore import first_load
from hermes.explore.first_load import Fitted


@pytest.mark.long
def test_a_large_engine_is_not_simulated_for_long(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch,
) -> None:
    """16 devices serve some 80 requests a second: a search that doubles its strides simulated 211,120 requests of
    2,111 a second, for 8 of its 14 s."""
    counts, run = [], Simulation.run

    def counted(self: Simulation, *arguments: Any, **options: Any) -> Any:
        counts.append(self.coordinator.unfinished)
        return run(self, *arguments, **options)

    monkeypatch.setattr(Simulation, "run", counted)
    assert main(["import", "vllm", "vllm serve meta-llama/Llama-3.1-8B-Instruct -tp=16", "--device", "h100-sxm"]) == 0
    assert "the highest that met the SLO in" in capsys.readouterr().out
    assert max(counts) <= 20_000
    assert sum(counts) <= 25_000


@pytest.mark.parametrize(("highest", "rate", "runs"), [
    (50.0, 45.25, 6),    # 4, 16, 64, then 32, 45.25, 53.8: within a fifth of what is met
    (0.9, 0.841, 6),     # 4, 1, 0.25, then 0.5, 0.707, 0.841
    (1e9, 4.0**10, 10), (0.0, 0.0, 10)])
def test_the_search_of_a_rate_by_hand(
    highest: float, rate: float, runs: int, monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(first_load, "_probe", lambda found, rate: None if rate <= highest else "TTFT")
    found = Fitted({"workload": {"arrivals": {"kind": "poisson", "rate": 4.0}}})
    assert first_load._highest(found) == (pytest.approx(rate, rel=1e-3), runs)
