"""Saturation of a pool: the cases of llm-d's own test of its utilization detector, and the fairness of its own test of
least attained service.

The cases have a threshold of 5 waiting requests and of 0.9 KV use, and metrics that are stale after 100 ms."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, cast

import pytest

from hermes.core.clock import Clock
from hermes.core.scraped import Sample
from hermes.gateway.fairness import Flow, Held, LeastService, RoundRobin, Service
from hermes.gateway.saturation import InFlight, Utilization

MS = 1_000_000
NOW = 10_000 * MS


@dataclass
class Pod:
    """A client whose last scrape was so long ago (its scrapes fail if that is longer than a period), or never."""

    index: int
    waiting: int
    kv_use: float
    age_ms: int | None = 0
    name: str = "pod"
    alarm: Any = None
    counts: bool = False
    sample: Sample | None = None

    def scraper(self, period_ns: int, offset_ns: int) -> Pod:
        return self

    def refresh(self) -> int:
        if self.age_ms is not None:
            self.sample = Sample(NOW - self.age_ms * MS, self.waiting, 0, self.kv_use)
        return NOW + 50 * MS

    def read(self) -> Sample | None:
        return self.sample


CASES: dict[str, tuple[list[tuple[int, float, int | None]], float]] = {
    "no pods": ([], 1.0),
    "one with capacity": ([(2, 0.5, 0)], 0.5 / 0.9),
    "one stale": ([(1, 0.1, 200)], 1.0),
    "one with a high queue": ([(10, 0.1, 0)], 2.0),
    "one with high KV use": ([(1, 0.95, 0)], 0.95 / 0.9),
    "one without metrics": ([(0, 0.0, None)], 1.0),
    "all with capacity": ([(1, 0.1, 0), (0, 0.2, 0)], (0.2 + 0.2 / 0.9) / 2),
    "one good, one stale": ([(1, 0.1, 0), (0, 0.2, 300)], 0.6),
    "one good, one with a high queue": ([(1, 0.1, 0), (15, 0.2, 0)], 1.6),
    "all bad": ([(1, 0.1, 200), (20, 0.2, 0), (1, 0.99, 0)], (1.0 + 4.0 + 1.1) / 3),
    "queue at the threshold": ([(5, 0.1, 0)], 1.0),
    "just stale": ([(1, 0.1, 101)], 1.0),
}


@pytest.mark.parametrize("name", CASES)
def test_the_cases_of_llm_d(name: str) -> None:
    pods, expected = CASES[name]
    env = Clock()
    env._now = NOW
    clients = cast(Any, [Pod(place, *pod) for place, pod in enumerate(pods)])
    down = {pod.index for pod in clients if pod.age_ms}
    found = Utilization(env, [clients], clients, down, lambda time: None, seed=0, name="router", period_s=0.05,
                        queue=5, kv=0.9, stale_ns=100 * MS)
    assert found.now() == pytest.approx(expected, abs=1e-9)


def test_the_larger_of_two_pools_counts() -> None:
    env = Clock()
    env._now = NOW
    pods = cast(Any, [Pod(0, 1, 0.0), Pod(1, 4, 0.0)])
    found = Utilization(env, [pods[:1], pods[1:]], pods, set(), lambda time: None, seed=0, name="router",
                        period_s=0.05, queue=5, kv=0.8, stale_ns=200 * MS)
    assert found.now() == 0.8
    assert InFlight([pods[:1], pods], {0: 30, 1: 120}, 100).now() == 0.75
    assert InFlight([pods, []], {}, 100).now() == 1.0


def waiting(*since_ms: int) -> list[Flow]:
    """Return a flow for each tenant, with a call that has waited since then."""
    flows = []
    for tenant, since in enumerate(since_ms):
        flow = Flow(tenant)
        flow.add(Held(cast(Any, None), [], tenant, tenant, 0, since * MS, 1, 1, 1))
        flows.append(flow)
    return flows


def test_least_attained_service_prefers_little_service() -> None:
    service = Service(60_000 * MS, 2.0, {0: 1000.0, 1: 10.0})
    assert LeastService(service, 1.0, 0.0).pick(waiting(0, 0), 0).tenant == 1


def test_without_service_the_longest_wait_is_first() -> None:
    assert LeastService(Service(60_000 * MS, 2.0), 1.0, 1.0).pick(waiting(500, 950), 1000 * MS).tenant == 0


def test_completed_calls_add_their_weighted_tokens() -> None:
    service = Service(1000 * MS, 2.0)
    service.served(0, 100, 50, 0)
    assert service.of(0, 0) == 200.0
    assert service.of(0, 1000 * MS) == 100.0


def test_round_robin_goes_on_after_the_last_tenant() -> None:
    turn, flows = RoundRobin(MS), waiting(0, 0, 0)
    assert [turn.pick(flows, 0).tenant for _ in range(4)] == [0, 1, 2, 0]
    assert turn.pick([flows[0], flows[2]], 0).tenant == 2
