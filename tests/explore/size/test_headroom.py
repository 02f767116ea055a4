"""How much more load an answer takes: few simulations near where its latency reaches its limit."""

from __future__ import annotations

import math
from typing import Any

import pytest

from hermes.explore.size import Kind, Tried
from hermes.explore.size.headroom import crossing, headroom_of
from hermes.scenario import load_scenario

CLIENTS = [{"name": "llm", "model": "llama-3.1-8b", "device": "h100-sxm"}]


def test_where_a_latency_reaches_its_limit() -> None:
    """It grows by the same factor with every level: from a half to four fifths in ten, to one in ln 2 / ln 1.6 tens."""
    assert crossing({0: 0.5, 10: 0.8}) == pytest.approx(10 * math.log(2) / math.log(1.6))
    assert crossing({0: 0.5, 3: 0.9, 10: 0.8}) == pytest.approx(10 * math.log(2) / math.log(1.6))
    assert crossing({0: 0.5, 10: 0.8, 20: 1.25, 40: 9.0}) == pytest.approx(15.0)
    assert crossing({0: 0.5, 10: 2.0}) == pytest.approx(5.0)


@pytest.mark.parametrize("shares", [{}, {0: 0.5}, {3: 2.0}, {0: 0.5, 4: 0.5}, {0: 0.5, 4: 0.4}])
def test_nothing_is_known_of_a_latency_that_does_not_grow(shares: dict[int, float]) -> None:
    assert crossing(shares) is None


class Growing:
    """Stands in for `Trials`: the latency grows by so much with every level of 1%; far beyond its limit a simulation is
    ended, and has no figures."""

    def __init__(self, share: float, factor: float, ended: float = 1.2) -> None:
        self.share, self.factor, self.ended, self.ran = share, factor, ended, list[int]()
        self.scenario = load_scenario({
            "workload": {"requests": 100, "arrivals": {"kind": "poisson", "rate": 1.0},
                         "lengths": {"kind": "fixed", "prompt": 10, "output": 10}},
            "clients": CLIENTS, "slo": {"ttft": "1 s"}})

    def row(self, level: int) -> dict[str, Any]:
        share = self.share * self.factor**level
        if share > self.ended:
            return {"stopped.at_s": 1.0, "stopped.metric": "ttft", "stopped.percentile": 99.0, "stopped.limit_s": 1.0,
                    "stopped.late": 20, "stopped.of": 100}
        return {"slo.pass": share <= 1.0, "settling.settled": True, "slo.ttft_p99.value_s": share,
                "slo.ttft_p99.limit_s": 1.0}

    def run(self, wanted: Any, *, until_missed: float) -> dict[str, Any]:
        (label, (settings, _)), = wanted.items()
        self.ran.append(round(math.log(settings["workload.arrivals.rate"]) / math.log(1.01)))
        return {label: self.row(self.ran[-1])}


@pytest.mark.parametrize(("share", "factor", "most"), [
    (0.7, 1.02, 4), (0.42, 1.02, 4), (0.95, 1.05, 3), (0.95, 1.10, 3), (0.3, 1.005, 6), (0.999, 1.3, 3)])
def test_the_highest_load_is_found_in_few_simulations(share: float, factor: float, most: int) -> None:
    trials = Growing(share, factor)
    found = headroom_of(trials, CLIENTS, Tried(Kind("h100-sxm", 1), (1,), None, trials.row(0)))  # type: ignore[arg-type]  # a stand-in
    level = math.floor(-math.log(share) / math.log(factor))
    assert found == pytest.approx(1.01**level - 1)
    assert len(trials.ran) <= most, trials.ran
