"""Branches of one prompt, on schedules small enough to compute by hand, and their memory on random ones."""

from __future__ import annotations

from typing import Any

import pytest
from driving import Drive
from hypothesis import given
from hypothesis import strategies as st
from long_runs import quick_and_full

from hermes.core.branches import branch_into
from hermes.schedulers import Generation

both = pytest.mark.parametrize("every_step", [False, True], ids=["runs", "every_step"])
reservations = pytest.mark.parametrize("reservation", ["on_demand", "up_front"])


# -- chunked --------------------------------------------------------------------------------------------------------


@pytest.mark.feature("LLM clients", "Several answers to one prompt (branches)")
@both
@pytest.mark.parametrize("caching", [False, True], ids=["counted", "cached"])
def test_a_prompt_is_held_once(every_step: bool, caching: bool) -> None:
    drive = Drive(every_step, blocks=100, block_size=4, caching=caching)
    drive.add("a", 10, 0, branches=(3, 3, 5))
    steps = []
    while (step := drive.step()) is not None:
        steps.append((step.got, step.free, step.finished))
    together = {"a": 1, "a1": 1, "a2": 1}
    assert steps == [
        ({"a": 10}, 97, []),            # 10 tokens are 3 blocks, of which 2 are whole
        (together, 95, []),             # two more branches: a copy each of the third
        (together, 95, ["a", "a1"]),    # 12 tokens each: their third tokens are there
        ({"a2": 1}, 96, []),            # 13 tokens: the 2 whole blocks of the prompt and 2 of its own
        ({"a2": 1}, 96, ["a2"]),
    ]
    assert drive.pool.free_blocks == 100


@both
def test_branches_that_end_with_their_first_token(every_step: bool) -> None:
    drive = Drive(every_step, blocks=100, block_size=4)
    drive.add("a", 8, 0, branches=(1, 3, 1))
    first = drive.step()
    assert (first.got, first.finished) == ({"a": 8}, ["a", "a2"])
    assert drive.pool.free_blocks == 98
    assert drive.rest() == [{"a1": 1}, {"a1": 1}]
    assert drive.pool.free_blocks == 100


@both
def test_the_last_step_of_a_prompt_samples_a_token_for_every_branch(every_step: bool) -> None:
    drive = Drive(every_step, max_num_batched_tokens=6)
    drive.add("a", 10, 0, branches=(3, 2, 2, 2))
    sampled = []
    while (plan := drive.scheduler.plan(1)) is not None:
        sampled.append(plan.sampled)
        for seq in drive.scheduler.complete(plan, 1, len(sampled) - 1, len(sampled)):
            drive.scheduler.release(seq)
    assert sampled == [0, 4, 4, 1]


@both
def test_a_preempted_branch_joins_again_while_the_prompt_is_there(every_step: bool) -> None:
    drive = Drive(every_step, blocks=6, block_size=4)
    drive.add("a", 10, 0, branches=(5, 9, 9))
    together = {"a": 1, "a1": 1, "a2": 1}
    assert drive.got(3) == [{"a": 10}, together, together]
    # 2 + 1 + 1 + 1 of 6 blocks, and each of the three wants one more: a2, the last, gives back its own.
    fourth = drive.step()
    assert (fourth.got, fourth.preempted, fourth.free) == ({"a": 1, "a1": 1}, ["a2"], 0)
    assert drive.rest() == [
        {"a": 1, "a1": 1},           # a is done and leaves 2 blocks: a2's 13 tokens take 4, of which 2 are there
        {"a1": 1, "a2": 13 - 8},
        {"a1": 1, "a2": 1},
        {"a1": 1},                   # 17 tokens take a fifth block: a2 goes again
        {"a1": 1},
        {"a2": 15},                  # nobody holds the prompt: it computes all of its 10 + 5 tokens
        {"a2": 1}, {"a2": 1}, {"a2": 1},
    ]
    assert drive.pool.free_blocks == 6


@both
def test_without_slots_branches_wait_with_their_first_token(every_step: bool) -> None:
    drive = Drive(every_step, block_size=4, max_num_seqs=2, max_num_batched_tokens=6, long_prefill_token_threshold=2)
    drive.add("a", 10, 0, branches=(2, 2, 3, 3))
    assert drive.got(2) == [{"a": 6}, {"a": 4}]
    assert drive.waiting() == ["a2", "a3"]
    assert drive.rest() == [
        {"a": 1, "a1": 1},                    # both are done, and nobody holds the prompt
        {"a2": 2}, {"a2": 2}, {"a2": 2},      # a2 computes it anew, two tokens a step; a3 waits for it
        {"a2": 2, "a3": 2},                   # both whole blocks are there, and a3 takes part
        {"a2": 2, "a3": 1},
        {"a2": 1, "a3": 1},
        {"a2": 1},
    ]


@both
def test_with_a_prefix_cache_branches_find_prompt_and_own_answers(every_step: bool) -> None:
    drive = Drive(every_step, blocks=6, block_size=4, caching=True)
    drive.add("a", 10, 0, branches=(5, 9, 9))
    assert drive.got(5)[3:] == [{"a": 1, "a1": 1}, {"a": 1, "a1": 1}]
    # a2 was preempted with 12 tokens in 3 blocks; its own third was taken by a1.
    assert drive.step().got == {"a1": 1, "a2": 13 - 8}
    drive.rest()
    assert drive.pool.free_blocks == 6


def test_asynchronous_scheduling_keeps_slots_of_those_who_end() -> None:
    drive = Drive(False, block_size=4, max_num_seqs=3, async_scheduling=True)
    drive.add("b", 4, 2)
    drive.step()
    drive.add("a", 10, 0, branches=(3, 3, 3))
    # b ends in the step that computes the prompt, and has its slot for one more plan.
    assert drive.got(2) == [{"b": 1, "a": 10}, {"a": 1, "a1": 1}]
    assert drive.waiting() == ["a2"]
    assert drive.rest()[0] == {"a": 1, "a1": 1, "a2": 11 - 8}


# -- the others -----------------------------------------------------------------------------------------------------


def test_continuous() -> None:
    drive = Drive(False, blocks=100, block_size=4, kind="continuous")
    drive.add("a", 10, 0, branches=(4, 2))
    assert drive.got(2) == [{"a": 10}, {"a": 1, "a1": 1}]
    drive.add("b", 5, 2)
    # Branches decode together, and stall while another prompt is computed.
    assert drive.rest() == [{"b": 5}, {"a": 1, "b": 1}, {"a": 1}]
    assert drive.pool.free_blocks == 100


def test_static_branches_are_rows_of_the_rectangle() -> None:
    drive = Drive(False, blocks=100, block_size=4, kind="static")
    drive.add("a", 5, 0, branches=(3, 1, 2))
    drive.add("b", 9, 2)
    rows = []
    while (plan := drive.scheduler.plan(1)) is not None:
        for seq in drive.scheduler.complete(plan, 1, len(rows), len(rows)):
            drive.scheduler.release(seq)
        rows.append((plan.prefill_seqs, plan.prefill_tokens, plan.decode_seqs, plan.decode_ctx, plan.sampled,
                     drive.pool.free_blocks))
    # Four rows of 9 + 3 tokens are 3 blocks each; the three of a share the one whole block of its 5 prompt tokens.
    assert rows == [(2, 18, 0, 0, 4, 100 - (4 * 3 - 2)), (0, 0, 4, 36, 3, 90), (0, 0, 4, 40, 1, 100)]


@pytest.mark.parametrize(("branches", "config", "reason"), [
    ((2, 2, 2), {"max_num_seqs": 2}, "3 branches are in one batch, the client has room for 2 sequences"),
    ((2, 2, 2), {"blocks": 8}, "needs 10 KV blocks of 1 tokens for 4 prompt and 3 times 2 output tokens"),
])
def test_static_refuses_branches_that_are_not_in_one_batch(
    branches: tuple[int, ...], config: dict[str, int], reason: str
) -> None:
    scheduler = Drive(False, kind="static", **config).scheduler
    assert reason in (scheduler.can_ever_fit(branch_into(Generation(4, 1), branches)) or "")


@reservations
def test_mixed(reservation: str) -> None:
    drive = Drive(False, blocks=100, block_size=4, kind="mixed", reservation=reservation)
    drive.add("a", 10, 0, branches=(4, 2))
    first = drive.step()
    assert (first.got, first.free, drive.pool.free_blocks) == ({"a": 10}, 97, 96)
    second = drive.step()
    # up_front: 14 and 12 tokens, 4 and 3 blocks, of which 2 are common
    assert (second.got, second.free) == ({"a": 1, "a1": 1}, 96 if reservation == "on_demand" else 95)
    assert drive.rest() == [{"a": 1}, {"a": 1}]
    assert drive.pool.free_blocks == 100


@pytest.mark.parametrize("kind", ["chunked", "continuous", "mixed"])
def test_kv_that_arrives_is_held_once(kind: str) -> None:
    drive = Drive(False, blocks=100, block_size=4, kind=kind)
    seq = branch_into(Generation(10, 1), (3, 1, 2))
    seq.transferred, seq.given = True, 1
    seq.num_computed, seq.num_tokens = 10, 11
    drive.names[seq] = "a"
    assert drive.scheduler.reserve(seq)
    assert drive.pool.free_blocks == 97
    drive.scheduler.enqueue(seq)
    assert drive.pool.free_blocks == 96, "the second branch ended elsewhere; the third has a third block of its own"
    assert drive.rest() == [{"a": 1, "a2": 1}, {"a": 1}]
    assert drive.pool.free_blocks == 100


def test_kv_that_never_came_is_computed_by_one_branch() -> None:
    drive = Drive(False, blocks=100, block_size=4)
    seq = branch_into(Generation(10, 1), (3, 2, 2))
    seq.transferred, seq.given = True, 1
    seq.num_computed, seq.num_tokens = 0, 11   # as `Handoff` gives it up
    drive.names[seq] = "a"
    drive.scheduler.enqueue(seq)
    assert drive.rest() == [{"a": 11, "a1": 11 - 8, "a2": 11 - 8}, {"a": 1}]


# -- memory ---------------------------------------------------------------------------------------------------------


def by_hand(drive: Drive, seqs: list[Generation]) -> int:
    """Blocks that sequences hold: what each has after the whole blocks of its prompt, and those once per generation."""
    common: dict[Any, int] = {}
    total = 0
    for seq in seqs:
        whole = seq.prompt_tokens // drive.pool.block_size if seq.branches is not None else 0
        mine = min(whole, seq.num_blocks)
        total += seq.num_blocks - mine
        if mine:
            common[seq.branches] = max(mine, common.get(seq.branches, 0))
    return total + sum(common.values())


workloads = st.lists(
    st.tuples(st.integers(1, 30), st.lists(st.integers(1, 12), min_size=1, max_size=5)), min_size=1, max_size=8)


@quick_and_full(50, 150, derandomize=True)
@given(kind=st.sampled_from(["chunked", "async", "continuous", "mixed"]), requests=workloads,
       block_size=st.sampled_from([1, 2, 4, 8]), tokens=st.sampled_from([42, 60, 100, 4000]),
       slots=st.sampled_from([1, 2, 4, 64]))
def test_memory_is_the_sum_by_hand(
    kind: str, requests: list[tuple[int, list[int]]], block_size: int, tokens: int, slots: int
) -> None:
    config = {"async_scheduling": True} if kind == "async" else {}
    drive = Drive(True, blocks=-(-tokens // block_size), kind="chunked" if kind == "async" else kind,
                  block_size=block_size, max_num_seqs=slots, max_num_batched_tokens=16, **config)
    for i, (prompt, outputs) in enumerate(requests):
        drive.add(str(i), prompt, outputs[0], branches=tuple(outputs))
    finished: list[str] = []
    scheduler, pool = drive.scheduler, drive.pool
    while (step := drive.step()) is not None:
        finished += step.finished
        for seq in scheduler.group.members:   # as of the step that has ended
            seq.num_blocks = pool.blocks_for(scheduler.group.clock + seq.base)
        ending = [s for s in getattr(scheduler, "_ending", ()) if s.num_blocks]
        held = [s for s in {**scheduler.running, **dict.fromkeys([*scheduler.holding, *ending])} if s.num_blocks]
        assert pool.num_blocks - pool.free_blocks == by_hand(drive, held)
        assert drive.steps < 5000
    assert len(finished) == sum(len(outputs) for _, outputs in requests)
    assert pool.free_blocks == pool.num_blocks


@quick_and_full(33, 100, derandomize=True)
@given(prompt=st.integers(1, 60), outputs=st.lists(st.integers(2, 10), min_size=2, max_size=6),
       block_size=st.sampled_from([1, 3, 4, 16]), kind=st.sampled_from(["chunked", "continuous", "mixed", "static"]))
def test_branches_save_the_whole_blocks_of_their_prompt(
    prompt: int, outputs: list[int], block_size: int, kind: str
) -> None:
    """Against as many requests of their own; both decode from the second step on, in the same contexts."""
    one, many = (Drive(False, blocks=1000, block_size=block_size, kind=kind) for _ in range(2))
    one.add("a", prompt, 0, branches=tuple(outputs))
    for i, output in enumerate(outputs):
        many.add(str(i), prompt, output)
    first, others = one.step(), many.step()
    assert sum(others.got.values()) == len(outputs) * sum(first.got.values())
    saved = (len(outputs) - 1) * (prompt // block_size)
    for _ in range(min(outputs) - 2 if kind != "static" else max(outputs) - 2):
        step, other = one.step(), many.step()
        assert step.free - other.free == saved
        assert list(step.got.values()) == list(other.got.values())
