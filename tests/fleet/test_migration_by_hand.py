"""Requests that migrate, by hand, to the nanosecond: the next attempt goes on with the tokens that the user has.

A step takes 1,000 ns and 100 ns more per prompt token (`hand_parts`). A request of 1,000 with 10 prompt tokens and 8
output tokens, alone on its replica, has its tokens at 3,000, 4,000, ..., 10,000. After n tokens another replica
computes a prompt of 10 + n in 2,000 + 100 n, and the rest takes 1,000 a token. Retries come only where a test says so.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import hand_parts
import numpy as np
import pytest
from conservation import assert_migrations_add_up
from hand_parts import MODES, Data, Run, ask, client, fleet, s

from hermes.errors import InputError
from hermes.results.brief import brief
from hermes.results.files.trace import trace_events
from hermes.scenario import load_scenario
from hermes.scenario.build import build

each_mode = pytest.mark.parametrize("mode", MODES)
LINK = {"kind": "link", "bandwidth": 1e9, "latency": 0.0, "shared": False}
AFTER: Data = {"frontend": {"after": s(5000)}}


@pytest.fixture(scope="module", autouse=True)
def _hand_parts() -> Iterator[None]:
    with hand_parts.registered():
        yield


def migrates(limit: int = 3, **more: Any) -> Data:
    """Return a gateway that migrates, and neither retries nor starts a stream again."""
    own = {key: more.pop(key) for key in ("max_seq_len", "idle") if key in more}
    return {"retries": 0, "begun": "fail", "migration": {"limit": limit} | own} | more


def run(clients: list[Data], asks: list[Data], mode: str, gateway: Data | None = None, **keys: Any) -> Run:
    found = Run(clients, asks, mode, gateway=migrates() if gateway is None else gateway, **keys)
    assert_migrations_add_up(found.record)
    return found


def figures(found: Run) -> Data:
    return found.results.summary["attempts"]["migrations"]


def ttft(found: Run, request: int = 0) -> int:
    return round(found.results.requests["ttft_s"].iloc[request] * 1e9)


# -- a crash -----------------------------------------------------------------------------------------------------------


@pytest.mark.feature("Plug-ins of research", "Migration of requests (`gateway.migration`, `fleet.drain.end`)")
@each_mode
@pytest.mark.parametrize("overlap", [False, True])
def test_a_stream_that_breaks_goes_on_at_another_client(mode: str, overlap: bool) -> None:
    """The crash at 5,500 leaves 3 tokens: 3,000, 4,000, 5,000. Replica 1 computes 13 tokens until 7,800, and has the
    eighth at 11,800. The user sees one long gap, 2,800. 12 tokens of KV are computed again: the thirteenth had none."""
    llm = client(fleet((5500, 0)), scheduler={"async_scheduling": overlap})
    found = run([llm], [ask(1000)], mode)
    assert found.attempts == [(0, 1, 0, 1000, 5500, "migrated"), (0, 2, 1, 5500, 11800, "completed")]
    assert found.stages == [(0, "generate", 0, 1000, 1000, 3000, 5500, 3),
                            (0, "generate", 1, 5500, 5500, 7800, 11800, 5)]
    request, summary = found.results.requests.iloc[0], found.results.summary
    assert request["ttft_s"] == pytest.approx(s(2000), abs=1e-15)
    assert request["tpot_s"] == pytest.approx(s(8800 / 7), abs=1e-15)
    assert request["e2e_s"] == pytest.approx(s(10800), abs=1e-15)
    assert (summary["latency"]["itl_s"]["count"], summary["latency"]["itl_s"]["max"]) == (7, pytest.approx(s(2800)))
    assert (summary["tokens"]["output"], summary["tokens"]["answers"], summary["tokens"]["prompt"]) == (8, 8, 10)
    assert found.wasted() == (0, 0, 0)
    assert figures(found) == {
        "requests": 1, "migrated": 1, "in_vain": 0, "anew": 0, "recomputed_tokens": 12, "lost_tokens": 0,
        "causes": {"crashed": {"migrated": 1, "in_vain": 0, "anew": 0, "recomputed_tokens": 12, "lost_tokens": 0}}}
    text = " ".join(" ".join(str(line) for _, line in brief(summary, found.results.meta)).split())
    assert "2 for 1 calls: 1 migrated" in text
    assert "migrated with their answers: 1 crashed; 12 tokens computed again, 0 lost" in text
    told = [event["args"] for event in trace_events(found.record, found.results.metrics)
            if event.get("args", {}).get("outcome")]
    assert {(one["attempt"], one["outcome"]) for one in told} == {(1, "migrated"), (2, "completed")}
    assert found.results.stages["outcome"].tolist() == ["migrated", "completed"]


@each_mode
@pytest.mark.parametrize(("kind", "tokens"), [("continuous", 3), ("mixed", 3), ("sglang", 3), ("static", 0)])
def test_all_schedulers_carry_the_same(mode: str, kind: str, tokens: int) -> None:
    """As above. A static batch gives its users nothing before its end: its request starts anew, and is done 9,000 after
    the crash."""
    found = run([client(fleet((5500, 0))) | {"scheduler": {"kind": kind}}], [ask(1000)], mode)
    assert found.finish == [11800 if tokens else 14500]
    assert found.record.migrations["sent"].tolist() == [tokens]
    assert found.attempts[0][-1] == ("migrated" if tokens else "failed")


@each_mode
@pytest.mark.parametrize(("crash", "sent", "end"), [(4999, 2, 12199), (5000, 3, 11300), (9999, 7, 12699)])
def test_a_token_at_the_instant_of_the_crash_is_delivered(mode: str, crash: int, sent: int, end: int) -> None:
    """n tokens, and the end at crash + 2,000 + 100 n + 1,000 (8 - n - 1)."""
    assert end == crash + 2000 + 100 * sent + 1000 * (7 - sent)
    found = run([client(fleet((crash, 0)))], [ask(1000)], mode)
    assert found.record.migrations["sent"].tolist() == [sent]
    assert found.finish == [end]


@each_mode
@pytest.mark.parametrize(("crash", "computed"), [(2999, 10), (1500, 10)])
def test_without_a_token_the_request_starts_anew(mode: str, crash: int, computed: int) -> None:
    """It counts as a migration before the first token; the attempt has failed, and its prompt is wasted."""
    found = run([client(fleet((crash, 0)))], [ask(1000)], mode)
    assert found.attempts == [(0, 1, 0, 1000, crash, "failed"), (0, 2, 1, crash, crash + 9000, "completed")]
    assert found.wasted() == (1, computed, 0)
    assert (figures(found)["anew"], figures(found)["migrated"]) == (1, 0)
    assert ttft(found) == crash + 2000 - 1000


@each_mode
def test_a_request_migrates_as_often_as_the_limit_says(mode: str) -> None:
    """Replica 0 crashes at 5,500 (3 tokens), replica 1 at 9,500 (7,800 and 8,800: 2 more), replica 2 computes 15 tokens
    until 12,000, and has the last at 14,000. With a limit of 1 the second crash ends the request; then nothing of it is
    an answer, and 3 + 2 tokens are wasted."""
    crashes = fleet((5500, 0), (9500, 1), start=3)
    found = run([client(crashes, count=3)], [ask(1000)], mode)
    assert found.attempts == [(0, 1, 0, 1000, 5500, "migrated"), (0, 2, 1, 5500, 9500, "migrated"),
                              (0, 3, 2, 9500, 14000, "completed")]
    assert found.finish == [14000]
    assert found.record.migrations["recomputed"].tolist() == [12, 14]
    assert found.results.requests["tpot_s"].iloc[0] == pytest.approx(s(11000 / 7), abs=1e-15)
    once = run([client(crashes, count=3)], [ask(1000)], mode, migrates(1))
    assert once.attempts == [(0, 1, 0, 1000, 5500, "failed"), (0, 2, 1, 5500, 9500, "failed")]
    assert once.reasons == {0: "failed: llm-1 went down, attempt 2"}
    assert once.wasted() == (2, 23, 5)
    assert once.results.summary["tokens"]["output"] == 0
    assert (figures(once)["migrated"], figures(once)["in_vain"]) == (0, 1)


@each_mode
def test_a_replica_that_cannot_be_reached_counts_as_a_migration(mode: str) -> None:
    """Both replicas are down from 5,500 on, unnoticed: the request is sent to llm-1, to llm-0 and to llm-1 at once, and
    has no migration left."""
    found = run([client(fleet((5500, 0), (5400, 1)))], [ask(1000)], mode)
    assert [row[2:] for row in found.attempts] == [(0, 1000, 5500, "failed"), *[
        (number % 2, 5500, 5500, "failed") for number in (1, 2, 3)]]
    assert found.reasons == {0: "failed: llm-1 cannot be reached, attempt 4"}


@each_mode
@pytest.mark.parametrize(("most", "moves"), [(12, False), (13, True)])
def test_the_longest_sequence_that_migrates(mode: str, most: int, moves: bool) -> None:
    """10 + 3 tokens; at the limit it migrates, as Dynamo's does."""
    found = run([client(fleet((5500, 0)))], [ask(1000)], mode, migrates(max_seq_len=most))
    assert found.finish == [11800 if moves else -1]
    assert moves or found.reasons == {0: "failed: llm-0 went down"}


@each_mode
def test_several_answers_migrate_before_the_first_token_only(mode: str) -> None:
    """The crash at 2,500 finds a prompt; that of 5,500 two answers that have begun."""
    early = run([client(fleet((2500, 0)))], [ask(1000, branches=2)], mode)
    assert early.finish == [11500]
    found = run([client(fleet((5500, 0)))], [ask(1000, branches=2)], mode)
    assert found.reasons == {0: "failed: llm-0 went down"}
    assert figures(found)["requests"] == 0


@each_mode
def test_a_request_that_waits_for_a_replica_keeps_its_tokens(mode: str) -> None:
    """The only replica crashes at 5,500, noticed at once, and is ready at 10,000: 13 tokens until 12,300, the eighth at
    16,300. Its prefix cache is empty."""
    own = fleet((5500, 0), start=1, up=4500, probe=(1, 1, 0, 0))
    found = run([client(own, count=1, caching=True)], [ask(1000)], mode, migrates(queue={"ttl": 1.0}))
    assert found.finish == [16300]
    parts = found.results.summary["breakdown"]["causes"]
    assert parts["held_s"]["mean"] == pytest.approx(s(4500))
    assert parts["lost_s"]["mean"] == 0.0, "no attempt came to nothing"
    assert parts["compute_s"]["mean"] == pytest.approx(s(4500 + 6300))


@each_mode
def test_a_retry_from_the_start_wastes_what_migrated(mode: str) -> None:
    """As with a limit of 1, and a retry that may start again: at 9,500 on replica 2, from nothing: 18,500."""
    found = run([client(fleet((5500, 0), (9500, 1), start=3), count=3)], [ask(1000)], mode,
                migrates(1, retries=1, begun="restart"))
    assert [row[-1] for row in found.attempts] == ["failed", "failed", "completed"]
    assert found.finish == [18500]
    assert ttft(found) == 2000, "the user has a token since then"
    assert found.wasted() == (2, 23, 5)


# -- tokens that the front end has -------------------------------------------------------------------------------------


@each_mode
def test_tokens_that_the_front_end_still_has_are_lost(mode: str) -> None:
    """Each token is read 5,000 after its step. At 9,500 the engine has given 7, of which those of 3,000 and 4,000
    have been read. 12 prompt tokens until 11,700, read at 16,700: a gap of 16,700 - 9,000. The last of 6 is read at
    21,700."""
    found = run([client(fleet((9500, 0)), **AFTER)], [ask(1000)], mode)
    assert found.record.migrations["sent"].tolist() == [2]
    assert found.finish == [21700]
    assert figures(found)["lost_tokens"] == 5
    assert found.results.summary["latency"]["itl_s"]["max"] == pytest.approx(s(7700))
    assert found.results.summary["tokens"]["output"] == 8
    assert ttft(found) == 7000


# -- late detection ----------------------------------------------------------------------------------------------------


def hangs(at: int, **more: Any) -> Data:
    return fleet() | {"failures": [{"kind": "hang", "at": s(at), "lasts": s(200_000)}]} | more


@each_mode
def test_a_stream_without_tokens_is_given_up_and_goes_on(mode: str) -> None:
    """Replica 0 hangs at 5,500; its step ends at 6,000, with the fourth token. 4,000 later the gateway waits no longer:
    14 prompt tokens from 10,000 to 12,400, and three more, until 15,400. Until then the attempt of a third request,
    which came to replica 0 at 6,500, has given none: 10,500, and done on replica 1 at its next step's end."""
    found = run([client(hangs(5500))], [ask(1000)], mode, migrates(idle=s(4000)))
    assert found.attempts == [(0, 1, 0, 1000, 10000, "migrated"), (0, 2, 1, 10000, 15400, "completed")]
    assert figures(found)["causes"]["idle"]["migrated"] == 1
    assert found.results.summary["latency"]["itl_s"]["max"] == pytest.approx(s(6400))


@each_mode
def test_a_breaker_keeps_migrations_from_a_replica_that_hangs(mode: str) -> None:
    """Requests of 1,000 and 2,000, to replicas 0 and 1. Replica 0 hangs from 1,500: its step ends at 3,000. The first
    one, with a token, is given up at 3,000 + 5,000, and opens replica 0's circuit: of the requests at 9,000 and 9,100
    both go to replica 1, where the first one's 11 prompt tokens run until 10,100 and theirs until 13,100."""
    gateway = {"retry": {"kind": "sglang", "retries": 0, "breaker": {"failures": 1, "time": 1.0}},
               "migration": {"idle": s(5000)}}
    found = run([client(hangs(1500))], [ask(1000), ask(2000, 10, 3), ask(9000, 10, 1), ask(9100, 10, 1)], mode, gateway)
    assert [row[2] for row in found.attempts if row[0] in (2, 3)] == [1, 1]
    assert found.finish == [18100, 6000, 13100, 13100]


@each_mode
def test_the_kill_of_what_hangs_lets_its_requests_go_on(mode: str) -> None:
    """Probes at 1,000, 3,000, ...: those of 7,000 and 9,000 fail, the last at 9,300; the process ends at 10,300. Four
    tokens: 14 prompt tokens until 12,700, the eighth at 15,700."""
    liveness = {"period": s(2000), "failures": 2, "timeout": s(300), "grace": s(1000), "offset": s(1000)}
    found = run([client(hangs(5500, liveness=liveness))], [ask(1000)], mode)
    assert found.attempts == [(0, 1, 0, 1000, 10300, "migrated"), (0, 2, 1, 10300, 15700, "completed")]
    assert figures(found)["causes"]["hung"]["migrated"] == 1


@each_mode
@pytest.mark.parametrize("kind", ["device", "node", "zone"])
def test_the_cause_is_the_failure_that_took_the_replica_away(mode: str, kind: str) -> None:
    lost: Data = {"kind": kind, "at": s(5500), "repair": 1.0} | ({} if kind == "zone" else {"replica": 0})
    nodes = {"nodes": {"zone": "z{i}"}} if kind == "zone" else {}
    if kind == "zone":
        lost["zone"] = "z0"
    found = run([client(fleet() | {"failures": [lost]} | nodes)], [ask(1000)], mode)
    assert [row[-1] for row in found.attempts] == ["migrated", "completed"]
    assert list(figures(found)["causes"]) == [f"{kind}_down"]


@each_mode
def test_a_time_out_of_the_gateway_is_for_all_migrations_of_a_try(mode: str) -> None:
    """Crash at 5,500, as in the first test; the try ends at 1,000 + 10,000, before 11,800. The stream has begun, so
    that the request fails. With `begun: restart` it starts anew at 11,000 on replica 1, behind the step in flight."""
    found = run([client(fleet((5500, 0)))], [ask(1000)], mode, migrates(per_try=s(10000)))
    assert found.ends == [11000]
    assert found.reasons == {0: "timed out: no answer within 1e-05 s, attempt 2"}
    assert [row[-1] for row in found.attempts] == ["failed", "timed out"]
    again = run([client(fleet((5500, 0), start=3), count=3)], [ask(1000)], mode,
                migrates(per_try=s(10000), retries=1, begun="restart"))
    assert again.attempts == [(0, 1, 0, 1000, 5500, "failed"), (0, 2, 1, 5500, 11000, "timed out"),
                              (0, 3, 2, 11000, 20000, "completed")]


@each_mode
def test_tokens_after_the_gateway_has_given_up_are_lost(mode: str) -> None:
    """Replica 0 takes 10 times as long from 3,500 on: after the token of 4,000 the next one comes at 14,000. The
    gateway gives up at 4,000 + 5,000; the engine learns it 6,000 later, and ends its step at 24,000, or has ended it
    at 14,000. 12 prompt tokens from 9,000 to 11,200, and the eighth at 16,200."""
    own = fleet() | {"failures": [{"kind": "straggler", "at": s(3500), "factor": 10}]}
    found = run([client(own)], [ask(1000)], mode, migrates(idle=s(5000), cancel_delay=s(6000)))
    assert found.attempts == [(0, 1, 0, 1000, 9000, "migrated"), (0, 2, 1, 9000, 16200, "completed")]
    assert found.record.migrations["sent"].tolist() == [2]
    rows = [row for row in found.stages if row[2] == 0]
    assert figures(found)["lost_tokens"] == rows[0][-1] - 2 >= 1
    assert found.results.summary["tokens"]["output"] == 8


# -- drains ------------------------------------------------------------------------------------------------------------


def drains(grace: int, **more: Any) -> Data:
    """Return a fleet of which replica 1 drains at 2,000."""
    return fleet(scale=((2000, 1),)) | {"drain": {"grace": s(grace)} | more}


@each_mode
@pytest.mark.parametrize("end", [None, "migrate", "cancel"])
def test_the_end_of_a_drain_migrates_or_cancels(mode: str, end: str | None) -> None:
    """Requests at 1,000 and 1,100. Replica 1 has tokens at 3,100 and 4,100, and is cut at 4,600. On replica 0 its 12
    tokens join the step from 5,000 to 7,200, and its sixth token from then on comes at 12,200. An engine that ends its
    answers itself leaves nothing to go on with."""
    found = run([client(drains(2600, **({} if end is None else {"end": end})))], [ask(1000), ask(1100)], mode)
    assert found.members(1) == [(0, 2000, "draining", "schedule"), (0, 4600, "gone", "grace period over")]
    assert found.results.summary["fleet"]["llm"]["cut"] == 1
    if end == "cancel":
        assert found.ends[1] == 4600
        assert found.reasons == {
            1: "failed: llm-1 was stopped while it drained, and ended its answers"}
        return
    assert found.attempts == [(0, 1, 0, 1000, 11200, "completed"), (1, 1, 1, 1100, 4600, "migrated"),
                              (1, 2, 0, 4600, 12200, "completed")]
    assert figures(found)["causes"]["drained"]["migrated"] == 1


@each_mode
def test_a_drain_is_cut_after_thirty_seconds_and_its_answer_goes_on(mode: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Steps of a second, 60 tokens at 1, 2, ... s on each replica. Replica 1 drains at 5.25 s and is cut at 35.25 s
    with 35 tokens. On replica 0 it joins at 36 s: the 36th token at 37 s, the 60th at 61 s. The gap is 2 s."""
    monkeypatch.setattr(hand_parts, "STEP_NS", 10**9)
    monkeypatch.setattr(hand_parts, "TOKEN_NS", 0)
    own = {"start": 2, "start_up": {"total": 1},
           "autoscaler": {"kind": "schedule", "changes": [{"at": 5.25, "replicas": 1}]}}
    found = run([client(own)], [ask(0, output=60), ask(0, output=60)], mode)
    assert found.finish == [60 * 10**9, 61 * 10**9]
    assert found.record.migrations["sent"].tolist() == [35]
    assert found.results.summary["latency"]["itl_s"]["max"] == pytest.approx(2.0)


@each_mode
def test_a_node_that_is_taken_back_hands_its_answers_on(mode: str) -> None:
    """Notice of 3,000 at 2,500: cut at 5,500, as by a crash; a replica in the free slot would start at once."""
    own = fleet(start=2) | {"failures": [{"kind": "reclaim", "at": s(2500), "notice": s(3000)}]}
    found = run([client(own, count=3)], [ask(1000)], mode)
    assert found.finish == [11800]
    assert figures(found)["causes"]["reclaimed"]["migrated"] == 1


def test_a_drain_that_migrates_needs_a_gateway_that_does() -> None:
    own = client(drains(2600, end="migrate"))
    with pytest.raises(InputError, match=r"clients\.0\.fleet\.drain\.end: needs `gateway\.migration`: nothing else"):
        build(load_scenario({"clients": [own], "workload": [ask(0)], "gateway": {}}))
    with pytest.raises(InputError, match=r"fleet\.drain\.end: a drain with `grace: null` cuts nothing"):
        load_scenario({"clients": [client(fleet() | {"drain": {"grace": None, "end": "cancel"}})],
                       "workload": [ask(0)], "gateway": {"migration": {}}})


# -- prefill and decode on two clients ---------------------------------------------------------------------------------


def halves(prefill: Data | None, decode: Data | None, *, prefillers: int = 1, decoders: int = 2,
           **more: Any) -> list[Data]:
    return [client(prefill, name="p", role="prefill", count=prefillers, **more),
            client(decode, name="d", role="decode", count=decoders)]


@each_mode
@pytest.mark.parametrize("gives", ["decode", "prefill"])
def test_a_decode_client_dies_while_it_decodes(mode: str, gives: str) -> None:
    """Output 5. Prompt until 3,000, KV until 13,000; d-0 has tokens at 14,000 and 15,000 and dies at 15,500. The user
    has those two, or three with that of 3,000. n tokens: the prompt of 10 + n runs 2,000 + 100 n, its KV moves 10,000
    + 1,000 n, and the steps of d-1 give the rest. n = 2: 17,700, 29,700, and tokens at 30,700 ... 32,700. n = 3:
    17,800 (the fourth token), 30,800, and the fifth at 31,800."""
    found = run(halves(None, fleet((15500, 0))), [ask(1000, 10, 5)], mode, network=LINK, first_token=gives)
    n = 2 if gives == "decode" else 3
    assert found.record.migrations["sent"].tolist() == [n]
    assert found.attempts == [(0, 1, 1, 1000, 15500, "migrated"),
                              (0, 2, 2, 15500, 32700 if n == 2 else 31800, "completed")]
    assert found.moves == [(0, 0, 1, 10000, 3000, 13000), (0, 0, 2, 12000, 17700, 29700) if n == 2 else (
        0, 0, 2, 13000, 17800, 30800)]
    assert ttft(found) == (13000 if n == 2 else 2000)
    itl = found.results.summary["latency"]["itl_s"]
    assert itl["count"] == 4
    assert itl["max"] == pytest.approx(s(15700 if n == 2 else 14000))
    assert found.results.requests["tpot_s"].iloc[0] == pytest.approx(
        s((32700 - 14000) / 4 if n == 2 else (31800 - 3000) / 4), abs=1e-15)
    assert figures(found)["recomputed_tokens"] == 10 + n - 1


@each_mode
@pytest.mark.parametrize(("crash", "gives", "sent"), [
    (2500, "prefill", 0), (2500, "decode", 0), (7000, "decode", 0), (7000, "prefill", 1)])
def test_a_prefill_client_dies_before_or_during_the_hand_over(mode: str, crash: int, gives: str, sent: int) -> None:
    """p-0 dies in its prompt's step, or at 7,000, when 4,000 bytes of KV have left. The user has a token only of the
    prefill client that gives it: then p-1 computes 11 tokens until 9,100. Otherwise all starts anew on p-1."""
    found = run(halves(fleet((crash, 0)), None, prefillers=2), [ask(1000, 10, 3)], mode, network=LINK,
                first_token=gives)
    assert found.record.migrations["sent"].tolist() == [sent]
    first = crash + 2000 + 100 * sent
    moved = first + 10000 + 1000 * sent
    left = 3 - sent - (gives == "prefill")   # of the decode client
    assert found.finish == [moved + 1000 * left]
    assert found.attempts[0][-1] == ("migrated" if sent else "failed")
    assert found.results.summary["tokens"]["output"] == 3


@each_mode
def test_a_request_goes_on_while_its_kv_is_still_on_its_way(mode: str) -> None:
    """Output 2. The user has a token at 3,000, and its KV would be at d-0 at 13,000. At 8,000 the gateway waits no
    longer, and p-0 computes 11 tokens, the last one too, until 10,100. Of 9,100 ns 5,000 are communication."""
    found = run(halves(None, None), [ask(1000, 10, 2)], mode, migrates(idle=s(5000)), network=LINK,
                first_token="prefill")
    assert found.attempts == [(0, 1, 1, 1000, 8000, "migrated"), (0, 2, 0, 8000, 10100, "completed")]
    parts = found.results.summary["breakdown"]
    assert {cause: round(of["mean"] * 1e9) for cause, of in parts["causes"].items() if of["mean"]} == {
        "communication_s": 5000, "compute_s": 4100}
    assert parts["other_s"] == 0


@each_mode
@pytest.mark.parametrize(("scope", "again"), [("all", 2), ("client", 34)])
def test_kv_in_a_tier_that_clients_share_survives_them(mode: str, scope: str, again: int) -> None:
    """Prompt 32, computed by p-0 until 5,200 and written to the tier, a byte a ns. Its KV is at d-0 at 37,200; tokens
    at 38,200, 39,200, 40,200. p-0 and d-0 die at 40,500. p-1 finds 2 blocks of 16 tokens in a shared tier: read until
    72,500, and 3 tokens computed until 73,800. With tiers of their own it computes all 35, until 45,000."""
    tiers = {"levels": [{"name": "host", "capacity": "1 GB", "bandwidth": 1e9, "scope": scope}], "block_tokens": 16}
    clients = halves(fleet((40500, 0)), fleet((40500, 0)), prefillers=2, tiers=tiers)
    found = run(clients, [ask(1000, 32, 5, prefixes={"groups": 1, "tokens": 32})], mode, network=LINK)
    assert found.record.migrations["sent"].tolist() == [3]
    first = 73800 if scope == "all" else 45000
    assert [row[5] for row in found.stages if row[2] == 1] == [first]
    assert found.finish == [first + 35000 + 2000]
    assert figures(found)["recomputed_tokens"] == again


# -- caches ------------------------------------------------------------------------------------------------------------


@each_mode
def test_the_prefix_cache_of_the_other_client_may_hit(mode: str) -> None:
    """Two requests with the same 8 tokens, on replicas 0 and 1. Replica 1 has them when the first goes on there at
    5,500: 13 - 8 = 5 tokens are computed, in the step from 6,000 (the second request's) to 7,500."""
    two = ask(1000, prefixes={"groups": 1, "tokens": 8}) | {
        "requests": 2, "arrivals": {"kind": "hand_times", "at": [1000, 1000]}}
    found = run([client(fleet((5500, 0)), caching=True)], [two], mode)
    assert found.record.migrations["recomputed"].tolist() == [4]
    assert found.stages[-1][5] == 7500


@each_mode
def test_the_next_turn_finds_the_answer_that_two_clients_gave(mode: str) -> None:
    """A conversation of two turns. The second turn's prompt begins with the first one's and its answer, all of which
    replica 1 has: 10 + 8 - 1 tokens."""
    talk = ask(1000) | {"requests": 2, "lengths": {
        "kind": "conversations", "turns": 2, "message": 10, "output": 8, "think_time": s(1000)}}
    found = run([client(fleet((5500, 0), probe=(1, 1, 0, 0)), caching=True)], [talk], mode)
    assert found.finish[0] == 11800
    assert found.results.requests["cached_tokens"].tolist()[1] == 17


@each_mode
@pytest.mark.parametrize("kind", ["chunked", "mixed"])
def test_an_attempt_that_still_runs_gives_the_next_its_answer(mode: str, kind: str) -> None:
    """One client. A prompt of 80 tokens makes the step from 5,000 end at 14,000. At 13,500 the gateway waits no longer
    (nor at 13,000 for the prompt); both attempts run on until their cancels come. The next one of the first request, of
    13 tokens, finds the blocks of 12 tokens in the step from 14,000, and the other one 79 of 80: so that
    step ends at 15,200 with the fourth token."""
    own = {"kind": kind} if kind == "mixed" else {}
    clients = [client(count=1, caching=True) | {"scheduler": own}] if own else [client(count=1, caching=True)]
    found = run(clients, [ask(1000, 10, 6), ask(4500, 80, 1)], mode,
                migrates(idle=s(8500), cancel_delay=s(50000)))
    assert [row[-1] for row in found.attempts if row[0] == 0] == ["migrated", "completed"]
    mine = found.record.stages["request"] == 0
    assert found.record.stages["cached_tokens"][mine].tolist() == [0, 12]
    assert found.record.migrations["recomputed"].tolist() == [1, 0]
    assert found.finish == [15200 + 2000, 15200]


# -- limits ------------------------------------------------------------------------------------------------------------


@each_mode
def test_a_token_that_the_user_has_satisfies_patience(mode: str) -> None:
    """Patience of 5,000 for the first token: the user has it at 3,000, of an attempt that is over at 5,500."""
    found = run([client(fleet((5500, 0)))], [ask(1000, patience={"first_token": s(5000)})], mode)
    assert found.finish == [11800]
    gone = run([client(fleet((5500, 0)))], [ask(1000, patience={"total": s(8000)})], mode)
    assert gone.record.status.tolist() == [2]
    assert [row[-1] for row in gone.attempts] == ["failed", "cancelled"]


@each_mode
def test_a_full_engine_ends_a_request_that_has_begun(mode: str) -> None:
    """Each replica takes one request. The crash at 5,500 is noticed at once, and replica 1 refuses the request that
    would go on there: a full engine is no broken stream. Its 3 tokens are wasted."""
    llm = client(fleet((5500, 0), probe=(1, 1, 0, 0)), scheduler={"max_num_seqs": 1, "max_num_queued_reqs": 1})
    found = run([llm], [ask(1000), ask(1000)], mode)
    assert found.ends == [5500, 10000]
    assert found.results.summary["attempts"]["statuses"] == {"529": 1}
    assert found.wasted() == (1, 10, 3)
    assert figures(found)["in_vain"] == 1


@each_mode
def test_flow_control_holds_a_request_that_goes_on(mode: str) -> None:
    """It waits unplaced again, as another attempt: 1 ms cycles, so that it leaves at once, one in a cycle."""
    found = run([client(fleet((5500, 0)))], [ask(1000)], mode, migrates(flow_control={}))
    assert found.record.held["left_ns"].tolist() == [1000, 5500]
    assert found.finish == [11800]


@each_mode
def test_what_is_asked_for_at_most_shrinks_with_what_the_user_has(mode: str) -> None:
    """8 of at most 8 tokens end by their number, also when 5 of 5 are left: no step more than without."""
    own = {"lengths": {"kind": "fixed", "prompt": 10, "output": 8}, "max_new_tokens": 8}
    found = run([client(fleet((5500, 0)), scheduler={"async_scheduling": True})], [ask(1000) | own], mode)
    assert found.finish == [11800]
    assert np.diff(found.step_ends(1)).tolist() == [1000] * 4
