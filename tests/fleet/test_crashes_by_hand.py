"""Crashes, retries and queues in scenarios small enough to follow by hand, to the nanosecond.

A step takes 1,000 ns and 100 ns more per prompt token (`hand_parts`), so a prompt of 10 tokens takes 2,000 ns. Each
test's docstring has the arithmetic. Where nothing else is said, the gateway retries once, at once, and from the start;
the router takes the replicas in turn; and no crash is noticed before the replica is ready again.
"""

from __future__ import annotations

from collections.abc import Iterator

import hand_parts
import numpy as np
import pytest
from hand_parts import MODES, Data, Run, ask, client, fleet, s

from hermes.config.streams import stream

each_mode = pytest.mark.parametrize("mode", MODES)
ONCE = {"retries": 0}


@pytest.fixture(scope="module", autouse=True)
def _hand_parts() -> Iterator[None]:
    with hand_parts.registered():
        yield


# -- a. within a run of decode steps -----------------------------------------------------------------------------------


@each_mode
@pytest.mark.parametrize("overlap", [False, True])
def test_a_crash_cuts_a_run_of_decode_steps_and_the_request_starts_again(mode: str, overlap: bool) -> None:
    """Prompt 10, output 8, at 1,000.

    Replica 0: prompt 1,000 to 3,000 (first token), then tokens at 4,000 and 5,000. It crashes at 5,500, in the step
    from 5,000 to 6,000: 3 tokens, step ends 3,000, 4,000, 5,000, and 4,500 ns busy.
    Replica 1, from 5,500: first token at 7,500, the eighth at 7,500 + 7 x 1,000 = 14,500.
    The user has the first token at 3,000: TTFT 2,000, TPOT (14,500 - 3,000) / 7, E2E 13,500.
    With asynchronous scheduling nothing changes: the engine knows when an answer reaches the length that it asked for.
    """
    llm = client(fleet((5500, 0)), scheduler={"async_scheduling": overlap})
    found = Run([llm], [ask(1000)], mode)
    assert found.attempts == [(0, 1, 0, 1000, 5500, "failed"), (0, 2, 1, 5500, 14500, "completed")]
    assert found.stages == [(0, "generate", 0, 1000, 1000, 3000, 5500, 3),
                            (0, "generate", 1, 5500, 5500, 7500, 14500, 8)]
    assert found.step_ends(0) == [3000, 4000, 5000]
    assert found.runs(0)[-1] == (5000, 5500, 0)
    assert found.busy_ns(0) == 4500
    assert found.step_ends(1) == [7500 + 1000 * n for n in range(8)]
    assert found.finish == [14500]
    assert found.wasted() == (1, 10, 3)
    request, tokens = found.results.requests.iloc[0], found.results.summary["tokens"]
    assert request["ttft_s"] == pytest.approx(s(2000), abs=1e-15)
    assert request["tpot_s"] == pytest.approx(s(11500 / 7), abs=1e-15)
    assert request["e2e_s"] == pytest.approx(s(13500), abs=1e-15)
    assert (tokens["output"], tokens["prompt"]) == (8, 10), "what is wasted is no output"


@each_mode
def test_a_stream_that_has_begun_may_not_be_made_again(mode: str) -> None:
    """As above with `begun: fail`: the request ends at 5,500, without a second attempt."""
    found = Run([client(fleet((5500, 0)))], [ask(1000)], mode, gateway={"begun": "fail"})
    assert found.attempts == [(0, 1, 0, 1000, 5500, "failed")]
    assert found.stages == [(0, "generate", 0, 1000, 1000, 3000, 5500, 3)]
    assert found.reasons == {0: "failed: llm-0 went down after the first token"}
    assert found.fates == {0: "failed"}
    assert found.record.end_ns == 5500
    assert found.step_ends(1) == []
    assert np.isnan(found.results.requests["ttft_s"].iloc[0])
    assert found.results.summary["tokens"]["output"] == 0


@each_mode
@pytest.mark.parametrize(("crash", "begun"), [(2999, False), (3000, True)])
def test_a_stream_begins_with_the_step_that_ends_the_prompt(mode: str, crash: int, begun: bool) -> None:
    """The first token comes at 3,000. A crash a nanosecond earlier leaves a stream that has not begun: it is tried
    again although `begun` is `fail`, from 2,999: first token at 4,999, the eighth at 11,999."""
    found = Run([client(fleet((crash, 0)))], [ask(1000)], mode, gateway={"begun": "fail"})
    assert found.finish == ([-1] if begun else [11999])
    assert found.stages[0] == (0, "generate", 0, 1000, 1000, 3000 if begun else -1, crash, int(begun))
    assert found.wasted() == (1, 10, int(begun))
    assert found.runs(0) == ([(1000, 3000, 1)] if begun else [(1000, 2999, 0)])


@each_mode
def test_several_sequences_of_a_batch_fail_together_and_what_waits_too(mode: str) -> None:
    """Two seats in the only replica. Three requests at 1,000, 1,000 and 1,500: prompts of 10, 5 and 10 tokens, outputs
    of 8, 8 and 3.

    The first two: prompts 1,000 to 3,500 (15 tokens), tokens then and at 4,500 and 5,500. The third waits for a seat.
    The crash at 6,000 fails all three. It is noticed at once, so they wait in the gateway's queue until the replica is
    ready at 10,000. The first two: prompts until 12,500, the eighth token at 19,500. The third: prompt 19,500 to
    21,500, its third token at 23,500.
    """
    llm = client(fleet((6000, 0), start=1, up=4000, probe=(1, 1, 0, 0)), count=1, scheduler={"max_num_seqs": 2})
    found = Run([llm], [ask(1000, 10, 8), ask(1000, 5, 8), ask(1500, 10, 3)], mode, gateway={"queue": {"ttl": 1.0}})
    assert found.attempts[:3] == [(n, 1, 0, at, 6000, "failed") for n, at in enumerate((1000, 1000, 1500))]
    assert found.attempts[3:] == [(0, 2, 0, 10000, 19500, "completed"), (1, 2, 0, 10000, 19500, "completed"),
                                  (2, 2, 0, 10000, 23500, "completed")]
    assert found.stages[:3] == [
        (0, "generate", 0, 1000, 1000, 3500, 6000, 3), (1, "generate", 0, 1000, 1000, 3500, 6000, 3),
        (2, "generate", 0, 1500, -1, -1, 6000, 0)]
    assert found.stages[5] == (2, "generate", 0, 10000, 19500, 21500, 23500, 3)
    assert found.wasted() == (3, 15, 6)


# -- b. within a prefill -----------------------------------------------------------------------------------------------


@each_mode
@pytest.mark.parametrize(("crash", "computed", "rows"), [
    (3000, 8, [(1000, 2400, 1), (2400, 3000, 0)]), (2400, 4, [(1000, 2400, 1)]),
    (4999, 10, [(1000, 2400, 1), (2400, 3800, 1), (3800, 4999, 0)]),
])
def test_a_crash_within_a_prompt_of_several_chunks(
    mode: str, crash: int, computed: int, rows: list[tuple[int, int, int]],
) -> None:
    """Steps of at most 4 tokens. A prompt of 10: chunks of 4, 4 and 2 in 1,400, 1,400 and 1,200 ns from 1,000 on, that
    end at 2,400, 3,800 and 5,000.

    Wasted are the chunks that began: 8 tokens at 3,000; 4 at 2,400, where the second had not started; all at 4,999.
    The second attempt takes 4,000 ns for its prompt, and two tokens more.
    """
    llm = client(fleet((crash, 0)), scheduler={"max_num_batched_tokens": 4})
    found = Run([llm], [ask(1000, 10, 3)], mode, gateway={"begun": "fail"})
    assert found.attempts == [(0, 1, 0, 1000, crash, "failed"), (0, 2, 1, crash, crash + 6000, "completed")]
    assert found.record.attempts["computed"].tolist() == [computed, 0]
    assert found.runs(0) == rows
    assert found.stages == [(0, "generate", 0, 1000, 1000, -1, crash, 0),
                            (0, "generate", 1, crash, crash, crash + 4000, crash + 6000, 3)]
    assert found.wasted() == (1, computed, 0)
    assert found.results.requests["ttft_s"].iloc[0] == pytest.approx(s(crash + 3000), abs=1e-15)


# -- c. at the end of a step -------------------------------------------------------------------------------------------


@each_mode
def test_a_token_at_the_instant_of_a_crash_is_delivered(mode: str) -> None:
    """As in a., with the crash at 5,000: the token of 5,000 counts, no further step has begun. Retry from 5,000: first
    token at 7,000, the eighth at 14,000."""
    found = Run([client(fleet((5000, 0)))], [ask(1000)], mode)
    assert found.step_ends(0) == [3000, 4000, 5000]
    assert found.busy_ns(0) == 4000
    assert all(steps for _start, _end, steps in found.runs(0)), "no step was cut"
    assert found.stages[0] == (0, "generate", 0, 1000, 1000, 3000, 5000, 3)
    assert found.finish == [14000]


@each_mode
def test_a_request_whose_last_token_comes_at_the_instant_of_a_crash_is_complete(mode: str) -> None:
    """A second request at 1,500 on the same replica joins at 3,000. Its prompt makes the step from 3,000 to 5,000, so
    tokens of the first are at 3,000, 5,000, 6,000, ..., 11,000. The crash at 11,000 comes after the step that completes
    the first. It fails the second, which has 7 of 8 tokens (5,000 to 11,000)."""
    llm = client(fleet((11000, 0), start=1, up=1000), count=1)
    found = Run([llm], [ask(1000), ask(1500)], mode, gateway={"begun": "fail"})
    assert found.finish == [11000, -1]
    assert found.attempts == [(0, 1, 0, 1000, 11000, "completed"), (1, 1, 0, 1500, 11000, "failed")]
    assert found.stages == [(0, "generate", 0, 1000, 1000, 3000, 11000, 8),
                            (1, "generate", 0, 1500, 3000, 5000, 11000, 7)]
    assert found.busy_ns(0) == 10000
    assert found.wasted() == (1, 10, 7)


# -- d. KV between a prefill and a decode client -----------------------------------------------------------------------

# 10,000 bytes of KV at a byte a ns: 10,000 ns. The decode client's first step computes the prompt's last token once
# more, in a step like any other: 1,000 ns. Clients 0 and 1 prefill, client 2 and 3 decode.
LINK = {"kind": "link", "bandwidth": 1e9, "latency": 0.0, "shared": False}


def halves(prefill: Data | None, decode: Data | None, *, decoders: int = 1, blocks: tuple[int, int] = (1000, 12),
           prefillers: int = 2, scheduler: Data | None = None) -> list[Data]:
    return [client(prefill, name="p", role="prefill", count=prefillers, blocks=blocks[0], scheduler=scheduler),
            client(decode, name="d", role="decode", count=decoders, blocks=blocks[1])]


@each_mode
def test_the_source_dies_while_its_kv_waits_for_memory(mode: str) -> None:
    """The decode client has 12 blocks of a token. Requests of 10, 10 and 1 prompt tokens at 1,000, 1,500 and 3,200, the
    third's output 2, to p-0, p-1 and p-0 in turn.

    First: prompt until 3,000, KV until 13,000, tokens at 14,000 and 15,000 (its end: output 2).
    Second: prompt until 3,500 on p-1, and then it waits for 10 blocks, where 2 are free.
    Third: prompt 3,200 to 4,300. It waits behind the second, until p-1 crashes at 5,000; then its KV moves for 1,000.
    Its tokens: 7,000 and 8,000.
    The second is tried again at 5,000: it is p-1's turn, which cannot be reached. Its attempts are used up.
    """
    found = Run(halves(fleet((5000, 1)), None), [ask(1000, 10, 2), ask(1500, 10, 2), ask(3200, 1, 2)], mode,
                network=LINK)
    assert found.moves == [(2, 0, 2, 1000, 5000, 6000), (0, 0, 2, 10000, 3000, 13000)]
    assert found.finish == [15000, -1, 8000]
    assert [row for row in found.attempts if row[0] == 1] == [(1, 1, 2, 1500, 5000, "failed"),
                                                              (1, 2, 1, 5000, 5000, "failed")]


@each_mode
@pytest.mark.parametrize("shared", [False, True])
def test_the_source_dies_while_its_kv_is_on_the_network(mode: str, shared: bool) -> None:
    """The decode client has 12 blocks. Two requests at 1,000 and 1,500, prompts until 3,000 (p-0) and 3,500 (p-1).

    The first's KV moves from 3,000; p-0 dies at 7,000, when 4,000 bytes have left. Its 10 blocks at the decode client
    are free at that instant, so the second's KV moves from 7,000 to 17,000; its tokens come at 18,000 and 19,000.
    The first is tried again on p-1 (p-0 and p-1 in turn: the third choice is p-0, which cannot be reached; the fourth
    is p-1) at 7,000: prompt until 9,000; memory at 19,000; KV until 29,000, tokens at 30,000 and 31,000.
    """
    found = Run(halves(fleet((7000, 0)), None), [ask(1000, 10, 2), ask(1500, 10, 2)], mode,
                network=LINK | {"shared": shared}, gateway={"retries": 2})
    assert found.moves == [(0, 0, 2, 4000, 3000, 7000), (1, 1, 2, 10000, 7000, 17000), (0, 1, 2, 10000, 19000, 29000)]
    assert found.attempts == [(0, 1, 2, 1000, 7000, "failed"), (1, 1, 2, 1500, 19000, "completed"),
                              (0, 2, 0, 7000, 7000, "failed"), (0, 3, 2, 7000, 31000, "completed")]
    assert found.finish == [31000, 19000]
    assert found.wasted() == (1, 10, 0)
    assert [row for row in found.stages if row[6] == 7000] == [(0, "decode", 2, 3000, -1, -1, 7000, 0)]
    network = found.simulation.coordinator.handoff.network
    assert (network.bytes_sent, network.bytes_received, network.bytes_cancelled) == (30000, 20000, 10000)


@each_mode
@pytest.mark.parametrize("shared", [False, True])
def test_the_target_dies_while_kv_is_on_the_network(mode: str, shared: bool) -> None:
    """One prefill client with 12 blocks, two decode clients (1 and 2 here) that start within 500 ns.

    First at 1,000: prompt until 3,000, KV to d-0 from 3,000. Second at 4,000 waits for blocks. d-0 dies at 7,000, when
    4,000 bytes have left: the source's blocks are free, and the second's prompt runs from 7,000 to 9,000; its KV goes
    to d-1 until 19,000, tokens at 20,000 and 21,000.
    The first is behind it in the queue again from 7,000. It gets blocks at 19,000: prompt until 21,000, KV to d-0 (in
    turn) until 31,000, tokens at 32,000 and 33,000.
    """
    clients = halves(None, fleet((7000, 0), up=500), prefillers=1, decoders=2, blocks=(12, 1000))
    found = Run(clients, [ask(1000, 10, 2), ask(4000, 10, 2)], mode, network=LINK | {"shared": shared})
    assert found.moves == [(0, 0, 1, 4000, 3000, 7000), (1, 0, 2, 10000, 9000, 19000), (0, 0, 1, 10000, 21000, 31000)]
    assert found.finish == [33000, 21000]
    assert found.attempts == [(0, 1, 1, 1000, 7000, "failed"), (1, 1, 2, 4000, 21000, "completed"),
                              (0, 2, 1, 7000, 33000, "completed")]
    assert found.runs(0) == [(1000, 3000, 1), (7000, 9000, 1), (19000, 21000, 1)]
    assert found.members(1) == [(0, 7000, "down", "crashed"), (1, 7000, "starting", "restart"),
                                (1, 7500, "ready", "started")]


@each_mode
def test_the_target_dies_while_kv_waits_for_its_memory(mode: str) -> None:
    """One prefill client with 22 blocks, one decode client with 12. Two requests at 1,000 and 1,500.

    First: prompt until 3,000, KV from 3,000. Second: prompt 3,000 to 5,000, then it waits for memory. The decode client
    dies at 6,000, when 3,000 bytes of the first have left; it is ready at 6,500. Both are tried again at 6,000, in
    order of their first attempts: one step for both prompts until 9,000. The first's KV moves until 19,000; tokens at
    20,000 and 21,000. The second's then: until 31,000, tokens at 32,000 and 33,000.
    """
    clients = halves(None, fleet((6000, 0), start=1, up=500), prefillers=1, blocks=(22, 12))
    found = Run(clients, [ask(1000, 10, 2), ask(1500, 10, 2)], mode, network=LINK)
    assert found.moves == [(0, 0, 1, 3000, 3000, 6000), (0, 0, 1, 10000, 9000, 19000), (1, 0, 1, 10000, 21000, 31000)]
    assert found.runs(0) == [(1000, 3000, 1), (3000, 5000, 1), (6000, 9000, 1)]
    assert found.finish == [21000, 33000]
    assert found.wasted() == (2, 20, 0)


# A model of 32 layers. Chunks of 4, 4 and 2 tokens take 1,400, 1,400 and 1,200 ns. A chunk of T ns and V bytes has its
# first layer after T / 32 (44 ns, 38 ns for the third). From then on V x 31 / 32 bytes (3,875; 1,937 for the third)
# move at a byte a ns. The last layer is ready at the chunk's end.
LAYERWISE: Data = {"network": LINK, "kv_transfer": "layerwise"}
LAYERS: Data = {"model": "llama-3.1-8b", "allow_mismatch": True}


@each_mode
def test_the_source_dies_while_layers_move(mode: str) -> None:
    """p-0's first chunk runs from 1,000 to 2,400. Its KV moves from 1,044 on; p-0 dies at 3,000, when 1,956 of 3,875
    bytes have left.

    On p-1 from 3,000: chunks until 4,400, 5,800 and 7,000. The first 3,875 bytes move from 3,044 to 6,919. By then the
    third chunk has all but its last 63 bytes ready or on the way: 9,937 - 3,875 = 6,062 move until 12,981, and the last
    63 until 13,044. Tokens at 14,044 and 15,044.
    """
    clients = halves(fleet((3000, 0)), None, blocks=(1000, 1000), scheduler={"max_num_batched_tokens": 4})
    found = Run([one | LAYERS for one in clients], [ask(1000, 10, 2)], mode, **LAYERWISE)
    assert found.moves == [(0, 0, 2, 1956, 3000, 3000), (0, 1, 2, 10000, 7000, 13044)]
    assert found.finish == [15044]
    assert found.record.attempts["computed"].tolist() == [8, 0]
    assert found.runs(0) == [(1000, 2400, 1), (2400, 3000, 0)]


@each_mode
def test_the_target_dies_while_layers_move(mode: str) -> None:
    """d-0 (client 1) dies at 3,000, when 1,956 bytes have left. The prefill client goes on with the first attempt until
    the abort arrives at 4,500, that is to the end of its third chunk.

    The second attempt comes at 3,000, in the chunk until 3,800, and has 2 of the next step's 4 tokens: 3,800 to 5,200.
    Alone then: 4 until 6,600 and 4 until 8,000. Its KV goes to d-1: the first step's 2,000 bytes have their first layer
    at 3,844; 2,000 - 63 = 1,937 move until 5,781. The second step's offer waits since 5,201 (63 bytes), and since
    5,244 for all but its last layer: 6,000 - 125 = 5,875. So 3,938 move from 5,781 until 9,719. The third step's
    9,875 were ready at 8,000, but its prefill has ended then: the rest, 10,000 - 5,875 = 4,125, moves until 13,844.
    Tokens at 14,844 and 15,844.
    """
    clients = halves(None, fleet((3000, 0)), decoders=2, prefillers=1, blocks=(1000, 1000),
                     scheduler={"max_num_batched_tokens": 4})
    found = Run([one | LAYERS for one in clients], [ask(1000, 10, 2)], mode, gateway={"cancel_delay": s(1500)},
                **LAYERWISE)
    assert found.runs(0) == [(1000, 2400, 1), (2400, 3800, 1), (3800, 5200, 1), (5200, 6600, 1), (6600, 8000, 1)]
    assert found.stages[0] == (0, "prefill", 0, 1000, 1000, 5200, 5200, 0)
    assert found.moves == [(0, 0, 1, 1956, 3000, 3000), (0, 0, 2, 10000, 8000, 13844)]
    assert found.attempts == [(0, 1, 0, 1000, 3000, "failed"), (0, 2, 2, 3000, 15844, "completed")]
    assert found.wasted() == (1, 10, 0)


# -- e. while a replica drains -----------------------------------------------------------------------------------------


@each_mode
def test_a_replica_that_crashes_while_it_drains_is_gone_and_its_slot_is_taken(mode: str) -> None:
    """Two requests at 1,000 and 1,100, to replicas 0 and 1. One replica is wanted at 2,000 (1 drains), two at 2,500,
    which wait for a slot. Replica 1 crashes at 4,500: it is gone, a new one starts in its slot, ready at 4,500 + 3,000.

    The second request has tokens at 3,100 and 4,100; it is tried again on replica 0 at 4,500, joins at 5,000: a step of
    2,000. Its tokens: 7,000, and the eighth at 14,000. The first: 3,000, 4,000, 5,000, 7,000, ..., 11,000.
    """
    own = fleet((4500, 1), up=3000, scale=((2000, 1), (2500, 2)))
    found = Run([client(own)], [ask(1000), ask(1100)], mode)
    assert found.members(1) == [(0, 2000, "draining", "schedule"), (0, 4500, "gone", "crashed"),
                                (1, 4500, "starting", "slot free"), (1, 7500, "ready", "started")]
    assert found.members(0) == []
    assert found.attempts == [(0, 1, 0, 1000, 11000, "completed"), (1, 1, 1, 1100, 4500, "failed"),
                              (1, 2, 0, 4500, 14000, "completed")]
    assert found.runs(1)[-1] == (4100, 4500, 0)


# -- f. branches -------------------------------------------------------------------------------------------------------


@each_mode
def test_a_crash_before_the_prompt_splits(mode: str) -> None:
    """Two answers of 8 tokens. The crash at 2,500 is within the prompt's step (until 3,000): one row without tokens.
    Again from 2,500: both answers' first tokens at 4,500, their last at 11,500."""
    found = Run([client(fleet((2500, 0)))], [ask(1000, branches=2)], mode)
    again = (0, "generate", 1, 2500, 2500, 4500, 11500, 8)
    assert found.stages == [(0, "generate", 0, 1000, 1000, -1, 2500, 0), again, again]
    assert found.wasted() == (1, 10, 0)
    assert found.finish == [11500]


@each_mode
def test_a_crash_after_the_split(mode: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Answers of 2 and 8 tokens. First tokens at 3,000; the short one ends at 4,000. The crash at 5,500 wastes it too,
    and 3 tokens of the other. Again from 5,500: first tokens at 7,500, ends at 8,500 and 14,500.

    The user has the first token at 3,000. TPOT of the answers from their tokens: (8,500 - 7,500) and 1,000 each.
    """
    monkeypatch.setattr("hermes.workload.workload.branch_tokens", lambda *_: np.array([[2, 8]], dtype=np.int64))
    found = Run([client(fleet((5500, 0)))], [ask(1000, branches=2)], mode)
    assert found.stages == [
        (0, "generate", 0, 1000, 1000, 3000, 4000, 2), (0, "generate", 0, 1000, 1000, 3000, 5500, 3),
        (0, "generate", 1, 5500, 5500, 7500, 8500, 2), (0, "generate", 1, 5500, 5500, 7500, 14500, 8)]
    assert found.attempts == [(0, 1, 0, 1000, 5500, "failed"), (0, 2, 1, 5500, 14500, "completed")]
    assert found.wasted() == (1, 10, 5)
    request = found.results.requests.iloc[0]
    assert request["ttft_s"] == pytest.approx(s(2000), abs=1e-15)
    assert request["branch_spread_s"] == pytest.approx(s(6000), abs=1e-15)
    assert request["emitted_tokens"] == 10


# -- g. a retry that meets the attempt before it -----------------------------------------------------------------------


@each_mode
def test_a_retry_meets_the_attempt_before_it_on_the_same_client(mode: str) -> None:
    """One client with prefix caching, blocks of 4 tokens; prompt 41, output 8, at 1,000.

    The first attempt: prompt until 1,000 + 5,100 = 6,100, tokens at 6,100, 7,100, ..., 10,100. Its time-out is 9,000:
    late at 10,000. The second joins at 10,100. It finds the 10 full blocks before the prompt's last token and computes
    one token: a step of 1,100 for both, until 11,200. The abort of the first arrives at 10,500 and takes it out at
    11,200, with 6 tokens. The second has its eighth token at 18,200, within its own time-out of 19,000.
    The user has the first token from the first attempt: TTFT 5,100.
    """
    found = Run([client(count=1, size=4, caching=True)], [ask(1000, 41, 8)], mode,
                gateway={"per_try": s(9000), "cancel_delay": s(500)})
    assert found.attempts == [(0, 1, 0, 1000, 10000, "timed out"), (0, 2, 0, 10000, 18200, "completed")]
    assert found.stages == [(0, "generate", 0, 1000, 1000, 6100, 11200, 6),
                            (0, "generate", 0, 10000, 10100, 11200, 18200, 8)]
    assert found.record.stages["cached_tokens"].tolist() == [0, 40]
    assert found.wasted("timed_out") == (1, 41, 6)
    assert found.results.requests["ttft_s"].iloc[0] == pytest.approx(s(5100), abs=1e-15)


@each_mode
@pytest.mark.parametrize("caching", [False, True])
def test_an_attempt_that_nobody_waits_for_may_be_complete_before_its_abort_arrives(mode: str, caching: bool) -> None:
    """As above with output 5, time-outs of 8,000 and 2,000 until the abort arrives.

    The first attempt: tokens at 6,100, ..., 9,100; late at 9,000. The second joins at 9,100. With caching the step ends
    at 10,200 and gives the first its fifth token: complete, before the abort would arrive at 11,000, and wasted. The
    second's fifth comes at 14,200, before its time-out at 17,000.
    Without caching that step takes 5,100, until 14,200. The abort has arrived by then, and the first leaves with its
    fifth token. The second has its fifth at 18,200: too late at 17,000, and complete before its abort at 19,000.
    """
    found = Run([client(count=1, size=4, caching=caching)], [ask(1000, 41, 5)], mode,
                gateway={"per_try": s(8000), "cancel_delay": s(2000)})
    joined = 10200 if caching else 14200
    assert found.stages == [(0, "generate", 0, 1000, 1000, 6100, joined, 5),
                            (0, "generate", 0, 9000, 9100, joined, joined + 4000, 5)]
    if caching:
        assert found.attempts == [(0, 1, 0, 1000, 9000, "timed out"), (0, 2, 0, 9000, 14200, "completed")]
        assert found.finish == [14200]
        assert found.wasted("timed_out") == (1, 41, 5)
    else:
        assert found.attempts == [(0, 1, 0, 1000, 9000, "timed out"), (0, 2, 0, 9000, 17000, "timed out")]
        assert found.ends == [17000]
        assert found.fates == {0: "timed out"}
        assert found.wasted("timed_out") == (2, 82, 10)


@each_mode
def test_a_retry_within_a_conversation_leaves_its_answer_to_the_next_turn(mode: str) -> None:
    """A conversation of two turns with messages of 41 tokens and answers of 8, blocks of 4. The first turn's first
    attempt is late as above, and its second is done at 18,200. The next turn comes at 19,200 with 41 + 8 + 41 tokens.
    Of the first 49 the last has no KV: 48 are 12 full blocks, and all of these are found."""
    turns = ask(1000) | {"requests": 2, "lengths": {
        "kind": "conversations", "turns": 2, "message": 41, "output": 8, "think_time": s(1000)}}
    found = Run([client(count=1, size=4, caching=True)], [turns], mode,
                gateway={"per_try": s(9000), "cancel_delay": s(500)})
    assert found.attempts[:2] == [(0, 1, 0, 1000, 10000, "timed out"), (0, 2, 0, 10000, 18200, "completed")]
    assert found.attempts[2][:4] == (1, 1, 0, 19200)
    assert found.record.stages["cached_tokens"][:3].tolist() == [0, 40, 48]


# -- h. when routers notice --------------------------------------------------------------------------------------------


# Probes every 10,000, the first at 3,000. A crash at 14,000 fails those at 23,000 and 33,000. Routers know 500 later.
PROBE = (10000, 2, 500, 3000)


@each_mode
@pytest.mark.parametrize(("crash", "noticed"), [(14000, 33500), (13000, 23500), (13001, 33500), (1, 13500)])
def test_routers_choose_a_dead_replica_until_it_is_noticed(mode: str, crash: int, noticed: int) -> None:
    """A crash at 13,000, at the instant of a probe, fails that one. Replicas in turn: of requests at `crash` + 100, at
    a nanosecond before the notice, and at the notice, every other one goes to the dead replica, and fails at once.
    From the notice on none does: that of membership comes before arrivals."""
    times = [crash + 100, crash + 100, noticed - 1, noticed - 1, noticed, noticed, noticed + 1, noticed + 1]
    found = Run([client(fleet((crash, 0), up=10**6, probe=PROBE))], [ask(at, 1, 1) for at in times], mode, gateway=ONCE)
    dead = [0, 2]
    assert found.fates == dict.fromkeys(dead, "failed")
    assert found.reasons == dict.fromkeys(dead, "failed: llm-0 cannot be reached")
    assert [(row[0], row[2], row[3], row[5]) for row in found.attempts] == [
        (n, 0, at, "failed") if n in dead else (n, 1, at, "completed") for n, at in enumerate(times)]
    assert [found.ends[n] for n in dead] == [times[n] for n in dead]
    assert [row[2] for row in found.stages] == [1] * 6


@each_mode
def test_a_replica_that_is_ready_before_it_is_noticed_stays_chosen(mode: str) -> None:
    """It crashes at 14,000 and is ready at 33,000, 500 before the notice. Requests in turn: 0 at 33,000 (ready before
    arrivals of its instant), 1, 0 at 33,500, 1, 0, 1. None fails."""
    times = [33000, 33000, 33500, 33500, 33501, 33501]
    found = Run([client(fleet((14000, 0), up=19000, probe=PROBE))], [ask(at, 1, 1) for at in times], mode, gateway=ONCE)
    assert [row[2] for row in found.attempts] == [0, 1, 0, 1, 0, 1]
    assert found.members(0) == [(0, 14000, "down", "crashed"), (1, 14000, "starting", "restart"),
                                (1, 33000, "ready", "started")]


@each_mode
def test_each_crash_has_a_notice_of_its_own(mode: str) -> None:
    """Crashes at 14,000 (noticed at 33,500) and at 30,000 (at 43,500); ready at 24,000 and 40,000. It is never dropped:
    at 33,500 its second start runs, and the first notice is void; at 43,500 it has been ready again for 3,500."""
    own = fleet((14000, 0), (30000, 0), up=10000, probe=PROBE)
    times = [28000, 28000, 33499, 33499, 33501, 33501, 43501, 43501]
    found = Run([client(own)], [ask(at, 1, 1) for at in times], mode, gateway=ONCE)
    assert [(row[2], row[5]) for row in found.attempts] == [
        (0, "completed"), (1, "completed"), (0, "failed"), (1, "completed"), (0, "failed"), (1, "completed"),
        (0, "completed"), (1, "completed")]


# -- i. the gateway's queue --------------------------------------------------------------------------------------------


# The only replica crashes at 2,000, at once noticed, and is ready at 12,000.
def lone(up: int = 10000, **more: Data) -> list[Data]:
    return [client(fleet((2000, 0), start=1, up=up, probe=(1, 1, 0, 0)), count=1, **more)]


@each_mode
def test_requests_wait_for_a_replica_and_go_out_in_order(mode: str) -> None:
    """One seat. Prompts of 10 and an output token: 2,000 each. Requests at 4,000, 3,000, 12,000 and 12,001. At 12,000
    those of 3,000 and 4,000 go out, then that of 12,000, which has come to the queue before they left. They are done at
    14,000, 16,000 and 18,000, and that of 12,001 at 20,000. An attempt starts when it goes out."""
    found = Run(lone(scheduler={"max_num_seqs": 1}), [ask(at, 10, 1) for at in (4000, 3000, 12000, 12001)], mode,
                gateway={"queue": {"ttl": 1.0}})
    by_arrival = sorted(zip(found.record.arrival_ns.tolist(), found.finish, strict=True))
    assert by_arrival == [(3000, 14000), (4000, 16000), (12000, 18000), (12001, 20000)]
    assert [row[3:5] for row in found.attempts] == [(12000, 14000), (12000, 16000), (12000, 18000), (12001, 20000)]
    waits = found.results.requests.sort_values("arrival_s")["ttft_s"].tolist()
    assert waits == pytest.approx([s(n) for n in (11000, 12000, 6000, 7999)], abs=1e-15)


@each_mode
def test_a_request_expires_at_its_time_to_live(mode: str) -> None:
    """Time to live 8,000. That of 3,000 expires at 11,000, that of 4,000 at 12,000, where the replica is ready: expiry
    comes before what a gateway sends out. That of 4,001 goes out at 12,000."""
    found = Run(lone(), [ask(at, 10, 1) for at in (3000, 4000, 4001)], mode, gateway={"queue": {"ttl": s(8000)}})
    assert found.ends == [11000, 12000, 14000]
    assert found.fates == {0: "expired", 1: "expired"}
    assert set(found.reasons.values()) == {"expired: no replica was ready within 8e-06 s"}
    assert [row[0] for row in found.attempts] == [2], "a request that expired had no attempt"


@each_mode
def test_a_full_queue_refuses_and_a_place_is_free_again_after_an_expiry(mode: str) -> None:
    """A queue of one. That of 3,000 waits until 6,000; one at 5,999 is refused; one at 6,000 finds the place free, as
    expiry comes before arrivals, and expires at 9,000; one at 9,500 goes out at 12,000."""
    found = Run(lone(), [ask(at, 10, 1) for at in (3000, 5999, 6000, 9500)], mode,
                gateway={"queue": {"ttl": s(3000), "max": 1}})
    assert found.ends == [6000, 5999, 9000, 14000]
    assert found.fates == {0: "expired", 1: "unavailable", 2: "expired"}
    assert found.reasons[1] == "unavailable: the gateway's queue is full (1 requests)"


@each_mode
def test_without_a_queue_a_request_that_finds_no_replica_is_tried_again_at_once(mode: str) -> None:
    """Attempts of no client at 3,000: as many as there may be, two, without back-off."""
    found = Run(lone(), [ask(3000), ask(20000, 10, 1)], mode)
    assert found.attempts[:2] == [(0, 1, -1, 3000, 3000, "failed"), (0, 2, -1, 3000, 3000, "failed")]
    assert found.fates == {0: "unavailable"}
    assert found.finish == [-1, 22000]


# -- j. order at equal times -------------------------------------------------------------------------------------------


@each_mode
def test_a_crash_at_the_instant_at_which_a_replica_would_be_ready(mode: str) -> None:
    """A second replica starts at 1,000 and would be ready at 6,000. Failures come before membership: it crashes while
    it starts, and is ready at 11,000. A request at 6,000 goes to replica 0 and so does one at 6,001; at 11,000 both
    serve."""
    own = fleet((6000, 1), start=1, up=5000, scale=((1000, 2),), probe=(1, 1, 0, 0))
    found = Run([client(own)], [ask(at, 1, 1) for at in (6000, 6001, 11000, 11000)], mode, gateway=ONCE)
    assert found.members(1) == [(0, 1000, "starting", "schedule"), (0, 6000, "down", "crashed"),
                                (1, 6000, "starting", "restart"), (1, 11000, "ready", "started")]
    assert [row[2] for row in found.attempts[:2]] == [0, 0]
    assert {row[2] for row in found.attempts[2:]} == {0, 1}


@each_mode
def test_an_autoscaler_acts_after_a_crash_of_its_instant(mode: str) -> None:
    """One replica is wanted from 5,000 on, when replica 0 crashes. It starts again then, and starting ones go first: it
    is gone, and replica 1 stays. Had the autoscaler acted first, 1 would drain. The request that 0 had, with tokens at
    3,000, 4,000 and 5,000, is tried again on 1, from 5,000 to 14,000."""
    own = fleet((5000, 0), scale=((5000, 1),))
    found = Run([client(own)], [ask(1000)], mode)
    assert found.members(0) == [(0, 5000, "down", "crashed"), (1, 5000, "starting", "restart"),
                                (1, 5000, "gone", "schedule")]
    assert found.members(1) == []
    assert found.attempts == [(0, 1, 0, 1000, 5000, "failed"), (0, 2, 1, 5000, 14000, "completed")]


@each_mode
def test_a_request_at_the_instant_of_a_crash_finds_its_replica_dead(mode: str) -> None:
    """At 5,000 replica 0 crashes, and then a request arrives that is its turn: it fails at once, and is tried again on
    1, from 5,000 to 7,000. A nanosecond before it would have been there."""
    found = Run([client(fleet((5000, 0)))], [ask(5000, 10, 1)], mode)
    assert found.attempts == [(0, 1, 0, 5000, 5000, "failed"), (0, 2, 1, 5000, 7000, "completed")]
    earlier = Run([client(fleet((5000, 0)))], [ask(4999, 10, 1)], mode)
    assert earlier.attempts[0] == (0, 1, 0, 4999, 5000, "failed")
    assert earlier.stages[0] == (0, "generate", 0, 4999, 4999, -1, 5000, 0)


@each_mode
def test_a_time_out_at_the_instant_of_a_crash_comes_too_late(mode: str) -> None:
    """The attempt of 1,000 has 4,500 ns, until 5,500, when its replica crashes: it failed. The time-out of the whole
    call, 4,500 too, ends the request at that instant, before its retry."""
    crash = [client(fleet((5500, 0)))]
    found = Run(crash, [ask(1000, 10, 8)], mode, gateway={"per_try": s(4500), **ONCE})
    assert found.attempts == [(0, 1, 0, 1000, 5500, "failed")]
    assert found.fates == {0: "failed"}
    whole = Run(crash, [ask(1000, 10, 8)], mode, gateway={"timeout": s(4500)})
    assert whole.attempts == [(0, 1, 0, 1000, 5500, "failed")]
    assert whole.fates == {0: "timed out"}


@each_mode
@pytest.mark.parametrize("shared", [False, True])
@pytest.mark.parametrize("end", ["source", "target"])
def test_kv_arrives_before_a_crash_of_its_instant(mode: str, shared: bool, end: str) -> None:
    """Prompt until 3,000, KV until 13,000. If the source crashes at 13,000, the decode client has the KV: tokens at
    14,000 and 15,000. If the target does, all 10,000 bytes have moved in vain; it is ready at 13,500. Again from
    13,000: prompt until 15,000, KV until 25,000, tokens at 26,000 and 27,000."""
    crash = fleet((13000, 0), start=1, up=500)
    clients = halves(crash if end == "source" else None, crash if end == "target" else None, prefillers=1)
    found = Run(clients, [ask(1000, 10, 2)], mode, network=LINK | {"shared": shared})
    assert found.moves[0] == (0, 0, 1, 10000, 3000, 13000)
    if end == "source":
        assert found.finish == [15000]
        assert found.attempts == [(0, 1, 1, 1000, 15000, "completed")]
    else:
        assert found.moves[1:] == [(0, 0, 1, 10000, 15000, 25000)]
        assert found.finish == [27000]
        assert found.attempts == [(0, 1, 1, 1000, 13000, "failed"), (0, 2, 1, 13000, 27000, "completed")]


# -- k. patience, and stages side by side ------------------------------------------------------------------------------


@each_mode
def test_a_client_gives_up_while_its_request_waits_for_a_back_off(mode: str) -> None:
    """The attempt fails at 5,500. The first draw of the stream `backoff/0` times a millisecond is the wait. The
    client's patience ends at 1,000 + 9,000, before that. No second attempt is made, and the engines are at rest."""
    wait = int(stream(0, "backoff/0").random() * 10**6)
    assert wait > 4500
    found = Run([client(fleet((5500, 0)))], [ask(1000, patience={"total": s(9000)}), ask(10**7, 10, 1)], mode,
                gateway={"backoff": 0.001, "max_backoff": 1.0}, seed=0)
    assert found.attempts == [(0, 1, 0, 1000, 5500, "failed"), (1, 1, 1, 10**7, 10**7 + 2000, "completed")]
    assert found.ends[0] == 10000
    assert found.reasons == {0: "its client gave up: not answered within 9e-06 s"}
    assert found.fates == {}
    patient = Run([client(fleet((5500, 0)))], [ask(1000)], mode, gateway={"backoff": 0.001, "max_backoff": 1.0}, seed=0)
    assert patient.attempts[1][3:5] == (5500 + wait, 5500 + wait + 9000)


@each_mode
def test_a_client_gives_up_while_its_request_waits_in_the_queue(mode: str) -> None:
    """A queue of one. That of 3,000 gives up at 7,000: its place is free for one at 7,001, which is sent out at 12,000
    and done at 14,000. Its time to live, until 13,000, ends nothing any more."""
    found = Run(lone(), [ask(3000, patience={"total": s(4000)}), ask(7001, 10, 1)], mode,
                gateway={"queue": {"ttl": s(10000), "max": 1}})
    assert found.ends == [7000, 14000]
    assert found.reasons == {0: "its client gave up: not answered within 4e-06 s"}
    assert found.attempts == [(1, 1, 0, 12000, 14000, "completed")]


@each_mode
def test_patience_for_the_first_token_ends_with_that_of_a_failed_attempt(mode: str) -> None:
    """The user has the first token at 3,000 from the attempt that fails at 5,500; the second attempt's comes at 7,500.
    A client that waits 5,000 for the first token, until 6,000, has had it."""
    found = Run([client(fleet((5500, 0)))], [ask(1000, patience={"first_token": s(5000)})], mode)
    assert found.finish == [14500]


@each_mode
@pytest.mark.parametrize("delay", [0, 1200])
def test_one_of_two_stages_side_by_side_fails_for_good(mode: str, delay: int) -> None:
    """`left` and `right` start at 1,000 on replicas 0 and 1; 0 crashes at 5,500, and there is no retry. The request has
    failed at 5,500, `right` is cancelled. Its abort arrives at once, or at 6,700. It leaves at the end of its step,
    6,000 or 7,000, with 4 or 5 tokens: 3,000 to 6,000 or 7,000. `join` is never asked for."""
    pipelines = {"pair": {"stages": {"left": {"kind": "generate"}, "right": {"kind": "generate"},
                                     "join": {"kind": "generate", "after": ["left", "right"]}}}}
    found = Run([client(fleet((5500, 0)))], [ask(1000, pipeline="pair")], mode, pipelines=pipelines,
                gateway=ONCE | {"cancel_delay": s(delay)})
    assert found.attempts == [(0, 1, 0, 1000, 5500, "failed"), (0, 1, 1, 1000, 5500, "cancelled")]
    end = 7000 if delay else 6000
    assert found.stages == [(0, "generate", 0, 1000, 1000, 3000, 5500, 3),
                            (0, "generate", 1, 1000, 1000, 3000, end, 5 if delay else 4)]
    assert found.ends == [5500]
    assert found.fates == {0: "failed"}
    assert found.wasted("cancelled") == (1, 10, 5 if delay else 4)


# -- device-hours, dollars, joules -------------------------------------------------------------------------------------


@each_mode
def test_devices_that_are_down_or_start_are_held(mode: str) -> None:
    """As in a., ready again at 5,500 + 4,000. Figures are those from the first arrival, 1,000, to the end, 14,500. Each
    replica has one device at $3.60 an hour
    ($0.001 a second), 100 W idle, 300 W in steps with prompt tokens, 200 W in others.

    Held: both, 13,500 each: 27,000 ns = 27e-6 / 3600 hours, 27e-9 dollars.
    Replica 0: 2,000 ns at 300 W, 2,500 at 200 W (500 of them in the step that was cut), 9,000 at 100 W: 2 mJ.
    Replica 1: 2,000 at 300 W, 7,000 at 200 W, 4,500 at 100 W: 2.45 mJ.
    Wasted: the first attempt's 2,000 x 300 + 2,500 x 200 = 1.1 mJ.
    Ready on average: (27,000 - 4,000) / 13,500.
    """
    llm = client(fleet((5500, 0), up=4000), price_per_hour=3.6,
                 power={"idle": 100.0, "prefill": 300.0, "decode": 200.0})
    summary = Run([llm], [ask(1000)], mode).results.summary
    found = summary["fleet"]["llm"]
    assert found["held_device_hours"] == pytest.approx(27e-6 / 3600, rel=1e-12, abs=0)
    assert found["ready_mean"] == pytest.approx(23000 / 13500, rel=1e-12, abs=0)
    assert (found["ready_most"], found["started"], found["drained"], found["crashed"]) == (2, 1, 0, 1)
    assert summary["cost"]["total_dollars"] == pytest.approx(27e-9, rel=1e-12, abs=0)
    assert summary["energy"]["total_j"] == pytest.approx(4.45e-3, rel=1e-12, abs=0)
    assert summary["attempts"]["wasted"]["failed"]["energy_j"] == pytest.approx(1.1e-3, rel=1e-12, abs=0)


@each_mode
def test_devices_of_a_replica_that_crashed_while_it_drained_are_not_held(mode: str) -> None:
    """One request at 1,000 on replica 0, 8 tokens, and one on 1 that is tried again on 0. Replica 1 drains from 2,000
    and crashes at 4,500: held for 3,500 since
    the first arrival. The run ends at 14,000 (see e.): 13,000 + 3,500 = 16,500."""
    own = fleet((4500, 1), scale=((2000, 1),))
    summary = Run([client(own, price_per_hour=3.6)], [ask(1000), ask(1100)], mode).results.summary
    assert summary["fleet"]["llm"]["held_device_hours"] == pytest.approx(16.5e-6 / 3600, rel=1e-12, abs=0)
    assert summary["cost"]["total_dollars"] == pytest.approx(16.5e-9, rel=1e-12, abs=0)
    assert summary["fleet"]["llm"]["crashed"] == 1
