"""Mixed batching on schedules small enough to compute by hand, and on random ones. Blocks are of one token."""

from __future__ import annotations

import pytest
from driving import Drive
from hypothesis import given
from hypothesis import strategies as st
from long_runs import quick_and_full

from hermes.schedulers import Generation, Plan

reservations = pytest.mark.parametrize("reservation", ["on_demand", "up_front"])


def drive(blocks: int = 1000, **config: object) -> Drive:
    return Drive(False, blocks, kind="mixed", **config)


# -- what goes into a batch -----------------------------------------------------------------------------------------


@reservations
def test_whole_prompts_beside_decodes(reservation: str) -> None:
    it = drive(reservation=reservation)
    it.add("a", 5, 4)
    assert it.got(2) == [{"a": 5}, {"a": 1}]
    it.add("b", 600, 2)
    assert it.rest() == [{"a": 1, "b": 600}, {"a": 1, "b": 1}]


@reservations
def test_prompts_first_then_decodes_within_the_token_cap(reservation: str) -> None:
    it = drive(max_num_batched_tokens=8, reservation=reservation)
    for name in "abc":
        it.add(name, 2, 9)
    assert it.got(2) == [{"a": 2, "b": 2, "c": 2}, {"a": 1, "b": 1, "c": 1}]
    it.add("d", 6, 2)
    # d leaves room for two decodes; c, left out, goes first when it is back.
    assert it.got(1) == [{"a": 1, "b": 1, "d": 6}]
    it.add("e", 7, 1)
    assert it.got(2) == [{"c": 1, "e": 7}, {"a": 1, "b": 1, "c": 1, "d": 1}]


@reservations
def test_the_first_prompt_may_exceed_the_cap_and_decodes_make_way(reservation: str) -> None:
    it = drive(max_num_batched_tokens=8, reservation=reservation)
    it.add("a", 3, 4)
    assert it.got(2) == [{"a": 3}, {"a": 1}]
    it.add("b", 20, 2)
    it.add("c", 1, 1)
    assert it.rest() == [{"b": 20}, {"c": 1, "a": 1, "b": 1}, {"a": 1}]


def test_a_left_out_decode_keeps_its_memory() -> None:
    it = drive(blocks=40, max_num_batched_tokens=8, reservation="up_front")
    it.add("a", 3, 6)
    it.got(2)
    assert it.pool.free_blocks == 31
    it.add("b", 8, 2)
    third = it.step()
    assert third is not None
    assert (third.got, third.free) == ({"b": 8}, 22)


def test_max_num_seqs_counts_everybody_in_a_step() -> None:
    it = drive(max_num_seqs=2)
    for name in "abc":
        it.add(name, 2, 3)
    assert it.rest() == [
        {"a": 2, "b": 2}, {"c": 2, "a": 1}, {"b": 1, "a": 1}, {"b": 1, "c": 1}, {"c": 1},
    ]


def test_a_long_prompt_waits_for_a_change_of_the_batch_if_its_decode_is_elsewhere() -> None:
    for target, waits in ((1, 2), (4, 0)):
        it = drive(max_num_batched_tokens=8)
        it.add("a", 3, 5)
        it.got(2)
        long = Generation(20, 4, arrival_order=7)
        long.target_tokens = target
        it.names[long] = "b"
        it.scheduler.enqueue(long)
        assert it.scheduler.wants_cut(long) is (waits == 0)
        got = it.got(4)
        assert next(step for step in got if "b" in step) == {"b": 20}
        # a has two tokens to go, and is done after two more steps; or it makes way at once.
        assert got.index({"b": 20}) == (3 if waits else 0)


def test_an_arrival_without_room_does_not_cut_a_run() -> None:
    it = drive(max_num_batched_tokens=2, reservation="up_front")
    it.add("a", 1, 9)
    it.add("b", 1, 9)
    it.got(1)
    plan = it.scheduler.plan(100)
    assert plan is not None
    assert plan.num_steps == 1   # both start
    it.scheduler.complete(plan, 1, 1, 1)
    plan = it.scheduler.plan(100)
    assert plan is not None
    assert plan.num_steps == 7
    late = Generation(1, 5, arrival_order=5)
    late.transferred, late.given, late.num_computed, late.num_tokens = True, 1, 1, 2
    assert it.scheduler.reserve(late)
    it.scheduler.enqueue(late)
    assert not it.scheduler.wants_cut(late)


# -- passed over ----------------------------------------------------------------------------------------------------


@reservations
def test_a_decode_that_was_passed_over_too_often_goes_first(reservation: str) -> None:
    def batches(limit: int | None) -> list[dict[str, int]]:
        it = drive(max_num_batched_tokens=8, reservation=reservation, max_passed_over=limit)
        it.add("a", 3, 3)
        assert it.got(1) == [{"a": 3}]
        for name in "bcdef":
            it.add(name, 8, 1)
        return it.rest()

    prompts = [{name: 8} for name in "bcdef"]
    assert batches(None) == batches(5) == [*prompts, {"a": 1}, {"a": 1}]
    # Two prompts, then the decode, whose token leaves no room for a prompt of 8; then the same again.
    assert batches(2) == [*prompts[:2], {"a": 1}, *prompts[2:4], {"a": 1}, prompts[4]]
    assert batches(1) == [prompts[0], {"a": 1}, prompts[1], {"a": 1}, *prompts[2:]]


def test_what_goes_first_leaves_the_rest_of_the_batch_to_prompts() -> None:
    it = drive(max_num_batched_tokens=8, max_passed_over=1)
    it.add("a", 3, 4)
    it.got(1)
    it.add("b", 8, 1)
    it.add("c", 7, 1)
    it.add("d", 7, 2)
    assert it.rest() == [{"b": 8}, {"a": 1, "c": 7}, {"a": 1, "d": 7}, {"a": 1, "d": 1}]


def test_a_prompt_that_a_policy_passes_over_too_often_goes_first() -> None:
    def order(limit: int | None) -> list[str]:
        it = drive(max_num_batched_tokens=4, policy="shortest_job_first", max_passed_over=limit)
        got = []
        for i in range(6):
            it.add(f"s{i}", 4, 1)
            if i == 0:
                it.add("long", 4, 9)
            got += [name for step in it.got(1) for name in step]
        return got

    assert "long" not in order(None)
    assert order(2)[:4] == ["s0", "s1", "long", "s2"]


# -- memory ---------------------------------------------------------------------------------------------------------


def test_up_front_takes_prompt_and_one_token_then_the_whole_answer() -> None:
    it = drive(blocks=30, reservation="up_front")
    it.add("a", 5, 7)
    used = []
    for _ in range(4):
        it.step()
        used.append(30 - it.pool.free_blocks)
    assert used == [6, 12, 12, 12]
    it.rest()
    assert it.pool.free_blocks == 30


def test_up_front_a_decode_waits_for_all_its_memory_and_is_not_overtaken() -> None:
    it = drive(blocks=24, reservation="up_front")
    it.add("a", 5, 7)     # 6 blocks, then 12
    it.add("b", 8, 9)     # 9, then 17
    it.add("c", 1, 2)     # 2, then 3: they would be there, but b is before it
    assert it.got(1) == [{"a": 5, "b": 8, "c": 1}]
    assert it.rest() == [{"a": 1}] * 6 + [{"b": 1, "c": 1}] + [{"b": 1}] * 7


def test_up_front_prompts_of_later_requests_take_memory_before_a_decode() -> None:
    it = drive(blocks=20, reservation="up_front")
    it.add("a", 4, 8)
    it.add("b", 3, 9)
    assert it.got(1) == [{"a": 4, "b": 3}]       # 9 of 20 taken
    it.add("c", 6, 1)
    assert it.got(2) == [{"c": 6}, {"a": 1}]     # c took what a needed; then a took what b needs
    assert it.rest()[-1] == {"b": 1}


def test_on_demand_preempts_the_youngest() -> None:
    it = drive(blocks=9)
    it.add("a", 3, 4)
    it.add("b", 3, 3)
    assert it.got(2) == [{"a": 3, "b": 3}, {"a": 1, "b": 1}]
    third = it.step()   # 8 of 9 blocks are taken and both want one
    assert third is not None
    assert (third.got, third.preempted) == ({"a": 1}, ["b"])
    assert it.rest() == [{"a": 1}, {"b": 5}]


def test_who_waits_with_all_the_memory_gives_it_up() -> None:
    it = drive(blocks=10, reservation="up_front")
    first, second = it.add("a", 4, 4), it.add("b", 4, 4)   # 5 each while both wait for 3 more
    assert it.got(1) == [{"a": 4, "b": 4}]
    step = it.step()
    assert step is not None
    assert (step.got, step.preempted) == ({"a": 1}, ["b"])
    assert it.rest() == [{"a": 1}, {"a": 1}, {"b": 5}, {"b": 1}, {"b": 1}]
    assert (first.preemptions, second.preemptions) == (0, 1)


def test_memory_held_from_outside_is_waited_for() -> None:
    it = drive(blocks=10, reservation="up_front")
    leaving = it.add("a", 4, 4)
    leaving.target_tokens = 1
    plan = it.scheduler.plan(1)
    assert plan is not None
    it.scheduler.complete(plan, 1, 0, 1)    # done, but its KV stays until it has been moved
    it.add("b", 4, 4)
    assert it.got(2) == [{"b": 4}, {}]
    it.scheduler.release(leaving)
    assert it.rest() == [{"b": 1}, {"b": 1}, {"b": 1}]
    assert it.scheduler.num_preemptions == 0


def test_reserve_keeps_room_for_the_first_token() -> None:
    it = drive(blocks=10, reservation="up_front")
    seq, other = Generation(5, 4), Generation(4, 2)
    for one in (seq, other):   # the prefill gave a token
        one.transferred, one.given, one.num_tokens = True, 1, one.prompt_tokens + 1
    assert it.scheduler.reserve(seq)
    assert it.pool.free_blocks == 4
    assert not it.scheduler.reserve(other)
    assert it.pool.free_blocks == 4


def test_what_can_never_fit_is_refused() -> None:
    for reservation, most in (("on_demand", 6), ("up_front", 5)):   # the last token needs no block on demand
        it = drive(blocks=10, reservation=reservation)
        assert it.scheduler.can_ever_fit(Generation(5, most)) is None
        reason = it.scheduler.can_ever_fit(Generation(5, most + 1))
        assert reason is not None
        assert "11 KV blocks" in reason


# -- random ---------------------------------------------------------------------------------------------------------

jobs = st.lists(st.tuples(st.integers(0, 6), st.integers(1, 30), st.integers(1, 12)), min_size=1, max_size=20)


@quick_and_full(50, 150, derandomize=True)
@given(
    jobs=jobs, reservation=st.sampled_from(["on_demand", "up_front"]), blocks=st.sampled_from([42, 50, 64, 200]),
    block_size=st.sampled_from([1, 1, 3, 16]), cap=st.sampled_from([1, 4, 16, 2048]),
    seats=st.sampled_from([1, 2, 5, 512]), caching=st.booleans(), limit=st.sampled_from([None, None, 1, 2, 4]),
    policy=st.sampled_from(["fcfs", "fcfs", "shortest_job_first"]),
)
def test_nothing_is_lost_and_memory_is_conserved(
    jobs: list[tuple[int, int, int]], reservation: str, blocks: int, block_size: int, cap: int, seats: int,
    caching: bool, limit: int | None, policy: str,
) -> None:
    it = drive(-(-blocks // block_size), block_size=block_size, caching=caching, reservation=reservation,
               max_num_batched_tokens=cap, max_num_seqs=seats, max_passed_over=limit, policy=policy)
    scheduler, pool = it.scheduler, it.pool
    tokens: dict[Generation, int] = {}
    finished: list[Generation] = []
    todo = list(jobs)

    def complete(plan: Plan) -> None:
        before = set(scheduler.running)
        decoding = [s for s in before if s.grouped and plan.decodes]
        assert len(plan.prefills) + len(decoding) <= seats
        used = sum(n for _, n in plan.prefills) + len(decoding)
        assert used <= cap or (len(plan.prefills) == 1 and not decoding)
        assert len({s for s, _ in plan.prefills} | set(decoding)) == len(plan.prefills) + len(decoding)
        for seq in [*(s for s, _ in plan.prefills), *decoding]:
            tokens[seq] += 1
        done = scheduler.complete(plan, 1, it.steps, it.steps + 1)
        it.steps += 1
        finished.extend(done)
        for seq in done:
            assert seq not in scheduler.running
            scheduler.release(seq)
        assert 0 <= pool.free_blocks <= pool.num_blocks

    for count in range(2000):
        while todo and todo[0][0] <= count % 7:
            _, prompt, output = todo.pop(0)
            tokens[it.add(str(len(tokens)), prompt, output)] = 0
        plan = scheduler.plan(1)
        if plan is not None:
            complete(plan)
        elif not todo:
            break
    assert len(finished) == len(jobs) == len(set(finished))
    assert {seq: count for seq, count in tokens.items() if count != seq.output_tokens} == {}
    assert pool.free_blocks == pool.num_blocks
    assert scheduler.num_waiting == len(scheduler.running) == len(scheduler.partial) == 0
