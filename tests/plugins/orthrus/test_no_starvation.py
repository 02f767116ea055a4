"""Whoever waits is served within a bound that nothing arriving later can move (`heterogeneous`)."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import HealthCheck, given
from hypothesis import strategies as st
from long_runs import quick_and_full

from hermes.core.generation import Embedding
from hermes.core.stage import ServiceStage
from hermes.memory import BlockPool
from hermes.plugins.orthrus import HeterogeneousConfig
from hermes.schedulers import Generation

Arrival = tuple[int, int, int]   # step, prompt, output; output 0: an embedding

FORMS: list[dict[str, Any]] = [
    {"slots": "fcfs"}, {"slots": "ibs"}, {"slots": "ibs", "reservation": "up_front"}, {"reservation": "up_front"},
    {"batches": "drain"}, {"batches": "alternate"},
]


def waits(arrivals: list[Arrival], num_blocks: int, config: HeterogeneousConfig) -> list[tuple[int, int]]:
    """(steps from arrival to the end, bound) of each request that was not refused."""
    scheduler = config.build(BlockPool(num_blocks, 1), every_step=True)
    room = config.max_num_batched_tokens - config.max_num_seqs + 1
    factor = 4 if config.batches == "alternate" else 2
    waiting = sorted(arrivals)
    here: dict[Any, tuple[int, int]] = {}      # -> (arrived at, requests in the system then)
    done: dict[Any, int] = {}
    step, number, idle = 0, 0, 0
    while waiting or len(done) < len(here):
        while waiting and waiting[0][0] <= step:
            _, prompt, output = waiting.pop(0)
            seq: Any = Generation(prompt, output) if output else Embedding(ServiceStage("embed", tokens=prompt))
            seq.arrival_order = number = number + 1
            if scheduler.can_ever_fit(seq) is None:
                here[seq] = step, len(here) - len(done) + 1
                scheduler.enqueue(seq)
        plan = scheduler.plan(1)
        if plan is None:
            assert len(done) == len(here), "somebody waits, and nothing is planned"
            step = waiting[0][0] if waiting else step
            continue
        for seq in scheduler.complete(plan, 1, step, step + 1):
            scheduler.release(seq)
            done[seq] = step + 1
        idle = 0 if plan.prefills or plan.decodes else idle + 1
        assert idle < 3
        step += 1
    alone = max((-(-(s.prompt_tokens + s.target_tokens) // room) + s.target_tokens for s in here), default=0)
    return [(done[seq] - arrived, factor * n * alone) for seq, (arrived, n) in here.items()]


arrivals = st.lists(
    st.tuples(st.integers(0, 60), st.integers(1, 30), st.sampled_from([0, 0, 0, 1, 2, 7, 20])), min_size=1, max_size=40)


@pytest.mark.parametrize("form", FORMS, ids=str)
@quick_and_full(20, 60, derandomize=True, suppress_health_check=[HealthCheck.too_slow])
@given(arrivals=arrivals, places=st.sampled_from([1, 2, 4, 16]), spare=st.sampled_from([0, 3, 20]),
       num_blocks=st.sampled_from([30, 50, 80, 1000]))
def test_every_request_ends_within_the_bound(
    form: dict[str, Any], arrivals: list[Arrival], places: int, spare: int, num_blocks: int
) -> None:
    config = HeterogeneousConfig(max_num_seqs=places, max_num_batched_tokens=places + spare, **form)
    for waited, bound in waits(arrivals, num_blocks, config):
        assert waited <= bound


@pytest.mark.parametrize("form", FORMS, ids=str)
@pytest.mark.parametrize("crowd", [0, 6], ids=["embeddings", "generations"])
def test_a_stream_of_one_kind_does_not_starve_the_other(form: dict[str, Any], crowd: int) -> None:
    """Three of the one kind every step for 300 steps, more than can be served; in their midst, one of the other."""
    stream = [(step, 5, crowd) for step in range(300) for _ in range(3)]
    loner = (20, 9, 6 - crowd)
    config = HeterogeneousConfig(max_num_seqs=4, max_num_batched_tokens=12, **form)
    results = waits([*stream, loner], 40, config)
    order = sorted([*stream, loner]).index(loner)
    waited, bound = results[order]
    assert waited <= bound
    own_kind_has_slots = form.get("slots") == "ibs"
    if own_kind_has_slots:   # it has a slot of its own: it does not wait for the crowd in front of it
        assert waited < 60


def test_ibs_serves_the_short_queue_out_of_order() -> None:
    """One embedding behind 50 generations: at once with a slot of its own, at the end in order of arrival."""
    crowd = [(0, 4, 20)] * 50
    last = {}
    for slots in ("fcfs", "ibs"):
        config = HeterogeneousConfig(max_num_seqs=5, max_num_batched_tokens=64, slots=slots)
        last[slots] = waits([*crowd, (1, 4, 0)], 10_000, config)[-1][0]
    assert last["ibs"] <= 21 < 150 < last["fcfs"]
