"""vLLM V1's rules one by one, on schedules small enough to compute by hand. Blocks are of one token."""

from __future__ import annotations

import pytest
from driving import Drive

from hermes.schedulers import Generation

both = pytest.mark.parametrize("every_step", [False, True], ids=["runs", "every_step"])


@both
def test_running_first_then_chunks_within_the_budget(every_step: bool) -> None:
    drive = Drive(every_step, max_num_batched_tokens=8)
    drive.add("a", 10, 3)
    drive.add("b", 11, 2)
    assert drive.rest() == [{"a": 8}, {"a": 2, "b": 6}, {"a": 1, "b": 5}, {"a": 1, "b": 1}]


@both
def test_decodes_take_one_token_of_the_budget_each(every_step: bool) -> None:
    drive = Drive(every_step, max_num_batched_tokens=4)
    for name in "abc":
        drive.add(name, 1, 9)
    assert drive.step().got == {"a": 1, "b": 1, "c": 1}
    drive.add("d", 5, 2)
    assert drive.got(5) == [{"a": 1, "b": 1, "c": 1, "d": 1}] * 5


@both
def test_who_finds_no_budget_waits_for_the_next_step(every_step: bool) -> None:
    drive = Drive(every_step, max_num_batched_tokens=2)
    for name in "abc":
        drive.add(name, 1, 3)
    # From step 2 on, a and b use up the budget; c is admitted when a and b are done.
    assert drive.rest() == [{"a": 1, "b": 1}] * 3 + [{"c": 1}] * 3


@both
def test_running_sequences_behind_the_budget_get_nothing(every_step: bool) -> None:
    drive = Drive(every_step, max_num_batched_tokens=3)
    drive.add("a", 1, 9)
    drive.add("b", 4, 2)
    drive.add("c", 1, 2)
    assert drive.got(5) == [{"a": 1, "b": 2}, {"a": 1, "b": 2}, {"a": 1, "b": 1, "c": 1}, {"a": 1, "c": 1}, {"a": 1}]


@both
def test_at_most_max_num_seqs_run(every_step: bool) -> None:
    drive = Drive(every_step, max_num_seqs=2)
    drive.add("a", 3, 2)
    drive.add("b", 3, 3)
    drive.add("c", 3, 1)
    assert drive.rest() == [{"a": 3, "b": 3}, {"a": 1, "b": 1}, {"b": 1, "c": 3}]


@both
def test_the_head_of_the_line_blocks_those_behind(every_step: bool) -> None:
    drive = Drive(every_step, blocks=10)
    drive.add("a", 5, 2)
    drive.add("b", 6, 1)
    drive.add("c", 1, 1)
    # c would fit beside a (5 or 6 of 10 blocks), but b is first and does not.
    assert drive.rest() == [{"a": 5}, {"a": 1}, {"b": 6, "c": 1}]


@both
def test_admission_needs_the_whole_prompt_not_the_answer(every_step: bool) -> None:
    drive = Drive(every_step, blocks=10, max_num_batched_tokens=4)
    drive.add("a", 3, 8)
    drive.add("b", 8, 1)
    assert drive.got(2) == [{"a": 3}, {"a": 1}], "b's first chunk would fit, its prompt does not"
    drive = Drive(every_step, blocks=10, max_num_batched_tokens=4, reserve_full_isl=False)
    drive.add("a", 3, 8)
    drive.add("b", 8, 1)
    assert drive.got(2) == [{"a": 3, "b": 1}, {"a": 1, "b": 3}]


@both
def test_prompts_admitted_against_the_same_blocks_preempt_each_other(every_step: bool) -> None:
    drive = Drive(every_step, blocks=10, max_num_batched_tokens=6, long_prefill_token_threshold=3)
    drive.add("a", 7, 2)
    drive.add("b", 6, 1)
    assert drive.step().got == {"a": 3, "b": 3}, "b's 6 tokens fit in the 7 blocks that a has not taken yet"
    second = drive.step()   # one block is left after a's chunk of 3; b's share is not cut to what is there
    assert (second.got, second.preempted) == ({"a": 3}, ["b"])


@both
def test_an_allocated_block_is_not_free_in_the_step_it_comes_back(every_step: bool) -> None:
    drive = Drive(every_step, blocks=6)
    drive.add("a", 4, 2)
    drive.add("b", 3, 1)
    assert drive.rest() == [{"a": 4}, {"a": 1}, {"b": 3}]


@both
def test_the_cap_holds_while_others_are_eligible(every_step: bool) -> None:
    drive = Drive(every_step, long_prefill_token_threshold=4)
    drive.add("a", 10, 1)
    assert drive.rest() == [{"a": 10}], "alone it is not capped"
    drive.add("b", 10, 1)
    drive.add("c", 6, 1)
    # The count is taken at the start of the step: in the third, b runs alone.
    assert drive.rest() == [{"b": 4, "c": 4}, {"b": 4, "c": 2}, {"b": 2}]


@both
def test_an_older_engine_caps_a_lone_request_too(every_step: bool) -> None:
    drive = Drive(every_step, long_prefill_token_threshold=4, rules="0.19.0")
    drive.add("a", 10, 1)
    assert drive.rest() == [{"a": 4}, {"a": 4}, {"a": 2}]


@both
def test_an_adaptive_cap_is_at_least_an_equal_share(every_step: bool) -> None:
    drive = Drive(
        every_step, long_prefill_token_threshold=4, max_num_batched_tokens=20, adaptive_long_prefill_threshold=True
    )
    drive.add("a", 12, 1)
    drive.add("b", 3, 1)
    assert drive.rest() == [{"a": 10, "b": 3}, {"a": 2}]


@both
def test_without_chunking_a_prompt_waits_for_a_budget_of_its_size(every_step: bool) -> None:
    drive = Drive(every_step, max_num_batched_tokens=8, enable_chunked_prefill=False)
    drive.add("a", 5, 2)
    drive.add("b", 4, 1)
    drive.add("c", 1, 1)
    assert drive.rest() == [{"a": 5}, {"a": 1, "b": 4, "c": 1}]


@both
def test_the_watermark_keeps_blocks_free_beside_running_sequences(every_step: bool) -> None:
    # int(0.25 * (10 + the reserved block)) = 2
    for watermark, first in ((0.25, {"a": 4}), (0.1, {"a": 4, "b": 5})):
        drive = Drive(every_step, blocks=10, watermark=watermark)
        drive.add("a", 4, 2)
        drive.add("b", 5, 1)
        assert drive.step().got == first
    alone = Drive(every_step, blocks=10, watermark=0.25)
    alone.add("a", 10, 1)
    assert alone.step().got == {"a": 10}, "while nobody runs there is no watermark"


@both
def test_the_last_of_running_is_preempted_and_computed_again(every_step: bool) -> None:
    drive = Drive(every_step, blocks=9)
    drive.add("a", 3, 5)
    drive.add("b", 3, 3)
    drive.add("c", 4, 1)
    assert drive.got(2) == [{"a": 3, "b": 3}, {"a": 1, "b": 1}]
    third = drive.step()   # 8 blocks are taken: a gets the ninth, b none
    assert (third.got, third.preempted) == ({"a": 1}, ["b"])
    assert drive.waiting() == ["b", "c"], "in front of those that never ran"
    # b has 3 + 2 tokens to compute again: it needs 5 blocks, and a holds 6, then 7.
    assert drive.got(2) == [{"a": 1}, {"a": 1}]
    assert drive.rest() == [{"b": 5, "c": 4}]


@both
def test_nobody_is_admitted_in_a_step_that_preempts(every_step: bool) -> None:
    drive = Drive(every_step, blocks=9)
    drive.add("a", 3, 5)
    drive.add("b", 4, 3)
    assert drive.step().got == {"a": 3, "b": 4}
    assert drive.step().got == {"a": 1, "b": 1}
    drive.add("c", 1, 1)
    third = drive.step()   # b's five blocks come back, but c has to wait for the next step
    assert (third.got, third.preempted) == ({"a": 1}, ["b"])
    assert drive.step().got == {"a": 1}, "b, which needs 6 of 3 free blocks, is in front of c"


@both
def test_by_priority_the_least_urgent_makes_room_wherever_it_runs(every_step: bool) -> None:
    drive = Drive(every_step, blocks=10, policy="priority")
    drive.add("a", 3, 6, priority=0)
    drive.add("b", 2, 6, priority=2)
    drive.add("c", 2, 6, priority=1)
    assert drive.step().got == {"a": 3, "c": 2, "b": 2}
    assert drive.step().got == {"a": 1, "c": 1, "b": 1}   # 10 of 10
    third = drive.step()   # a finds none: b goes, and c finds one of the three that came back
    assert (third.got, third.preempted) == ({"a": 1, "c": 1}, ["b"])
    assert third.free == 1


@both
def test_a_victim_scheduled_in_this_step_gives_its_tokens_back(every_step: bool) -> None:
    drive = Drive(every_step, blocks=11, policy="priority", max_num_batched_tokens=3)
    drive.add("b", 1, 9, priority=2)
    assert drive.step().got == {"b": 1}
    drive.add("a", 1, 9, priority=0)
    drive.add("c", 6, 1, priority=1)
    assert drive.got(3) == [{"b": 1, "a": 1, "c": 1}] * 3   # 4 + 3 + 3 blocks
    # b takes the last block, a finds none, b goes: of the budget of 3, a takes one and c, with 3 to go, the rest.
    fifth = drive.step()
    assert (fifth.got, fifth.preempted) == ({"a": 1, "c": 2}, ["b"])
    assert fifth.free == 11 - 4 - 5


@both
def test_the_loop_goes_on_behind_a_request_that_preempts_itself(every_step: bool) -> None:
    drive = Drive(every_step, blocks=9, policy="priority")
    drive.add("b", 3, 6, priority=1)
    assert drive.step().got == {"b": 3}
    drive.add("a", 3, 4, priority=0)
    assert drive.got(2) == [{"b": 1, "a": 3}, {"b": 1, "a": 1}]   # 9 of 9
    fourth = drive.step()   # b is first, finds no block and is the least urgent: its blocks are free for those behind
    assert (fourth.got, fourth.preempted) == ({"a": 1}, ["b"])
    assert drive.rest() == [{"a": 1}, {"b": 6}, {"b": 1}, {"b": 1}]


@both
def test_before_0_33_who_preempts_itself_ends_the_loop(every_step: bool) -> None:
    drive = Drive(every_step, blocks=9, policy="priority", rules="0.32.0")
    drive.add("b", 3, 6, priority=1)
    assert drive.step().got == {"b": 3}
    drive.add("a", 3, 4, priority=0)
    assert drive.got(2) == [{"b": 1, "a": 3}, {"b": 1, "a": 1}]   # 9 of 9
    fourth = drive.step()   # b is first, finds no block and is the least urgent: nobody behind it gets anything
    assert (fourth.got, fourth.preempted) == ({}, ["b"])
    assert drive.rest() == [{"a": 1}, {"a": 1}, {"b": 6}, {"b": 1}, {"b": 1}]


@both
def test_preempted_sequences_queue_by_their_policy(every_step: bool) -> None:
    drive = Drive(every_step, blocks=9, policy="priority")
    drive.add("a", 3, 5, priority=0)
    drive.add("b", 3, 3, priority=2)
    assert drive.got(2) == [{"a": 3, "b": 3}, {"a": 1, "b": 1}]
    drive.add("c", 4, 1, priority=1)
    third = drive.step()
    assert third.preempted == ["b"]
    assert drive.waiting() == ["c", "b"]


@both
def test_a_prefix_computed_in_this_very_step_is_hit(every_step: bool) -> None:
    drive = Drive(every_step, block_size=4, caching=True)
    first = drive.add("a", 10, 1, group=0, shared=10)
    second = drive.add("b", 10, 1, group=0, shared=10)
    assert drive.step().got == {"a": 10, "b": 2}
    assert (first.cached_tokens, second.cached_tokens) == (0, 8)


@both
def test_a_preempted_sequence_finds_its_own_blocks(every_step: bool) -> None:
    drive = Drive(every_step, blocks=9, block_size=1, caching=True)
    drive.add("a", 3, 4)
    drive.add("b", 3, 3)
    assert drive.got(2) == [{"a": 3, "b": 3}, {"a": 1, "b": 1}]
    third = drive.step()
    assert (third.got, third.preempted) == ({"a": 1}, ["b"])
    # Of b's four blocks a took the tail's in the next step; b hits three, computes two, and needs a block for each.
    assert drive.step().got == {"a": 1}
    assert drive.step().got == {"b": 2}


def test_what_can_never_fit_is_refused_with_the_reason() -> None:
    drive = Drive(False, blocks=10, block_size=2)
    # The last token is given, never computed: 20 tokens in 10 blocks.
    assert drive.scheduler.can_ever_fit(Generation(15, 6)) is None
    reason = drive.scheduler.can_ever_fit(Generation(15, 7))
    assert reason == "needs 11 KV blocks of 2 tokens for 15 prompt and 7 output tokens, the client has 10"
    unchunked = Drive(False, enable_chunked_prefill=False, max_num_batched_tokens=8).scheduler
    assert unchunked.can_ever_fit(Generation(8, 1)) is None
    assert "do not fit in one step of 8 tokens" in (unchunked.can_ever_fit(Generation(8, 2)) or "")
