"""The byte budget from a profiling pass."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from test_telerag_retrieval import LINK, MB, generation_ns, run

from hermes.core.record import STATUS_COMPLETED
from hermes.errors import InputError
from hermes.plugins.telerag.budget import Budget

PROFILED = {"name": "telerag-hyde", "budget": "profiled", "link": LINK, "strength": 0.1, "nprobe": 16}


def test_hyde_prefetches_what_the_link_moves_in_its_window():
    """4 queries search on the CPU; the other 3 prefetch whole clusters of 10 MB up to link x window."""
    sim, record = run({**PROFILED, "profile_queries": 4}, requests=7)
    window = generation_ns(64, 10)
    budget = int(LINK * window / 1e9)
    lookups = sim.clients[0].lookups
    assert (record.status == STATUS_COMPLETED).all()
    assert all(lookup.window_ns == window for lookup in lookups)
    assert [lookup.planned for lookup in lookups] == [False] * 4 + [True] * 3
    assert [lookup.prefetched_bytes for lookup in lookups] == [0] * 4 + [min(64, budget // (10 * MB)) * 10 * MB] * 3


def test_a_given_budget_of_the_same_size_does_the_same():
    budget = int(LINK * generation_ns(64, 10) / 1e9)
    profiled, _ = run({**PROFILED, "profile_queries": 2}, requests=5, index={"size_sigma": 0.5})
    given_too, _ = run({**PROFILED, "budget": budget}, requests=5, index={"size_sigma": 0.5})
    assert profiled.clients[0].lookups[2:] == given_too.clients[0].lookups[2:]


def test_the_buffer_bounds_a_profiled_budget():
    sim, _ = run({**PROFILED, "profile_queries": 2}, requests=4, buffer=50 * MB)
    assert [lookup.prefetched_bytes for lookup in sim.clients[0].lookups] == [0, 0, 50 * MB, 50 * MB]
    assert sim.clients[0].peak_bytes == 50 * MB


def test_the_set_is_64_queries_not_requests():
    sim, _ = run({**PROFILED, "batch": 32}, requests=4)
    assert [lookup.planned for lookup in sim.clients[0].lookups] == [False, False, True, True]


def test_requests_that_start_before_the_pass_is_done_search_on_the_cpu():
    closed = {"arrivals": {"kind": "closed_loop", "users": 5, "think": 0}}
    sim, _ = run({**PROFILED, "profile_queries": 2}, requests=12, **closed)
    planned = {lookup.request: lookup.planned for lookup in sim.clients[0].lookups}
    assert not any(planned[i] for i in range(5))          # all five started at once
    assert planned[11]


def test_windows_of_several_rounds_all_count():
    sim, _ = run({**PROFILED, "name": "telerag-iter-retgen", "rounds": 3, "profile_queries": 1, "link": LINK / 8},
                 requests=2)
    first = [lookup.window_ns for lookup in sim.clients[0].lookups if lookup.request == 0 and lookup.window_ns]
    assert len(first) == 2
    ahead = [lookup.prefetched_bytes for lookup in sim.clients[0].lookups if lookup.planned]
    assert ahead == [int(LINK / 8 * sum(first) / 2 / 1e9) // (10 * MB) * 10 * MB] * 2


@given(st.lists(st.integers(1, 10**9), min_size=1, max_size=40), st.integers(1, 40), st.integers(1, 8))
def test_the_mean_of_the_set_and_of_nothing_else(windows, queries, batch):
    budget = Budget(None, link=24e9, queries=queries, batch=batch)
    mine = [window for window in windows if budget.enter()]
    for window in mine:
        assert budget.num_bytes is None
        budget.timed(window)
        budget.leave()
    wanted = -(-queries // batch)
    if len(mine) < wanted:
        assert budget.num_bytes is None
    else:
        assert len(mine) == wanted
        assert budget.num_bytes == int(24e9 * sum(mine) / wanted / 1e9)


@pytest.mark.parametrize(("change", "field"), [({"link": None}, "link"), ({"budget": "measured"}, "budget"),
                                               ({"profile_queries": 0}, "profile_queries")])
def test_what_is_missing_is_named(change: dict[str, Any], field: str):
    with pytest.raises(InputError, match=field):
        run({**PROFILED, **change})
