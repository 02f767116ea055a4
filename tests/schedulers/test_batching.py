"""Continuous and static batching on schedules small enough to compute by hand. Blocks are of one token."""

from __future__ import annotations

import pytest
from driving import Drive

from hermes.schedulers import Generation

both = pytest.mark.parametrize("every_step", [False, True], ids=["runs", "every_step"])


# -- continuous -----------------------------------------------------------------------------------------------------


@both
def test_running_decodes_stall_while_prompts_are_computed(every_step: bool) -> None:
    drive = Drive(every_step, kind="continuous")
    drive.add("a", 5, 4)
    assert drive.got(2) == [{"a": 5}, {"a": 1}]
    drive.add("b", 6, 2)
    drive.add("c", 7, 3)
    assert drive.rest() == [{"b": 6, "c": 7}, {"a": 1, "b": 1, "c": 1}, {"a": 1, "c": 1}]


@both
def test_prompts_are_computed_whole_within_the_token_limit(every_step: bool) -> None:
    drive = Drive(every_step, kind="continuous", max_num_batched_tokens=8)
    for name, prompt in (("a", 5), ("b", 4), ("c", 4), ("d", 20)):
        drive.add(name, prompt, 1)
    # c would fit beside a, but b is first; d is over the limit and goes alone.
    assert drive.rest() == [{"a": 5}, {"b": 4, "c": 4}, {"d": 20}]


@pytest.mark.feature("LLM clients", "Schedulers `continuous`, `static`, `mixed`")
@both
def test_continuous_keeps_to_max_num_seqs(every_step: bool) -> None:
    drive = Drive(every_step, kind="continuous", max_num_seqs=2)
    for name in "abc":
        drive.add(name, 2, 2)
    assert drive.rest() == [{"a": 2, "b": 2}, {"a": 1, "b": 1}, {"c": 2}, {"c": 1}]


@both
def test_continuous_preempts_the_youngest(every_step: bool) -> None:
    drive = Drive(every_step, blocks=9, kind="continuous")
    drive.add("a", 3, 4)
    drive.add("b", 3, 3)
    assert drive.got(2) == [{"a": 3, "b": 3}, {"a": 1, "b": 1}]
    third = drive.step()   # 8 of 9 blocks are taken and both want one
    assert (third.got, third.preempted) == ({"a": 1}, ["b"])
    assert drive.rest() == [{"a": 1}, {"b": 5}], "b's 3 + 2 tokens do not fit beside a's 5"


@both
def test_a_cached_prefix_is_not_computed_again(every_step: bool) -> None:
    drive = Drive(every_step, kind="continuous", block_size=4, caching=True)
    drive.add("a", 10, 1, group=0, shared=10)
    second = drive.add("b", 9, 1, group=0, shared=9)
    assert drive.rest() == [{"a": 10, "b": 1}]
    assert second.cached_tokens == 8


# -- static ---------------------------------------------------------------------------------------------------------


def batch_of(drive: Drive) -> tuple[int, int, int, int, int]:
    """Sequences, new tokens, attention pairs, decodes and the context of the next plan."""
    plan = drive.scheduler.plan(1)
    assert plan is not None
    finished = drive.scheduler.complete(plan, 1, drive.steps, drive.steps + 1)
    for seq in finished:
        drive.scheduler.release(seq)
    return plan.prefill_seqs, plan.prefill_tokens, plan.prefill_attn, plan.decode_seqs, plan.decode_ctx


@both
def test_a_batch_is_a_rectangle(every_step: bool) -> None:
    drive = Drive(every_step, kind="static")
    drive.add("a", 5, 3)
    drive.add("b", 2, 1)
    # Both prompts are padded to 5 tokens, and both rows decode until a's third token.
    assert batch_of(drive) == (2, 10, 30, 0, 0)
    assert drive.pool.free_blocks == 1000 - 2 * (5 + 3)
    assert batch_of(drive) == (0, 0, 0, 2, 10)
    assert batch_of(drive) == (0, 0, 0, 2, 12)
    assert drive.pool.free_blocks == 1000


@both
def test_members_return_together_when_the_longest_is_done(every_step: bool) -> None:
    drive = Drive(every_step, kind="static", max_num_seqs=3)
    for name, output in (("a", 1), ("b", 4), ("c", 2), ("d", 1)):
        drive.add(name, 3, output)
    finished = [step.finished for step in (drive.step() for _ in range(5))]
    assert finished == [[], [], [], ["a", "b", "c"], ["d"]]


@both
def test_nobody_joins_a_batch_that_runs(every_step: bool) -> None:
    drive = Drive(every_step, kind="static")
    drive.add("a", 3, 4)
    drive.step()
    late = drive.add("b", 3, 1)
    assert not drive.scheduler.wants_cut(late)
    assert drive.got(3)[-1] == {}, "decoding rows are not listed"
    assert drive.step().got == {"b": 3}


def test_a_run_ends_where_an_answer_is_complete() -> None:
    drive = Drive(False, kind="static")
    for name, output in (("a", 2), ("b", 7), ("c", 4)):
        drive.add(name, 3, output)
    scheduler, lengths, sampled = drive.scheduler, [], []
    while (plan := scheduler.plan(100)) is not None:
        lengths.append(plan.num_steps)
        sampled.append(plan.sampled)
        for seq in scheduler.complete(plan, plan.num_steps, sum(lengths) - 1, 0):
            scheduler.release(seq)
    assert lengths == [1, 1, 2, 3]
    assert sampled == [3, 3, 2, 1], "rows whose answer is complete go on, but give no tokens"


@both
def test_a_batch_has_room_for_its_whole_rectangle(every_step: bool) -> None:
    drive = Drive(every_step, blocks=30, kind="static")
    for name, prompt, output in (("a", 6, 4), ("b", 2, 2), ("c", 2, 9), ("d", 1, 1)):
        drive.add(name, prompt, output)
    # a and b take 2 x 10 blocks; with c each of three rows would take 6 + 9, more than there are.
    assert drive.step().got == {"a": 6, "b": 6}
    assert drive.pool.free_blocks == 10
    drive.got(3)
    assert drive.step().got == {"c": 2, "d": 2}
    drive = Drive(every_step, kind="static", max_num_batched_tokens=12)
    for name, prompt in (("a", 4), ("b", 2), ("c", 6), ("d", 40)):
        drive.add(name, prompt, 1)
    assert drive.rest() == [{"a": 4, "b": 4}, {"c": 6}, {"d": 40}]


@both
def test_static_refuses_what_its_rectangle_cannot_hold(every_step: bool) -> None:
    scheduler = Drive(every_step, blocks=10, kind="static").scheduler
    assert scheduler.can_ever_fit(Generation(7, 3)) is None
    assert "needs 11 KV blocks" in (scheduler.can_ever_fit(Generation(8, 3)) or "")
