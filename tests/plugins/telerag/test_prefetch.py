"""Prefetch policies: what they see, what is copied of their order, and what the requests' notes say of it."""

from __future__ import annotations

from typing import Any, Literal

import numpy as np
import pytest
from test_telerag_retrieval import CPU, MB, MISSES, generation_ns, run, scan_ns, scenario

from hermes.api import simulate
from hermes.errors import InputError
from hermes.plugins.telerag import PREFETCH, PrefetchPolicy, PrefetchState
from hermes.plugins.telerag.prefetch import NearestFirst
from hermes.scenario import load_scenario
from hermes.scenario.build import build

HYDE = {"name": "telerag-hyde", "budget": 59 * MB, "strength": 0.0}


class Scripted(PrefetchPolicy):
    """The first clusters by number, after what `given` names."""

    kind: Literal["scripted"] = "scripted"
    given: list[Any] = []
    seen: list[Any] = []

    def order(self, state: PrefetchState) -> Any:
        self.seen.append((state, state.held.copy(), state.times_probed.copy()))
        return np.array(self.given) if self.given else np.arange(len(state.sizes))


@pytest.fixture(autouse=True)
def registered():
    PREFETCH.register("scripted")(Scripted)
    yield
    PREFETCH.unregister("scripted")


def simulated(pipeline: dict[str, Any], prefetch: dict[str, Any], **options: Any) -> tuple[Any, Any]:
    content = scenario(pipeline, **options).model_dump()
    content["clients"][0]["prefetch"] = prefetch
    simulation = build(load_scenario(content))
    return simulation.clients[0], simulation.run()


def test_the_order_is_cut_at_the_budget():
    """Five clusters of 10 MB fit into 59 MB; those after the first that does not are left out, too."""
    index, record = simulated(HYDE, {"kind": "scripted"})
    assert record.notes["prefetched_bytes"].tolist() == [50 * MB]
    (state, held, _), = index.config.prefetch.seen
    assert (state.budget, state.nprobe, state.ranked.shape, len(held)) == (59 * MB, 8, (1, 64), 0)
    probed = state.ranked[0, :8]     # without a rewrite
    assert record.notes["hit_bytes"].tolist() == [10 * MB * int((probed < 5).sum())]


def test_the_buffer_bounds_what_a_policy_may_copy():
    index, _ = simulated(HYDE, {"kind": "scripted"}, buffer=25 * MB)
    assert index.config.prefetch.seen[0][0].budget == 25 * MB
    assert index.peak_bytes == 20 * MB


def test_a_policy_sees_what_earlier_queries_probed_and_what_is_held():
    index, _ = simulated({**HYDE, "name": "telerag-iterative", "again": 1.0, "max_rounds": 2, "keep": True},
                         {"kind": "scripted"})
    (first, _, before), (_, held, after) = index.config.prefetch.seen
    assert before.sum() == 0
    assert held.tolist() == [0, 1, 2, 3, 4]
    assert np.flatnonzero(after).tolist() == sorted(first.ranked[0, :8])
    assert index.lookups[1].prefetched_bytes == 50 * MB, "clusters on the GPU are passed over: 5 to 9 are copied"


def test_no_prefetch_by_hand():
    """The CPU searches all clusters at the rate of misses; the merge gets their distances."""
    index, record = simulated(HYDE, {"kind": "none"})
    expected = generation_ns(64, 10) + scan_ns(80 * MB, MISSES) + round(80_000 * 8 / 20e9 * 1e9) + 50_000
    assert record.finish_ns[0] - record.arrival_ns[0] == expected + generation_ns(64 + 300, 16)
    assert index.copied_bytes == index.peak_bytes == 0
    assert CPU != MISSES


@pytest.mark.parametrize(("given", "says"), [
    ([3, 5, 3], "cluster 3 twice"), ([64], "clusters 64 to 64 of 64"), ([-1, 2], "clusters -1 to 2 of 64"),
    ([0.5], "of float64"), ([[1, 2]], r"shape \(1, 2\)"),
])
def test_an_order_that_is_none_is_refused(given, says):
    with pytest.raises(InputError, match=f"prefetch: expected clusters.*'scripted', found .*{says}"):
        simulated(HYDE, {"kind": "scripted", "given": given})


def test_notes_are_sums_over_the_retrievals_of_a_request():
    sim, record = run({"name": "telerag-iter-retgen", "budget": 150 * MB, "strength": 0.3, "batch": 2}, requests=3,
                      index={"size_sigma": 0.6})
    for request in range(3):
        mine = [lookup for lookup in sim.clients[0].lookups if lookup.request == request]
        assert len(mine) == 3
        assert record.notes["hit_bytes"][request] == sum(lookup.hit_bytes for lookup in mine)
        assert record.notes["missed_bytes"][request] == sum(lookup.miss_bytes for lookup in mine)
        assert record.notes["prefetched_bytes"][request] == sum(lookup.prefetched_bytes for lookup in mine)
        assert record.notes["overlap"][request] == pytest.approx(np.mean([lookup.overlap for lookup in mine]))


def test_an_unknown_policy_is_refused_with_the_nearest_name():
    with pytest.raises(InputError, match=r"prefetch\.kind: expected one of nearest, none, scripted"):
        load_scenario("studies/telerag/desktop", ["clients.0.prefetch.kind=nearst"])


def test_a_policy_cannot_write_into_the_state_of_the_index(monkeypatch):
    def order(self, state):
        state.sizes[:] = 1
        return state.ranked[0]

    monkeypatch.setattr(NearestFirst, "order", order)
    with pytest.raises(ValueError, match="read-only"):
        simulate("studies/telerag/desktop", overrides=["workload.requests=3"])
