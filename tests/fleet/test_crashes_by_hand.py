"""Crashes, retries and queues in scenarios small enough to follow by hand, to the nanosecond.

A step takes 1,000 ns and 100 ns more per prompt token (`hand_parts`), so a prompt of 10 tokens takes 2,000 ns. Each
test's docstring has the arithmetic. Where nothing else is said, the gateway retries once, at once, and from the start;
the router takes the replicas in turn; and no crash is noticed before the replica is ready again.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import hand_parts
import numpy as np
import pytest
from hand_parts import MODES, Run, ask, client, fleet, s

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
@pytest.mark.parametrize("kind", ["continuous", "static", "mixed", "sglang"])
@pytest.mark.parametrize(("crash", "tokens"), [(5000, 3), (5500, 3), (9999, 7), (10000, 8)])
def test_all_schedulers_lose_and_keep_the_same(mode: str, kind: str, crash: int, tokens: int) -> None:
    """As in the test before: tokens at 3,000, 4,000, ..., 10,000, that of the crash's instant included. With all 8 the
    request is complete; otherwise it is done 9,000 after the crash."""
    llm = client(fleet((crash, 0))) | {"scheduler": {"kind": kind}}
    found = Run([llm], [ask(1000)], mode)
    assert found.stages[0] == (0, "generate", 0, 1000, 1000, 3000, crash, tokens)
    assert found.busy_ns(0) == crash - 1000
    assert found.finish == [crash + (9000 if tokens < 8 else 0)]
    assert found.wasted() == ((1, 10, tokens) if tokens < 8 else (0, 0, 0))


@each_mode
def test_a_static_batch_loses_the_answer_that_waits_for_the_others_too(mode: str) -> None:
    """Prompts of 10 and 5 tokens, both computed as 10: until 4,000. Outputs of 2 and 8: the first has its tokens at
    4,000 and 5,000 and comes back with the batch. The crash at 6,500 loses 2 and 3."""
    llm = client(fleet((6500, 0), start=1), count=1) | {"scheduler": {"kind": "static"}}
    found = Run([llm], [ask(1000, 10, 2), ask(1000, 5, 8)], mode, gateway=ONCE)
    assert found.stages == [(0, "generate", 0, 1000, 1000, 4000, 6500, 2),
                            (1, "generate", 0, 1000, 1000, 4000, 6500, 3)]
    assert found.wasted() == (2, 15, 5)


@each_mode
def test_a_stream_that_has_begun_may_not_be_made_again(mode: str) -> None:
    """As in the first test, with `begun: fail`: the request ends at 5,500, without a second attempt."""
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


# -- d. around the engine ----------------------------------------------------------------------------------------------


@each_mode
@pytest.mark.parametrize("crash", [1500, 1700])
def test_a_crash_while_a_request_is_in_the_front_end(mode: str, crash: int) -> None:
    """700 ns before the engine, and 300 after it. A request of 1,000 would be in the engine at 1,700; failures come
    before arrivals. It never starts there. On the other replica it is in the engine 700 after the crash, its first
    token is computed 2,000 and delivered 2,300 later, and its third 2,000 after that."""
    llm = client(fleet((crash, 0)), frontend={"before": s(700), "after": s(300)})
    found = Run([llm], [ask(1000, 10, 3)], mode)
    assert found.stages == [(0, "generate", 0, 1000, -1, -1, crash, 0),
                            (0, "generate", 1, crash, crash + 700, crash + 2700, crash + 4700, 3)]
    assert found.finish == [crash + 5000]
    assert found.results.requests["ttft_s"].iloc[0] == pytest.approx(s(crash + 2000), abs=1e-15)
    assert found.wasted() == (1, 0, 0)


@each_mode
@pytest.mark.parametrize("shared", [False, True])
def test_a_crash_while_inputs_are_on_their_way(mode: str, shared: bool) -> None:
    """`two` on replica 1 waits for 10,000 bytes from replica 0, a byte a ns, from 5,000 to 15,000. Replica 1 crashes at
    9,000, when 4,000 have left. `two` again, on replica 0, where the bytes are: 9,000 to 11,000, 12,000, 13,000."""
    pipelines = {"chain": {"stages": {
        "one": {"kind": "generate"}, "two": {"kind": "generate", "after": "one", "input_bytes": 10000}}}}
    found = Run([client(fleet((9000, 1)))], [ask(1000, 10, 3, pipeline="chain")], mode, pipelines=pipelines,
                network={"kind": "link", "bandwidth": 1e9, "latency": 0.0, "shared": shared})
    assert found.moves == [(0, 0, 1, 4000, 5000, 9000)]
    assert found.stages[1] == (0, "generate", 1, 5000, -1, -1, 9000, 0)
    assert found.finish == [13000]
    network = found.simulation.network
    assert (network.bytes_sent, network.bytes_cancelled) == (10000, 10000)


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


# -- g. when routers notice --------------------------------------------------------------------------------------------


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


@pytest.mark.parametrize(("probe", "gateway", "said"), [
    ({}, ONCE, "10.5 to 20.5 s later (`fleet.probe`), and choose the replica until then"),
    ({"offset": 3}, ONCE, "10.5 to 19.5 s later (`fleet.probe`), and choose the replica until then"),
    ({"offset": 20, "failures": 1}, {"retry": {"kind": "sglang"}},
     "6.5 to 7.5 s later (`fleet.probe`), and choose the replica until then, or until a breaker keeps it away"),
])
def test_a_remark_says_when_crashes_are_noticed(probe: dict[str, float], gateway: dict[str, Any], said: str) -> None:
    """Of crashes at 13 and 14 s, with probes at 3, 13, 23 s, ... or from 20 s on."""
    own = fleet() | {"crashes": [{"at": 14}, {"at": 13}], "probe": {"period": 10, "failures": 2, "delay": 0.5} | probe}
    found = Run([client(own)], [ask(0, 1, 1)], gateway=gateway)
    [line] = [line for line in found.simulation.remarks if "routers notice" in line]
    assert line == f"llm: routers notice a crash {said}"


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


# -- h. order at equal times -------------------------------------------------------------------------------------------


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
def test_a_replica_that_is_ready_at_the_instant_of_its_crash_serves_the_retry(mode: str) -> None:
    """The only replica starts in no time. Failures, membership, retries: as in a., on the same client."""
    found = Run([client(fleet((5500, 0), start=1, up=0), count=1)], [ask(1000)], mode)
    assert found.members(0) == [(0, 5500, "down", "crashed"), (1, 5500, "starting", "restart"),
                                (1, 5500, "ready", "started")]
    assert found.attempts == [(0, 1, 0, 1000, 5500, "failed"), (0, 2, 0, 5500, 14500, "completed")]
    assert found.runs(0)[-1][1] == 14500
    assert found.busy_ns(0) == 13500


@each_mode
def test_two_crashes_at_one_instant_are_two_starts_of_which_the_second_counts(mode: str) -> None:
    """Both at 5,500: the second hits the replica while it starts. It is ready once, at 5,500 + 3,000, by its third
    incarnation."""
    found = Run([client(fleet((5500, 0), (5500, 0), up=3000))], [ask(1000), ask(20000, 1, 1)], mode)
    assert found.members(0) == [
        (0, 5500, "down", "crashed"), (1, 5500, "starting", "restart"), (1, 5500, "down", "crashed"),
        (2, 5500, "starting", "restart"), (2, 8500, "ready", "started")]
    assert found.finish[0] == 14500


@each_mode
def test_replicas_that_crash_at_one_instant_do_so_in_order(mode: str) -> None:
    """Replicas 1 and 0 crash at 5,500, named in this order. Ties go by client, so the request of replica 0 is tried
    again first. It is the turn of replica 2, with one seat: first token at 7,500, done at 14,500. That of replica 1
    finds 0, then 1, which cannot be reached, and then 2: prompt from 14,500, done at 23,500."""
    llm = client(fleet((5500, 1), (5500, 0), start=3), count=3, scheduler={"max_num_seqs": 1})
    found = Run([llm], [ask(1000), ask(1000)], mode, gateway={"retries": 3})
    assert found.attempts[2:] == [(0, 2, 2, 5500, 14500, "completed"), (1, 2, 0, 5500, 5500, "failed"),
                                  (1, 3, 1, 5500, 5500, "failed"), (1, 4, 2, 5500, 23500, "completed")]


@each_mode
def test_requests_of_one_replica_are_tried_again_in_their_order(mode: str) -> None:
    """The first request, at 1,000 on replica 0, fails at 2,000; its second attempt, too (0 in turn); its third is on 1,
    where the second request is since 1,100. Replica 0 is ready at 2,500, and 1 crashes at 2,600. Ties go by request:
    the first goes to 0 (in turn) although the other was at 1 before it. That finds 1, and then 0, in the same step.
    Both are done at 2,600 + 3,000 + 7,000 = 12,600."""
    found = Run([client(fleet((2000, 0), (2600, 1), up=500))], [ask(1000), ask(1100)], mode, gateway={"retries": 4})
    assert found.attempts[3:] == [
        (0, 3, 1, 2000, 2600, "failed"), (0, 4, 0, 2600, 12600, "completed"), (1, 2, 1, 2600, 2600, "failed"),
        (1, 3, 0, 2600, 12600, "completed")]


# -- i. figures --------------------------------------------------------------------------------------------------------


@each_mode
def test_devices_that_are_down_or_start_are_held(mode: str) -> None:
    """As in a., ready again at 5,500 + 4,000. Figures are those from 0 to the end, 14,500. Each replica has one device
    at $3.60 an hour ($0.001 a second), 100 W idle, 300 W in steps with prompt tokens, 200 W in others.

    Held: both, 14,500 each: 29,000 ns = 29e-6 / 3600 hours, 29e-9 dollars.
    Replica 0: 2,000 ns at 300 W, 2,500 at 200 W (500 of them in the step that was cut), 10,000 at 100 W: 2.1 mJ.
    Replica 1: 2,000 at 300 W, 7,000 at 200 W, 5,500 at 100 W: 2.55 mJ.
    Wasted: the first attempt's 2,000 x 300 + 2,500 x 200 = 1.1 mJ.
    Ready on average: (29,000 - 4,000) / 14,500.
    """
    llm = client(fleet((5500, 0), up=4000), price_per_hour=3.6,
                 power={"idle": 100.0, "prefill": 300.0, "decode": 200.0})
    summary = Run([llm], [ask(1000)], mode).results.summary
    found = summary["fleet"]["llm"]
    assert found["held_device_hours"] == pytest.approx(29e-6 / 3600, rel=1e-12, abs=0)
    assert found["ready_mean"] == pytest.approx(25000 / 14500, rel=1e-12, abs=0)
    assert (found["ready_most"], found["started"], found["drained"], found["crashed"]) == (2, 1, 0, 1)
    assert summary["cost"]["total_dollars"] == pytest.approx(29e-9, rel=1e-12, abs=0)
    assert summary["energy"]["total_j"] == pytest.approx(4.65e-3, rel=1e-12, abs=0)
    assert summary["attempts"]["wasted"]["failed"]["energy_j"] == pytest.approx(1.1e-3, rel=1e-12, abs=0)


@each_mode
def test_devices_of_a_replica_that_crashed_while_it_drained_are_not_held(mode: str) -> None:
    """One request at 1,000 on replica 0, 8 tokens, and one on 1 that is tried again on 0. Replica 1 drains from 2,000
    and crashes at 4,500: held until then, from 0 on. The run ends at 14,000 (see e.): 14,000 + 4,500 = 18,500."""
    own = fleet((4500, 1), scale=((2000, 1),))
    summary = Run([client(own, price_per_hour=3.6)], [ask(1000), ask(1100)], mode).results.summary
    assert summary["fleet"]["llm"]["held_device_hours"] == pytest.approx(18.5e-6 / 3600, rel=1e-12, abs=0)
    assert summary["cost"]["total_dollars"] == pytest.approx(18.5e-9, rel=1e-12, abs=0)
    assert summary["fleet"]["llm"]["crashed"] == 1


@each_mode
def test_blocks_in_use_count_to_the_crash(mode: str) -> None:
    """As in a., blocks of a token: 10 in the prompt's step of 2,000, 11 and 12 in the next two, and 13 in the 500 ns of
    the step that was cut: 20,000 + 11,000 + 12,000 + 6,500 = 49,500 blocks x ns."""
    record = Run([client(fleet((5500, 0)))], [ask(1000)], mode).record
    mine = record.runs["client"] == 0
    assert int(record.runs["kv_block_ns"][mine].sum()) == 49500


@each_mode
def test_the_parts_of_a_latency_add_up_with_the_attempt_that_failed(mode: str) -> None:
    """As in a.: 4,500 on replica 0, which are lost, and 9,000 on replica 1, 13,500 in all, without a wait."""
    request = Run([client(fleet((5500, 0)))], [ask(1000)], mode).results.requests.iloc[0]
    parts = [request[f"path_{cause}_s"] for cause in ("lost", "queue", "communication", "compute")]
    assert parts == pytest.approx([s(4500), 0, 0, s(9000)], abs=1e-15)
