"""In which order sequences wait."""

from __future__ import annotations

import pytest
from driving import Drive

from hermes.schedulers import Generation
from hermes.schedulers.base import AT_REST
from hermes.schedulers.queues import PACKING, IndexedFcfsQueue, KeyedQueue

# name: prompt, output, priority, in order of arrival
REQUESTS = {"a": (9, 2, 1), "b": (3, 3, 2), "c": (4, 2, 0), "d": (5, 1, 1), "e": (2, 1, 2)}
ORDER = {
    "fcfs": "abcde",
    "priority": "cadbe",             # 0; 1, 1; 2, 2
    "shortest_job_first": "ebcda",   # 3; 6, 6, 6 by arrival; 11
    "least_work_left": "ebcda",      # nothing is computed yet
}


def sequences() -> dict[str, Generation]:
    return {
        name: Generation(prompt, output, priority, arrival_order=i)
        for i, (name, (prompt, output, priority)) in enumerate(REQUESTS.items())
    }


def names(queue: object) -> str:
    by_order = dict(enumerate(REQUESTS))
    return "".join(by_order[seq.arrival_order] for seq in queue)   # type: ignore[attr-defined]


@pytest.mark.parametrize("policy", sorted(ORDER))
def test_the_queue_is_in_order(policy: str) -> None:
    queue = PACKING.get(policy)()
    for seq in sequences().values():
        queue.push(seq)
    assert names(queue) == ORDER[policy]
    assert len(queue) == 5
    popped = []
    while queue:
        head = queue.peek()
        popped.append(queue.pop())
        assert head is popped[-1]
    assert names(popped) == ORDER[policy]


@pytest.mark.parametrize("policy", sorted(ORDER))
def test_a_preempted_sequence_goes_to_the_front_or_where_its_key_puts_it(policy: str) -> None:
    queue, waiting = PACKING.get(policy)(), sequences()
    for name in "abcd":
        queue.push(waiting[name])
    queue.push_preempted(waiting["e"])
    expected = {"fcfs": "eabcd", "priority": "cadbe"}.get(policy, "ebcda")
    assert names(queue) == expected


@pytest.mark.parametrize("kind", ["chunked", "continuous", "static", "mixed"])
@pytest.mark.parametrize("policy", sorted(ORDER))
def test_one_that_gives_up_leaves_the_others_in_their_places(kind: str, policy: str) -> None:
    drive = Drive(False, kind=kind, policy=policy, max_num_seqs=1)
    for name, request in REQUESTS.items():
        drive.add(name, *request)
    scheduler = drive.scheduler
    for gone in "cd":
        queue = scheduler.waiting
        assert scheduler.leave(next(seq for seq in queue if drive.name(seq) == gone), AT_REST)
    assert "".join(drive.waiting()) == "".join(name for name in ORDER[policy] if name not in "cd")
    assert isinstance(scheduler.waiting, KeyedQueue | IndexedFcfsQueue)
    first = scheduler.waiting.pop()
    scheduler.waiting.push_preempted(first)
    assert first is scheduler.waiting.peek()
    assert first in scheduler.waiting


def test_a_hurried_sequence_stays_in_front_when_another_leaves() -> None:
    queue, waiting = PACKING.get("priority")(), sequences()
    for seq in waiting.values():
        queue.push(seq)
    queue.hurry(waiting["e"])
    queue.remove(waiting["c"])
    assert names(queue) == "eadb"


def test_work_that_is_done_is_not_work_left() -> None:
    queue, waiting = PACKING.get("least_work_left")(), sequences()
    waiting["a"].num_computed = 9   # its KV came over the network: only its answer of 2 is left
    for seq in waiting.values():
        queue.push(seq)
    assert names(queue) == "aebcd"


@pytest.mark.feature("LLM clients", "Orders of waiting `fcfs`, `priority`, `shortest_job_first`, `least_work_left`")
@pytest.mark.parametrize("kind", ["chunked", "continuous", "static", "mixed"])
@pytest.mark.parametrize("policy", sorted(ORDER))
def test_schedulers_admit_in_this_order(kind: str, policy: str) -> None:
    drive = Drive(False, kind=kind, policy=policy, max_num_seqs=1)
    for name, request in REQUESTS.items():
        drive.add(name, *request)
    admitted = list(dict.fromkeys(name for row in drive.rest() for name in row))
    assert "".join(admitted) == ORDER[policy]
