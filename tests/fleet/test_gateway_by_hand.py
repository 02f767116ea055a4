"""Attempts, time-outs, the queue, and patience, by hand, to the nanosecond.

A step takes 1,000 ns and 100 ns more per prompt token (`hand_parts`), so a prompt of 10 tokens takes 2,000 ns. Where
nothing else is said, the gateway retries once, at once, and from the start; the router takes the replicas in turn; and
no crash is noticed before the replica is ready again.
"""

from __future__ import annotations

from collections.abc import Iterator

import hand_parts
import pytest
from hand_parts import MODES, Data, Run, ask, client, fleet, s

from hermes.config.streams import stream

each_mode = pytest.mark.parametrize("mode", MODES)
ONCE = {"retries": 0}


@pytest.fixture(scope="module", autouse=True)
def _hand_parts() -> Iterator[None]:
    with hand_parts.registered():
        yield


# -- a retry that meets the attempt before it --------------------------------------------------------------------------


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


@each_mode
def test_a_crash_finds_a_late_attempt_whose_abort_is_on_its_way(mode: str) -> None:
    """One client, time-out of an attempt 4,500, and 2,000 until the abort arrives. The first attempt is late at 5,500;
    the second joins at 6,000 (a step of 2,000). The crash at 6,500 ends both, before the abort at 7,500: the first,
    with tokens at 3,000, 4,000, 5,000 and 6,000, stays timed out; the second failed. Both prompts were computed."""
    found = Run([client(fleet((6500, 0), start=1), count=1)], [ask(1000)], mode,
                gateway={"per_try": s(4500), "cancel_delay": s(2000)})
    assert found.attempts == [(0, 1, 0, 1000, 5500, "timed out"), (0, 2, 0, 5500, 6500, "failed")]
    assert found.stages == [(0, "generate", 0, 1000, 1000, 3000, 6500, 4),
                            (0, "generate", 0, 5500, 6000, -1, 6500, 0)]
    assert (found.wasted("timed_out"), found.wasted("failed")) == ((1, 10, 4), (1, 10, 0))
    assert found.ends == [6500]


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


# -- the queue ---------------------------------------------------------------------------------------------------------


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


@each_mode
def test_a_time_out_of_a_call_counts_its_wait_in_the_queue(mode: str) -> None:
    """4,000 for the whole call: a request of 3,000 that waits for a replica ends at 7,000. One of 9,000 goes out at
    12,000 and would have its first token, at 14,000, too late: it ends at 13,000."""
    found = Run(lone(), [ask(3000, 10, 1), ask(9000, 10, 1)], mode, gateway={"timeout": s(4000), "queue": {"ttl": 1.0}})
    assert found.ends == [7000, 13000]
    assert found.fates == {0: "timed out", 1: "timed out"}
    assert found.attempts == [(1, 1, 0, 12000, 13000, "timed out")]


# -- patience ----------------------------------------------------------------------------------------------------------


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
@pytest.mark.parametrize(("patience", "end"), [(400, 5700), (700, 6000), (701, 7000), (1500, 7000)])
def test_an_engine_that_plans_ahead_knows_who_came_before_its_step(mode: str, patience: int, end: int) -> None:
    """Asynchronous scheduling, one seat, taken from 1,000 on: a step of 2,000, then steps of 1,000. A request at 5,300
    comes within the step from 5,000. The engine takes it in when the next one begins, at 6,000.

    If its client gives up before, it is out at once: at 5,700, and at 6,000, where arrivals come before step starts.
    Later it leaves at the end of the step in flight: 7,000."""
    llm = client(count=1, scheduler={"async_scheduling": True, "max_num_seqs": 1})
    found = Run([llm], [ask(1000, 10, 20), ask(5300, 10, 8, patience={"total": s(patience)})], mode)
    assert found.stages[0] == (1, "generate", 0, 5300, -1, -1, end, 0)
    assert found.finish == [22000, -1]


# -- requests of several stages ----------------------------------------------------------------------------------------


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


@each_mode
def test_only_the_stage_that_a_crash_hits_is_tried_again(mode: str) -> None:
    """`one` on replica 0: tokens at 3,000, 4,000, 5,000. `two` on replica 1 from 5,000: tokens at 7,000, 8,000, 9,000.

    Replica 1 crashes at 7,500: `two` again, on replica 0, from 7,500: 9,500, 10,500, 11,500. If replica 0 crashes then,
    nothing is lost: what `one` gave is with the gateway.
    """
    pipelines = {"chain": {"stages": {"one": {"kind": "generate"}, "two": {"kind": "generate", "after": "one"}}}}
    asks = [ask(1000, 10, 3, pipeline="chain")]
    found = Run([client(fleet((7500, 1)))], asks, mode, pipelines=pipelines)
    assert found.attempts == [(0, 1, 0, 1000, 5000, "completed"), (0, 1, 1, 5000, 7500, "failed"),
                              (0, 2, 0, 7500, 11500, "completed")]
    assert found.record.attempts["call"].tolist() == [0, 1, 1]
    assert found.finish == [11500]
    assert Run([client(fleet((7500, 0)))], asks, mode, pipelines=pipelines).finish == [9000]
