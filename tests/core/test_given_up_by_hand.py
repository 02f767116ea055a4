"""Requests that their clients give up, in scenarios small enough to follow by hand: one for each place.

A step takes a microsecond, and KV 5 microseconds for a prompt of 10 tokens.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from found_parts import handoff_of
from outcomes import Outcome, run

Data = dict[str, Any]
MODES = ("runs", "every_step")
US = 1e-6
NEVER = None


def client(name: str = "llm", role: str = "both", *, blocks: int = 1000, scheduler: Data | None = None) -> Data:
    scheduler = scheduler or {}
    if scheduler.get("kind", "chunked") == "chunked":
        scheduler = {"kind": "chunked", "async_scheduling": False} | scheduler
    return {
        "name": name, "role": role, "hardware": {"kind": "test_ticks", "per_token": 10**6, "per_ctx": 10**6},
        "scheduler": scheduler,
        "memory": {"block_size": 1, "num_blocks": blocks, "kv_bytes_per_token": 25_000.0, "prefix_caching": False},
    }


def pair(blocks: int = 1000) -> list[Data]:
    return [client("p", "prefill"), client("d", "decode", blocks=blocks)]


def one(prompt: int, output: int, at: int, total_us: float | None, **more: Any) -> Data:
    """A workload of one request, whose client waits so long for its end."""
    patience = {} if total_us is None else {"patience": {"total": total_us * US}}
    return {
        "name": f"at{at}-{prompt}-{output}-{total_us}", "requests": 1,
        "arrivals": {"kind": "test_listed", "units": [at]},
        "lengths": {"kind": "test_listed", "rows": [[prompt, output, 0, -1, -1, 0]]}, **patience, **more}


def served(clients: list[Data], workload: list[Data], mode: str, **more: Any) -> Outcome:
    outcome = run({"clients": clients, "workload": workload, **more}, mode)
    for found in outcome.simulation.clients:
        scheduler = found.scheduler
        assert scheduler.pool.free_blocks == scheduler.pool.num_blocks, found.name
        assert not scheduler.running
        assert not scheduler.num_waiting
        assert found.emitted == found.input_tokens == found.output_tokens == found.num_assigned == 0
    return outcome


def rows(outcome: Outcome) -> list[tuple[int, str, int, float, float]]:
    """(request, kind, output tokens, start, end) of each stage, in microseconds; -0.001: it never started."""
    record = outcome.record
    stages = record.stages
    return sorted(
        (int(stages["request"][row]), record.stage_kinds[stages["kind"][row]], int(stages["output_tokens"][row]),
         int(stages["start_ns"][row]) / 1000, int(stages["end_ns"][row]) / 1000) for row in range(len(stages["kind"])))


def moves(outcome: Outcome) -> list[tuple[int, int, float, float]]:
    sent = outcome.record.transfers
    return [(int(sent["request"][row]), int(sent["bytes"][row]), int(sent["start_ns"][row]) / 1000,
             int(sent["end_ns"][row]) / 1000) for row in range(len(sent["bytes"]))]


# -- static batches, mixed batches, SGLang ---------------------------------------------------------------------------


@pytest.mark.parametrize("mode", MODES)
def test_a_static_batch_goes_on_with_what_was_given_up(mode: str) -> None:
    # The first two form a batch that ends with the longer answer, at 8. The first gives up at 3: its row is computed to
    # its fifth token, and comes back with the batch. The third arrives at 4, and is in the next batch. The fourth gives
    # up while it waits, and leaves when the step from 5 to 6 has ended.
    outcome = served([client(scheduler={"kind": "static", "max_num_seqs": 4})], [
        one(3, 5, 0, 3), one(3, 8, 0, NEVER), one(3, 2, 4, NEVER), one(3, 9, 4, 1.5)], mode)
    assert outcome.record.status.tolist() == [2, 1, 1, 2]
    assert rows(outcome) == [
        (0, "generate", 5, 0, 8), (1, "generate", 8, 0, 8), (2, "generate", 2, 8, 10), (3, "generate", 0, -0.001, 6)]
    assert (outcome.record.finish_ns // 1000).tolist()[1:3] == [8, 10]


@pytest.mark.parametrize("mode", MODES)
@pytest.mark.parametrize("reservation", ["on_demand", "up_front"])
def test_a_mixed_batch_drops_a_decode_that_it_has_left_out(mode: str, reservation: str) -> None:
    # One seat. The second prompt takes it from 2 to 3, when the first answer, left out with two tokens, is given up.
    # The third request waits from 3 on; it is given up at 3.5 and leaves at 4.
    mixed = {"kind": "mixed", "max_num_seqs": 1, "reservation": reservation}
    outcome = served([client(scheduler=mixed)], [
        one(3, 9, 0, 2.5), one(3, 4, 2, NEVER), one(3000, 9, 3, 0.5)], mode)
    assert outcome.record.status.tolist() == [2, 1, 2]
    assert rows(outcome)[:2] == [(0, "generate", 2, 0, 3), (1, "generate", 4, 2, 6)]


@pytest.mark.parametrize("mode", MODES)
@pytest.mark.parametrize("overlap", [False, True])
def test_sglang_ends_a_running_request_with_its_next_token(mode: str, overlap: bool) -> None:
    # It is given up at 2.5: the batch from 2 to 3 gives its third token, the one from 3 to 4 its last.
    sglang = {"kind": "sglang", "disable_overlap_schedule": not overlap}
    outcome = served([client(scheduler=sglang)], [one(3, 9, 0, 2.5)], mode)
    assert rows(outcome) == [(0, "generate", 4, 0, 4)]
    assert len(outcome.record.step_ends[0]) == 4 + overlap   # with overlap the next batch is under way


@pytest.mark.parametrize("mode", MODES)
def test_sglang_takes_a_waiting_request_and_a_chunk_out_at_once(mode: str) -> None:
    # Chunks of 4 of 12 tokens: the first request is given up in its first chunk, the second while it waits.
    sglang = {"kind": "sglang", "disable_overlap_schedule": True, "chunked_prefill_size": 4}
    outcome = served([client(scheduler=sglang)], [one(12, 9, 0, 0.5), one(12, 9, 0, 0.7), one(4, 1, 0, NEVER)], mode)
    assert rows(outcome) == [(0, "generate", 0, 0, 1), (1, "generate", 0, -0.001, 1), (2, "generate", 1, 1, 2)]


# -- prefill here, decode there --------------------------------------------------------------------------------------


@pytest.mark.parametrize("mode", MODES)
def test_given_up_while_its_prompt_is_computed(mode: str) -> None:
    outcome = served(pair(), [one(10, 3, 0, 0.5)], mode)
    assert rows(outcome) == [(0, "prefill", 0, 0, 1)]
    assert moves(outcome) == []


@pytest.mark.feature("LLM clients", "The same with every scheduler, role and number of branches")
@pytest.mark.parametrize("mode", MODES)
@pytest.mark.parametrize(("first", "tokens"), [("decode", 0), ("prefill", 1)])
def test_given_up_while_its_kv_moves(mode: str, first: str, tokens: int) -> None:
    # The prompt ends at 1. Its KV arrives at 6, although it was given up at 3, and is freed then at both ends.
    outcome = served(pair(), [one(10, 3, 0, 3)], mode, first_token=first)
    assert rows(outcome) == [(0, "decode", 0, -0.001, 6), (0, "prefill", tokens, 0, 1)]
    assert moves(outcome) == [(0, 250_000, 1, 6)]
    assert len(outcome.record.step_ends[1]) == 0


@pytest.mark.parametrize("mode", MODES)
def test_given_up_while_it_decodes_elsewhere(mode: str) -> None:
    outcome = served(pair(), [one(10, 3, 0, 7.5)], mode)   # tokens at 7 and 8
    assert rows(outcome) == [(0, "decode", 2, 6, 8), (0, "prefill", 0, 0, 1)]


@pytest.mark.parametrize("mode", MODES)
@pytest.mark.parametrize("retry", [None, 1.0])
def test_given_up_while_it_waits_for_memory_elsewhere(mode: str, retry: float | None) -> None:
    # The first request fills 10 of 12 blocks. The second waits for as many, the third, of 1 token, behind it. The
    # second is given up at 4: the third moves then, and its KV takes half a microsecond. Where each tries on its own,
    # the third has found memory at 1, and the second tries no more.
    clients = pair(blocks=12)
    more = {} if retry is None else {"kv_transfer_retry": retry * US}
    outcome = served(clients, [one(10, 2, 0, NEVER), one(10, 2, 0, 4), one(1, 2, 0, NEVER)], mode,
                     network={"kind": "link", "bandwidth": 50e9, "latency": 0.0, "shared": False}, **more)
    assert outcome.record.status.tolist() == [1, 2, 1]
    begin = 4 if retry is None else 1
    assert [move for move in moves(outcome) if move[0]] == [(2, 25_000, begin, begin + 0.5)]
    assert [row for row in rows(outcome) if row[0] == 1] == [(1, "decode", 0, -0.001, 4), (1, "prefill", 0, 0, 1)]


@pytest.mark.parametrize("mode", MODES)
def test_layers_that_have_left_before_it_was_given_up_arrive(mode: str) -> None:
    # Four chunks of 250 of 1,000 tokens, a microsecond each. It is given up at 1.5 and leaves at 2. Two chunks of
    # 6.25 MB would take 125 us each: a part of the first is on its way.
    clients = pair()
    clients[0]["scheduler"]["max_num_batched_tokens"] = 250
    clients = [{**one_, "model": "llama-3.1-8b", "allow_mismatch": True} for one_ in clients]
    outcome = served(clients, [one(900, 3, 0, 1.5)], mode, kv_transfer="layerwise")
    [(request, sent, begin, end)] = moves(outcome)
    assert (request, begin, end) == (0, 2, 2)
    assert 0 < sent < 500 * 25_000
    network = handoff_of(outcome.simulation).network
    assert network.bytes_sent == network.bytes_received == sent
    assert rows(outcome) == [(0, "prefill", 0, 0, 2)]


def test_patience_for_the_first_token_ends_where_the_user_gets_it() -> None:
    # From the prefill client at 1, or from the decode client at 7.
    for first, status in (("prefill", 1), ("decode", 2)):
        workload = one(10, 3, 0, NEVER, patience={"first_token": 5 * US})
        assert served(pair(), [workload], "runs", first_token=first).record.status.tolist() == [status]


# -- several answers to one prompt -----------------------------------------------------------------------------------


@pytest.fixture
def three_answers(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("hermes.workload.workload.branch_tokens", lambda *_: np.array([[2, 4, 7]], dtype=np.int64))


@pytest.mark.usefixtures("three_answers")
@pytest.mark.parametrize("mode", MODES)
@pytest.mark.parametrize("cached", [False, True])
def test_all_answers_are_given_up_together(mode: str, cached: bool) -> None:
    # First tokens at 1. The first answer ends at 2. The client gives up at 3.5: the step that ends at 4 would have
    # given the second answer its last token.
    llm = client()
    llm["memory"] |= {"prefix_caching": cached, "block_size": 4}
    outcome = served([llm], [one(10, 9, 0, 3.5, branches=3)], mode)
    assert outcome.record.status.tolist() == [2]
    assert rows(outcome) == [(0, "generate", 2, 0, 2), (0, "generate", 4, 0, 4), (0, "generate", 4, 0, 4)]


@pytest.mark.usefixtures("three_answers")
@pytest.mark.parametrize("mode", MODES)
def test_given_up_before_the_prompt_splits_it_is_one_sequence(mode: str) -> None:
    llm = client(scheduler={"max_num_batched_tokens": 5})   # two chunks
    outcome = served([llm], [one(10, 9, 0, 0.5, branches=3)], mode)
    assert rows(outcome) == [(0, "generate", 0, 0, 1)]


@pytest.mark.usefixtures("three_answers")
@pytest.mark.parametrize("mode", MODES)
def test_answers_that_wait_for_memory_are_given_up_too(mode: str) -> None:
    # 12 blocks of a token: 10 of the prompt, and one for two of the three answers. The third waits.
    outcome = served([client(blocks=16)], [one(10, 9, 0, 2.5, branches=3)], mode)
    assert outcome.record.status.tolist() == [2]
    assert [row[2] for row in rows(outcome)] == [2, 3, 3]


@pytest.mark.usefixtures("three_answers")
@pytest.mark.parametrize("mode", MODES)
def test_answers_of_a_prompt_that_moves_are_given_up_together(mode: str) -> None:
    # 5 us for the KV: first tokens at 7. Given up while it moves: one row at the decode client; at 8.5: three.
    moving = served(pair(), [one(10, 9, 0, 3, branches=3)], mode)
    assert [row[1:] for row in rows(moving) if row[1] == "decode"] == [("decode", 0, -0.001, 6)]
    decoding = served(pair(), [one(10, 9, 0, 8.5, branches=3)], mode)
    assert [row[1:] for row in rows(decoding) if row[1] == "decode"] == [
        ("decode", 2, 6, 8), ("decode", 3, 6, 9), ("decode", 3, 6, 9)]


# -- around the engine -----------------------------------------------------------------------------------------------


@pytest.mark.parametrize("mode", MODES)
def test_a_request_that_was_given_up_makes_room_in_a_limited_queue(mode: str) -> None:
    llm = client(scheduler={"max_num_queued_reqs": 1})
    outcome = served([llm], [one(3, 90, 0, 3), one(3, 2, 10, NEVER)], mode)
    assert outcome.record.status.tolist() == [2, 1]


@pytest.mark.parametrize("mode", MODES)
def test_stages_side_by_side_are_all_given_up(mode: str) -> None:
    outcome = served([client()], [one(10, 20, 0, 2.5, pipeline="test_branches")], mode)
    assert rows(outcome) == [(0, "generate", 3, 0, 3), (0, "generate", 3, 0, 3)]
