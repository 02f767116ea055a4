"""Back-off of restarts, hangs, stragglers, nodes that are taken back or go down: by hand, to the nanosecond.

Steps as in `hand_parts`: a prompt of 10 tokens takes 2,000 ns, each further token 1,000 ns. A request of 1,000 alone on
its replica has its tokens at 3,000, 4,000, ..., 10,000.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import hand_parts
import numpy as np
import pytest
from hand_parts import MODES, Run, ask, client, fleet, s

from hermes.config.streams import Every
from hermes.core.clock import Clock
from hermes.errors import InputError
from hermes.fleet.config import Restarts
from hermes.fleet.failure_times import FailureClock
from hermes.fleet.restarts import BackOff
from hermes.scenario import load_scenario
from hermes.scenario.build import build

each_mode = pytest.mark.parametrize("mode", MODES)
S = 10**9


@pytest.fixture(scope="module", autouse=True)
def _hand_parts() -> Iterator[None]:
    with hand_parts.registered():
        yield


def failing(*failures: dict[str, Any], **more: Any) -> dict[str, Any]:
    """Return a fleet with failures; other keys as `hand_parts.fleet`, or of the fleet itself."""
    own = {key: more.pop(key) for key in ("restarts", "liveness", "drain") if key in more}
    return fleet(**more) | {"failures": list(failures)} | own


def liveness(period: int, failures: int, timeout: int, grace: int, offset: int) -> dict[str, Any]:
    return {"period": s(period), "failures": failures, "timeout": s(timeout), "grace": s(grace), "offset": s(offset)}


# -- restarts ----------------------------------------------------------------------------------------------------------


def test_the_back_off_doubles_from_10_s_to_5_min_and_is_forgotten_after_10_min() -> None:
    """Each process ends 1 s after it was started. After one that ran for 600 s the wait is still 5 min; after one that
    ran for longer there is none."""
    backoff, now, waits = BackOff(Restarts()), 100 * S, []
    for _ in range(8):
        waits.append(backoff.wait_ns(now) // S)
        now += waits[-1] * S
        backoff.restarted(now)
        now += S
    assert waits == [0, 10, 20, 40, 80, 160, 300, 300]
    now += 599 * S
    assert backoff.wait_ns(now) == 300 * S
    assert backoff.wait_ns(now + 1) == 0


@pytest.mark.feature("Plug-ins of research", "Hangs, stragglers, spot nodes, nodes, restarts with back-off "
                                             "(`fleet.failures`, `liveness`, `restarts`)")
@each_mode
def test_a_replica_that_crashes_again_waits(mode: str) -> None:
    """Up in 500. It crashes at 2,000 (starts at once, ready at 2,500), 5,000 (starts at 6,000, ready at 6,500), and
    8,000 (starts at 10,000, ready at 10,500). A fourth crash at 10,000 comes before the start: it is down still."""
    crashes = [{"kind": "crash", "at": s(at)} for at in (2000, 5000, 8000, 10000)]
    own = failing(*crashes, up=500, restarts={"backoff": s(1000), "max_backoff": s(3000)})
    found = Run([client(own)], [ask(20000)], mode)
    assert found.members(0) == [
        (0, 2000, "down", "crashed"), (1, 2000, "starting", "restart"), (1, 2500, "ready", "started"),
        (1, 5000, "down", "crashed"), (2, 6000, "starting", "restart"), (2, 6500, "ready", "started"),
        (2, 8000, "down", "crashed"), (3, 10000, "starting", "restart"), (3, 10500, "ready", "started")]
    assert found.results.summary["fleet"]["llm"]["crashed"] == 3


@each_mode
def test_a_restart_on_its_node_takes_its_own_time(mode: str) -> None:
    own = failing({"kind": "crash", "at": s(2000)}) | {"start_up": {"total": s(9000), "restart": s(700)}}
    assert Run([client(own)], [ask(20000)], mode).members(0)[-1] == (1, 2700, "ready", "started")


# -- hangs -------------------------------------------------------------------------------------------------------------


@each_mode
def test_a_request_of_a_replica_that_hangs_ends_by_a_time_out(mode: str) -> None:
    """The hang at 5,500 lets the step in flight end at 6,000, the fourth token. The try of 1,000 ends at 11,000; the
    next one is on replica 1: 13,000, and the eighth token at 20,000. Replica 0 goes on at 30,000; a request of 25,000
    waits for it: its prompt is computed from 30,000 to 32,000."""
    own = failing({"kind": "hang", "at": s(5500), "lasts": s(24500)})
    found = Run([client(own)], [ask(1000), ask(25000, 10, 1)], mode, gateway={"per_try": s(10000)})
    assert found.attempts[:2] == [(0, 1, 0, 1000, 11000, "timed out"), (0, 2, 1, 11000, 20000, "completed")]
    assert found.stages[0] == (0, "generate", 0, 1000, 1000, 3000, 11000, 4)
    assert found.step_ends(0)[:4] == [3000, 4000, 5000, 6000]
    assert found.stages[-1][:6] == (1, "generate", 0, 25000, 30000, 32000)


@each_mode
@pytest.mark.parametrize(("hang", "killed"), [(5500, 10300), (5000, 8300), (5001, 10300)])
def test_the_liveness_probe_kills_a_replica_that_hangs(mode: str, hang: int, killed: int) -> None:
    """Probes at 1,000, 3,000, 5,000, ... Of a hang at 5,500 those at 7,000 and 9,000 fail, the last at 9,300 with its
    time-out of 300. The order to stop is not heard; the process ends 1,000 later. The retry takes 9,000."""
    own = failing({"kind": "hang", "at": s(hang)}, liveness=liveness(2000, 2, 300, 1000, 1000))
    found = Run([client(own)], [ask(1000)], mode)
    assert found.members(0) == [(0, killed, "down", "hung"), (1, killed, "starting", "restart")]
    assert found.attempts == [(0, 1, 0, 1000, killed, "failed"), (0, 2, 1, killed, killed + 9000, "completed")]
    assert found.results.summary["fleet"]["llm"]["hung"] == 1


@each_mode
@pytest.mark.parametrize(("lasts", "killed"), [(3800, False), (3801, True)])
def test_a_hang_that_ends_before_the_last_probe_has_failed_is_forgiven(mode: str, lasts: int, killed: bool) -> None:
    """As above: the last probe has failed at 9,300, 3,800 after the hang. At that instant the end of the hang is first:
    four tokens are left, one each 1,000."""
    own = failing({"kind": "hang", "at": s(5500), "lasts": s(lasts)},
                  liveness=liveness(2000, 2, 300, 1000, 1000))
    found = Run([client(own)], [ask(1000)], mode)
    assert bool(found.members(0)) is killed
    assert found.finish == [19300 if killed else 13300]


@each_mode
def test_a_server_that_answers_probes_is_not_killed(mode: str) -> None:
    """The engine behind it hangs from 5,500 to 50,000: four tokens are left, the last at 54,000."""
    own = failing({"kind": "hang", "at": s(5500), "lasts": s(44500), "answers_probes": True},
                  liveness=liveness(2000, 2, 300, 1000, 1000))
    found = Run([client(own)], [ask(1000)], mode)
    assert found.members(0) == []
    assert found.finish == [54000]


@each_mode
def test_routers_choose_a_replica_that_hangs_until_its_readiness_probes_time_out(mode: str) -> None:
    """Probes each 10,000, the first at 3,000. A hang at 14,000 fails those of 23,000 and 33,000, each 200 later;
    routers know 500 after that, at 33,700. It goes on at 40,000: the probe of 43,000 has them choose it from 43,500."""
    times = [33699, 33699, 33700, 33700, 43499, 43499, 43500, 43500]
    own = failing({"kind": "hang", "at": s(14000), "lasts": s(26000)}, probe=(10000, 2, 500, 3000))
    own["probe"]["timeout"] = s(200)
    found = Run([client(own)], [ask(at, 1, 1) for at in times], mode)
    assert [row[2] for row in found.attempts] == [0, 1, 1, 1, 1, 1, 1, 0]
    assert found.fates == {}


@each_mode
@pytest.mark.parametrize(("lasts", "gone", "why"), [(None, 7000, "grace period over"), (2500, 4500, "drained")])
def test_a_replica_that_hangs_hears_no_order_to_stop(mode: str, lasts: int | None, gone: int, why: str) -> None:
    """Replica 1 has nothing to do. It hangs at 2,000, and is not wanted from 3,000 on, with a grace period of 4,000."""
    own = failing({"kind": "hang", "at": s(2000), "replica": 1, "lasts": None if lasts is None else s(lasts)},
                  scale=((3000, 1),), liveness=liveness(10**6, 1, 0, 0, 0), drain={"grace": s(4000)})
    found = Run([client(own)], [ask(1000)], mode)
    assert found.members(1) == [(0, 3000, "draining", "schedule"), (0, gone, "gone", why)]


# -- stragglers --------------------------------------------------------------------------------------------------------


@each_mode
def test_steps_of_a_straggler_take_longer_until_it_is_over(mode: str) -> None:
    """Three times as long from 5,500 to 12,000. The step in flight ends at 6,000; the next ones at 9,000 and 12,000,
    and then at 13,000 and 14,000."""
    own = failing({"kind": "straggler", "at": s(5500), "factor": 3, "lasts": s(6500)})
    found = Run([client(own)], [ask(1000)], mode)
    assert found.step_ends(0) == [3000, 4000, 5000, 6000, 9000, 12000, 13000, 14000]


@each_mode
def test_a_straggler_ends_with_its_process(mode: str) -> None:
    """Twice as long from 5,500 on. It crashes at 9,000, with tokens at 6,000 and 8,000, and starts again at once. Its
    next request takes 9,000 as any other."""
    own = failing({"kind": "straggler", "at": s(5500), "factor": 2}, {"kind": "crash", "at": s(9000)}, up=1000)
    found = Run([client(own, count=2)], [ask(1000), ask(20000), ask(20000)], mode)
    assert found.step_ends(0)[:5] == [3000, 4000, 5000, 6000, 8000]
    assert found.finish[1:] == [29000, 29000]


# -- nodes -------------------------------------------------------------------------------------------------------------


@each_mode
@pytest.mark.parametrize(("grace", "gone", "why"), [
    (30 * S, 4600, "reclaimed"), (2000, 4000, "grace period over")])
def test_a_spot_node_is_taken_back_after_its_notice(mode: str, grace: int, gone: int, why: str) -> None:
    """Two of three slots. The node of replica 1 is taken back at 2,000 with a notice of 2,600: it drains, and another
    replica starts in slot 2, ready at 3,000. Replica 1 has a token at 3,100 and 4,100, and is cut at 4,600, or when its
    grace period is over. The retry goes to replica 0, and joins its next step, that of 5,000 or of 4,000: its first
    token is 2,000 later, and the eighth 7,000 after that."""
    own = failing({"kind": "reclaim", "at": s(2000), "replica": 1, "notice": s(2600)}, up=1000,
                  drain={"grace": s(grace)})
    found = Run([client(own, count=3)], [ask(1000), ask(1100)], mode)
    assert found.members(1) == [(0, 2000, "draining", "reclaimed"), (0, gone, "gone", why)]
    assert found.members(2) == [(0, 2000, "starting", "reclaimed"), (0, 3000, "ready", "started")]
    assert found.attempts[1] == (1, 1, 1, 1100, gone, "failed")
    assert found.attempts[2][2:] == (0, gone, 14000 if gone == 4600 else 13000, "completed")
    summary = found.results.summary["fleet"]["llm"]
    assert (summary["reclaimed"], summary["cut"]) == (1, 1)


@each_mode
def test_without_a_free_slot_the_next_replica_waits_for_the_drain(mode: str) -> None:
    own = failing({"kind": "reclaim", "at": s(2000), "replica": 1, "notice": s(2600)}, up=1000)
    found = Run([client(own)], [ask(1000), ask(1100)], mode)
    assert found.members(1) == [(0, 2000, "draining", "reclaimed"), (0, 4600, "gone", "reclaimed"),
                                (1, 4600, "starting", "slot free"), (1, 5600, "ready", "started")]


@each_mode
def test_a_node_takes_its_prefill_and_its_decode_client_down(mode: str) -> None:
    """Two nodes with a prefill and a decode client each. Prompt on p-0 until 3,000, its KV (10,000 bytes, a byte a ns)
    at d-0 at 13,000. The node goes down at 13,500 and is back at 17,500; both clients are ready at 18,500. The retry
    goes through p-1 from 13,500 to 15,500, and to d-1 at 25,500, since routers take the clients in turn."""
    def half(role: str) -> dict[str, Any]:
        own = failing(*([{"kind": "node", "at": s(13500), "repair": s(4000), "notice": s(1000)}] if role == "prefill"
                        else []), up=1000)
        return client(own, name=role[0], role=role, platform="n{i}")

    found = Run([half("prefill"), half("decode")], [ask(1000, 10, 3)], mode,
                network={"kind": "link", "bandwidth": 1e9, "latency": 0.0})
    down = [(0, 13500, "down", "node down"), (1, 17500, "starting", "restart"), (1, 18500, "ready", "started")]
    assert found.members(0) == down
    assert found.members(2) == down
    assert found.members(1) == found.members(3) == []
    assert [row[5] for row in found.attempts] == ["failed", "completed"]
    assert found.moves[0][:6] == (0, 0, 2, 10000, 3000, 13000)
    assert found.moves[1][:6] == (0, 1, 3, 10000, 15500, 25500)


@each_mode
def test_a_replica_of_a_node_that_stays_down_is_replaced_elsewhere(mode: str) -> None:
    """One of three slots. Its node goes down at 5,500 for 10,000; after 2,000 another replica starts in slot 1. Routers
    know at 5,500 + 1,000: a request of 6,400 fails, one of 6,500 waits in the gateway's queue. The update at 12,000
    takes slot 2, since slot 0 is without a node; a second one at 18,000 takes slot 0."""
    node = {"kind": "node", "at": s(5500), "repair": s(10000), "notice": s(1000), "evict": s(2000)}
    own = failing(node, start=1, up=1000)
    own["updates"] = [{"at": s(at), "surge": 1, "unavailable": 0} for at in (12000, 18000)]
    found = Run([client(own, count=3)], [ask(6400, 1, 1), ask(6500, 1, 1), ask(30000, 1, 1)], mode,
                gateway={"retries": 0, "queue": {"ttl": 1.0}})
    assert found.members(0)[:3] == [(0, 5500, "down", "node down"), (0, 7500, "gone", "evicted"),
                                    (1, 18000, "starting", "update")]
    assert found.members(1)[:2] == [(0, 7500, "starting", "evicted"), (0, 8500, "ready", "started")]
    assert found.members(2)[:1] == [(0, 12000, "starting", "update")]
    assert found.reasons == {0: "failed: llm-0 cannot be reached"}
    assert found.attempts[1][:4] == (1, 1, 1, 8500)


# -- random times ------------------------------------------------------------------------------------------------------


def test_a_clock_counts_the_time_of_all_devices_while_they_are_held() -> None:
    """Two devices, a failure after 500 of device time. Held from 0 to 100 (200), and from 300 on: at 450. Then each
    250."""
    env, strikes = Clock(), []
    clock = FailureClock(env, 2, lambda: 500.0, lambda: strikes.append(env._now), lambda: env._now < 1000)
    clock.hold(True)
    env.tick_at(100, 0, lambda tick: clock.hold(False))
    env.tick_at(300, 0, lambda tick: clock.hold(True))
    env.drain()
    assert strikes == [450, 700, 950]


@pytest.mark.parametrize(("shape", "deviation"), [(1.0, 1.0), (0.7, 1.4624), (2.0, 0.5227)])
def test_means_and_deviations_are_those_of_the_distribution(shape: float, deviation: float) -> None:
    """Deviation over mean of a Weibull distribution: sqrt(gamma(1 + 2/k) / gamma(1 + 1/k)^2 - 1). Within 4 standard
    errors of 20,000 draws."""
    drawn, rng = Every(mean=50.0, shape=shape), np.random.default_rng(1)
    times = np.array([drawn.draw_ns(rng) for _ in range(20000)]) / S
    assert times.mean() == pytest.approx(50, abs=4 * 50 * deviation / 20000**0.5)
    assert times.std() / times.mean() == pytest.approx(deviation, rel=0.05)


def test_another_client_and_another_kind_change_no_times() -> None:
    """The same crashes of llm-0 and llm-1 with and without llm-2, and with hangs as well that nothing notices."""
    def crashes(count: int, *more: dict[str, Any], seed: int = 1) -> list[tuple[int, int]]:
        own = failing({"kind": "crash", "every": {"mean": s(20000)}}, *more, start=count, up=0)
        asks = [ask(1000 * n, 1, 1) for n in range(100)]
        found = Run([client(own, count=count)], asks, seed=seed, gateway={"retries": 20})
        return sorted((index, time) for index in (0, 1) for _, time, state, _ in found.members(index)
                      if state == "down" and time < 90000)

    alone = crashes(2)
    assert len(alone) > 4
    assert alone == crashes(3) == crashes(2, {"kind": "hang", "every": {"mean": s(9000)}, "lasts": 1e-9})
    assert alone == crashes(2)
    assert alone != crashes(2, seed=2)


def test_a_month_is_as_available_as_the_closed_form_says() -> None:
    """Eight replicas for 720 h, a crash each 10 h, and an hour to start again, which a crash begins anew. With rate r
    and start s a start takes (exp(r s) - 1) / r on average, so a replica is ready for exp(-r s) = 0.9048 of the time.
    Some 576 crashes: a standard deviation of about 0.004; the limit is three of them. Requests come at both ends."""
    own = {"start": 8, "start_up": {"total": "1 h"}, "restarts": {"backoff": 0},
           "failures": [{"kind": "crash", "every": {"mean": "10 h"}}]}
    asks = [ask(hour * 3600 * S, 1, 1) | {"requests": 1} for hour in (0, 720)]
    found = Run([client(own, count=8)], asks, gateway={"retries": 20})
    group = found.results.summary["fleet"]["llm"]
    assert group["ready_mean"] / 8 == pytest.approx(np.exp(-0.1), abs=0.012)
    assert group["crashed"] == pytest.approx(576, abs=3 * 24)


# -- refusals ----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(("failure", "said"), [
    ({"kind": "crash"}, r"failures\.0.*at: give one of `at` and `every`"),
    ({"kind": "crash", "at": 1, "every": {"mean": 5}}, r"failures\.0.*at: give one of `at` and `every`"),
    ({"kind": "crash", "at": 1, "replica": 2}, r"failures\.0\.replica: expected a slot below 2"),
    ({"kind": "hang", "at": 1}, r"fleet\.failures.*needs `fleet\.liveness`.*give it, or `lasts`"),
])
def test_what_is_refused(failure: dict[str, Any], said: str) -> None:
    data = {"clients": [client(failing(failure))], "workload": [ask(0)]}
    with pytest.raises(InputError, match=said):
        build(load_scenario(data))


def test_a_node_with_a_client_that_stays_is_refused() -> None:
    own = failing({"kind": "node", "at": 1, "repair": 5})
    data = {"clients": [client(own, name="a", platform="n{i}"), client(name="b", count=1, platform="n1")],
            "workload": [ask(0)]}
    with pytest.raises(InputError, match=r"clients\.0\.fleet\.failures\.0: b is on platform 'n1', too, and cannot go "):
        build(load_scenario(data))


def test_a_service_does_not_hang() -> None:
    own = {"start": 1, "start_up": {"total": 1}, "failures": [{"kind": "straggler", "at": 1, "factor": 2}]}
    service = {"kind": "processing", "name": "cores", "cores": 1, "fleet": own,
               "serves": {"tokenize": {"kind": "per_item", "per_item": 1}}}
    data = {"clients": [client(), service], "workload": [ask(0)]}
    with pytest.raises(InputError, match=r"failures\.0\.kind: `straggler` happens within LLM engines"):
        build(load_scenario(data))
