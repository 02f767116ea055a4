"""Drains that end, by hand: the preStop hook and the grace period, in scale-downs and rolling updates.

Steps as in `hand_parts`: a prompt of 10 tokens takes 2,000 ns, each further token 1,000 ns. The two requests of most
tests come at 1,000 and 1,100, to replicas 0 and 1. One replica is wanted from 2,000 on: replica 1 drains.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import hand_parts
import pytest
from conservation import ran
from hand_parts import MODES, Run, ask, client, fleet, s

import hermes
from hermes.errors import InputError
from hermes.fleet.config import Drain
from hermes.scenario import load_scenario

each_mode = pytest.mark.parametrize("mode", MODES)
ASKS = [ask(1000), ask(1100)]


@pytest.fixture(scope="module", autouse=True)
def _hand_parts() -> Iterator[None]:
    with hand_parts.registered():
        yield


def drains(pre_stop: int = 0, grace: int | None = 2600, **more: Any) -> dict[str, Any]:
    """Return a fleet of which one replica drains at 2,000. Times in ns."""
    return fleet(scale=((2000, 1),), **more) | {
        "drain": {"pre_stop": s(pre_stop), "grace": None if grace is None else s(grace)}}


@pytest.mark.feature("Plug-ins of research", "Drains that end: preStop hook, grace period (`fleet.drain`)")
@each_mode
def test_what_runs_at_the_end_of_the_grace_period_is_tried_again(mode: str) -> None:
    """Replica 1 has tokens at 3,100 and 4,100, and is cut at 2,000 + 2,600 = 4,600. The retry is on replica 0 at 4,600,
    and joins at 5,000, a step of 2,000: tokens at 7,000, and the eighth at 14,000."""
    found = Run([client(drains())], ASKS, mode)
    assert found.members(1) == [(0, 2000, "draining", "schedule"), (0, 4600, "gone", "grace period over")]
    assert found.attempts == [(0, 1, 0, 1000, 11000, "completed"), (1, 1, 1, 1100, 4600, "failed"),
                              (1, 2, 0, 4600, 14000, "completed")]
    assert found.runs(1)[-1] == (4100, 4600, 0)
    assert found.wasted() == (1, 10, 2)
    assert found.results.summary["fleet"]["llm"]["cut"] == 1


@each_mode
def test_without_a_retry_the_request_of_the_user_fails(mode: str) -> None:
    """Also without the key `gateway`: an answer that can be cut has attempts."""
    found = Run([client(drains())], ASKS, mode, gateway={"begun": "fail"})
    assert found.ends == [10000, 4600]
    assert found.reasons == {1: "failed: llm-1 was stopped while it drained after the first token"}
    data = {"workload": [one | {"name": f"{n}"} for n, one in enumerate(ASKS)], "clients": [client(drains())],
            "router": {"kind": "round_robin"}, "stepping": mode}
    _simulation, record = ran(data)
    assert record.reject_reasons == {1: "failed: llm-1 was stopped while it drained"}


@each_mode
@pytest.mark.parametrize(("grace", "tokens"), [(8099, 7), (8100, 8), (None, 8)])
def test_a_token_at_the_end_of_the_grace_period_is_delivered(mode: str, grace: int | None, tokens: int) -> None:
    """The eighth token is at 3,100 + 7,000 = 10,100, 8,100 after the decision. Without an end nothing is cut."""
    found = Run([client(drains(grace=grace))], ASKS, mode, gateway={"begun": "fail"})
    assert found.finish == [10000, 10100 if tokens == 8 else -1]
    assert [row[7] for row in found.stages if row[0] == 1] == [tokens]
    assert found.members(1)[-1][1] == (10099 if tokens == 7 else 10100)
    assert found.results.summary["fleet"]["llm"].get("cut", 0) == (tokens < 8)


@each_mode
@pytest.mark.parametrize(("pre_stop", "gone"), [(0, 10100), (8100, 10100), (9000, 11000), (9500, 11500)])
def test_a_replica_stays_while_its_hook_sleeps(mode: str, pre_stop: int, gone: int) -> None:
    """Its last answer is at 10,100; the hook ends at 2,000 + `pre_stop`. A third request keeps the run going."""
    found = Run([client(drains(pre_stop, 20000))], [*ASKS, ask(12000)], mode)
    assert found.members(1) == [(0, 2000, "draining", "schedule"), (0, gone, "gone", "drained")]
    assert all(row[5] == "completed" for row in found.attempts)


@each_mode
def test_an_update_cuts_old_replicas_and_takes_their_slots(mode: str) -> None:
    """One replica may be lacking and none is more than wanted. At 2,000 replica 1 drains; it is cut at 4,600, and a new
    one starts in its slot, ready at 7,600. Then replica 0 drains, and has its last answer at 11,000, unless the retry
    of 4,600 keeps it: tokens of it at 7,000, 8,000, ... Cut at 7,600 + 2,600 = 10,200, both are tried again on the new
    replica 1: a step of both prompts, 3,000, to 13,200, and 7,000 more."""
    own = fleet(up=3000) | {"drain": {"grace": s(2600)}, "updates": [{"at": s(2000), "surge": 0, "unavailable": 1}]}
    found = Run([client(own)], ASKS, mode, gateway={"retries": 2})
    assert found.members(1) == [(0, 2000, "draining", "update"), (0, 4600, "gone", "grace period over"),
                                (1, 4600, "starting", "slot free"), (1, 7600, "ready", "started")]
    assert found.members(0)[:2] == [(0, 7600, "draining", "update"), (0, 10200, "gone", "grace period over")]
    assert found.finish == [20200, 20200]
    assert found.results.summary["fleet"]["llm"]["cut"] == 3


@each_mode
def test_thirty_seconds_by_default(mode: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Steps of a second. 60 tokens from 0 on, at 1, 2, ... s. The drain begins at 5.25 s, and ends at 35.25 s."""
    monkeypatch.setattr(hand_parts, "STEP_NS", 10**9)
    monkeypatch.setattr(hand_parts, "TOKEN_NS", 0)
    own = {"start": 2, "start_up": {"total": 1},
           "autoscaler": {"kind": "schedule", "changes": [{"at": 5.25, "replicas": 1}]}}
    found = Run([client(own)], [ask(0, output=60), ask(0, output=60)], mode, gateway={"begun": "fail"})
    assert found.ends == [60 * 10**9, 35_250_000_000]
    assert [row[7] for row in found.stages] == [35, 60]


def test_a_hook_may_not_sleep_beyond_the_grace_period() -> None:
    with pytest.raises(InputError, match=r"drain\.pre_stop: expected at most the grace period of 30 s"):
        load_scenario({"clients": [client(fleet() | {"drain": {"pre_stop": 31}})], "workload": [ask(0)]})
    assert Drain(pre_stop=31, grace=None).pre_stop == 31


def test_answers_that_drains_cut_are_what_binds() -> None:
    """Two of four replicas are taken away twice, each with several answers of 12 s that have 2 s left."""
    changes = [{"at": at, "replicas": replicas} for at, replicas in ((10, 2), (25, 4), (40, 2))]
    found = hermes.simulate({
        "workload": {"duration": 55, "arrivals": {"kind": "poisson", "rate": 4},
                     "lengths": {"kind": "fixed", "prompt": 200, "output": 1500}},
        "clients": [{"name": "llm", "count": 4, "model": "llama-3.1-8b", "device": "h100-sxm", "fleet": {
            "start": 4, "start_up": {"total": 2}, "drain": {"grace": 2},
            "autoscaler": {"kind": "schedule", "changes": changes}}}]}).summary
    lost = found["requests"]["rejected"]
    assert lost == sum(one["cut"] for one in found["fleet"].values()) > 10
    binds = found["binds"]
    assert (binds["what"], binds["where"]) == ("drains", "llm")
    assert binds["share"] == pytest.approx(lost / found["requests"]["total"])
