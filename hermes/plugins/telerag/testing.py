"""Contract suite for prefetch policies (`hermes.plugins.telerag.prefetch`).

    class TestMyPolicy(PrefetchContract):
        def make(self):
            return MyPolicy(near=3)
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterator
from dataclasses import fields
from typing import Any, ClassVar

import numpy as np

from hermes.api import Results, simulate
from hermes.plugins.telerag.prefetch import PREFETCH, PrefetchPolicy, PrefetchState

__all__ = ["PrefetchContract"]

MB = 10**6


class PrefetchContract(ABC):
    """Properties of every prefetch policy. Inherit it and give `make()`."""

    states_drawn: ClassVar[int] = 200
    """Number of random states."""

    @abstractmethod
    def make(self) -> PrefetchPolicy:
        """Return the policy, equal at each call."""

    def states(self) -> Iterator[PrefetchState]:
        """Yield random states: one query or several, all clusters ranked or a part, without and with history."""
        rng = np.random.default_rng(7)
        for number in range(self.states_drawn):
            clusters, queries = int(rng.integers(1, 60)), int(rng.integers(1, 4))
            reach = int(rng.integers(1, clusters + 1))
            yield PrefetchState(
                ranked=np.array([rng.permutation(clusters)[:reach] for _ in range(queries)]),
                sizes=rng.integers(0, 100, clusters),
                held=rng.permutation(clusters)[:int(rng.integers(0, clusters + 1))],
                times_probed=rng.integers(0, 9, clusters) * (number % 2), budget=int(rng.integers(0, 3000)),
                nprobe=int(rng.integers(1, reach + 1)),
            )

    def run(self, late: str = "wait", stepping: str = "runs") -> Results:
        """Simulate pipelines of two rounds with this policy."""
        scan = {"kind": "cluster_scan", "rate": 20e9}
        return simulate({
            "stepping": stepping,
            "workload": {"requests": 12, "arrivals": {"kind": "poisson", "rate": 40},
                         "lengths": {"kind": "fixed", "prompt": 64, "output": 8},
                         "pipeline": {"name": "telerag-iter-retgen", "nprobe": 8, "window": 6, "strength": 0.2,
                                      "batch": 2, "embed": False, "budget": 120 * MB, "late": late, "chunk": 30 * MB}},
            "clients": [
                {"kind": "ivf_index", "name": "index", "prefetch": self.make().model_dump(), "buffer": 300 * MB,
                 "index": {"clusters": 64, "total": 640 * MB, "vector_bytes": 1000}},
                {"kind": "rag", "name": "cpu", "serves": {"cpu_search": scan, "miss_search": scan}},
                {"kind": "rag", "name": "gpu", "serves": {
                    "gpu_search": scan, "prefetch": {"kind": "per_item"}, "merge": {"kind": "per_item"}}},
                {"name": "llm", "device": "h100-sxm", "memory": {"num_blocks": 2000},
                 "hardware": {"kind": "roofline", "model": "llama-3.2-3b", "device": "h100-sxm"}},
            ],
            "network": {"kind": "topology", "nodes": ["host", "card"],
                        "links": [{"a": "host", "b": "card", "bandwidth": 5e9}],
                        "attach": {"index": "host", "cpu": "host", "gpu": "card", "llm": "card"}},
        })

    def test_is_registered_under_its_kind(self) -> None:
        policy: Any = self.make()
        assert PREFETCH.get(policy.kind) is type(policy)

    def test_survives_a_scenario_file(self) -> None:
        policy = self.make()
        assert type(policy).model_validate(policy.model_dump()) == policy

    def test_an_order_names_clusters_at_most_once(self) -> None:
        policy = self.make()
        for state in self.states():
            order = np.asarray(policy.order(state))
            assert order.ndim == 1, f"an order of shape {order.shape}"
            assert len(np.unique(order)) == len(order), f"a cluster twice: {order}"
            assert not len(order) or (order.dtype.kind in "iu" and 0 <= order.min() <= order.max() < len(state.sizes))

    def test_the_order_depends_on_the_state_alone(self) -> None:
        states, one, other = list(self.states()), self.make(), self.make()
        forwards = [one.order(state) for state in states]
        backwards = [other.order(state) for state in reversed(states)]
        assert all(map(np.array_equal, forwards, reversed(backwards))), "equal states, different orders"

    def test_the_state_is_not_modified(self) -> None:
        policy = self.make()
        for state, same in zip(self.states(), self.states(), strict=True):
            policy.order(state)
            for field in fields(state):
                assert np.array_equal(getattr(state, field.name), getattr(same, field.name)), field.name

    def test_simulations_keep_to_the_budget(self) -> None:
        for late in ("wait", "give_up"):
            requests = self.run(late).requests
            assert (requests["status"] == "completed").all()
            assert (requests["note_prefetched_bytes"] <= 2 * 120 * MB).all(), "more than two prefetches of a request"
            assert requests["note_overlap"].between(0, 1).all()

    def test_same_scenario_same_times(self) -> None:
        first = self.run().record.finish_ns
        for other in (self.run(), self.run(stepping="every_step")):
            assert np.array_equal(first, other.record.finish_ns)
